"""The plugin writes in Hour buckets, Tagmill rebuckets the view to Day, and the plugin reads and writes
there.
"""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from tests.interop.test_views import journal_of
from tests.support.auditing import audited
from tests.support.building import in_order, rows
from tests.support.delivery import deliver, delivered_first, only, verdicts
from tests.support.rebucketing import in_buckets, switched

FIRST = f"{datetime.now(UTC) - timedelta(hours=2):%Y%m%dT%H:%M}"
TAGS = ("tag-0", "tag-1")


@pytest.mark.timeout(900)
def test_rebucket_plugin_continues_in_new_buckets(stack, peer, settings, spark):
    """Rebucket the plugin's view; the plugin reads all events from the new table and writes more, which are
    delivered once.
    """
    plugin = peer()
    write = ("--pids", "12", "--events", "25", "--tags", "2", "--untagged-every", "5", "--linger", "5")
    plugin.write(*write, "--bucket", "Hour", tagging=True)
    hour = settings(plugin.keyspace, tags=list(TAGS), bucket_size="Hour", first_time_bucket=FIRST)
    delivered_first(hour, spark)
    before = rows(stack, plugin.keyspace, "tag_views")
    day = switched(hour, spark, "Day")
    table = ("--set", "pekko.persistence.cassandra.events-by-tag.table=tag_views_day")
    for _ in range(2):
        for tag in TAGS:
            expected = journal_of(stack, plugin.keyspace, tag)
            found = plugin.read(tag, "Day", FIRST, *table)
            assert sorted(found) == sorted(expected) and [line[2] for line in found] == [
                line[2] for line in expected
            ]
        if len(expected) == 12 * 20:
            plugin.write(*write, "--bucket", "Day", *table, tagging=True)
    assert rows(stack, plugin.keyspace, "tag_views") == before and len(before) == 2 * 12 * 20
    after = rows(stack, plugin.keyspace, "tag_views_day")
    assert after == in_order(in_buckets(after, "Day")) and len(after) == 2 * len(before)
    assert sum(run["rows"] for run in deliver(day, only(day), spark)) == len(before)
    stored = Counter(
        tuple(row) for row in stack.rows(f"SELECT tag, persistence_id, sequence_nr FROM {only(day)}")
    )
    assert stored == Counter((row["tag_name"], row["persistence_id"], row["sequence_nr"]) for row in after)
    assert set(verdicts(day, only(day)).values()) == {"exactly once"}
    assert audited(day, spark).agrees
