"""Compute how far each persistence_id is delivered behind each batch of a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from tagmill.arrow import schema_of
from tagmill.delivery.tag_views import batch_contents, seal_outputs
from tagmill.delivery.tag_views.suspects import KEY
from tagmill.delivery.tag_views.working_rows import WorkingRows
from tagmill.runs.parquet_files import write_table
from tagmill.runs.storage import RunFiles

COLUMNS = (
    "tag string, persistence_id string, number bigint, sequence_nr bigint, offset string, "
    "missing string, batch int, last boolean"
)


def write_of_files(files: RunFiles, summaries: pa.Table, folder: str, numbers: Mapping[str, int]) -> None:
    """Write the progress (COLUMNS) of a run whose staged files all become batches as they are, without Spark.

    Args:
        files: of the run.
        summaries: those of its files (file_summaries.SUMMARY), few.
        folder: to write to.
        numbers: of the batches, by staged file.
    """
    names = {"high": "number", "high_sequence_nr": "sequence_nr", "high_offset": "offset"}
    steps = summaries.select([*KEY, *names, "file"]).to_pandas().rename(columns=names)
    steps["batch"] = steps.pop("file").map(numbers)
    steps = steps.sort_values([*KEY, "number", "batch"])
    steps["last"] = ~steps.duplicated(list(KEY), keep="last")
    steps["missing"] = ""
    rows = pa.Table.from_pandas(steps, schema_of(COLUMNS), preserve_index=False)
    write_table(files, f"{folder}/part-00000.parquet", rows)


@dataclass(frozen=True, slots=True)
class ProgressSteps:
    """What progress is computed from; the fields are those of a judgement (many_rows)."""

    files: RunFiles
    staged: DataFrame
    new_files: DataFrame
    decisions: WorkingRows | None
    excluded: DataFrame | None
    missing: DataFrame | None
    places: WorkingRows | None

    def write(self, folder: str, numbers: Mapping[str, int]) -> None:
        """Write the progress (COLUMNS) to a folder; `numbers`: of the batches, by staged file or 'stream/cut'."""
        self.frame(numbers).coalesce(4).write.mode("overwrite").parquet(self.files.url(folder))

    def frame(self, numbers: Mapping[str, int]) -> DataFrame:
        """Return one row per persistence_id and batch: its progress when the batch is delivered; `last` marks its
        final row in the run.

        Judged persistence_ids have only their final row: their batches are void all or none.
        """
        spark = self.staged.sparkSession
        batch_of = F.broadcast(
            spark.createDataFrame(list(numbers.items()) or [("", 0)], "source string, batch int")
        )
        frames = [self._steps().join(batch_of, "source").drop("source")]
        if self.decisions is not None:
            frames.append(self._judged(self.decisions.frame, batch_of))
        steps = reduce(DataFrame.unionByName, frames)
        behind = Window.partitionBy(*KEY).orderBy(F.desc("number"), F.desc("batch"))
        return steps.withColumn("last", F.row_number().over(behind) == 1).select(
            *[part.split(" ")[0] for part in COLUMNS.split(", ")]
        )

    def _steps(self) -> DataFrame:
        """Return the progress steps of clean rows: from the summaries of files that are batches, else from the
        rows' places.
        """
        known = self.new_files
        if self.excluded is not None:
            known = known.join(self.excluded, list(KEY), "left_anti")
        as_files = known.select(
            *KEY,
            F.col("high").alias("number"),
            F.col("high_sequence_nr").alias("sequence_nr"),
            F.col("high_offset").alias("offset"),
            F.col("file").alias("source"),
        )
        if self.places is None:
            return self._with_missing(as_files)
        rows = self.staged.select(
            F.col("_metadata.file_name").alias("file"),
            F.col("_metadata.row_index").alias("row_index"),
            *KEY,
            F.col("tag_pid_sequence_nr").alias("number"),
            "sequence_nr",
            "offset",
        )
        placed = self.places.frame.where(F.col("stream") < batch_contents.JUDGED_STREAMS).select(
            "file", "row_index", "stream", "cut"
        )
        cut = (
            rows.join(placed, ["file", "row_index"])
            .groupBy(*KEY, "stream", "cut")
            .agg(
                F.max("number").alias("number"),
                F.max("sequence_nr").alias("sequence_nr"),
                F.max_by("offset", "number").alias("offset"),
            )
        )
        source = F.format_string("%d/%d", "stream", "cut")
        steps = as_files.unionByName(
            cut.select(*KEY, "number", "sequence_nr", "offset", source.alias("source"))
        )
        return self._with_missing(steps)

    def _with_missing(self, steps: DataFrame) -> DataFrame:
        """Add `missing`: the numbers in progress that were never delivered, which a clean persistence_id leaves
        as they are.
        """
        if self.missing is None:
            return steps.withColumn("missing", F.lit(""))
        return steps.join(self.missing, list(KEY), "left").withColumn(
            "missing", F.coalesce("missing", F.lit(""))
        )

    def _judged(self, decisions: DataFrame, batch_of: DataFrame) -> DataFrame:
        final = decisions.where("kind = 'progress'").select(
            *KEY, F.col("tag_pid_sequence_nr").alias("number"), "sequence_nr", "offset", "missing"
        )
        if self.places is None:
            return final.withColumn("batch", F.lit(0))
        places = self.places.frame.where(F.col("stream") >= batch_contents.JUDGED_STREAMS)
        source = F.format_string("%d/%d", "stream", "cut")
        where = (
            seal_outputs.deliveries(decisions)
            .select(*KEY, "file", "row_index")
            .join(places, ["file", "row_index"])
            .select(*KEY, source.alias("source"))
        )
        last = where.join(batch_of, "source").groupBy(*KEY).agg(F.max("batch").alias("batch"))
        return final.join(last, list(KEY), "left").withColumn("batch", F.coalesce("batch", F.lit(0)))
