"""A build that is killed or frozen leaves, once repeated, the same tables as an undisturbed one."""

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
    """Make a pipeline over the case's journal, with neither events nor views yet."""
    return delivery(CASE, ("metadata", "all_persistence_ids"), views="tagmill", lease_seconds=5)


def is_built(disturbed: Delivery) -> None:
    """Assert that the views have the plugin's rows, and that another build finds nothing new by its
    record.
    """
    for table in VIEWS:
        assert rows(disturbed.stack, disturbed.keyspace, table) == recorded(CASE, table), table
    before = records(disturbed.stack, disturbed.keyspace)
    ended = disturbed.here("views", "build")
    assert ended.code == 0 and "0 rows written" in ended.out, ended
    assert records(disturbed.stack, disturbed.keyspace) == before


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "instants",
    [
        pytest.param(INSTANTS[:4], id="before the commit", marks=pytest.mark.long),
        pytest.param(INSTANTS[4:], id="after it"),
    ],
)
def test_build_killed_while_journal_grows_is_whole(
    instants: list[str], delivery: Callable[..., Delivery]
) -> None:
    """Kill or crash each build one instant later than the one before, with new events every time.

    `status` says so until one has succeeded.
    """
    disturbed = without_views(delivery)
    for step, instant in enumerate(instants):
        load_messages(disturbed.stack.session, CASE, disturbed.keyspace, 13 * step, 13 * step + 13)
        if instant in KILLED:
            disturbed.start("views", "build", at=instant).kill()
        else:
            disturbed.crash("views", "build", at=instant)
    told = disturbed.said("status", "--json")
    assert told.code == 3 and "views build was begun 4 times since 20" in told.out, told
    load_messages(disturbed.stack.session, CASE, disturbed.keyspace, 13 * len(instants), 60)
    ended = disturbed.here("views", "build")
    assert ended.code == 0, ended
    told = disturbed.said("status", "--json")
    assert told.code == 0 and "views build" not in told.out, told
    is_built(disturbed)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_build_frozen_during_other_build_changes_nothing(delivery: Callable[..., Delivery]) -> None:
    """Freeze a build behind its commit, let another one finish it and build further, then wake it."""
    disturbed = without_views(delivery)
    load_messages(disturbed.stack.session, CASE, disturbed.keyspace, 0, 25)
    frozen = disturbed.start("views", "build", at="build.after_commit")
    frozen.freeze()
    load_messages(disturbed.stack.session, CASE, disturbed.keyspace, 25, 60)
    # The other build fails with 75 until the lease of the frozen one expires.
    other = disturbed.start("views", "build")
    while (ended := other.end()).code == 75:
        other = disturbed.start("views", "build")
    assert ended.code == 0, ended
    woken = frozen.wake()
    assert woken.code == 75 and "was taken over" in woken.error, woken
    is_built(disturbed)
