"""A build that is killed or frozen at announced instants leaves the tables of one that nobody disturbed."""

from collections.abc import Callable

import pytest

from tests.faults.conftest import Delivery
from tests.support.building import VIEWS, load_messages, recorded, records, rows

INSTANTS = [
    "build.begun", "build.reading", "build.numbered", "build.before_commit", "build.after_commit", "build.after_views",
    "build.after_progress", "build.before_end",
]  # fmt: skip
KILLED = ("build.before_commit", "build.after_views")
CASE = "partition-boundary"


def without_views(delivery: Callable[..., Delivery]) -> Delivery:
    """A pipeline over the case's journal: no events yet, and no views."""
    return delivery(CASE, ("metadata", "all_persistence_ids"), views="tagmill", lease_seconds=5)


def is_built(disturbed: Delivery) -> None:
    """The plugin's rows, and a record that another build finds nothing new by."""
    for table in VIEWS:
        assert rows(disturbed.stack, disturbed.keyspace, table) == recorded(CASE, table), table
    before = records(disturbed.stack, disturbed.keyspace)
    ended = disturbed.here("views", "build")
    assert ended.code == 0 and "0 rows written" in ended.out, ended
    assert records(disturbed.stack, disturbed.keyspace) == before


@pytest.mark.timeout(900)
@pytest.mark.parametrize("instants", [INSTANTS[:4], INSTANTS[4:]], ids=["before the commit", "after it"])
def test_killed_at_every_instant_while_the_journal_grows(instants: list[str], delivery: Callable[..., Delivery]) -> None:
    """Each build is killed, or crashes, one instant later than the one before; every time there are new events."""
    disturbed = without_views(delivery)
    for step, instant in enumerate(instants):
        load_messages(disturbed.stack.session, CASE, disturbed.keyspace, 13 * step, 13 * step + 13)
        if instant in KILLED:
            disturbed.start("views", "build", at=instant).kill()
        else:
            disturbed.crash("views", "build", at=instant)
    load_messages(disturbed.stack.session, CASE, disturbed.keyspace, 13 * len(instants), 60)
    ended = disturbed.here("views", "build")
    assert ended.code == 0, ended
    is_built(disturbed)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_frozen_while_another_one_builds_on_it_changes_nothing_when_it_wakes(delivery: Callable[..., Delivery]) -> None:
    disturbed = without_views(delivery)
    load_messages(disturbed.stack.session, CASE, disturbed.keyspace, 0, 25)
    frozen = disturbed.start("views", "build", at="build.after_commit")
    frozen.freeze()
    load_messages(disturbed.stack.session, CASE, disturbed.keyspace, 25, 60)
    # the frozen one's lease runs out
    other = disturbed.start("views", "build")
    while (ended := other.end()).code == 75:
        other = disturbed.start("views", "build")
    assert ended.code == 0, ended
    woken = frozen.wake()
    assert woken.code == 75 and "was taken over" in woken.error, woken
    is_built(disturbed)
