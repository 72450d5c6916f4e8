"""Publish Purge actions for ids that have expired: expiry goes through Kafka, never through a TTL."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from tagmill.cassandra.client import Cassandra
from tagmill.config.settings import Settings
from tagmill.errors import about_pipeline
from tagmill.kafka.client import Kafka, KafkaRecord
from tagmill.kafka.offset_ranges import partitions_of
from tagmill.kafka_journal.model import PurgeReport, Tell
from tagmill.kafka_journal.replicate import replicate
from tagmill.kafka_journal.tables import KafkaJournalTables
from tagmill.kafka_journal.wire_format import ACTION
from tagmill.runs import checkpoints
from tagmill.runs.clock import agreed_now

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMED = 20


@about_pipeline
def purge_expired(
    settings: Settings,
    pipeline: str,
    *,
    owner: str,
    spark: Callable[[], SparkSession],
    until: date | None = None,
    dry_run: bool = False,
    tell: Tell | None = None,
) -> PurgeReport:
    """Publish a Purge for every id whose entry's expire_on is `until` (default: today, UTC) or earlier.

    Safe to stop and to start again.

    First, unless in a dry run, everything is replicated, so that an append that prolongs an id's life, or a
    Purge that was published before, is known. Entries of topics that are not the pipeline's, or that Kafka no
    longer has, stay. Raises as replicate does.
    """
    from pyspark.sql import functions as F

    from tagmill.spark.cassandra_table import CassandraTable
    from tagmill.spark.errors import explained

    say = tell or (lambda _: None)
    chosen = settings.kafka_journal(pipeline)
    if not dry_run:
        replicate(settings, pipeline, owner=owner, spark=spark, tell=say)
    with (
        Cassandra(settings.cassandra) as cassandra,
        Kafka(settings.kafka) as kafka,
        explained(cassandra.where, "What was published stays"),
    ):
        day = until or agreed_now(settings, cassandra).date()
        if not KafkaJournalTables(cassandra, chosen.keyspace).there():
            return PurgeReport(pipeline=pipeline, until=day, dry_run=dry_run, purged=0, examples=[])
        say(f"looking for ids that have expired by {day}")
        metajournal = CassandraTable(cassandra, chosen.keyspace, "metajournal", is_own=True)
        entries = metajournal.rows(spark(), "topic", "partition", "id", "expire_on")
        topics = {topic for topic, _ in partitions_of(kafka, pipeline, chosen.topics, chosen.topic_prefixes)}
        due = entries.where(
            (F.col("expire_on") <= F.lit(day)) & F.col("topic").isin(topics) & F.col("partition").isNotNull()
        )
        expired = due.select("topic", "partition", "id").localCheckpoint()
        count = expired.count()
        examples = [f"{row['topic']}: {row['id']}" for row in expired.limit(NAMED).collect()]
        if count and not dry_run:
            say(f"publishing {count} Purge actions")
            checkpoints.reached("purge.before_publish")
            kafka.publish(_purges(expired.toLocalIterator(), chosen.origin))
            checkpoints.reached("purge.after_publish")
    return PurgeReport(pipeline=pipeline, until=day, dry_run=dry_run, purged=count, examples=examples)


def _purges(rows: Iterator[Any], origin: str) -> Iterator[KafkaRecord]:
    header = (ACTION, json.dumps({"purge": {"origin": origin}}).encode())
    for row in rows:
        yield KafkaRecord(
            row["topic"], row["partition"], 0, datetime.now(UTC), row["id"].encode(), None, [header]
        )
