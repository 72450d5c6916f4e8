"""Deletions and rebuilds that are killed at announced instants leave the view of those that nobody disturbed."""

from collections.abc import Callable

import pytest

from tests.faults.conftest import Delivery
from tests.support.building import VIEWS, recorded, rows

CASE = "partition-boundary"


@pytest.mark.timeout(900)
def test_killed_at_every_instant_a_view_is_deleted_and_comes_back_whole(delivery: Callable[..., Delivery]) -> None:
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
    killed("delete", "build.after_commit")
    assert view() == {**wanted, "tag_views": []}
    # what was committed is finished first, by whatever comes next
    crashed("rebuild", "build.before_commit")
    assert view() == {table: [] for table in VIEWS}
    crashed("rebuild", "build.after_commit")
    killed("rebuild", "build.after_views")
    crashed("rebuild", "build.before_end")
    ended = disturbed.here("views", "rebuild", "--offline", "--yes")
    assert ended.code == 0 and "0 rows added, 0 rows changed, 0 rows removed" in ended.out, ended
    assert view() == wanted
