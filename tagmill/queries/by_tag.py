"""Events by tag: reads tag_views bucket by bucket, in Cassandra's own order, so that nothing has to be sorted."""

from dataclasses import dataclass
from functools import reduce
from uuid import UUID

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from tagmill.buckets import BucketSize
from tagmill.connector import table
from tagmill.delivery.scan import offset_ticks
from tagmill.queries import gaps
from tagmill.queries.columns import PAYLOAD, as_events
from tagmill.stores.views import VIEW_COLUMNS
from tagmill.timeuuid import highest, ticks
from tagmill.views.reading import BY_PARTITION
from tagmill.views.tables import ID, Journal

NUMBER = "tag_pid_sequence_nr"
COLUMNS = ("tag", ID, "sequence_nr", NUMBER, "offset", "event_time", "timebucket", *PAYLOAD)
# buckets that a task reads one after the other; fewer where there would be less work than cores
BUCKETS_PER_TASK = 256


@dataclass(frozen=True, slots=True)
class Span:
    """What is read of a tag: behind an offset, up to and with a tick."""

    tag: str
    size: BucketSize
    after: UUID
    until: int


def events(spark: SparkSession, journal: Journal, span: Span) -> DataFrame:
    """The rows of a span.

    Out: COLUMNS, one row an event. Key (persistence_id, tag_pid_sequence_nr). In order of timebucket, offset, persistence_id and number:
    that of the offsets, unless a row lies outside its bucket.
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


def _there(journal: Journal) -> list[str]:
    return [name for name in VIEW_COLUMNS if name in journal.tables[journal.view_table]]


def _slice(view: DataFrame, span: Span, timebucket: int) -> DataFrame:
    """The part of one bucket within the span: Cassandra compares TimeUUIDs by time, Spark would compare text."""
    return view.where(
        (F.col("tag_name") == span.tag)
        & (F.col("timebucket") == timebucket)
        & (F.col("timestamp") > F.lit(str(span.after)))
        & (F.col("timestamp") <= F.lit(str(highest(span.until))))
    )


def _between(spark: SparkSession, journal: Journal, span: Span, first: int, end: int) -> DataFrame:
    """Whole buckets from `first` to before `end`, each looked up by its key; one that isn't there costs a look-up."""
    view = table(spark, journal.keyspace, journal.view_table, directJoinSetting="on", **BY_PARTITION).select(*_there(journal))
    step = span.size.milliseconds
    count = (end - first) // step
    tasks = min(count, max(4 * spark.sparkContext.defaultParallelism, -(-count // BUCKETS_PER_TASK)))
    # a constant would leave the join as a filter, and the join would read the whole table: this one isn't known to be constant
    tag = F.concat(F.lit(span.tag), F.substring(F.col("id").cast("string"), 1, 0))
    keys = spark.range(first, end, step, tasks).select(tag.alias("tag_name"), F.col("id").alias("timebucket"))
    rows = keys.join(view, ["tag_name", "timebucket"]).select(*_there(journal))
    # rows outside their bucket
    at = offset_ticks(F.col("timestamp"))
    return rows.where((at > F.lit(ticks(span.after))) & (at <= F.lit(span.until)))


def _as_events(rows: DataFrame, journal: Journal) -> DataFrame:
    return as_events(rows, journal.tables[journal.view_table], COLUMNS, {"tag": "tag_name as tag"})


def in_order(events: DataFrame) -> DataFrame:
    """Events by tag sorted into the plugin's order: for what was joined, grouped or repartitioned."""
    return events.orderBy(*_place())


def _place() -> list[Column]:
    """Cassandra's order: of TimeUUIDs with one time by the remaining bytes, each signed."""
    rest = F.conv(F.concat(F.substring("offset", 20, 4), F.substring("offset", 25, 12)), 16, -10).cast("bigint")
    by_rest = rest.bitwiseXOR(F.lit(0x0080808080808080))
    return [F.col("timebucket"), offset_ticks(F.col("offset")), by_rest, F.col(ID), F.col(NUMBER)]


def refuse_gaps(events: DataFrame, of: str, pipeline: str) -> int:
    """Raise EventsMissing where a persistence_id's numbers have a gap or come out of order; else how many rows are duplicates.

    As for the plugin, the first number may be any. Where it drops a number that comes behind higher ones and was not there before, this
    refuses.
    """
    earlier = Window.partitionBy(ID).orderBy(*_place()).rowsBetween(Window.unboundedPreceding, -1)
    keys = events.select(ID, "sequence_nr", NUMBER, "timebucket", "offset")
    judged = keys.withColumn("before", F.max(NUMBER).over(earlier)).withColumn("again", _nth() > 1)
    return gaps.refuse(
        judged.withColumnRenamed(NUMBER, "number"), NUMBER, of, f"to mend the view: tagmill audit --repair --pipeline {pipeline}"
    )


def without_duplicates(events: DataFrame) -> DataFrame:
    """One row an event and number, the first one, as the plugin delivers them; sorted again."""
    return in_order(events.withColumn("nth", _nth()).where("nth = 1").drop("nth"))


def _nth() -> Column:
    """How many rows have this event and number so far."""
    return F.row_number().over(Window.partitionBy(ID, NUMBER, "sequence_nr").orderBy(*_place()))
