"""Find, on key columns alone, the persistence_ids that the rules must judge one by one; all others are
continuous.

A persistence_id is clean if three things are true. Within each staged file (file_summaries.py) and from file
to file its numbers go up by one, and sequence_nr, time and file position with them. Its first number follows
progress (or is 1). Every row has an event and a sound offset.

Only the files' summaries are compared here: a persistence_id with a million rows is never the work of one
task.
"""

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from tagmill.domain import identifiers
from tagmill.spark.columns import offset_ticks
from tagmill.spark.connector import table

KEY = ("tag", "persistence_id")
KEY_COLUMNS = (
    "unit",
    "tag",
    "persistence_id",
    "tag_pid_sequence_nr",
    "sequence_nr",
    "event_time",
    "offset",
    "timebucket",
    "writer_uuid",
    "event_missing",
    "offset_broken",
    "size",
)


def keys_of(staged: DataFrame, new_units: list[int]) -> DataFrame:
    """Return the key columns of the staged files.

    Out: one row per tag row: `file`, `row_index`, `is_new`, KEY_COLUMNS. Key (file, row_index).
    """
    return staged.select(
        F.col("_metadata.file_name").alias("file"),
        F.col("_metadata.row_index").alias("row_index"),
        F.col("unit").isin(new_units).alias("is_new") if new_units else F.lit(False).alias("is_new"),
        *KEY_COLUMNS,
    )


def run_summaries(files: DataFrame) -> DataFrame:
    """Combine the summaries of new files (file_summaries.summary) into one row per persistence_id, over all files
    of the run.

    Out: tag, persistence_id, low, low_sequence_nr, low_ticks, high, rows, sound.
    """
    order = Window.partitionBy(*KEY).orderBy("low", "unit", "file")
    previous = F.lag(F.struct("high", "high_sequence_nr", "high_ticks", "unit", "file")).over(order)
    rows = files.withColumn("before", previous)
    follows = F.col("before").isNull() | (
        (F.col("low") == F.col("before.high") + 1)
        & (F.col("low_sequence_nr") > F.col("before.high_sequence_nr"))
        & (F.col("low_ticks") >= F.col("before.high_ticks"))
        & (
            (F.col("unit") > F.col("before.unit"))
            | ((F.col("unit") == F.col("before.unit")) & (F.col("file") > F.col("before.file")))
        )
    )
    return rows.groupBy(*KEY).agg(
        F.min("low").alias("low"),
        F.min("low_sequence_nr").alias("low_sequence_nr"),
        F.min("low_ticks").alias("low_ticks"),
        F.max("high").alias("high"),
        F.sum("rows").alias("rows"),
        F.bool_and(F.col("sound") & follows).alias("sound"),
    )


def with_progress(rows: DataFrame, ledger_keyspace: str, pipeline: str, *, none_yet: bool) -> DataFrame:
    """Add progress by direct join: known_number, known_sequence_nr, known_ticks, known_offset, known_missing,
    known_written.

    In: distinct (tag, persistence_id) and other columns. Out: all null without progress; known_written is the
    write time.
    """
    if none_yet:
        nothing = {
            "known_number": "bigint",
            "known_sequence_nr": "bigint",
            "known_offset": "string",
            "known_missing": "string",
        }
        nothing["known_written"] = "bigint"
        return rows.select(
            "*", *(F.lit(None).cast(kind).alias(name) for name, kind in nothing.items()), _no_ticks()
        )
    spark = SparkSession.getActiveSession()
    assert spark is not None  # noqa: S101 - there is a frame, so there is a session
    known = table(spark, identifiers.identifier(ledger_keyspace), "progress", directJoinSetting="on").select(
        "pipeline",
        *KEY,
        F.col("tag_pid_sequence_nr").alias("known_number"),
        F.col("sequence_nr").alias("known_sequence_nr"),
        F.col("offset").alias("known_offset"),
        F.col("missing").alias("known_missing"),
        F.expr("writetime(tag_pid_sequence_nr)").alias("known_written"),
    )
    # With a constant Spark would filter and read the whole table, so this expression hides that it is
    # constant.
    of_pipeline = F.concat(F.lit(pipeline), F.substring("tag", 1, 0))
    joined = rows.withColumn("pipeline", of_pipeline).join(known, ["pipeline", *KEY], "left").drop("pipeline")
    return joined.withColumn("known_ticks", F.coalesce(offset_ticks(F.col("known_offset")), F.lit(0)))


def is_clean(written_to: int) -> Column:
    """Return, over run_summaries with progress, whether a persistence_id is sound and goes on where progress
    ends.

    Progress must not be written later than `written_to`; without progress the first number has to be 1.
    """
    known = F.col("known_number").isNotNull()
    goes_on = (
        (F.col("low") == F.col("known_number") + 1)
        & (F.col("low_sequence_nr") > F.col("known_sequence_nr"))
        & (F.col("low_ticks") >= F.col("known_ticks"))
        & (F.col("known_written") <= written_to)
    )
    return F.col("sound") & F.when(known, goes_on).otherwise(F.col("low") == 1)


def is_delivered() -> Column:
    """Return, over key rows with progress, whether nothing of a row is left to do.

    A number in or below an interval that was never delivered is left to the rules.
    """
    last_missing = F.coalesce(F.substring_index("known_missing", "-", -1).cast("bigint"), F.lit(0))
    return (
        F.col("known_number").isNotNull()
        & (F.col("tag_pid_sequence_nr") <= F.col("known_number"))
        & (F.col("sequence_nr") <= F.col("known_sequence_nr"))
        & (F.col("tag_pid_sequence_nr") > F.greatest(last_missing, F.lit(0)))
        & ~is_in_doubt()
    )


def is_in_doubt() -> Column:
    """Return, over key rows with progress, what tagmill.domain.continuity.lives.is_in_doubt says of a row."""
    number = F.col("tag_pid_sequence_nr")
    in_place = (number == F.col("known_number")) & (F.col("offset") != F.col("known_offset"))
    doubt = (
        (number <= F.col("known_number"))
        & (F.col("known_ticks") > 0)
        & ((F.col("event_time") > F.col("known_ticks")) | in_place)
    )
    return F.coalesce(doubt, F.lit(False))


def _no_ticks() -> Column:
    return F.lit(None).cast("bigint").alias("known_ticks")
