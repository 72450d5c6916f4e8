"""A killed journal cleanup, started again, leaves the same tables as an undisturbed one."""

from collections.abc import Callable

import pytest

from local.fixtures import Case
from tests.faults.conftest import Delivery
from tests.support.journal_cleaning import tables

CASE = "partition-boundary"
# This cleanup deletes every event, its view row and the persistence ids, so that a leftover in any table
# shows.
ALL = (
    "journal",
    "clean",
    "--all",
    "--never-again",
    "--views",
    "--force-undelivered",
    "--force-unread",
    "--yes",
)
SOME = ("journal", "clean", "--to", "37", "--views", "--force-undelivered", "--force-unread", "--yes")
INSTANTS = ("journal_clean.noted", "journal_clean.views_deleted")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("cleaning", [ALL, pytest.param(SOME, marks=pytest.mark.long)], ids=["all", "some"])
def test_journal_clean_killed_then_repeated_is_whole(
    delivery: Callable[..., Delivery], cleaning: tuple[str, ...]
) -> None:
    """Kill a cleanup at two instants and start it again; compare every table with an undisturbed cleanup."""
    undisturbed, killed = delivery(CASE), delivery(CASE, lease_seconds=5)
    ids = killed.config.parent / "ids"
    ids.write_text(
        "".join(
            f"{name}\n"
            for name in sorted(set(Case(CASE).table("messages").column("persistence_id").to_pylist()))
        )
    )
    command = (*cleaning, "--persistence-ids", str(ids))
    assert undisturbed.said(*command).code == 0
    for instant in INSTANTS:
        killed.start(*command, at=instant).kill()
    between = tables(killed.stack.session, killed.keyspace)
    assert between["metadata"] and between["messages"]
    ended = killed.said(*command)
    assert ended.code == 0, ended
    done = tables(killed.stack.session, killed.keyspace)
    assert done == tables(undisturbed.stack.session, undisturbed.keyspace)
    assert bool(done["messages"]) == (cleaning is SOME)
    assert bool(done["tag_views"]) == (cleaning is SOME)
