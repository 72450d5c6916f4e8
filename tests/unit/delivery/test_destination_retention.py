"""Rows of a sealed file within a destination's retention."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tagmill.delivery.destination_retention import DAY_MS, MARGIN_MS, Expiry, Within, times_in
from tagmill.domain.batches.layout import TAG_VIEWS
from tagmill.ledger.batch_times import Times

NOW_MS = 1_800_000_000_000
CHECKSUMS = [2**63 - 1, -(2**63), -5]


class Clock:
    """Stand-in for ClickHouse that only tells the time."""

    layout = TAG_VIEWS

    def rows(self, query):
        return [(NOW_MS,)]


def sealed(*ages_ms: int) -> io.BytesIO:
    """Return a sealed file with rows of these ages (milliseconds), in row groups of two rows."""
    times = [(NOW_MS - age) * 10_000 for age in ages_ms]
    rows = pa.table({"tag": ["t"] * len(times), "event_time": times, "row_checksum": CHECKSUMS[: len(times)]})
    sink = io.BytesIO()
    pq.write_table(rows, sink, row_group_size=2)
    return io.BytesIO(sink.getvalue())


@pytest.mark.parametrize(
    ("ages", "expected"),
    [
        ((0, 1, 2), Within(3, (sum(CHECKSUMS)) % 2**64, False)),
        ((11 * DAY_MS, 1, 2), Within(2, (-(2**63) - 5) % 2**64, False)),
        ((11 * DAY_MS, 10 * DAY_MS + 1), Within(0, 0, True)),
        ((11 * DAY_MS, 10 * DAY_MS - MARGIN_MS + 1), Within(0, 0, False)),
    ],
    ids=["all within", "one past", "all past", "one about to expire"],
)
def test_within_sums_rows_of_the_retention(ages, expected):
    """Checksums add up modulo 2^64. Rows that expire within the margin are neither asked for nor past."""
    assert Expiry(Clock(), "table", 10).within(sealed(*ages)) == expected


def test_times_in_reads_the_footer_of_all_groups():
    """Find first and last time in whichever row group they lie."""
    assert times_in(sealed(5, 9, 1)) == Times(NOW_MS - 9, NOW_MS - 1)
