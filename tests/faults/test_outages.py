"""Cassandra or Spark goes away during a run: the command waits or ends with one line and 75, and the next one
finishes.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from cassandra import DriverException
from cassandra.cluster import NoHostAvailable
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from tagmill.cassandra.bulk_writer import Target, write_rows
from tagmill.cassandra.client import Cassandra
from tagmill.config.settings import CassandraSettings


@contextmanager
def away(stack: Any, seconds: float) -> Iterator[None]:
    """Stop Cassandra for the block and start it again `seconds` after the block has begun."""
    stack.cassandra.stop()
    back = threading.Thread(target=lambda: (time.sleep(seconds), stack.cassandra.start()))
    back.start()
    try:
        yield
    finally:
        back.join()
        is_back(stack)


def is_back(stack: Any) -> None:
    """Wait until the tests' own session works again."""
    for attempt in Retrying(
        retry=retry_if_exception_type((NoHostAvailable, DriverException)),
        stop=stop_after_delay(120),
        wait=wait_fixed(0.5),
    ):
        with attempt:
            stack.session.execute("SELECT release_version FROM system.local")


@pytest.mark.parametrize(
    "instant", ["seal.staged", pytest.param("close.before_progress", marks=pytest.mark.long)]
)
def test_run_cassandra_restarts_delivers_once(
    instant: str, delivery: Callable[..., Any], undisturbed: Callable[[str], Any]
) -> None:
    """Restart Cassandra while a run waits at an instant; this command or the next one finishes."""
    expected = undisturbed("gap-middle")
    one = delivery()
    if not instant.startswith("seal"):
        one.sealed()
    running = one.deliver(at=instant)
    with away(one.stack, 4):
        ended = running.end()
    assert ended.code in (0, 75), ended
    if ended.code == 75:
        assert "Cassandra at 127.0.0.1" in ended.error
    one.finish()
    expected.equals(one)
    assert one.check().code == 0


@pytest.mark.long
@pytest.mark.parametrize("instant", ["seal.begun", pytest.param("push.after_insert", marks=pytest.mark.long)])
def test_run_cassandra_away_ends_then_next_finishes(
    instant: str, delivery: Callable[..., Any], undisturbed: Callable[[str], Any]
) -> None:
    """Stop Cassandra for longer than the command waits: it ends with 75, and the next one finishes."""
    expected = undisturbed("gap-middle")
    one = delivery(sections={"cassandra": {"request_timeout_seconds": 5, "connect_timeout_seconds": 3}})
    if not instant.startswith("seal"):
        one.sealed()
    running = one.deliver(at=instant)
    one.stack.cassandra.stop()
    try:
        ended = running.end()
    finally:
        one.stack.cassandra.start()
        is_back(one.stack)
    assert ended.code == 75, ended
    assert "Cassandra" in ended.error
    one.finish()
    expected.equals(one)
    assert one.check().code == 0


def test_write_rows_node_restarts_prepares_again(stack: Any, spark: Any) -> None:
    """Restart the node, without its prepared statements, between two parts: all rows are written."""
    keyspace = f"t_{uuid4().hex[:12]}"
    stack.session.execute(
        f"CREATE KEYSPACE {keyspace} WITH replication = {{'class': 'SimpleStrategy', "
        f"'replication_factor': 1}}"
    )
    stack.session.execute(f"CREATE TABLE {keyspace}.t (k int PRIMARY KEY, v blob)")

    def parts() -> Iterator[pa.Table]:
        for first in (0, 100, 200):
            yield pa.table({"k": pa.array(range(first, first + 100), pa.int32()), "v": [b"x" * 50_000] * 100})
            if first == 0:
                stack.session.execute("TRUNCATE system.prepared_statements")
                away_for_some_time.enter_context(away(stack, 3))

    with (
        ExitStack() as away_for_some_time,
        Cassandra(CassandraSettings(port=stack.cassandra.port)) as cassandra,
    ):
        assert write_rows(cassandra, Target(keyspace, "t", 1), parts()) == 300
    assert stack.session.execute(f"SELECT count(*) FROM {keyspace}.t").one()[0] == 300
    stack.session.execute(f"DROP KEYSPACE {keyspace}")


def test_run_spark_killed_ends_then_next_finishes(
    delivery: Callable[..., Any], undisturbed: Callable[[str], Any]
) -> None:
    """Kill Spark's JVM: the command ends with one line and 75, and the next one finishes."""
    expected = undisturbed("gap-middle")
    one = delivery(small_run_rows=0)
    ended = one.deliver(at="seal.staged").end_without("java")
    assert ended.code == 75 and "Spark's JVM ended (exit status -9). Where nobody killed it" in ended.error, (
        ended
    )
    one.finish()
    expected.equals(one)
