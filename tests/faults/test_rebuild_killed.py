"""Killed deletions and rebuilds leave, once repeated, the same view as undisturbed ones."""

from collections.abc import Callable

import pytest

from tests.faults.conftest import Delivery
from tests.support.building import VIEWS, recorded, rows

CASE = "partition-boundary"


@pytest.mark.timeout(900)
def test_rebuild_killed_at_each_instant_is_whole(delivery: Callable[..., Delivery]) -> None:
    """Kill or crash deletions, a truncation and rebuilds at each instant; the last rebuild finds every row in
    place.
    """
    disturbed = delivery(CASE, lease_seconds=5)
    wanted = {table: recorded(CASE, table) for table in VIEWS}

    def view() -> dict[str, object]:
        return {table: rows(disturbed.stack, disturbed.keyspace, table) for table in VIEWS}

    def killed(operation: str, instant: str) -> None:
        disturbed.start("views", operation, "--offline", "--yes", at=instant).kill()

    def crashed(operation: str, instant: str) -> None:
        disturbed.crash("views", operation, "--offline", "--yes", at=instant)

    crashed("delete", "build.before_commit")
    assert view() == wanted
    crashed("truncate", "truncate.after_table")
    assert view() == {**wanted, "tag_views": []}
    crashed("delete", "build.after_commit")
    assert view() == {**wanted, "tag_views": []}
    # The next operation first finishes the deletion that was committed.
    crashed("rebuild", "build.before_commit")
    assert view() == {table: [] for table in VIEWS}
    crashed("rebuild", "build.after_commit")
    killed("rebuild", "build.after_views")
    crashed("rebuild", "build.before_end")
    ended = disturbed.here("views", "rebuild", "--offline", "--yes")
    assert ended.code == 0 and "0 rows added, 0 rows changed, 0 rows removed" in ended.out, ended
    assert view() == wanted
