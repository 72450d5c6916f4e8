"""The topics that a pipeline reads, by the ids that Kafka gave them: a topic that is created again has
another id under its name.
"""

from collections.abc import Collection, Mapping

from tagmill.cassandra.client import Cassandra, needs_tables
from tagmill.domain import identifiers
from tagmill.errors import TopicRecreated
from tagmill.kafka.client import Kafka, Partition
from tagmill.kafka.offset_ranges import OWN_TABLES


class TopicIds:
    """The topics of one pipeline."""

    def __init__(self, cassandra: Cassandra, ledger_keyspace: str, pipeline: str) -> None:
        self.cassandra, self.pipeline = cassandra, pipeline
        self.table = f"{identifiers.cql(ledger_keyspace)}.topic_ids"
        needs_tables(cassandra, ledger_keyspace, ["topic_ids"])

    def read(self) -> dict[str, str]:
        """Return the id that each topic had when it was read last."""
        rows = self.cassandra.stream(
            f"SELECT topic, topic_id FROM {self.table} WHERE pipeline = ?", self.pipeline
        )
        return {row.topic: row.topic_id for row in rows}

    def write(self, ids: Mapping[str, str]) -> None:
        """Record these ids as those of the topics that are read from now on."""
        self.cassandra.write_many(
            f"INSERT INTO {self.table} (pipeline, topic, topic_id) VALUES (?, ?, ?)",
            ((self.pipeline, *one) for one in ids.items()),
        )


def same_topics(
    kafka: Kafka,
    known: TopicIds,
    pipeline: str,
    read_to: Collection[Partition],
    partitions: Collection[Partition],
    *,
    accept_lost: bool,
    go_on: str,
    ways_on: str = OWN_TABLES,
) -> list[str]:
    """Record the ids of these partitions' topics, and return a warning for each topic that was read and was
    created again since.

    Args:
        kafka: the cluster.
        known: the record of the topics' ids.
        pipeline: the pipeline's name, for the message.
        read_to: the partitions of which something was read.
        partitions: the partitions whose topics are read now.
        accept_lost: accept that a topic is another one under the same name.
        go_on: the command that accepts it.
        ways_on: what else the operator can do.

    Raises TopicRecreated: a topic that was read is another one under the same name by now, and `accept_lost` is
    not set.
    """
    now, before = kafka.topic_ids({topic for topic, _ in partitions}), known.read()
    warnings = list(recreated_topics(now, before, read_to).values())
    if warnings and not accept_lost:
        raise TopicRecreated(
            f"{pipeline}: {warnings[0]}. Nothing was read. {ways_on}. To go on where the old one was "
            "left, without the records before "
            f"that: {go_on}",
            pipeline=pipeline,
        )
    known.write({topic: one for topic, one in now.items() if before.get(topic) != one})
    return warnings


def recreated_topics(
    now: Mapping[str, str], before: Mapping[str, str], read_to: Collection[Partition]
) -> dict[str, str]:
    """Return a text for each topic that was read and is another one under the same name by now.

    Args:
        now: the topics' ids now.
        before: the topics' ids when they were read last.
        read_to: the partitions of which something was read.
    """
    return {
        topic: f"topic {topic} was made anew since it was read: its first records are not those that were"
        for topic in sorted({topic for topic, _ in read_to})
        if topic in now and before.get(topic, now[topic]) != now[topic]
    }
