"""Gaps of the view whose events lie in the journal behind empty partitions are found and delivered, and the
view is repaired.
"""

from datetime import timedelta
from unittest.mock import patch

import pytest

from tagmill.cassandra.client import Cassandra
from tagmill.config.settings import CassandraSettings
from tagmill.journal.partitions import partitions_before
from tagmill.runs import checkpoints
from tests.support.delivery import as_row, clickhouse_rows, delivered_first, holds, only
from tests.support.events import SECOND, event, this_hour

BEGIN = this_hour() - timedelta(hours=2)


def numbered(persistence_id, numbers, size):
    """Return tagged events with these sequence_nrs in partitions of `size`; their tag numbers count from
    1.
    """
    return [
        event(persistence_id, number, BEGIN + number * SECOND, sequence_nr=nr, partition_nr=(nr - 1) // size)
        for number, nr in enumerate(numbers, 1)
    ]


def test_gap_behind_empty_partitions_is_filled_from_journal(journal, settings, spark):
    """Fill a gap behind some 180 empty partitions, although metadata does not record that the events between
    were deleted.
    """
    one = journal()
    far = numbered("far", [1, 3, 5, 9_001, 9_010, 9_020, 9_060], 50)
    first_ones_gone = numbered("first-ones-gone", [400, 402, 403, 410], 5)
    plain = numbered("plain", [1, 2, 3], 50)
    missing = [far[4], far[5], first_ones_gone[1], plain[1]]
    every = [*far, *first_ones_gone, *plain]
    one.messages(every)
    one.view(row for row in every if row not in missing)
    configured = settings(
        one.keyspace,
        tags=["t"],
        bucket_size="Hour",
        first_time_bucket=f"{BEGIN - timedelta(days=1):%Y-%m-%d}",
    )
    delivered_first(configured, spark)
    assert holds(configured, only(configured)) == {}
    found = [row._replace(late=0) for row in clickhouse_rows(configured, only(configured))]
    assert found == sorted(as_row(row) for row in every)
    assert {(row["persistence_id"], row["sequence_nr"]) for row in one.rows()} == {
        (row["persistence_id"], row["sequence_nr"]) for row in every
    }


def test_row_deleted_during_close_stays_deleted(journal, settings, spark, monkeypatch):
    """Delete a row, as an erasure would, while a close that was taken over is about to write it."""
    one, whole = journal(), checkpoints.reached
    rows = numbered("a", [1, 2, 3], 50)
    one.messages(rows)
    one.view([rows[0], rows[2]])

    def reached(instant):
        if instant == "close.before_repair":
            one.remove(rows[1])
        whole(instant)

    monkeypatch.setattr(checkpoints, "reached", reached)
    begin = f"{BEGIN - timedelta(days=1):%Y-%m-%d}"
    configured = settings(one.keyspace, tags=["t"], bucket_size="Hour", first_time_bucket=begin)
    delivered_first(configured, spark)
    assert len(clickhouse_rows(configured, only(configured))) == 3
    assert [row["sequence_nr"] for row in one.rows()] == [1, 3]


@pytest.mark.parametrize(
    ("numbers", "size", "before", "expected", "queries"),
    [
        ([], 5, 10**12, [], 1030),
        ([1, 2], 500_000, 3, [0], 1),
        ([1, 2, 500_000, 500_001], 500_000, 500_001, [0], 1),
        ([500_000, 4_999_999_999], 500_000, 5_000_000_000, [0, 9999], 160),
        ([7, 800, 801, 900], 10, 850, [0, 79, 80], 5),
    ],
    ids=[
        "no events",
        "one partition",
        "the neighbour begins the next",
        "ten thousand empty ones",
        "empty ones at the begin",
    ],
)
def test_partitions_before_number_take_bounded_queries(
    journal, stack, numbers, size, before, expected, queries
):
    """Find the partitions with events before a number in at most `queries` queries."""
    one = journal()
    one.messages(numbered("p", numbers, size))
    with Cassandra(CassandraSettings(port=stack.cassandra.port)) as cassandra:
        asked = []
        many = cassandra.execute_many

        def counted(cql, rows, **options):
            asked.extend(rows)
            return many(cql, asked[len(asked) - len(rows) :], **options)

        with patch.object(cassandra, "execute_many", counted):
            found = list(partitions_before(cassandra, f"{one.keyspace}.messages", "p", before))
    assert found == expected and len(asked) <= queries
