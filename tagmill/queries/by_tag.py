"""Read events by tag from tag_views, bucket by bucket in Cassandra's own order, so that no sort is needed."""

from dataclasses import dataclass
from functools import reduce
from uuid import UUID

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from tagmill.domain.time_buckets import BucketSize
from tagmill.domain.timeuuid import highest, ticks
from tagmill.journal.frames import ID, JournalSchema
from tagmill.journal.tag_view_reader import VIEW_COLUMNS
from tagmill.queries import gaps
from tagmill.queries.columns import PAYLOAD, as_events
from tagmill.spark.columns import offset_ticks
from tagmill.spark.connector import BY_PARTITION, table

NUMBER = "tag_pid_sequence_nr"
COLUMNS = ("tag", ID, "sequence_nr", NUMBER, "offset", "event_time", "timebucket", *PAYLOAD)
# Buckets that one task reads; fewer if otherwise some cores would be idle.
BUCKETS_PER_TASK = 256


@dataclass(frozen=True, slots=True)
class Span:
    """The part of a tag's events to read: behind the offset `after` (exclusive), up to the tick `until`
    (inclusive).
    """

    tag: str
    size: BucketSize
    after: UUID
    until: int


def events(spark: SparkSession, journal: JournalSchema, span: Span) -> DataFrame:
    """Return the rows of a span as events.

    Out: COLUMNS, one row an event. Key (persistence_id, tag_pid_sequence_nr). In order of timebucket, offset,
    persistence_id and number: that is the order of the offsets, unless a row is outside its bucket.
    """
    first, last = span.size.start(ticks(span.after)), span.size.start(span.until)
    view = table(spark, journal.keyspace, journal.view_table).select(*_there(journal))
    if ticks(span.after) > span.until:
        return _as_events(view.where(F.lit(False)), journal)
    parts = [_slice(view, span, first)]
    if last - first > span.size.milliseconds:
        parts.append(_between(spark, journal, span, first + span.size.milliseconds, last))
    if last > first:
        parts.append(_slice(view, span, last))
    return _as_events(reduce(DataFrame.unionAll, parts), journal)


def _there(journal: JournalSchema) -> list[str]:
    return [name for name in VIEW_COLUMNS if name in journal.tables[journal.view_table]]


def _slice(view: DataFrame, span: Span, timebucket: int) -> DataFrame:
    """Return the rows of one bucket within the span.

    Cassandra compares the TimeUUIDs by time; Spark would compare them as text.
    """
    return view.where(
        (F.col("tag_name") == span.tag)
        & (F.col("timebucket") == timebucket)
        & (F.col("timestamp") > F.lit(str(span.after)))
        & (F.col("timestamp") <= F.lit(str(highest(span.until))))
    )


def _between(spark: SparkSession, journal: JournalSchema, span: Span, first: int, end: int) -> DataFrame:
    """Return whole buckets from `first` to before `end`, each looked up by its key; an empty bucket costs one
    look-up.
    """
    view = table(spark, journal.keyspace, journal.view_table, directJoinSetting="on", **BY_PARTITION).select(
        *_there(journal)
    )
    step = span.size.milliseconds
    count = (end - first) // step
    tasks = min(count, max(4 * spark.sparkContext.defaultParallelism, -(-count // BUCKETS_PER_TASK)))
    # Spark turns a join on a constant into a filter and would then read the whole table. It can't see that
    # this column is constant.
    tag = F.concat(F.lit(span.tag), F.substring(F.col("id").cast("string"), 1, 0))
    keys = spark.range(first, end, step, tasks).select(tag.alias("tag_name"), F.col("id").alias("timebucket"))
    rows = keys.join(view, ["tag_name", "timebucket"]).select(*_there(journal))
    # A row outside its bucket may be outside the span, too.
    at = offset_ticks(F.col("timestamp"))
    return rows.where((at > F.lit(ticks(span.after))) & (at <= F.lit(span.until)))


def _as_events(rows: DataFrame, journal: JournalSchema) -> DataFrame:
    return as_events(rows, journal.tables[journal.view_table], COLUMNS, {"tag": "tag_name as tag"})


def in_order(events: DataFrame) -> DataFrame:
    """Sort events by tag into the plugin's order, which joins, groupBy and repartitioning lose."""
    return events.orderBy(*_place())


def _place() -> list[Column]:
    """Return the columns to sort by for Cassandra's order: TimeUUIDs with the same time by their remaining
    bytes, each signed.
    """
    rest = F.conv(F.concat(F.substring("offset", 20, 4), F.substring("offset", 25, 12)), 16, -10).cast(
        "bigint"
    )
    by_rest = rest.bitwiseXOR(F.lit(0x0080808080808080))
    return [F.col("timebucket"), offset_ticks(F.col("offset")), by_rest, F.col(ID), F.col(NUMBER)]


def refuse_gaps(events: DataFrame, of: str, pipeline: str) -> int:
    """Raise EventsMissing where a persistence_id's numbers have a gap or come out of order; else return how
    many rows are duplicates.

    As for the plugin, the first number may be any. A number that comes behind higher ones and did not come
    before is an error here; the plugin drops it.
    """
    earlier = Window.partitionBy(ID).orderBy(*_place()).rowsBetween(Window.unboundedPreceding, -1)
    keys = events.select(ID, "sequence_nr", NUMBER, "timebucket", "offset")
    judged = keys.withColumn("before", F.max(NUMBER).over(earlier)).withColumn("again", _nth() > 1)
    return gaps.refuse(
        judged.withColumnRenamed(NUMBER, "number"),
        NUMBER,
        of,
        f"to mend the view: tagmill audit --repair --pipeline {pipeline}",
    )


def without_duplicates(events: DataFrame) -> DataFrame:
    """Keep the first row of each event and number, as the plugin delivers them, and sort the events again."""
    return in_order(events.withColumn("nth", _nth()).where("nth = 1").drop("nth"))


def _nth() -> Column:
    """Return a row's place among those with its event and number, counted from 1 in Cassandra's order."""
    return F.row_number().over(Window.partitionBy(ID, NUMBER, "sequence_nr").orderBy(*_place()))
