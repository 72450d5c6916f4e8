"""A rebucket that is killed at announced instants goes on where it was, and ends with the table of one that nobody disturbed."""

from collections.abc import Callable

import pytest

from tests.faults.conftest import Delivery
from tests.support.building import recorded
from tests.support.rebucketing import half_copied, in_buckets, same_rows, tables

CASE = "minute-buckets"


@pytest.mark.timeout(900)
def test_killed_while_it_copies_verifies_and_switches(delivery: Callable[..., Delivery]) -> None:
    disturbed = delivery(CASE, lease_seconds=5)
    expected = in_buckets(recorded(CASE, "tag_views"), "Day")
    rebucket = ("views", "rebucket", "--to", "Day", "--yes")
    disturbed.crash(*rebucket, at="rebucket.begun")
    assert "tag_views_day" not in tables(disturbed.stack, disturbed.keyspace)
    disturbed.start(*rebucket, at="rebucket.copied").kill()
    half_copied(disturbed.stack, disturbed.keyspace, "tag_views_day", expected)
    disturbed.crash(*rebucket, "--offline", at="rebucket.verified")
    same_rows(disturbed.stack, disturbed.keyspace, "tag_views_day", expected)
    disturbed.start(*rebucket, "--offline", at="rebucket.switched").kill()
    ended = disturbed.here(*rebucket, "--offline")
    assert ended.code == 0 and 'pekko.persistence.cassandra.events-by-tag.table = "tag_views_day"' in ended.out, ended
    assert "is the view in force already" in ended.out
    same_rows(disturbed.stack, disturbed.keyspace, "tag_views_day", expected)
    same_rows(disturbed.stack, disturbed.keyspace, "tag_views", recorded(CASE, "tag_views"))
