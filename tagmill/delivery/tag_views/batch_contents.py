"""Describe the files of a run: totals of staged files, which of them become batches unchanged, and the rows
that go into new ones.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from tagmill.delivery.arrow_checksum import row_checksums
from tagmill.delivery.tag_views.file_summaries import FileTotal
from tagmill.delivery.tag_views.model import Plan
from tagmill.delivery.tag_views.suspects import KEY
from tagmill.delivery.tag_views.working_rows import WorkingRows, counts
from tagmill.domain.batches.layout import COLUMNS, NAMES
from tagmill.domain.time_buckets import month
from tagmill.runs.storage import RunFiles
from tagmill.spark.arrow_chunks import in_python
from tagmill.spark.columns import number_by

# First stream number of judged rows, which have one stream per tag; lower numbers are streams of staged
# files.
JUDGED_STREAMS = 1_000_000
PAYLOAD_OF = (*NAMES, "row_checksum")


@dataclass(frozen=True, slots=True)
class CutTotal:
    """The totals of a rewritten file; `order` places it among the batches of its tag."""

    order: tuple[int, int, str, int]
    stream: int
    cut: int
    tag: str
    file: str
    rows: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Contents:
    """All files of a run, and the places of rows in the rewritten ones."""

    totals: list[FileTotal]
    as_they_are: list[FileTotal]
    cuts: list[CutTotal]
    places: WorkingRows | None
    staged_folder: str


def fit(totals: list[FileTotal], max_bytes: int) -> list[FileTotal]:
    """Return the new staged files that are small enough for a batch and lie in one month, which is one
    ClickHouse partition.

    A file with a single row counts as small enough, whatever its size.
    """
    return [
        total
        for total in totals
        if total.is_new
        and (total.size <= max_bytes or total.rows == 1)
        and _one_month(total.first_ticks, total.last_ticks)
    ]


def touched_files(new_files: DataFrame, excluded: DataFrame) -> set[str]:
    """Return the names of new staged files that have rows of excluded keys."""
    rows = new_files.select("file", *KEY).join(excluded, list(KEY), "left_semi")
    return {row.file for row in rows.select("file").distinct().collect()}


def rows_to_recut(
    keys: DataFrame,
    anew: list[FileTotal],
    excluded: DataFrame | None,
    deliveries: DataFrame | None,
    plan: Plan,
) -> DataFrame | None:
    """Return the rows that go into new files, as recut.placed takes them, or None if there are none.

    These are the rows that stay of the files to rewrite, in file order, and the judged rows to deliver, in
    the rules' order.
    """
    columns = (
        "stream",
        "file",
        "row_index",
        "late",
        "ticks",
        "size",
        "order_ticks",
        "persistence_id",
        "tag_pid_sequence_nr",
    )
    rows: DataFrame | None = None
    if anew:
        streams = {total.file: i for i, total in enumerate(anew)}
        stay = keys.where(F.col("file").isin(list(streams)))
        if excluded is not None:
            stay = stay.join(excluded, list(KEY), "left_anti")
        rows = stay.select(
            number_by("file", streams).cast("int").alias("stream"),
            "file",
            "row_index",
            F.lit(0).alias("late"),
            F.col("event_time").alias("ticks"),
            "size",
            F.col("row_index").alias("order_ticks"),
            "persistence_id",
            "tag_pid_sequence_nr",
        )
    if deliveries is not None:
        stream = number_by("tag", {tag: JUDGED_STREAMS + i for i, tag in enumerate(sorted(plan.tags))})
        late = (F.col("action") == "late").cast("int")
        judged = deliveries.withColumn("stream", stream.cast("int")).withColumn("late", late).select(*columns)
        rows = judged if rows is None else rows.unionByName(judged)
    return rows


def payload(staged: DataFrame, places: WorkingRows, backfilled: DataFrame | None) -> DataFrame:
    """Return all columns of the rows in `places`: rows of staged files, and events that come from the
    journal (`backfilled`, with `file` and `row_index`).
    """
    files = [file for (file,) in counts(places, ["file"])]
    rows = staged.select(
        F.col("_metadata.file_name").alias("file"),
        F.col("_metadata.row_index").alias("row_index"),
        *PAYLOAD_OF,
    )
    rows = rows.where(F.col("file").isin(files))
    if backfilled is not None:
        rows = rows.unionByName(backfilled.select("file", "row_index", *PAYLOAD_OF))
    return _relabelled(rows, places.frame)


def _relabelled(rows: DataFrame, places: DataFrame) -> DataFrame:
    """Set `late` on the rows that were judged late, and compute the checksums again."""
    late = places.where("late = 1").select("file", "row_index", F.col("late").alias("now_late"))
    marked = (
        rows.join(late, ["file", "row_index"], "left")
        .withColumn("late", F.coalesce("now_late", "late"))
        .drop("now_late", "row_checksum")
    )
    schema = StructType([*marked.schema, StructField("row_checksum", LongType())])
    return in_python(marked, _with_checksums, schema)


def _with_checksums(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows with `row_checksum` behind their columns."""
    for rows in batches:
        checksums = pa.array(row_checksums(rows, COLUMNS).view(np.int64))
        yield pa.RecordBatch.from_arrays(
            [*rows.columns, checksums], names=[*rows.schema.names, "row_checksum"]
        )


