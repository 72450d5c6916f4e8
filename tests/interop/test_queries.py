"""Queries as DataFrames and the plugin's own queries return the same events of its journal in the same
order.
"""

from datetime import UTC, datetime, timedelta

import pytest

from tagmill.queries import ReadJournal, in_order
from tests.support.delivery import only

FIRST = f"{datetime.now(UTC) - timedelta(minutes=3):%Y%m%dT%H:%M}"
SMALL_PARTITIONS = ("--set", "pekko.persistence.cassandra.journal.target-partition-size=10")


@pytest.mark.timeout(900)
def test_each_query_gives_what_the_plugins_gives(stack, peer, settings, spark):
    """Query atomic writes of 7 over partitions of 10, with metadata of replicated event sourcing and
    deletions.
    """
    plugin = peer()
    plugin.write(
        *(
            "--pids",
            "6",
            "--events",
            "42",
            "--tags",
            "2",
            "--untagged-every",
            "5",
            "--batch",
            "7",
            "--bucket",
            "Minute",
        ),
        *("--replicated", "--duration", "20", "--linger", "3", *SMALL_PARTITIONS),
        tagging=True,
    )
    configured = settings(
        plugin.keyspace, tags=["tag-0", "tag-1"], bucket_size="Minute", first_time_bucket=FIRST
    )
    journal = ReadJournal(spark, configured, only(configured))

    def delivered(events):
        return [tuple(row) for row in events.select("persistence_id", "sequence_nr", "offset").collect()]

    found = journal.current_events_by_tag("tag-0")
    by_tags = plugin.read("tag-0", "Minute", FIRST)
    assert delivered(found) == by_tags and len(by_tags) > 150
    assert delivered(in_order(found.repartition(3))) == by_tags
    middle = by_tags[len(by_tags) // 2]
    behind = plugin.read("tag-0", "Minute", FIRST, "--from", middle[2])
    assert (
        delivered(journal.current_events_by_tag("tag-0", middle[2]))
        == behind
        == by_tags[len(by_tags) // 2 + 1 :]
    )
    some = sorted({line[0] for line in by_tags})[1:3]  # ids that contain the name of the replica
    plugin("delete", "--pid", some[0], "--to", "23", *SMALL_PARTITIONS)
    lines = plugin("replay", *(part for name in some for part in ("--pid", name)), *SMALL_PARTITIONS)
    replayed = [(line[0], int(line[1]), line[2]) for line in lines]
    events = journal.current_events_by_persistence_id(some)
    assert delivered(events) == replayed and len(replayed) == 42 - 23 + 42
    assert events.where("meta is null or meta_ser_id is null").count() == 0
    assert found.where("meta is null or meta_ser_id is null").count() == 0
