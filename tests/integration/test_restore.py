"""A ledger that was restored or lost while ClickHouse went on delivers nothing twice, and one command brings
it forward.

One pipeline has a day of events; each test adds some and compares ClickHouse with the view row by row at its
end.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from tagmill.audit.audit import audit
from tagmill.delivery.tag_views import steps
from tagmill.delivery.tag_views.give_up import GiveUp
from tagmill.delivery.tag_views.interventions import Interventions
from tagmill.delivery.tag_views.withdraw import Event
from tagmill.errors import ForeignWriteTime, LedgerOutdated
from tagmill.ledger import schema
from tagmill.ledger.runs import Ledger
from tests.support import restoring
from tests.support.delivery import (
    OWNER,
    as_row,
    clickhouse_rows,
    deliver,
    only,
    state,
    tagmill,
    verdicts,
)
from tests.support.erasing import erased
from tests.support.errors import raises
from tests.support.events import Journal, event, this_hour
from tests.support.stack import own_keyspaces
from tests.support.topics import Crashed, crashing

BEGIN = this_hour() - timedelta(hours=20)
MILLISECOND = timedelta(milliseconds=1)
IDS = ("a", "b")


class World:
    """The journal, its ledger in a keyspace of its own, and the numbers written until now."""

    def __init__(self, stack: Any, journal: Journal, ledger: str, settings: Any, spark: Any) -> None:
        self.session, self.journal, self.spark = stack.session, journal, spark
        self.ledger = ledger
        self.settings = settings(
            journal.keyspace,
            tags=["t"],
            bucket_size="Hour",
            first_time_bucket=f"{BEGIN:%Y-%m-%d}",
            sections={"cassandra": {"ledger_keyspace": self.ledger}},
        )
        self.name, self.file = only(self.settings), settings.file(only(self.settings))
        self.numbers = 0
        schema.apply(self.settings)

    def write(self, count: int = 3) -> None:
        """Write the next events of each persistence id, with times up to this moment."""
        begin = datetime.now(UTC) - count * MILLISECOND
        for persistence_id in IDS:
            self.journal.both(
                event(persistence_id, self.numbers + step, begin + step * MILLISECOND)
                for step in range(1, count + 1)
            )
        self.numbers += count

    def deliver(self) -> list[dict[str, Any]]:
        """Deliver all that is new."""
        return deliver(self.settings, self.name, self.spark)

    def three_runs(self) -> restoring.Copy:
        """Deliver three runs; return a copy of the ledger as it was behind the first of them."""
        self.write()
        self.deliver()
        copied = restoring.copy(self.session, self.ledger)
        for _ in range(2):
            self.write()
            self.deliver()
        return copied

    def restore(self, *options: str) -> str:
        """Run `tagmill ledger restore`."""
        status, out, err = tagmill(self.file, "ledger", "restore", "-p", self.name, "--why", "test", *options)
        assert status == 0, err
        return out

    def assert_delivered_once(self) -> None:
        """Assert that ClickHouse has every row of the view once, and that `check` agrees."""
        assert clickhouse_rows(self.settings, self.name) == sorted(as_row(row) for row in self.journal.rows())
        assert verdicts(self.settings, self.name) == {"t": "exactly once"}


@pytest.fixture(scope="module")
def world(
    stack: Any, module_journal: Callable[[], Journal], module_settings: Any, spark: Any
) -> Iterator[World]:
    """Yield the pipeline of this module."""
    with own_keyspaces(stack.session) as create:
        yield World(stack, module_journal(), create(), module_settings, spark)


def test_close_with_foreign_deletion_stays_sealed(world):
    """Delete progress by hand while a run is pushed: its close refuses, and succeeds after the restore."""
    world.write()
    world.deliver()
    world.write()
    planned = steps.plan(world.settings, world.name, owner=OWNER)
    run, fence = planned["run"], planned["fence"]
    steps.seal(world.settings, world.name, run, fence, owner=OWNER, spark=lambda: world.spark)
    steps.push(world.settings, world.name, run, fence, owner=OWNER)
    world.session.execute(
        f"DELETE FROM {world.ledger}.progress WHERE pipeline = %s AND tag = 't' AND persistence_id = 'a'",
        [world.name],
    )
    with raises(
        ForeignWriteTime,
        match="progress of 'a', tag 't'.*stays SEALED.*ledger restore",
        pipeline=world.name,
        run=run,
    ):
        steps.close(world.settings, world.name, run, fence, owner=OWNER)
    assert state(world.settings, world.name, run) == "SEALED"
    world.restore("--yes")
    world.write()
    assert [line["run"] for line in world.deliver()] == [run, run + 1]
    world.assert_delivered_once()


@pytest.mark.parametrize(
    ("table", "columns"),
    [("watermarks", "ticks"), ("progress", "tag_pid_sequence_nr")],
    ids=["watermark", "progress"],
)
def test_run_with_foreign_write_time_seals_nothing(world, table, columns):
    """Put a row of the ledger back by an ordinary insert, with the same content: no run seals before the
    restore.
    """
    world.write()
    world.deliver()
    copied = restoring.copy(world.session, world.ledger)
    for row in copied[table]:
        values = {name: cell[0] for name, cell in row.items()}
        restoring.insert(world.session, world.ledger, table, values, None)
    world.write()
    with raises(ForeignWriteTime, pipeline=world.name):
        world.deliver()
    assert "rows of the ledger that another program has written" in world.restore("--dry-run")
    world.restore("--yes")
    world.deliver()
    world.assert_delivered_once()
    assert not world.deliver()


def test_restore_waits_for_sealed_run(world):
    """Restore a ledger by ordinary inserts that was copied while a run was sealed: that run ends first."""
    world.write()
    world.deliver()
    world.write()
    planned = steps.plan(world.settings, world.name, owner=OWNER)
    at = (planned["run"], planned["fence"])
    steps.seal(world.settings, world.name, *at, owner=OWNER, spark=lambda: world.spark)
    copied = restoring.copy(world.session, world.ledger)
    for _ in range(2):
        world.deliver()
        world.write()
    restoring.restore(world.session, world.ledger, copied, own_times=False)
    with raises(ForeignWriteTime, pipeline=world.name):
        world.deliver()
    command = ("ledger", "restore", "-p", world.name, "--why", "test", "--yes")
    code, _, said = tagmill(world.file, *command)
    assert code == 2 and "is SEALED" in said and "First finish it: tagmill run deliver" in said
    with raises(
        LedgerOutdated, match="ends with run.*Nothing was sealed.*ledger restore", pipeline=world.name
    ):
        world.deliver()
    world.restore("--yes")
    world.deliver()
    world.assert_delivered_once()


INSTANTS = (
    "restore.base_raised",
    "restore.progress_written",
    "restore.watermarks_written",
    "restore.before_end",
)


def assert_nothing_claims_a_number(world: World) -> None:
    """Assert that each command which would claim a run number refuses, and leaves the ledger as it is."""
    by_hand = Interventions(world.settings, world.name, OWNER, "tester", "a test")
    give_up = GiveUp(world.settings, world.name, OWNER, "tester", "a test")
    with Ledger(world.settings.cassandra) as ledger:
        last = ledger.last_run(world.name)
        (batch, *_) = ledger.batches(world.name, last)
    for command in (
        by_hand.accept_journal,
        by_hand.abandon,
        partial(by_hand.close_hold, "t", "a"),
        partial(by_hand.rebase, "t", "a", None, None),
        partial(by_hand.restart, "t", "a"),
        partial(by_hand.withdraw, batch.batch_id, last),
        partial(by_hand.note_undelivered, iter([Event("t", "a", 1, 1, 0)])),
        partial(give_up.run, ["a"]),
        partial(give_up.release, "t", "a"),
        partial(erased, world.settings, ["a"]),
    ):
        with raises(LedgerOutdated, pipeline=world.name):
            command()
    with Ledger(world.settings.cassandra) as ledger:
        assert ledger.last_run(world.name) == last


@pytest.mark.parametrize("how", ["inserts", "own write times", "lost", "numbers claimed since"])
def test_deliver_with_older_ledger_waits_for_restore(world, how):
    """Bring the ledger back to the first of three runs, or empty it: ClickHouse has more, so no run seals
    before the restore.

    The last case is a ledger in which an earlier version has claimed as many numbers as runs were lost.
    """
    copied = world.three_runs()
    before = clickhouse_rows(world.settings, world.name)
    if how == "lost":
        restoring.lose(world.session, world.ledger)
    else:
        restoring.restore(world.session, world.ledger, copied, own_times=how != "inserts")
    if how == "own write times":
        assert_nothing_claims_a_number(world)
    if how == "numbers claimed since":
        with Ledger(world.settings.cassandra) as ledger:
            for _ in range(2):
                number = ledger.free_number(world.name)
                ledger.add_intervention(world.name, number, owner=OWNER, who="tester", action="a", why="b")
    world.write()
    kind = ForeignWriteTime if how == "inserts" else LedgerOutdated
    with raises(kind, pipeline=world.name):
        world.deliver()
    assert clickhouse_rows(world.settings, world.name) == before
    assert verdicts(world.settings, world.name)["t"].startswith("differs: ")
    with raises(LedgerOutdated, pipeline=world.name):
        audit(world.settings, world.name, owner=OWNER, spark=world.spark)
    told = world.restore("--dry-run")
    assert "that ClickHouse has and the ledger did not know" in told
    for instant in INSTANTS if how == "own write times" else ():
        with pytest.raises(Crashed), crashing(instant):
            world.restore("--yes")
        with raises((ForeignWriteTime, LedgerOutdated), pipeline=world.name):
            world.deliver()
    world.restore("--yes")
    world.deliver()
    world.assert_delivered_once()
    assert not world.deliver()
