"""Records of a real broker as Spark's Python workers read them."""

import pytest

from tagmill.errors import ConfigurationError, RecordsLost, StoreUnavailable
from tagmill.kafka import worker_source
from tagmill.kafka.offset_ranges import Range
from tagmill.kafka.worker_source import RECORDS, RecordsByTasks
from tagmill.spark.errors import explained
from tests.conftest import FEW_ROWS
from tests.support.kafka import lose


@pytest.fixture
def read(kafka_journal, spark):
    """Return a topic of two partitions, and rows(*spans, **changed settings), which reads its records sorted."""
    journal = kafka_journal()
    settings, topic = journal.settings(FEW_ROWS).kafka, journal.topic("a", 2)

    def rows(*spans, **changed):
        ranges = [
            Range(topic=topic.name, partition=number, first=first, end=end) for number, first, end in spans
        ]
        with explained("Kafka"):
            found = RecordsByTasks(spark, settings.model_copy(update=changed), ranges).made(list, RECORDS)
            return sorted(map(tuple, found.select(RECORDS.names).collect()), key=lambda row: row[:3])

    return topic, rows


def test_workers_read_each_record_as_it_is(read, monkeypatch):
    """Read headers, nulls, bytes and committed transactions, over several tasks and batches."""
    monkeypatch.setattr(worker_source, "RECORDS_PER_TASK", 3)
    monkeypatch.setattr(worker_source, "BYTES_AT_ONCE", 50_000)
    topic, rows = read
    began = topic.clock
    topic.send("k", b"v" * 100_000, [("one", b"1"), ("one", b"\xff"), ("none", None)])
    topic.send(None, None)
    for abort in (True, False):
        with topic.transaction(abort=abort):
            topic.send("t", b"\x00\xff")
    for n in range(7):
        topic.send(b"\xff", str(n).encode(), partition=1)
    topic.flush()
    found = rows((0, 0, 6), (1, 1, 6))
    assert [row[:3] for row in found] == [(topic.name, 0, at) for at in (0, 1, 4)] + [
        (topic.name, 1, at) for at in range(1, 6)
    ]
    headers = [("one", b"1"), ("one", b"\xff"), ("none", None)]
    assert [(bytes(key) if key else key, value and bytes(value), said) for *_, key, value, said in found] == [
        (b"k", b"v" * 100_000, headers),
        (None, None, None),
        (b"t", b"\x00\xff", None),
        *((b"\xff", str(n).encode(), None) for n in range(1, 6)),
    ]
    # The third record is the aborted one.
    assert [row[3].timestamp() * 1000 - began for row in found] == [1, 2, 4, 6, 7, 8, 9, 10]


def test_workers_lost_records_or_silent_kafka_reported(read, kafka):
    """Report lost records, a missing TLS file and a Kafka that does not answer."""
    topic, rows = read
    for n in range(3):
        topic.send("k", str(n).encode())
    topic.flush()
    with pytest.raises(StoreUnavailable, match="Kafka at") as silent:
        rows((0, 0, 3), bootstrap_servers=["127.0.0.1:1"], request_timeout_seconds=2)
    # Only the executors lack this file.
    with pytest.raises(ConfigurationError, match="kafka.tls_ca_file: /nowhere is not there"):
        rows((0, 0, 3), tls=True, tls_ca_file="/nowhere")
    assert "\n" not in str(silent.value)
    lose(kafka.port, topic.name, 0, 2)
    with pytest.raises(RecordsLost):
        rows((0, 0, 3))
    assert [row[2] for row in rows((0, 2, 3))] == [2]
