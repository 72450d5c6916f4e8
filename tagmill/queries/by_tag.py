"""Read events by tag from tag_views, bucket by bucket in Cassandra's own order, so that no sort is needed."""

from collections.abc import Sequence
from dataclasses import dataclass
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

NUMBER = "tag_pid_sequence_nr"
KEY = (ID, "sequence_nr", NUMBER, "timebucket", "offset")
COLUMNS = ("tag", ID, "sequence_nr", NUMBER, "offset", "event_time", "timebucket", *PAYLOAD)
# Buckets that one query reads, and queries of one task; fewer if otherwise some cores would be idle.
BUCKETS_AT_ONCE, QUERIES_PER_TASK = 64, 16


@dataclass(frozen=True, slots=True)
class Span:
    """The part of a tag's events to read: behind the offset `after` (exclusive), up to the tick `until`
    (inclusive).
    """

    tag: str
    size: BucketSize
    after: UUID
    until: int


def events(
    spark: SparkSession, journal: JournalSchema, span: Span, columns: Sequence[str] = COLUMNS
) -> DataFrame:
    """Return the events of a span with these columns, up to BUCKETS_AT_ONCE buckets by one query.

    Out: one row an event. Key (persistence_id, tag_pid_sequence_nr). In order of timebucket, offset,
    persistence_id and number: that is the order of the offsets, unless a row is outside its bucket.
    """
    first, last = span.size.start(ticks(span.after)), span.size.start(span.until)
    step, cores = span.size.milliseconds, spark.sparkContext.defaultParallelism
    buckets = (last - first) // step + 1
    at_once = max(1, min(BUCKETS_AT_ONCE, buckets // (4 * cores)))
    count = -(-buckets // at_once)
    tasks = min(count, max(4 * cores, -(-count // QUERIES_PER_TASK)))
    until = F.least(F.col("id") + (at_once - 1) * step, F.lit(last))
    # Cassandra reads the buckets of a query one after the other, in their order.
    queries = spark.range(first, last + 1, at_once * step, max(1, tasks)).select(
        F.lit(span.tag).alias("tag_name"),
        F.sequence("id", until, F.lit(step)).alias("timebuckets"),
        F.lit(str(span.after)).alias("after"),
        F.lit(str(highest(span.until))).alias("until"),
    )
    there = journal.tables[journal.view_table]
    rows = journal.table(journal.view_table).rows_of(
        queries,
        [],
        *(name for name in VIEW_COLUMNS if name in there and name in {"tag_name", "timestamp", *columns}),
        where={
            "tag_name =": "tag_name",
            "timebucket IN": "timebuckets",
            "timestamp >": "after",
            "timestamp <=": "until",
        },
    )
    return as_events(rows, there, columns, {"tag": "tag_name as tag"})


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


def refuse_gaps(keys: DataFrame, of: str, pipeline: str) -> int:
    """Raise EventsMissing where a persistence_id's numbers have a gap or come out of order; else return how
    many rows are duplicates.

    As for the plugin, the first number may be any. A number that comes behind higher ones and did not come
    before is an error here; the plugin drops it.

    In: KEY.
    """
    earlier = Window.partitionBy(ID).orderBy(*_place()).rowsBetween(Window.unboundedPreceding, -1)
    judged = keys.withColumn("before", F.max(NUMBER).over(earlier)).withColumn("again", _nth() > 1)
    return gaps.refuse(
        judged.withColumnRenamed(NUMBER, "number"),
        NUMBER,
        of,
        f"to repair the view: tagmill repair --pipeline {pipeline}",
    )


def without_duplicates(events: DataFrame) -> DataFrame:
    """Keep the first row of each event and number, as the plugin delivers them, and sort the events again."""
    return in_order(events.withColumn("nth", _nth()).where("nth = 1").drop("nth"))


def _nth() -> Column:
    """Return a row's place among those with its event and number, counted from 1 in Cassandra's order."""
    return F.row_number().over(Window.partitionBy(ID, NUMBER, "sequence_nr").orderBy(*_place()))
