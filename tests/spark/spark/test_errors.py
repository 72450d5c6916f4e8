"""Stores that do not answer a Spark job are reported as one error with one line, however the job was
started.
"""

import os
import signal
import socket
from datetime import UTC, datetime

import psutil
import pytest

from tagmill.config.settings import CassandraSettings
from tagmill.delivery.topics.dedup import unknown
from tagmill.delivery.topics.staged_files import ADDRESS
from tagmill.errors import SparkEnded, StoreUnavailable
from tagmill.spark import session
from tagmill.spark.errors import explained


@pytest.fixture
def silent() -> CassandraSettings:
    """Return settings of a Cassandra at a port where no server listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    return CassandraSettings(hosts=["127.0.0.1"], port=port, connect_timeout_seconds=1)


@pytest.mark.parametrize("action", ["first", "write"])
def test_worker_without_cassandra_raises_store_unavailable(spark, silent, tmp_path, action) -> None:
    """Report a Cassandra that a Python worker can't reach as an unavailable store, not as a defect."""
    ids = spark.createDataFrame([(1, "a", 0)], f"shard int, unique_id string, {ADDRESS} long")
    found = unknown(ids, silent, "tagmill", "p", "rule%1", datetime.now(UTC), 0)
    act = {"first": found.first, "write": lambda: found.write.parquet(str(tmp_path / "out"))}[action]
    with pytest.raises(
        StoreUnavailable,
        match="^there did not answer Spark .StoreUnavailable.. Nothing was sealed. Run the same",
    ):
        with explained("there"):
            act()


def test_worker_other_exception_stays_a_defect(spark) -> None:
    """Pass any other exception of a Python worker on as Spark raises it, because it is a defect."""
    from pyspark.errors import PythonException

    def wrong(parts):
        raise ValueError("wrong")

    with pytest.raises(PythonException, match="wrong"), explained("there"):
        spark.range(1).mapInArrow(wrong, "x string").first()


@pytest.fixture
def shared(spark, settings, monkeypatch):
    """Return the session that all tests share, patched in where a command would start its own."""
    monkeypatch.setattr(session, "session", lambda *_, **__: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    configured = settings("none", tags=["t"], bucket_size="Hour", first_time_bucket="2026-01-01")
    monkeypatch.setattr(spark, "configured", configured, raising=False)
    return spark


def killed(parts):
    os.kill(os.getpid(), signal.SIGKILL)
    yield from parts


def idle_workers_killed(parts):
    """Kill all other Python workers, which wait for work, and pass the rows on."""
    for other in psutil.Process(os.getppid()).children():
        if other.pid != os.getpid():
            other.kill()
    yield from parts


def test_killed_worker_is_reported_in_one_line(shared) -> None:
    """Killing a Python worker at work ends the command with one line that says that every step is safe to
    repeat.
    """
    with pytest.raises(SparkEnded, match="^a Python worker of Spark ended. .*every step is safe to repeat$"):
        with session.spark_session(shared.configured, "test") as spark:
            spark.range(1).mapInArrow(killed, "id long").collect()


def test_killed_idle_worker_is_reported_in_one_line(shared) -> None:
    """Killing Python workers that wait for work is reported like killing one at work."""
    lines = shared.range(0, 4, numPartitions=4).mapInArrow(lambda parts: parts, "id long")
    lines.collect()
    with pytest.raises(SparkEnded, match="^a Python worker of Spark ended"):
        with session.spark_session(shared.configured, "test") as spark:
            for _ in range(20):
                spark.range(1).mapInArrow(idle_workers_killed, "id long").collect()
                lines.collect()


def exhausted(parts):
    raise RuntimeError("java.io.IOException: No space left on device")


def test_full_spark_disk_is_reported_in_one_line(shared) -> None:
    """Name spark.local.dir in one line when Spark runs out of disk space."""
    with pytest.raises(SparkEnded, match="^Spark has no space left on its disk: spark.local.dir"):
        with session.spark_session(shared.configured, "test") as spark:
            spark.range(1).mapInArrow(exhausted, "id long").collect()


def test_a_defect_keeps_its_trace(shared) -> None:
    with pytest.raises(ZeroDivisionError), session.spark_session(shared.configured, "test"):
        raise ZeroDivisionError
