"""The rows of a baseline, below its folder: read them, and write those of the next one."""

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tagmill.audit import baseline
from tagmill.audit.baseline import Baseline
from tagmill.audit.staging import ID
from tagmill.audit.totals import Totals
from tagmill.domain.time_buckets import first_ticks
from tagmill.runs.storage import RunFiles

FIGURES = ("journal", "view", "clickhouse", "deleted", "pending", "cleaned")
# partitions: of the view, with their newest write (microseconds). places: of the persistence ids, the first event and
# the last of those that are covered, and the newest write to them. numbers: the last number of each tag, and what
# ClickHouse has. stored: what it has in each bucket. lines: the figures of model.Line.
FRAMES = {
    "partitions": "tag string, timebucket bigint, rows bigint, bytes bigint, written bigint",
    "places": f"{ID} string, first bigint, upto bigint, partition_nr bigint, written bigint",
    "numbers": f"tag string, {ID} string, number bigint, rows bigint, numbers bigint, events bigint, last bigint",
    "stored": "tag string, bucket bigint, rows bigint, row_sum bigint",
    "lines": f"tag string, bucket bigint, {', '.join(f'{name} bigint' for name in FIGURES)}",
}


@dataclass(frozen=True, slots=True)
class Proven:
    """A baseline with its frames (FRAMES)."""

    document: Baseline
    frames: Mapping[str, DataFrame]


@dataclass(frozen=True, slots=True)
class Seen:
    """What an audit has read, from which the next baseline is made: `kept`, those of FRAMES that go on.

    `totals`: of what was staged; `lines`: as report.Judged has them, without what is kept; `sums`: destination_reader.SUMS; `ids`:
    destination_reader.IDS.
    """

    kept: Mapping[str, DataFrame]
    totals: Totals
    lines: DataFrame
    sums: DataFrame
    ids: DataFrame


def nothing(spark: SparkSession) -> dict[str, DataFrame]:
    """Return the frames of a baseline that covers nothing."""
    return {name: spark.createDataFrame([], schema) for name, schema in FRAMES.items()}


def read(files: RunFiles, spark: SparkSession, pipeline: str, document: Baseline) -> Proven:
    """Return a baseline with its frames."""
    url = files.url(baseline.folder(pipeline, document.audit))
    frames = {name: spark.read.schema(schema).parquet(f"{url}/{name}") for name, schema in FRAMES.items()}
    return Proven(document, frames)


def write(files: RunFiles, pipeline: str, document: Baseline, seen: Seen, recent: DataFrame) -> None:
    """Write the baseline in place of others, unless it can't cover all rows before its border.

    An event before the border may be behind one that is not: of a writer whose clock was set back. `recent`:
    destination_reader.IDS of the rows from the border on.
    """
    folder = baseline.folder(pipeline, document.audit)
    files.remove_folder(folder)
    url = files.url(folder)
    _places(seen).write.parquet(f"{url}/places")
    if files.largest(f"{folder}/places", "is_behind"):
        files.remove_folder(folder)
        return
    for name, frame in _frames(seen, recent, document.before).items():
        frame.write.parquet(f"{url}/{name}")
    rows = {name: files.count_rows(f"{folder}/{name}") for name in FRAMES}
    whole = document.model_copy(update={"rows": rows})
    files.write(f"{folder}/{baseline.DOCUMENT}", whole.model_dump_json(indent=1).encode())
    baseline.forget(files, pipeline, but=document.audit)


def _frames(seen: Seen, recent: DataFrame, before: int) -> dict[str, DataFrame]:
    """Return the frames but for the places, of the rows before the border."""
    kept, totals = seen.kept, seen.totals
    partitions = totals.partitions.where(F.col("timebucket") < before // first_ticks(1))
    in_view = totals.numbers.where("covered IS NOT NULL").select("tag", ID, F.col("covered").alias("number"))
    counted = (F.coalesce(name, F.lit(0)).alias(name) for name in ("rows", "numbers", "events", "last"))
    numbers = (
        _without(seen.ids, recent)
        .join(in_view, ["tag", ID], "full")
        .select(
            "tag",
            ID,
            F.greatest(F.coalesce("number", F.lit(0)), F.coalesce("last", F.lit(0))).alias("number"),
            *counted,
        )
    )
    sums = [F.sum(name).alias(name) for name in ("rows", "numbers", "events")]
    in_time = F.col("bucket") < before // first_ticks(1)
    return {
        "partitions": kept["partitions"].unionByName(
            partitions.select("tag", "timebucket", "rows", "bytes", "written")
        ),
        "numbers": kept["numbers"]
        .unionByName(numbers)
        .groupBy("tag", ID)
        .agg(F.max("number").alias("number"), *sums, F.max("last").alias("last")),
        "stored": kept["stored"].unionByName(
            seen.sums.where(in_time).select("tag", "bucket", "rows", "row_sum")
        ),
        "lines": kept["lines"].unionByName(seen.lines.where(in_time).select("tag", "bucket", *FIGURES)),
    }


def _without(ids: DataFrame, recent: DataFrame) -> DataFrame:
    """Return tag, persistence_id, rows, numbers, events and last of what ClickHouse has, without its recent rows.

    Numbers go on one by one, so the last one is that in front of the first recent one.
    """
    counts = ("rows", "numbers", "events")
    then = recent.select(
        "tag", ID, F.col("first").alias("recent"), *(F.col(name).alias(f"recent_{name}") for name in counts)
    )
    left = ((F.col(name) - F.coalesce(f"recent_{name}", F.lit(0))).alias(name) for name in counts)
    last = F.coalesce(F.col("recent") - 1, "last").alias("last")
    return ids.join(then, ["tag", ID], "left").select("tag", ID, *left, last).where("rows > 0")


def _places(seen: Seen) -> DataFrame:
    """Return the place of each persistence_id (FRAMES), and `is_behind`: an event before the border is behind its place."""
    new = seen.totals.ids.select(
        ID,
        F.col("lowest").alias("new_first"),
        F.coalesce(F.col("next") - 1, "highest").alias("new_upto"),
        F.col("covered").alias("events"),
        F.col("partition_nr").alias("new_partition_nr"),
        F.col("written").alias("new_written"),
    )
    has_new = F.coalesce(F.col("events"), F.lit(0)) > 0
    joined = seen.kept["places"].join(new, ID, "full")
    return joined.where(F.col("upto").isNotNull() | has_new).select(
        ID,
        F.coalesce("first", "new_first").alias("first"),
        F.when(has_new, F.col("new_upto")).otherwise(F.col("upto")).alias("upto"),
        F.when(has_new, F.col("new_partition_nr")).otherwise(F.col("partition_nr")).alias("partition_nr"),
        F.when(has_new, F.greatest(F.coalesce("written", F.lit(0)), "new_written"))
        .otherwise(F.col("written"))
        .alias("written"),
        (has_new & (F.col("events") != F.col("new_upto") - F.col("new_first") + 1)).alias("is_behind"),
    )
