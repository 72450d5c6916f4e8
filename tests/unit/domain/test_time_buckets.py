"""Timebuckets as the plugin computes them."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagmill.domain.time_buckets import BucketSize, first_ticks, month
from tagmill.domain.timeuuid import from_datetime

TICKS = st.integers(0, 10**17)


@pytest.mark.parametrize(
    ("size", "start"),
    [
        (BucketSize.DAY, "2026-11-21T00:00"),
        (BucketSize.HOUR, "2026-11-21T07:00"),
        (BucketSize.MINUTE, "2026-11-21T07:59"),
    ],
)
def test_start_is_bucket_that_began_last(size: BucketSize, start: str) -> None:
    """Moments fall in the bucket that began last before them."""
    moment = from_datetime(datetime(2026, 11, 21, 7, 59, 59, 999999, tzinfo=UTC))
    assert size.start(moment) == datetime.fromisoformat(start + "Z").timestamp() * 1000


@given(st.sampled_from(BucketSize), TICKS)
def test_every_tick_is_inside_its_bucket(size: BucketSize, tick: int) -> None:
    start = size.start(tick)
    assert start % size.milliseconds == 0
    assert first_ticks(start) <= tick < first_ticks(start) + size.ticks


@given(st.sampled_from(BucketSize), TICKS)
def test_bucket_holds_first_and_last_tick(size: BucketSize, tick: int) -> None:
    """Buckets hold their first and last tick; the ticks next to these are in the neighbouring buckets."""
    start = size.start(tick)
    first = first_ticks(start)
    assert [size.start(first + n) for n in (0, size.ticks - 1)] == [start, start]
    assert [size.start(first - 1), size.start(first + size.ticks)] == [
        start - size.milliseconds,
        start + size.milliseconds,
    ]


def test_bucket_sizes_have_the_plugin_s_names() -> None:
    assert [size.value for size in BucketSize] == ["Day", "Hour", "Minute"]
    assert [size.milliseconds for size in BucketSize] == [86_400_000, 3_600_000, 60_000]


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        ("2026-11-30T23:59:59.999999Z", "202611"),
        ("2026-12-01T00:00:00Z", "202612"),
        ("2024-02-29T12:00:00Z", "202402"),
    ],
)
def test_the_month_is_the_one_in_utc(moment: str, expected: str) -> None:
    assert month(from_datetime(datetime.fromisoformat(moment)) + 9) == expected
