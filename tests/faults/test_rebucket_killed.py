"""A killed rebucket continues where it stopped and ends with the same table as an undisturbed one."""

from collections.abc import Callable

import pytest

from tests.faults.conftest import Delivery
from tests.support.building import recorded
from tests.support.rebucketing import half_copied, in_buckets, same_rows, tables

CASE = "minute-buckets"


@pytest.mark.timeout(900)
def test_rebucket_killed_in_each_step_finishes(delivery: Callable[..., Delivery]) -> None:
    """Kill or crash a rebucket while it copies, verifies and switches; the last one finishes with the
    expected rows.
    """
    disturbed = delivery(CASE, lease_seconds=5)
    expected = in_buckets(recorded(CASE, "tag_views"), "Day")
    rebucket = ("views", "rebucket", "--to", "Day", "--yes")
    disturbed.crash(*rebucket, at="rebucket.begun")
    assert "tag_views_day" not in tables(disturbed.stack, disturbed.keyspace)
    disturbed.start(*rebucket, at="rebucket.copied").kill()
    half_copied(disturbed.stack, disturbed.keyspace, "tag_views_day", expected)
    disturbed.crash(*rebucket, "--offline", at="rebucket.verified")
    same_rows(disturbed.stack, disturbed.keyspace, "tag_views_day", expected)
    disturbed.crash(*rebucket, "--offline", at="rebucket.switched")
    ended = disturbed.here(*rebucket, "--offline")
    assert (
        ended.code == 0 and 'pekko.persistence.cassandra.events-by-tag.table = "tag_views_day"' in ended.out
    ), ended
    assert "is the view in force already" in ended.out
    same_rows(disturbed.stack, disturbed.keyspace, "tag_views_day", expected)
    same_rows(disturbed.stack, disturbed.keyspace, "tag_views", recorded(CASE, "tag_views"))
