"""The plugin writes with events-by-tag off, Tagmill builds, the plugin reads every event by tag."""

from datetime import UTC, datetime, timedelta

import pytest

from tagmill.errors import GuardRefused
from tagmill.timeuuid import ticks
from tests.support.building import built, rows

FIRST = f"{datetime.now(UTC) - timedelta(minutes=3):%Y%m%dT%H:%M}"
ODD = ("Заказ №'/ 1", 'a|b"c\\d %')


def journal_of(stack, keyspace, tag):
    """(persistence_id, sequence_nr, offset) of every event with a tag, as the plugin's query orders them."""
    found = stack.session.execute(f"SELECT persistence_id, sequence_nr, timestamp, tags FROM {keyspace}.messages")
    tagged = [row for row in found if tag in (row.tags or ())]
    return [
        (row.persistence_id, row.sequence_nr, str(row.timestamp)) for row in sorted(tagged, key=lambda row: ticks(row.timestamp))
    ]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("bucket", "options"),
    [
        ("Day", ("--payload", "string")),
        (
            "Minute",
            ("--payload", "json-order", "--set", "pekko.persistence.cassandra.journal.target-partition-size=10", "--batch", "7"),
        ),
        ("Hour", ("--payload", "bytes", "--replicated")),
    ],
    ids=["day", "minute, small partitions", "hour, replicated"],
)
def test_the_plugin_reads_what_is_built_for_it(bucket, options, stack, peer, settings, spark):
    plugin = peer()
    names = [part for tag in ODD for part in ("--tag-name", tag)]
    write = ("--pids", "12", "--events", "25", "--tags", "2", "--untagged-every", "5", "--bucket", bucket, *names, *options)
    configured = settings(plugin.keyspace, tags=list(ODD), bucket_size=bucket, first_time_bucket=FIRST, views="tagmill")
    for _ in range(2):  # the persistent actors recover and go on, and so does the build
        plugin.write(*write)
        assert built(configured, spark)["waiting"] == 0
        expected = journal_of(stack, plugin.keyspace, ODD[0])
        found = plugin.read(ODD[0], bucket, FIRST)
        assert sorted(found) == sorted(expected) and [line[2] for line in found] == [line[2] for line in expected]
    assert len(rows(stack, plugin.keyspace, "tag_views")) == 2 * len(expected) == 2 * 12 * 40


@pytest.mark.timeout(900)
def test_an_application_goes_on_with_our_numbers_and_then_the_build_refuses(stack, peer, settings, spark):
    plugin = peer()
    write = ("--pids", "5", "--events", "10", "--tags", "1", "--linger", "3")
    plugin.write(*write)
    configured = settings(plugin.keyspace, tags=["tag-0"], bucket_size="Hour", first_time_bucket=FIRST, views="tagmill")
    built(configured, spark)
    plugin.write(*write, tagging=True)
    assert sorted(plugin.read("tag-0", "Hour", FIRST)) == sorted(journal_of(stack, plugin.keyspace, "tag-0"))
    with pytest.raises(GuardRefused, match="pid-000000.* and 4 others was numbered by somebody else"):
        built(configured, spark)
    assert len(rows(stack, plugin.keyspace, "tag_views")) == 5 * 20