def recut_totals(
    spark: SparkSession, files: RunFiles, folder: str, anew: list[FileTotal], plan: Plan
) -> list[CutTotal]:
    """Return the totals of each rewritten file below `folder`."""
    name = F.concat_ws(
        "/", F.lit(folder), F.format_string("stream=%d/cut=%d", "stream", "cut"), F.col("_metadata.file_name")
    )
    written = spark.read.schema("stream int, cut int, tag string, row_checksum bigint")
    rows = written.parquet(files.url(folder)).select(
        "stream", "cut", "tag", name.alias("file"), "row_checksum"
    )
    found = rows.groupBy("stream", "cut", "tag", "file").agg(
        F.count(F.lit(1)).alias("rows"), F.sum("row_checksum").alias("checksum")
    )
    return [CutTotal(order=order(row.stream, row.cut, anew), **row.asDict()) for row in found.collect()]


def order(stream: int, cut: int, anew: Sequence[FileTotal]) -> tuple[int, int, str, int]:
    """Return the sort key of a rewritten file among its tag's batches: the place of its staged file, or last
    for judged rows.

    A unit may have several files.
    """
    return (1, 0, "", cut) if stream >= JUDGED_STREAMS else (0, anew[stream].unit, anew[stream].file, cut)


def for_gate(keys: DataFrame, plan: Plan, waiting: DataFrame | None) -> DataFrame:
    """Return one row per key row, with the columns that the quality gate judges.

    A row gets the smaller of two remaining TTLs that the plan saw: the smallest in its new unit, and that of
    its tag's earliest held row. The held row counts even if it is not read. Rows of `waiting` (tag,
    persistence_id: open holds) were judged before: their keys and buckets are not judged again.
    """
    if waiting is None:
        keys = keys.withColumn("waits", F.lit(False))
    else:
        known = F.broadcast(waiting.withColumn("waits", F.lit(True)))
        keys = keys.join(known, list(KEY), "left").withColumn("waits", F.coalesce("waits", F.lit(False)))
    ttls = {
        unit.number: min(part.ttl_seconds for part in unit.slices if part.ttl_seconds is not None)
        for unit in plan.units
        if unit.kind == "new" and any(part.ttl_seconds is not None for part in unit.slices)
    }
    ttl = F.least(number_by("unit", ttls), number_by("tag", plan.held_ttl_seconds)).cast("int")
    bad_key = F.coalesce(
        (F.col("persistence_id") == "")
        | (F.col("tag") == "")
        | (F.col("tag_pid_sequence_nr") < 1)
        | (F.col("sequence_nr") < 1),
        F.lit(True),
    )
    return keys.select(
        "tag",
        "persistence_id",
        "tag_pid_sequence_nr",
        "sequence_nr",
        F.when(~F.col("offset_broken") & ~F.col("waits"), F.col("event_time")).alias("ticks"),
        F.when(F.col("waits"), F.lit(0)).otherwise(F.col("timebucket")).alias("timebucket"),
        (bad_key & ~F.col("waits")).alias("bad_key"),
        "event_missing",
        ttl.alias("ttl_seconds"),
        "file",
    )


def _one_month(first_ticks: int, last_ticks: int) -> bool:
    return month(max(first_ticks, 0)) == month(max(last_ticks, 0))
