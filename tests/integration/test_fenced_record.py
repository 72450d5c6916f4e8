"""A fenced record in real Cassandra: two owners, a lost answer, finishing twice, and an unexpected state."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from uuid import UUID, uuid4

import pytest
from cassandra import ConsistencyLevel

from tagmill.cassandra.client import Cassandra
from tagmill.config.settings import CassandraSettings
from tagmill.errors import FenceRaised
from tagmill.ledger.fenced_record import FencedRecord
from tests.support.stack import create_keyspace

KEYSPACE = "t_fenced_record"
FIRST = {"state": "OPEN", "file": "none"}
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Work:
    """A row of this module's table."""

    fence: int
    attempt: UUID
    owner: str
    state: str
    file: str


class AnswersLost(Cassandra):
    """A client that loses the first answer to each statement, and so sends it twice."""

    def retried(self, call: Callable[[], T]) -> T:
        call()
        return super().retried(call)


@pytest.fixture(scope="module")
def configured(stack: Any) -> Iterator[CassandraSettings]:
    """Yield settings of Cassandra with a keyspace that has the table of this module."""
    create_keyspace(stack.session, KEYSPACE)
    stack.session.execute(
        f"CREATE TABLE {KEYSPACE}.works (name text PRIMARY KEY, fence int, attempt uuid, owner text,"
        " state text, file text)"
    )
    yield CassandraSettings(port=stack.cassandra.port)
    stack.session.execute(f"DROP KEYSPACE {KEYSPACE}")


def record(cassandra: Cassandra, name: str) -> FencedRecord[Work]:
    """Return the record of this name, which need not exist."""

    def read() -> Work | None:
        rows = cassandra.execute(
            f"SELECT fence, attempt, owner, state, file FROM {KEYSPACE}.works WHERE name = ?",
            name,
            consistency=ConsistencyLevel.SERIAL,
        )
        return Work(*rows[0]) if rows else None

    return FencedRecord(
        cassandra, f"{KEYSPACE}.works", {"name": name}, read, f"work {name}", "Nothing was written"
    )


@pytest.fixture(scope="module", params=[Cassandra, AnswersLost], ids=["answered", "answers lost"])
def cassandra(request: Any, configured: CassandraSettings) -> Iterator[Cassandra]:
    """Yield a client whose answers arrive, and one whose first answer to each statement is lost."""
    with request.param(configured) as client:
        yield client


@pytest.fixture
def work(cassandra: Cassandra) -> FencedRecord[Work]:
    """Return a record that has no row yet."""
    return record(cassandra, uuid4().hex)


def sealed(work: FencedRecord[Work], row: Work, file: str) -> None:
    """Move the record from OPEN to SEALED with this file."""
    changes = {"state": "SEALED", "file": file}
    work.move(row.fence, {"state": "OPEN"}, changes, lambda now: now.file == file)


def test_owner_begins_moves_and_finishes(work: FencedRecord[Work]) -> None:
    """Go through all of it once; each change counts once, also if it was sent twice."""
    first = work.begin("a", FIRST)
    assert first == Work(1, first.attempt, "a", "OPEN", "none")
    row = work.take_over(first, "b", {"file": "taken"})
    assert row == Work(2, row.attempt, "b", "OPEN", "taken") and row.attempt != first.attempt
    sealed(work, row, "f")
    assert work.current(2) == replace(row, state="SEALED", file="f")
    work.finish(2, {"state": "SEALED"}, "DONE", {"file": "end"})
    assert work.current(2) == replace(row, state="DONE", file="end")


def test_earlier_owner_changes_nothing(work: FencedRecord[Work]) -> None:
    late = work.begin("a", FIRST)
    row = work.take_over(late, "b")
    for step in (
        lambda: work.current(1),
        lambda: work.take_over(late, "a"),
        lambda: sealed(work, late, "f"),
        lambda: work.try_move(1, {}, {"file": "f"}, lambda _: True),
        lambda: work.finish(1, {"state": "OPEN"}, "DONE", {}),
    ):
        with pytest.raises(FenceRaised):
            step()
    with pytest.raises(FenceRaised):
        work.begin("a", FIRST)
    assert work.read() == row


def test_finish_twice_keeps_first(work: FencedRecord[Work]) -> None:
    """Finish again with other columns, as a step does that has lost its answer and is run again."""
    row = work.begin("a", FIRST)
    work.finish(1, {"state": "OPEN"}, "DONE", {"file": "first"})
    work.finish(1, {"state": "OPEN"}, "DONE", {"file": "second"})
    assert work.read() == replace(row, state="DONE", file="first")


def test_move_from_unexpected_state_is_refused(work: FencedRecord[Work]) -> None:
    with pytest.raises(FenceRaised):
        work.current(1)
    row = work.begin("a", FIRST)
    sealed(work, row, "f")
    sealed(work, row, "f")  # recognized by its file
    assert not work.try_move(1, {"state": "OPEN"}, {"file": "g"}, lambda now: now.file == "g")
    with pytest.raises(FenceRaised):
        sealed(work, row, "g")
    with pytest.raises(FenceRaised, match=r"no longer OPEN \(state\), g \(file\). Look"):
        work.finish(1, {"state": "OPEN", "file": "g"}, "DONE", {}, "Look")
    assert work.read() == replace(row, state="SEALED", file="f")


def test_takeover_by_eight_owners_one_wins(configured: CassandraSettings) -> None:
    with Cassandra(configured) as client:
        work = record(client, uuid4().hex)
        known = work.begin("a", FIRST)

        def taken(owner: int) -> list[Work]:
            try:
                return [work.take_over(known, str(owner))]
            except FenceRaised:
                return []

        with ThreadPoolExecutor(8) as pool:
            (winner,) = sum(pool.map(taken, range(8)), [])
        assert work.read() == winner and winner.fence == 2
