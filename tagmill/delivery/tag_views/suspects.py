"""Find, on key columns alone, the persistence_ids that the rules must judge one by one; all others are
continuous.

A persistence_id is clean if three things are true. Within each staged file (file_summaries.py) and from file
to file its numbers go up by one, and sequence_nr, time and file position with them. Its first number follows
progress (or is 1). Every row has an event and a sound offset.

Only the files' summaries are compared here: a persistence_id with a million rows is never the work of one
task.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tagmill.cassandra.client import Cassandra
from tagmill.ledger.progress import ProgressStore
from tagmill.spark.cassandra_table import CassandraTable
from tagmill.spark.columns import offset_ticks

KEY = ("tag", "persistence_id")
# Columns that `with_progress` adds.
KNOWN = {
    "known_number": "bigint",
    "known_sequence_nr": "bigint",
    "known_offset": "string",
    "known_missing": "string",
    "known_written": "bigint",
    "known_ticks": "bigint",
    "known_life_from": "bigint",
}
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


def with_progress(rows: DataFrame, cassandra: Cassandra, pipeline: str, *, none_yet: bool) -> DataFrame:
    """Look up progress and add it, as the columns of KNOWN.

    In: distinct (tag, persistence_id) and other columns. Out: all null without progress, but known_life_from is 0;
    known_written is the write time.
    """
    if none_yet:
        nothing = {name: F.lit(None).cast(kind) for name, kind in KNOWN.items()}
        return rows.withColumns(nothing | {"known_life_from": F.lit(0).cast("bigint")})
    known = CassandraTable.of_ledger(cassandra, "progress").rows_of(
        rows.withColumn("pipeline", F.lit(pipeline)),
        ["pipeline", *KEY],
        left=True,
        known_number="tag_pid_sequence_nr",
        known_sequence_nr="sequence_nr",
        known_offset="offset",
        known_missing="missing",
        known_written="writetime(tag_pid_sequence_nr)",
    )
    ticks = F.coalesce(offset_ticks(F.col("known_offset")), F.lit(0))
    with_ticks = known.drop("pipeline").withColumn("known_ticks", ticks)
    lives = ProgressStore(cassandra, cassandra.settings.ledger_keyspace).lives(pipeline)
    later = rows.sparkSession.createDataFrame(
        [(*key, life_from) for key, life_from in lives.items()],
        "tag string, persistence_id string, life_from bigint",
    )
    with_lives = with_ticks.join(F.broadcast(later), list(KEY), "left") if lives else with_ticks
    life_from = F.coalesce("life_from", F.lit(0)) if lives else F.lit(0)
    return with_lives.withColumn("known_life_from", life_from.cast("bigint")).drop("life_from")


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
    settled = F.col("tag_pid_sequence_nr") > F.greatest(last_missing, F.lit(0))
    return _of_earlier_life() | (_is_passed() & settled)


def was_delivered() -> Column:
    """Return, over key rows with progress, whether a row was delivered, also in front of an interval that never was."""
    number = F.col("tag_pid_sequence_nr")
    intervals = F.filter(F.split(F.coalesce("known_missing", F.lit("")), ","), lambda part: part != "")
    is_missing = F.exists(
        intervals,
        lambda part: number.between(
            F.substring_index(part, "-", 1).cast("bigint"), F.substring_index(part, "-", -1).cast("bigint")
        ),
    )
    return _of_earlier_life() | (_is_passed() & (number >= 1) & ~is_missing)


def _of_earlier_life() -> Column:
    """Return, over key rows with progress, whether a row is of a life before the one of progress."""
    return (F.col("known_life_from") > 0) & (F.col("event_time") < F.col("known_life_from"))


def _is_passed() -> Column:
    """Return, over key rows with progress, whether progress has passed a row that is not in doubt."""
    return (
        F.col("known_number").isNotNull()
        & (F.col("tag_pid_sequence_nr") <= F.col("known_number"))
        & (F.col("sequence_nr") <= F.col("known_sequence_nr"))
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
        & ~_of_earlier_life()
    )
    return F.coalesce(doubt, F.lit(False))
