"""Batches of a run: limits of rows, bytes and months; each batch is one file, one insert and one part in
ClickHouse.
"""

from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tagmill.clickhouse.client import ClickHouse
from tests.support.delivery import (
    as_row,
    assert_in_order,
    clickhouse_rows,
    deliver,
    delivered_first,
    in_order,
    manifests,
    only,
    verdicts,
)
from tests.support.events import event, events, this_hour

BEGIN = this_hour() - timedelta(hours=2)
HOUR = {"tags": ["t"], "bucket_size": "Hour", "first_time_bucket": BEGIN.isoformat()}


pytestmark = pytest.mark.usefixtures("both_seals")


def sealed(settings):
    """Return (batch, rows of its file) for every batch of all runs."""
    root = Path(settings.storage.root)
    found = []
    for manifest in manifests(settings, only(settings)):
        for batch in manifest.batches:
            columns = ["event", "event_time", "tag", "persistence_id"]
            found.append(
                (batch, pq.read_table(root / batch.file, partitioning=None, columns=columns).to_pylist())
            )
    return found


def parts(settings):
    """Return (ClickHouse partition, rows) of each active part of the destination."""
    with ClickHouse(settings.clickhouse) as clickhouse:
        return clickhouse.rows(
            "SELECT partition, rows FROM system.parts WHERE active AND database = {d:String} AND table = "
            "{t:String}",
            {"d": settings.clickhouse.database, "t": only(settings)},
        )


def batches_in_parts(settings):
    """Return (part, number of batches, number of months) for each part of the destination."""
    with ClickHouse(settings.clickhouse) as clickhouse:
        return clickhouse.rows(
            f"SELECT _part, uniqExact(batch_id), uniqExact(toYYYYMM(event_time)) FROM `{only(settings)}` "
            "GROUP BY _part"
        )


def hold_merges(settings):
    """Stop merges of the destination, so that the parts of the inserts can be counted."""
    with ClickHouse(settings.clickhouse) as clickhouse:
        clickhouse.command(f"SYSTEM STOP MERGES `{only(settings)}`")


def delivered(settings, spark):
    """Apply the schema, stop merges and deliver; return the runs."""
    from tagmill.ledger import schema

    schema.apply(settings)
    hold_merges(settings)
    return deliver(settings, only(settings), spark)


def test_batches_hold_at_most_batch_rows(journal, settings, spark):
    """Cut batches at batch_rows; each becomes one part in ClickHouse, and slices of a bucket follow each
    other in time.
    """
    written = journal()
    records = [row for pid in "abcd" for row in events(pid, range(1, 14), BEGIN)]
    written.both(records)
    configured = settings(written.keyspace, batch_rows=10, **HOUR)
    delivered(configured, spark)
    found = sealed(configured)
    assert all(0 < batch.rows == len(rows) <= 10 for batch, rows in found)
    assert clickhouse_rows(configured, only(configured)) == sorted(map(as_row, records))
    assert_in_order(configured, only(configured))
    # Slices of one bucket follow each other in time.
    times = [row["event_time"] for _, rows in found for row in rows]
    assert times == sorted(times)
    assert sorted(rows for _, rows in parts(configured)) == sorted(batch.rows for batch, _ in found)
    assert deliver(configured, only(configured), spark) == []
    assert verdicts(configured, only(configured)) == {"t": "exactly once"}


def test_batches_row_larger_than_limit_goes_alone(journal, settings, spark):
    """Cut batches at batch_bytes; a row larger than that becomes a batch of its own."""
    written = journal()
    records = [
        event("a", n, BEGIN + timedelta(seconds=n), event=b"x" * (5_000 if n == 6 else 300))
        for n in range(1, 13)
    ]
    records += [
        event("gap", n, BEGIN + timedelta(seconds=n), event=b"y" * (5_000 if n == 4 else 300))
        for n in range(1, 7)
    ]
    written.view(row for row in records if (row["persistence_id"], row["tag_pid_sequence_nr"]) != ("gap", 2))
    written.messages(records)
    configured = settings(written.keyspace, batch_bytes=2_000, **HOUR)
    delivered(configured, spark)
    found = sealed(configured)
    sizes = [sum(len(row["event"]) for row in rows) for _, rows in found]
    assert all(size <= 2_000 or batch.rows == 1 for size, (batch, _) in zip(sizes, found, strict=True))
    assert [batch.rows for size, (batch, _) in zip(sizes, found, strict=True) if size > 2_000] == [1, 1]
    assert len(found) < len(records)
    assert clickhouse_rows(configured, only(configured)) == sorted(map(as_row, records))
    assert_in_order(configured, only(configured))
    assert len(parts(configured)) == len(found)


