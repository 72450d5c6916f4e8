"""Tell the size of a view's buckets from its data, and whether another size would fit better. Pure.

Source: TimeBucket in pekko-persistence-cassandra: a timebucket is a multiple of the bucket size, and its rows
lie within that size behind it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tagmill.config.tag_views import QualitySettings
from tagmill.domain.time_buckets import BucketSize

LARGEST_FIRST = (BucketSize.DAY, BucketSize.HOUR, BucketSize.MINUTE)
# The plugin's default of events-by-tag.bucket-size.
DEFAULT = BucketSize.HOUR
# Share of buckets whose rows must lie beyond a size before it is ruled out: single rows may be in a wrong
# bucket.
RULED_OUT_SHARE = 0.1
# Rows of a partition above which an audit warns.
MANY_ROWS = int(QualitySettings.model_fields["max_partition_rows"].default)
DAY_MS = BucketSize.DAY.milliseconds


@dataclass(frozen=True, slots=True)
class Detection:
    """A bucket size (None: the data fit no size, or there are none), whether it is certain, and why."""

    size: BucketSize | None
    certain: bool
    reason: str


def detect(timebuckets: Collection[int], last_rows: Mapping[int, int]) -> Detection:
    """Return the bucket size that the data show.

    Args:
        timebuckets: start of each bucket, milliseconds since 1970.
        last_rows: for some of them the time of the last row in it, milliseconds since 1970.

    A bucket at midnight fits all sizes. So rows decide which sizes are too small; where several sizes remain,
    the plugin's default is proposed and nothing is certain.
    """
    if not timebuckets:
        return Detection(None, False, "the view has no rows")
    divisible = [
        size for size in LARGEST_FIRST if not any(bucket % size.milliseconds for bucket in timebuckets)
    ]
    if not divisible:
        return Detection(None, False, "some timebuckets are no whole minutes")
    fitting = [size for size in divisible if not _too_small(size, last_rows)]
    if not fitting:
        return Detection(
            divisible[0], False, f"timebuckets are whole {_units(divisible[0])}, but rows lie outside of them"
        )
    if len(fitting) == 1:
        return Detection(
            fitting[0], True, f"all {len(timebuckets)} timebuckets are whole {_units(fitting[0])}"
        )
    size = DEFAULT if DEFAULT in fitting else fitting[0]
    names = " and ".join(fit.value for fit in fitting)
    return Detection(size, False, f"{len(timebuckets)} timebuckets and their rows fit {names}")


def _too_small(size: BucketSize, last_rows: Mapping[int, int]) -> bool:
    beyond = sum(1 for bucket, last in last_rows.items() if last - bucket >= size.milliseconds)
    return beyond > 0 and beyond >= RULED_OUT_SHARE * len(last_rows)


def _units(size: BucketSize) -> str:
    return {BucketSize.DAY: "days", BucketSize.HOUR: "hours", BucketSize.MINUTE: "minutes"}[size]


def rows_per_bucket(size: BucketSize, rows_a_day: float) -> float:
    """Return the average rows of a bucket, if rows come evenly through the day."""
    return rows_a_day * size.milliseconds / DAY_MS


def fitting_size(rows_a_day: float) -> BucketSize:
    """Return the largest bucket size whose buckets have at most MANY_ROWS rows; the smallest if none has."""
    return next(
        (size for size in LARGEST_FIRST if rows_per_bucket(size, rows_a_day) <= MANY_ROWS), BucketSize.MINUTE
    )


def advice(size: BucketSize, rows_a_day: float, largest_bucket: int = 0, days: float = 1.0) -> str | None:
    """Return a warning where the size is too coarse or too fine for the busiest tag; None where it fits.

    Args:
        size: the size of the view's buckets.
        rows_a_day: of the busiest tag.
        largest_bucket: rows of the largest bucket that was seen.
        days: time that its rows cover; less than a day says nothing of empty buckets.
    """
    average, better = rows_per_bucket(size, rows_a_day), fitting_size(rows_a_day)
    rows = max(round(average), largest_bucket)
    if rows > MANY_ROWS:
        smaller = LARGEST_FIRST.index(size) + 1
        if smaller == len(LARGEST_FIRST):
            return f"buckets are too coarse: some {rows:,} rows each, and no size is smaller; split the tag"
        better = better if LARGEST_FIRST.index(better) >= smaller else LARGEST_FIRST[smaller]
        return f"buckets are too coarse: some {rows:,} rows each; {better.value} would fit"
    if average < 1 and rows_a_day and days >= 1 and better != size:
        return (
            f"buckets are too fine: {DAY_MS // size.milliseconds:,} a day for {rows_a_day:,.0f} rows; "
            f"{better.value} would fit"
        )
    return None


def spread(timebuckets: Sequence[int], most: int) -> list[int]:
    """Return at most `most` of the sorted timebuckets: the newest ones, and others evenly between them and
    the first.
    """
    if len(timebuckets) <= most:
        return list(timebuckets)
    newest = most // 2
    older = timebuckets[: len(timebuckets) - newest]
    step = len(older) / (most - newest)
    return [*(older[int(index * step)] for index in range(most - newest)), *timebuckets[-newest:]]
