"""Write rows for benchmarks with Spark, in partition order: 4 tags, 48 hours, 5000 persistence ids, 200 bytes
of payload.

The rows are those of tag_views as an application writes it, or of messages of an application with
events-by-tag off.
"""

from datetime import UTC, datetime

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.connector import CASSANDRA
from tagmill.cassandra.client import Cassandra
from tagmill.config.settings import Settings
from tagmill.domain.time_buckets import BucketSize
from tagmill.domain.timeuuid import GREGORIAN_TICKS, from_datetime
from tagmill.ledger.schema import create_journal

TAGS, HOURS, PERSISTENCE_IDS = 4, 48, 5000
# What comes since: persistence ids of each tag that have new events, and how many.
NEW_IDS, NEW_EVENTS = 500, 10
HOUR_TICKS = 36_000_000_000
FIRST_HOUR_MS = 1_767_225_600_000  # 2026-01-01T00:00Z
# In messages each event has two tags that rotate, and every tenth event of a persistence_id has none.
# PARTITION is the plugin's partition size in events.
UNTAGGED_EVERY, PARTITION = 10, 500_000
WRITE = {
    "spark.cassandra.output.batch.size.bytes": "32768",
    "spark.cassandra.output.concurrent.writes": "8",
    "spark.cassandra.output.consistency.level": "LOCAL_ONE",
}


def tag_rows(spark: SparkSession, rows: int) -> DataFrame:
    """Return tag_views rows: rows // TAGS per tag, spread evenly over the hours, with gapless numbers per tag
    and persistence_id.
    """
    per_tag = rows // TAGS
    step = HOURS * HOUR_TICKS // per_tag
    keys = spark.range(0, TAGS * HOURS, 1, TAGS * HOURS).select(
        (F.col("id") % TAGS).alias("t"), F.floor(F.col("id") / TAGS).alias("h")
    )
    low = F.ceil(F.col("h") * HOUR_TICKS / step)
    high = F.least(F.ceil((F.col("h") + 1) * HOUR_TICKS / step) - 1, F.lit(per_tag - 1))
    events = keys.select("t", "h", F.explode(F.sequence(low, high)).alias("k"))
    number = F.floor(F.col("k") / PERSISTENCE_IDS) + 1
    base = FIRST_HOUR_MS * 10_000
    return events.select(
        F.concat(F.lit("tag-"), F.col("t")).alias("tag_name"),
        (F.lit(FIRST_HOUR_MS) + F.col("h") * 3_600_000).alias("timebucket"),
        _time_uuid(F.lit(base) + F.col("k") * step, F.col("k")).alias("timestamp"),
        F.concat(F.lit("p-"), F.lpad((F.col("k") % PERSISTENCE_IDS).cast("string"), 6, "0")).alias(
            "persistence_id"
        ),
        number.alias("tag_pid_sequence_nr"),
        number.alias("sequence_nr"),
        _payload("k", "t").alias("event"),
        F.lit("").alias("event_manifest"),
        F.lit(20).alias("ser_id"),
        F.lit("").alias("ser_manifest"),
        F.lit("5b11713a-0000-4000-8000-00000000000b").alias("writer_uuid"),
    )


