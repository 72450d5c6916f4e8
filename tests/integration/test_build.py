"""What Tagmill builds from messages alone is, row for row and column for column, what the plugin itself wrote."""

import pytest

from local.fixtures import WITHOUT_VIEWS
from tests.support.building import VIEWS, built, recorded, records, rows

HEALTHY = ["orders", "minute-buckets", "odd-names", "partition-boundary"]


@pytest.mark.parametrize("case", HEALTHY)
def test_a_journal_without_views_gets_the_plugins_rows(case, stack, keyspace, settings, spark):
    journal = keyspace(case, WITHOUT_VIEWS)
    configured = settings(journal, case=case, views="tagmill")
    result = built(configured, spark)
    for table in VIEWS:
        assert rows(stack, journal, table) == recorded(case, table), table
    assert (result["rows"], result["waiting"]) == (len(recorded(case, "tag_views")), 0)
    before = {table: rows(stack, journal, table) for table in VIEWS} | {"records": records(stack, journal)}
    again = built(configured, spark)
    assert (again["rows"], again["moved"]) == (0, 0)
    assert before == {table: rows(stack, journal, table) for table in VIEWS} | {"records": records(stack, journal)}
