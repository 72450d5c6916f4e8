"""A node that stops during a build ends it with one line and 75, and the line says truly what was sealed by
then.
"""

from collections.abc import Callable
from typing import Any

import pytest

from local.fixtures import WITHOUT_VIEWS
from tests.faults.test_outages import is_back
from tests.support.building import recorded, rows
from tests.support.leases import free_lease
from tests.support.sparkfailures import FAILURES, SparkFailure

CASE = "partition-boundary"
SEALED = "is sealed and perhaps half written; the next one finishes it"


@pytest.mark.parametrize(
    ("work", "words"),
    [
        ("tagmill.views.event_reader.Reader.stage", "Nothing was sealed"),
        ("tagmill.spark.cassandra_table.CassandraTable.append", SEALED),
    ],
    ids=["while it reads", "while it writes"],
)
def test_build_spark_fails_says_what_is_sealed(
    work: str, words: str, delivery: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Raise a worker's error while a build reads or writes; the next build ends with the plugin's
    rows.
    """
    one = delivery(CASE, WITHOUT_VIEWS, views="tagmill", small_run_rows=0)

    def fail(*_: Any, **__: Any) -> None:
        raise SparkFailure(FAILURES["cassandra of a worker"].text)

    with monkeypatch.context() as patch:
        patch.setattr(work, fail)
        patch.setattr("tagmill.views.writer.are_few", lambda *_: False)  # else this process writes progress
        ended = one.here("views", "build")
    assert ended.code == 75 and words in ended.err and ended.err.count("\n") == 1, ended.err
    assert (words == SEALED) == ("Nothing was sealed" not in ended.err)
    assert one.here("views", "build").code == 0
    complete(one)


@pytest.mark.long
@pytest.mark.parametrize(
    ("instant", "words"), [("build.reading", "Nothing was sealed"), ("build.after_commit", SEALED)]
)
@pytest.mark.parametrize("by_spark", [True, False], ids=["by Spark", "here"])
def test_build_node_stops_one_true_line(
    instant: str, words: str, by_spark: bool, delivery: Callable[..., Any], spark: Any
) -> None:
    """Stop a real node for longer than any step waits; the next build ends with the plugin's rows."""
    keys = {"small_run_rows": 0} if by_spark else {}
    one = delivery(
        CASE, WITHOUT_VIEWS, views="tagmill", sections={"cassandra": {"request_timeout_seconds": 10}}, **keys
    )
    running = one.start("views", "build", at=instant)
    one.stack.cassandra.stop()
    try:
        ended = running.end()
    finally:
        one.stack.cassandra.start()
        is_back(one.stack)
    assert ended.code == 75 and ended.err.count("\n") == 1, ended.err
    assert words in ended.err and (words == SEALED) == ("Nothing was sealed" not in ended.err)
    free_lease(one.stack.session, one.pipeline)
    assert one.start("views", "build").end().code == 0
    complete(one)


def complete(one: Any) -> None:
    """Assert that the tables are row for row what the plugin wrote."""
    for table in ("tag_views", "tag_write_progress"):
        assert rows(one.stack, one.keyspace, table) == recorded(CASE, table), table
