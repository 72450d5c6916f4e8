"""A store that does not answer a Spark job is one error with one line, however the job was started."""

import socket
from datetime import UTC, datetime

import pytest

from tagmill.delivery.sparkerrors import explained
from tagmill.errors import StoreUnavailable
from tagmill.settings import CassandraSettings
from tagmill.topics.firsts import unknown


@pytest.fixture
def silent() -> CassandraSettings:
    """A Cassandra that isn't there."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    return CassandraSettings(hosts=["127.0.0.1"], port=port, connect_timeout_seconds=1)


@pytest.mark.parametrize("action", ["first", "write"])
def test_a_python_worker_whose_cassandra_is_down_is_no_defect(spark, silent, tmp_path, action) -> None:
    ids = spark.createDataFrame([(1, "a", 0)], "shard int, unique_id string, place long")
    found = unknown(ids, silent, "tagmill", "p", "rule%1", datetime.now(UTC))
    act = {"first": found.first, "write": lambda: found.write.parquet(str(tmp_path / "out"))}[action]
    with pytest.raises(
        StoreUnavailable, match="^there did not answer Spark .StoreUnavailable.. Nothing was sealed. Run the same"
    ):
        with explained("there"):
            act()


def test_what_a_python_worker_raises_otherwise_is_a_defect(spark) -> None:
    from pyspark.errors import PythonException

    def wrong(parts):
        raise ValueError("wrong")

    with pytest.raises(PythonException, match="wrong"), explained("there"):
        spark.range(1).mapInArrow(wrong, "x string").first()