def test_batches_of_recut_slice_keep_order(journal, settings, spark):
    """Cut a slice with too many rows for one file into several batches, which arrive in the order of the
    numbers.
    """
    written = journal()
    # All rows lie in the hour's first minute, so the slice of its first half has more rows than a file may
    # have.
    records = events("a", range(1, 41), BEGIN)
    written.both(records)
    configured = settings(written.keyspace, batch_rows=20, batch_bytes=1_500, **HOUR)
    delivered(configured, spark)
    assert len(sealed(configured)) == 4
    assert_in_order(configured, only(configured))
    assert [number for _, _, number, _, _ in in_order(configured, only(configured))] == list(range(1, 41))
    assert clickhouse_rows(configured, only(configured)) == sorted(map(as_row, records))


def test_batch_lies_in_one_month_and_part(journal, settings, spark):
    """Cut batches by month, so that each becomes one part, also for a row in another month's bucket."""
    written = journal()
    moments = [
        datetime(2026, month, day, hour, tzinfo=UTC)
        for month, day, hour in ((8, 31, 23), (9, 1, 0), (9, 30, 23), (10, 1, 0))
    ]
    records = [
        event(pid, n, moment, tag) for tag in "tu" for pid in "abc" for n, moment in enumerate(moments, 1)
    ]
    # This row of September lies in October's bucket.
    wrong = event("late", 1, moments[3], "t") | {"timestamp": event("x", 1, moments[2])["timestamp"]}
    written.both([*records, wrong])
    configured = settings(
        written.keyspace,
        tags=["t", "u"],
        bucket_size="Hour",
        first_time_bucket="20260801T00:00",
        quality={"max_wrong_bucket_share_percent": 20},
    )
    delivered(configured, spark)
    found = sealed(configured)
    months = [
        {datetime.fromtimestamp(row["event_time"] / 1e7, UTC).month for row in rows} for _, rows in found
    ]
    assert all(len(of_batch) == 1 for of_batch in months)
    assert clickhouse_rows(configured, only(configured)) == sorted(map(as_row, [*records, wrong]))
    by_part = batches_in_parts(configured)
    assert len(by_part) == len(found) and all(
        (batches, partitions) == (1, 1) for _, batches, partitions in by_part
    )
    assert Counter(partition for partition, _ in parts(configured)).keys() == {"202608", "202609", "202610"}
    order = defaultdict(list)
    for tag, pid, number, _, _ in in_order(configured, only(configured)):
        order[tag, pid].append(number)
    assert all(numbers == [1, 2, 3, 4] for (_, pid), numbers in order.items() if pid != "late")


def test_backlog_in_many_runs_is_delivered_once(journal, settings, spark):
    """Deliver a backlog in several runs of at most max_slices_per_run; every row arrives once."""
    written = journal()
    records = [event("a", n, BEGIN - timedelta(hours=6 - n)) for n in range(1, 7)]
    records += [event("b", n, BEGIN - timedelta(hours=6 - 2 * n)) for n in range(1, 4)]
    written.both(records)
    begin = (BEGIN - timedelta(hours=7)).isoformat()
    configured = settings(written.keyspace, max_slices_per_run=3, **{**HOUR, "first_time_bucket": begin})
    runs = delivered_first(configured, spark)
    assert [run["rows"] for run in runs] == [4, 5]
    assert [run["more"] for run in runs] == [True, False]
    assert clickhouse_rows(configured, only(configured)) == sorted(map(as_row, records))
    assert_in_order(configured, only(configured))
