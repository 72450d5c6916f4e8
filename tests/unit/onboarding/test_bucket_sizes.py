"""The bucket size that a view's data show, and what is said of one that does not fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagmill.domain.time_buckets import BucketSize
from tagmill.onboarding.bucket_sizes import advice, detect, spread

DAY, HOUR, MINUTE = 86_400_000, 3_600_000, 60_000
MIDNIGHT = 20_000 * DAY


@pytest.mark.parametrize(
    ("buckets", "last_rows", "size", "certain"),
    [
        ([], {}, None, False),
        ([MIDNIGHT + 7], {}, None, False),
        ([MIDNIGHT, MIDNIGHT + MINUTE], {}, "Minute", True),
        ([MIDNIGHT, MIDNIGHT + HOUR], {MIDNIGHT: MIDNIGHT + 2 * MINUTE}, "Hour", True),
        ([MIDNIGHT], {MIDNIGHT: MIDNIGHT + 5 * HOUR}, "Day", True),
        ([MIDNIGHT], {MIDNIGHT: MIDNIGHT + 10}, "Hour", False),
        ([MIDNIGHT], {MIDNIGHT: MIDNIGHT + 2 * MINUTE}, "Hour", False),
        ([MIDNIGHT + HOUR], {MIDNIGHT + HOUR: MIDNIGHT + HOUR + 10}, "Hour", False),
        ([MIDNIGHT + HOUR], {MIDNIGHT + HOUR: MIDNIGHT + 9 * HOUR}, "Hour", False),
        # One row of a damaged view lies in a wrong bucket: of eleven buckets it says nothing.
        (
            [MIDNIGHT + n * HOUR for n in range(11)],
            {MIDNIGHT + n * HOUR: MIDNIGHT + n * HOUR + (2 * HOUR if n == 3 else 2 * MINUTE) for n in range(11)},
            "Hour",
            True,
        ),
    ],
    ids=[
        "empty view", "no whole minutes", "minutes", "hours", "days by rows", "midnight, all sizes fit",
        "midnight, minute ruled out", "hour, minute fits too", "rows outside of buckets", "one row astray",
    ],
)  # fmt: skip
def test_detect_size_of_buckets(buckets, last_rows, size, certain) -> None:
    """Tell the size where data are clear, and propose the plugin's default where they are not."""
    found = detect(buckets, last_rows)
    assert (found.size and found.size.value, found.certain) == (size, certain), found.reason


@given(
    size=st.sampled_from(BucketSize),
    starts=st.lists(st.integers(0, 60 * 24 * 30), min_size=1, max_size=40),
    behind=st.integers(0, DAY - 1),
)
def test_detect_never_certain_of_wrong_size(size, starts, behind) -> None:
    """Rows written by the plugin's rule never give another size than that of their buckets with certainty."""
    times = [MIDNIGHT + start * MINUTE + behind % size.milliseconds for start in starts]
    last_rows: dict[int, int] = {}
    for time in times:
        bucket = time - time % size.milliseconds
        last_rows[bucket] = max(time, last_rows.get(bucket, time))
    found = detect(set(last_rows), last_rows)
    assert found.size is not None and (found.size == size or not found.certain)


@pytest.mark.parametrize(
    ("size", "rows_a_day", "largest", "expected"),
    [
        ("Day", 50_000, 0, None),
        ("Day", 2_000_000, 0, "coarse: some 2,000,000 rows each; Hour would fit"),
        ("Hour", 50_000, 400_000, "coarse: some 400,000 rows each; Minute would fit"),
        ("Minute", 500_000_000, 0, "no size is smaller"),
        ("Hour", 24, 0, None),
        ("Hour", 10, 0, "fine: 24 a day for 10 rows; Day would fit"),
        ("Minute", 100, 0, "fine: 1,440 a day for 100 rows; Day would fit"),
        ("Minute", 0, 0, None),
        ("Day", 0.1, 0, None),
    ],
)
def test_advice_on_coarse_and_fine_buckets(size, rows_a_day, largest, expected) -> None:
    """Warn where a bucket holds too many rows, or most have none; name the size that fits."""
    found = advice(BucketSize(size), rows_a_day, largest)
    assert found is None if expected is None else expected in (found or "")


def test_spread_takes_newest_and_even_others() -> None:
    assert spread([1, 2, 3], 8) == [1, 2, 3]
    assert spread(list(range(100)), 8) == [0, 24, 48, 72, 96, 97, 98, 99]
