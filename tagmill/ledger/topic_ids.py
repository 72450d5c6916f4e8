"""The topics that a pipeline reads, by the ids that Kafka gave them: a topic that is created again has another id under its name."""

from collections.abc import Mapping

from tagmill.cassandra.client import Cassandra, needs_tables
from tagmill.domain import identifiers


class TopicIds:
    """The topics of one pipeline."""

    def __init__(self, cassandra: Cassandra, ledger_keyspace: str, pipeline: str) -> None:
        self.cassandra, self.pipeline = cassandra, pipeline
        self.table = f"{identifiers.cql(ledger_keyspace)}.topic_ids"
        needs_tables(cassandra, ledger_keyspace, ["topic_ids"])

    def read(self) -> dict[str, str]:
        """Return the id that each topic had when it was read last."""
        rows = self.cassandra.stream(f"SELECT topic, topic_id FROM {self.table} WHERE pipeline = ?", self.pipeline)
        return {row.topic: row.topic_id for row in rows}

    def write(self, ids: Mapping[str, str]) -> None:
        """Record these ids as those of the topics that are read from now on."""
        self.cassandra.write_many(
            f"INSERT INTO {self.table} (pipeline, topic, topic_id) VALUES (?, ?, ?)",
            ((self.pipeline, *one) for one in ids.items()),
        )
