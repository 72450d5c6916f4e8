"""Records of a real broker as Spark's Python workers read them, compared with Spark's own source."""

import pytest
from pyspark.errors import PythonException

from tagmill.errors import RecordsLost, StoreUnavailable
from tagmill.kafka import worker_source
from tagmill.kafka.client import Kafka
from tagmill.kafka.offset_ranges import Range
from tagmill.kafka.spark_source import explained, kafka_records
from tagmill.kafka.worker_source import records_by_workers
from tests.conftest import FEW_ROWS
from tests.support.kafka import lose


@pytest.fixture
def read(kafka_journal, spark):
    """Return a topic of two partitions, and rows(way, *spans, **changed settings), which reads its records
    sorted.
    """
    journal = kafka_journal()
    settings, topic = journal.settings(FEW_ROWS).kafka, journal.topic("a", 2)

    def rows(way, *spans, **changed):
        ranges = [
            Range(topic=topic.name, partition=number, first=first, end=end) for number, first, end in spans
        ]
        with Kafka(settings) as kafka, explained(kafka):
            found = way(spark, kafka if way is kafka_records else settings.model_copy(update=changed), ranges)
            columns = [field.name for field in worker_source.RECORDS]
            return sorted(map(tuple, found.select(columns).collect()), key=lambda row: row[:3])

    return topic, rows


def test_workers_read_what_spark_reads(read, monkeypatch):
    """Read headers, nulls, bytes and transactions over several tasks exactly as Spark's own source does."""
    monkeypatch.setattr(worker_source, "RECORDS_PER_TASK", 3)
    topic, rows = read
    topic.send("k", b"v" * 100_000, [("one", b"1"), ("one", b"\xff")])
    topic.send(None, None)
    for abort in (True, False):
        with topic.transaction(abort=abort):
            topic.send("t", b"\x00\xff")
    for n in range(7):
        topic.send(b"\xff", str(n).encode(), partition=1)
    topic.flush()
    spans = [(0, 0, 6), (1, 1, 6)]
    assert rows(records_by_workers, *spans) == rows(kafka_records, *spans)
    assert [row[2] for row in rows(records_by_workers, *spans)] == [0, 1, 4, 1, 2, 3, 4, 5]


def test_workers_lost_records_or_silent_kafka_reported(read, kafka):
    """Report lost records, a missing TLS file and a Kafka that does not answer."""
    topic, rows = read
    for n in range(3):
        topic.send("k", str(n).encode())
    topic.flush()
    with pytest.raises(StoreUnavailable, match="Kafka at") as silent:
        rows(records_by_workers, (0, 0, 3), bootstrap_servers=["127.0.0.1:1"], request_timeout_seconds=2)
    # Only the executors lack this file; tagmill.spark.errors makes one line of their error where the job
    # ends.
    with pytest.raises(PythonException, match="ConfigurationError: kafka.tls_ca_file: /nowhere is not there"):
        rows(records_by_workers, (0, 0, 3), tls=True, tls_ca_file="/nowhere")
    assert "\n" not in str(silent.value)
    lose(kafka.port, topic.name, 0, 2)
    with pytest.raises(RecordsLost):
        rows(records_by_workers, (0, 0, 3))
    assert [row[2] for row in rows(records_by_workers, (0, 2, 3))] == [2]
