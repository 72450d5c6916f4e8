"""How pointers are written: those of a topic together."""

from datetime import UTC, datetime

from tagmill.kafka_journal.tables import POINTERS_TOGETHER, KafkaJournalTables, Pointer

NOW = datetime(2026, 11, 1, tzinfo=UTC)


class Sent:
    """Stands for a connection that keeps what is written."""

    def __init__(self):
        self.writes = []

    def now(self):
        return NOW

    def write_many(self, cql, rows):
        self.writes += [(cql, *row) for row in rows]


def test_point_moves_pointers_of_topic_together():
    """Write the pointers of each topic in one logged batch, each with its own write time."""
    partitions = [("b", 0), ("a", 1), ("a", 0)]
    sent = Sent()
    KafkaJournalTables(sent, "k").point(
        (partition, Pointer(7 + n, NOW, 100 + n)) for n, partition in enumerate(partitions)
    )
    assert [write[1:] for write in sent.writes] == [
        ("a", 0, 9, NOW, NOW, 102, "a", 1, 8, NOW, NOW, 101),
        ("b", 0, 7, NOW, NOW, 100),
    ]
    assert all(write[0].startswith("BEGIN BATCH INSERT") for write in sent.writes)


def test_point_many_partitions_fits_cassandra_batches():
    sent = Sent()
    count = POINTERS_TOGETHER + 1
    KafkaJournalTables(sent, "k").point((("t", n), Pointer(1, NOW, 1)) for n in range(count))
    assert [write[0].count("INSERT") for write in sent.writes] == [POINTERS_TOGETHER, 1]