def messages(
    spark: SparkSession, persistence_ids: int, first: int, last: int, *, of: int, name: str = "p-"
) -> DataFrame:
    """Return messages rows: sequence_nrs `first` to `last` of each persistence_id.

    Their timestamps are spaced so that `of` sequence_nrs of each persistence_id fill the 48 hours.
    """
    step = HOURS * HOUR_TICKS // (persistence_ids * of)
    owners = spark.range(0, persistence_ids, 1, max(4, persistence_ids // 500)).withColumnRenamed(
        "id", "owner"
    )
    events = owners.select("owner", F.explode(F.sequence(F.lit(first), F.lit(last))).alias("nr"))
    index = (F.col("nr") - 1) * persistence_ids + F.col("owner")
    tags = F.array(*[F.concat(F.lit("tag-"), ((F.col("nr") + k) % TAGS).cast("string")) for k in (0, 1)])
    return events.select(
        F.concat(F.lit(name), F.lpad(F.col("owner").cast("string"), 6, "0")).alias("persistence_id"),
        F.expr(f"(nr - 1) div {PARTITION}").alias("partition_nr"),
        F.col("nr").cast("bigint").alias("sequence_nr"),
        _time_uuid(F.lit(FIRST_HOUR_MS * 10_000) + index * step, F.col("owner")).alias("timestamp"),
        _payload("nr", "owner").alias("event"),
        F.lit("").alias("event_manifest"),
        F.lit(20).alias("ser_id"),
        F.lit("").alias("ser_manifest"),
        F.lit("5b11713a-0000-4000-8000-00000000000b").alias("writer_uuid"),
        F.when(F.col("nr") % UNTAGGED_EVERY != 0, tags).alias("tags"),
    )


def rows_of(persistence_ids: int, first: int, last: int) -> int:
    """Return how many rows of tag_views these messages give."""
    return 2 * persistence_ids * (last - first + 1 - (last // UNTAGGED_EVERY - (first - 1) // UNTAGGED_EVERY))


def write(settings: Settings, spark: SparkSession, keyspace: str, rows: int) -> None:
    """Create the journal's tables and write the rows of tag_views."""
    with Cassandra(settings.cassandra) as cassandra:
        create_journal(cassandra, keyspace)
    append(tag_rows(spark, rows), keyspace, "tag_views")


def write_with_journal(settings: Settings, spark: SparkSession, keyspace: str, rows: int) -> None:
    """Create the journal's tables and write tag_views and messages; each persistence_id has events of one tag
    only.
    """
    with Cassandra(settings.cassandra) as cassandra:
        create_journal(cassandra, keyspace)
    view = tag_rows(spark, rows).withColumn("persistence_id", F.concat_ws("/", "tag_name", "persistence_id"))
    append_both(view, keyspace)


def append_both(view: DataFrame, keyspace: str) -> None:
    """Write rows into tag_views, and their events into messages."""
    append(view, keyspace, "tag_views")
    events = view.withColumns(
        {
            "tags": F.array("tag_name"),
            "partition_nr": F.lit(0).cast("bigint"),
            "timebucket": F.col("timebucket").cast("string"),
        }
    )
    append(events.drop("tag_name", "tag_pid_sequence_nr").repartition("persistence_id"), keyspace, "messages")


def write_since(settings: Settings, spark: SparkSession, keyspace: str, last: int) -> None:
    """Write NEW_EVENTS events of just now for each of NEW_IDS persistence ids of each tag, whose number is `last` by now."""
    now = from_datetime(datetime.now(UTC))
    ids = spark.range(0, TAGS * NEW_IDS, 1, TAGS).select(
        F.concat(F.lit("tag-"), F.col("id") % TAGS).alias("tag_name"), F.floor(F.col("id") / TAGS).alias("k")
    )
    name = F.concat(F.lit("p-"), F.lpad(F.col("k").cast("string"), 6, "0"))
    numbers = F.sequence(F.lit(last + 1), F.lit(last + NEW_EVENTS))
    events = ids.select(
        "tag_name",
        "k",
        F.concat_ws("/", "tag_name", name).alias("persistence_id"),
        F.explode(numbers).alias("n"),
    )
    view = events.select(
        "tag_name",
        F.lit(BucketSize.HOUR.start(now)).alias("timebucket"),
        _time_uuid(F.lit(now) + F.col("n"), F.col("k")).alias("timestamp"),
        "persistence_id",
        F.col("n").cast("bigint").alias("tag_pid_sequence_nr"),
        F.col("n").cast("bigint").alias("sequence_nr"),
        _payload("k", "n").alias("event"),
        F.lit("").alias("event_manifest"),
        F.lit(20).alias("ser_id"),
        F.lit("").alias("ser_manifest"),
        F.lit("5b11713a-0000-4000-8000-00000000000b").alias("writer_uuid"),
    )
    append_both(view, keyspace)


def append(rows: DataFrame, keyspace: str, table: str) -> None:
    """Write rows into a table with the Spark Cassandra connector."""
    options = {"keyspace": keyspace, "table": table, **WRITE}
    rows.write.format(CASSANDRA).options(**options).mode("append").save()


def _payload(first_column: str, second_column: str) -> Column:
    """Return 200 bytes that no codec can compress, derived from two columns."""
    digests = [
        F.sha2(F.concat_ws("/", first_column, second_column, F.lit(part)), 512) for part in ("a", "b", "c")
    ]
    return F.unhex(F.concat(*digests, F.lpad(F.hex(first_column), 16, "0")))


def _time_uuid(ticks: Column, node: Column) -> Column:
    value = ticks + F.lit(GREGORIAN_TICKS)

    def digits(number: Column, width: int) -> Column:
        return F.lower(F.lpad(F.hex(number), width, "0"))

    return F.concat(
        digits(value.bitwiseAND(0xFFFFFFFF), 8),
        F.lit("-"),
        digits(F.shiftright(value, 32).bitwiseAND(0xFFFF), 4),
        F.lit("-1"),
        digits(F.shiftright(value, 48).bitwiseAND(0xFFF), 3),
        F.lit("-8000-"),
        digits(node, 12),
    )
