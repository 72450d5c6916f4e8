"""Look back in growing windows: count an hour of the view when it reaches a window's age, and read it again
if rows have come.

Counting happens on the server. An hour without more rows than are accounted for is not read, and Spark does
not start for it.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise

from tagmill.config.tag_views import PipelineSettings
from tagmill.delivery.tag_views.model import Slice
from tagmill.domain import time_buckets as bucket_rules
from tagmill.domain.time_buckets import BucketSize
from tagmill.domain.timeuuid import TICKS_PER_MILLISECOND, from_datetime, to_datetime
from tagmill.journal.tag_view_reader import Views
from tagmill.ledger.hour_counts import HourCount, HourCounts

HOUR_MS = 3_600_000
HOUR_TICKS = HOUR_MS * TICKS_PER_MILLISECOND
# Hours of a tag that one plan counts, and how many it counts before it checks the rows counted so far.
HOURS_PER_PLAN, HOURS_AT_ONCE = 1024, 16
# Milliseconds between two hours above which ClickHouse gets a query for each.
APART_MS = 24 * HOUR_MS

# Function from a tag and hours to the tag's rows in ClickHouse by hour; None if ClickHouse does not answer.
DeliveredRows = Callable[[str, Sequence[int]], Mapping[int, int] | None]


def is_due(begin: int, known: HourCount | None, now: datetime, windows: Sequence[float]) -> bool:
    """Return whether an hour has reached the age of a window since it was counted.

    An hour that was never counted is due up to the age of the largest window; one that was counted under a
    wrong clock is always due.
    """
    age = (now - _moment(begin)).total_seconds()
    if known is None:
        return bool(windows) and windows[0] <= age <= windows[-1]
    if known.counted_at > now:
        return True
    return bisect_right(windows, age) > bisect_right(
        windows, (known.counted_at - _moment(begin)).total_seconds()
    )


class LookBack:
    """The look-back of one plan; with `only_look`, it notes no counts."""

    def __init__(
        self,
        counts: HourCounts,
        views: Views,
        pipeline: PipelineSettings,
        delivered: DeliveredRows,
        now: datetime,
        *,
        only_look: bool = False,
    ) -> None:
        self.only_look = only_look
        self.counts, self.views, self.pipeline, self.delivered, self.now = (
            counts,
            views,
            pipeline,
            delivered,
            now,
        )
        self.windows = sorted(pipeline.look_back_windows_seconds)

    def with_more(self, run: int, watermarks: Mapping[str, int]) -> Iterator[tuple[str, int, list[Slice]]]:
        """Count the due hours of tags before their watermarks (ticks).

        Yields those with more rows than are accounted for, and notes the others as counted.
        """
        if not self.windows:
            return
        known_of = self.counts.of({tag: self._first(tag) for tag in watermarks})
        for (tag, watermark), known in zip(watermarks.items(), known_of, strict=True):
            for begin, parts in self._with_more(run, tag, watermark, known):
                yield tag, begin, parts

    def _with_more(
        self, run: int, tag: str, watermark: int, known: Mapping[int, HourCount]
    ) -> Iterator[tuple[int, list[Slice]]]:
        due = [
            begin
            for begin in self._hours(tag, watermark)
            if is_due(begin, known.get(begin), self.now, self.windows)
        ]
        counted = self._counted(tag, sorted(due, key=self._due_since)[:HOURS_PER_PLAN])
        rows = {begin: sum(part.rows for part in parts) for begin, parts in counted.items()}
        more = [begin for begin in counted if rows[begin] > (known[begin].rows if begin in known else 0)]
        in_clickhouse = self._in_clickhouse(tag, more)
        settled = [
            begin for begin in counted if begin not in more or rows[begin] <= in_clickhouse.get(begin, -1)
        ]
        if not self.only_look:
            self.counts.write((tag, HourCount(begin, rows[begin], run, self.now)) for begin in settled)
        yield from (
            (begin, counted[begin]) for begin in more if rows[begin] > in_clickhouse.get(begin, rows[begin])
        )

    def _first(self, tag: str) -> int:
        """Return the first hour of a tag that is worth counting: not before its start, and not older than
        counts are kept.
        """
        oldest = from_datetime(self.now - timedelta(seconds=self.counts.keep_seconds))
        return max(oldest, self.pipeline.start_ticks(tag)) // HOUR_TICKS * HOUR_MS

    def _hours(self, tag: str, watermark: int) -> Iterable[int]:
        """Return the hours that lie completely before the watermark."""
        return range(self._first(tag), (watermark + 1) // HOUR_TICKS * HOUR_MS, HOUR_MS)

    def _due_since(self, begin: int) -> datetime:
        """Return when an hour reached the window that it is due for: hours that have waited longest come
        first.
        """
        age = (self.now - _moment(begin)).total_seconds()
        return _moment(begin) + timedelta(seconds=self.windows[max(0, bisect_right(self.windows, age) - 1)])

    def _counted(self, tag: str, hours: Sequence[int]) -> dict[int, list[Slice]]:
        """Return the slices of hours with their rows, until max_rows_per_run rows have been counted for each
        window.

        That much has to be counted again for each full run that was delivered.
        """
        counted: dict[int, list[Slice]] = {}
        rows, absent = 0, self._absent(tag, hours)
        for first in range(0, len(hours), HOURS_AT_ONCE):
            if rows > self.pipeline.max_rows_per_run * len(self.windows):
                break
            slices = {begin: self._slices(tag, begin) for begin in hours[first : first + HOURS_AT_ONCE]}
            sizes = iter(self._sizes(tag, [part for parts in slices.values() for part in parts], absent))
            for begin, parts in slices.items():
                counted[begin] = [part.model_copy(update={"rows": next(sizes)}) for part in parts]
                rows += sum(part.rows for part in counted[begin])
        return counted

    def _absent(self, tag: str, hours: Sequence[int]) -> set[int]:
        """Return the buckets of hours without rows: a tag has none in most of the hours that its first run looks back on.

        Buckets of a minute are left out, since they are counted together.
        """
        size = self.pipeline.bucket_size
        if size == BucketSize.MINUTE:
            return set()
        buckets = {size.start(begin * TICKS_PER_MILLISECOND) for begin in hours}
        return buckets - self.views.existing(tag, sorted(buckets))

    def _sizes(self, tag: str, parts: Sequence[Slice], absent: Collection[int]) -> Iterator[int]:
        """Return the row counts of slices, in their order; many whole minutes are counted in one query."""
        known = dict.fromkeys(absent, 0)
        if self.pipeline.bucket_size == BucketSize.MINUTE:
            known = self.views.count_whole(tag, [part.timebucket for part in parts if part.whole])
        singly = [part for part in parts if part.timebucket not in known]
        others = self.views.count((tag, part.timebucket, part.after, part.until) for part in singly)
        return (known[part.timebucket] if part.timebucket in known else next(others)[0] for part in parts)

    def _slices(self, tag: str, begin: int) -> list[Slice]:
        size = self.pipeline.bucket_size
        after = max(begin * TICKS_PER_MILLISECOND, self.pipeline.start_ticks(tag)) - 1
        until = (begin + HOUR_MS) * TICKS_PER_MILLISECOND - 1
        first = size.start(begin * TICKS_PER_MILLISECOND)
        parts = (
            part_of(size, bucket, after, until) for bucket in range(first, begin + HOUR_MS, size.milliseconds)
        )
        return [part for part in parts if part]

    def _in_clickhouse(self, tag: str, hours: Sequence[int]) -> dict[int, int]:
        """Return the delivered rows by hour, without the hours that ClickHouse gives no answer for."""
        found: dict[int, int] = {}
        for group in _groups(sorted(hours)):
            delivered = self.delivered(tag, group)
            if delivered is not None:
                found |= {begin: delivered.get(begin, 0) for begin in group}
        return found


def part_of(size: BucketSize, bucket: int, after: int, until: int) -> Slice | None:
    """Return the part of a bucket with after < time <= until, without bounds if it is the whole bucket; None
    if it is empty.
    """
    low = bucket_rules.first_ticks(bucket)
    high = low + size.ticks - 1
    if high <= after or low > until:
        return None
    return Slice(
        timebucket=bucket, after=after if after >= low else None, until=until if until < high else None
    )


def read_hours(
    read: Mapping[int, int], known: Mapping[int, HourCount], run: int, now: datetime
) -> Iterator[HourCount]:
    """Yield the counts of hours, raised by the rows that a run has read there; skip hours that this run has
    already counted.
    """
    for begin, rows in read.items():
        before = known.get(begin)
        if before is None or before.run < run:
            yield HourCount(begin, rows + (before.rows if before else 0), run, now)


def _groups(hours: Sequence[int]) -> Iterator[list[int]]:
    group: list[int] = list(hours[:1])
    for before, begin in pairwise(hours):
        if begin - before > APART_MS:
            yield group
            group = []
        group.append(begin)
    if group:
        yield group


def _moment(begin: int) -> datetime:
    return to_datetime(begin * TICKS_PER_MILLISECOND)
