"""The answer to an insert is lost, or the server is: the content of ClickHouse decides what is sent again."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import faulty_clickhouse


def push_and_close(one: Any, run: int, fence: int) -> None:
    """Push and close a sealed run, each step in the name of a process that has ended."""
    from tagmill.delivery.tag_views import steps
    from tests.faults.conftest import dead_process

    steps.push(one.settings, one.pipeline, run, fence, owner=dead_process())
    steps.close(one.settings, one.pipeline, run, fence, owner=dead_process())


def inserts(one: Any) -> list[tuple[str, str]]:
    """Return token and fault of each insert that the server received."""
    statements = faulty_clickhouse.log(one.stack.clickhouse.port)
    return [
        (token, fault) for text, token, fault in statements if text.startswith(f"INSERT INTO `{one.table}` ")
    ]


@pytest.mark.parametrize(
    ("kind", "window"),
    [
        pytest.param("drop_after", "window", marks=pytest.mark.long),
        ("drop_after", "no window"),
        pytest.param("error_after", "no window", marks=pytest.mark.long),
        ("drop_before", "no window"),
        pytest.param("error_after", "window", marks=pytest.mark.long),
        pytest.param("drop_before", "window", marks=pytest.mark.long),
        pytest.param("error_before", "window", marks=pytest.mark.long),
        pytest.param("error_before", "no window", marks=pytest.mark.long),
    ],
)
def test_insert_answer_lost_is_stored_once(
    kind: str, window: str, delivery: Callable[..., Any], undisturbed: Callable[[str], Any]
) -> None:
    """Drop or fail an insert's answer twice (drop_*: the connection ends).

    Without a deduplication window only the insert's own condition protects.
    """
    one = delivery()
    run, fence = one.sealed()
    if window == "no window":
        one.without_deduplication()
    faulty_clickhouse.order(one.stack.clickhouse.port, kind, match=f"INSERT INTO `{one.table}` ", times=2)
    push_and_close(one, run, fence)
    tokens = [token for token, _ in inserts(one)]
    faults = [fault for _, fault in inserts(one) if fault]
    assert faults == [kind, kind]
    # After a commit the retry asks ClickHouse first and finds the batch, so it sends none again.
    assert (len(tokens) > len(set(tokens))) == kind.endswith("before")
    undisturbed("gap-middle").equals(one)
    assert one.check().code == 0


def test_a_retry_after_the_window_inserts_nothing(
    delivery: Callable[..., Any], undisturbed: Callable[[str], Any]
) -> None:
    """Send the same statement again when ClickHouse no longer knows any token."""
    from uuid import UUID

    from tagmill.clickhouse.client import ClickHouse

    one = delivery()
    run, fence = one.sealed()
    push_and_close(one, run, fence)
    one.without_deduplication()
    with ClickHouse(one.settings.clickhouse) as clickhouse:
        for batch in one.manifest().batches:
            clickhouse.insert_batch(one.table, UUID(batch.batch_id), 1, one.path(batch.file).read_bytes())
    undisturbed("gap-middle").equals(one)
    assert one.check().code == 0


@pytest.mark.parametrize("kind", ["kill_during", pytest.param("kill_after", marks=pytest.mark.long)])
def test_server_killed_at_insert_delivers_once(
    kind: str, delivery: Callable[..., Any], undisturbed: Callable[[str], Any]
) -> None:
    """Kill ClickHouse during or after an insert; the push waits for the restart, or its retry continues."""
    from tagmill.errors import StoreUnavailable

    one = delivery(parallel_inserts=1)
    run, fence = one.sealed()
    server = one.stack.clickhouse
    faulty_clickhouse.order(server.port, kind, match=f"INSERT INTO `{one.table}` ", ms=5)
    dead = server.process()
    back = threading.Thread(target=lambda: (dead.wait(60), server.start()))
    back.start()
    try:
        push_and_close(one, run, fence)
    except StoreUnavailable:
        back.join()
        push_and_close(one, run, fence)
    finally:
        back.join()
    undisturbed("gap-middle").equals(one)
    assert one.check().code == 0


def test_deliver_server_away_ends_then_next_finishes(
    delivery: Callable[..., Any], undisturbed: Callable[[str], Any]
) -> None:
    """Stop ClickHouse before an insert: the command ends with one line and 75, and the next one finishes."""
    one = delivery()
    one.sealed()
    waiting = one.deliver(at="push.before_insert")
    one.stack.clickhouse.kill()
    try:
        ended = waiting.end()
    finally:
        one.stack.clickhouse.start()
    assert ended.code == 75, ended
    assert "ClickHouse at 127.0.0.1" in ended.error
    assert "Run the same command again" in ended.error
    one.finish()
    undisturbed("gap-middle").equals(one)
    assert one.check().code == 0


@pytest.mark.long
def test_deliver_slow_server_is_waited_for(
    delivery: Callable[..., Any], undisturbed: Callable[[str], Any]
) -> None:
    """Delay an insert for longer than the lease, which is renewed meanwhile; a second delivery refuses."""
    one = delivery(lease_seconds=5)
    one.sealed()
    faulty_clickhouse.order(
        one.stack.clickhouse.port, "delay", match=f"INSERT INTO `{one.table}` ", ms=20_000
    )
    slow = one.deliver()
    while not inserts(one):
        time.sleep(0.1)
    time.sleep(6)
    other = one.deliver().end()
    assert other.code == 75, other
    assert "is at work" in other.error
    assert slow.end().code == 0
    undisturbed("gap-middle").equals(one)
