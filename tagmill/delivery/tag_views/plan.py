"""Plan what a run reads: each tag from its watermark to now less the delay, capped, with look-back and the
buckets of holds. Pure: plan_inputs reads the stores.

If there is nothing to do there is no plan, and Spark does not start.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import accumulate

from tagmill.config.tag_views import PipelineSettings
from tagmill.delivery.tag_views.model import HoldRecheck, HourRows, Plan, Slice, TagRange
from tagmill.delivery.tag_views.scan_units import distinct, units_of
from tagmill.domain import time_buckets as bucket_rules
from tagmill.domain.timeuuid import TICKS_PER_SECOND, from_datetime
from tagmill.ledger.progress import Watermark

# Time between two long look-backs of a tag.
LONG_LOOK_EVERY = timedelta(hours=1)
# Slice of a tag.
Part = tuple[str, Slice]


@dataclass(frozen=True, slots=True)
class ViewCoverage:
    """The extent of a view's builds: the newest build or rebuild, its end, and by tag from where rows have
    come late (both in ticks).

    `to` is None if the application writes what is new.
    """

    build: int
    to: int | None
    late: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """Everything that the plan of a run depends on.

    `marks`: the watermarks to go on from. `back_from`: the ticks of those that were in the future. `built` is
    given if Tagmill has written the view: rows after the end of a build aren't in the view yet.

    An Iterable is a stream. It is read once, after those above it, and only as far as the decision needs.
    All slices in them have rows.
    """

    name: str
    run: int
    pipeline: PipelineSettings
    tags: Sequence[str]
    now: datetime
    marks: Mapping[str, Watermark]
    back_from: Mapping[str, int]
    built: ViewCoverage | None
    view_columns: Mapping[str, str]
    # Slices that builds have filled with late rows, up to the watermarks, in time order.
    late: Sequence[Part] = ()
    # Open holds that are judged again, and their slices, from the first gap of a tag to its watermark.
    looks: Sequence[HoldRecheck] = ()
    # Slices after the watermarks, in time order.
    new: Iterable[Part] = ()
    # Hours (milliseconds) before the watermarks with more rows than are accounted for.
    late_hours: Iterable[tuple[str, int, Sequence[Slice]]] = ()
    # Rows that the view has now in the look-back window of each watermark.
    window_rows: Iterable[tuple[Watermark, int]] = ()
    look_back: Iterable[Part] = ()
    of_holds: Iterable[Part] = ()
    # The remaining TTL of the earliest held row of each tag.
    held_ttls: Iterable[tuple[str, int]] = ()

    @property
    def until(self) -> int:
        """Tick up to which a plan may read."""
        until = from_datetime(self.now - timedelta(seconds=self.pipeline.eventual_consistency_delay_seconds))
        return until if self.built is None or self.built.to is None else min(until, self.built.to)

    def after(self, tag: str) -> int:
        """Return the tick after which a tag's new rows begin."""
        mark = self.marks.get(tag)
        return mark.ticks if mark else self.pipeline.start_ticks(tag) - 1

    def long_look(self, tag: str) -> bool:
        """Return whether the next look-back of a tag is a long one."""
        mark = self.marks.get(tag)
        return (
            mark is None or mark.long_look_at is None or abs(self.now - mark.long_look_at) >= LONG_LOOK_EVERY
        )

    def window_from(self, tag: str, until: int) -> int:
        """Return where the look-back window begins (exclusive) that ends at `until`."""
        seconds = (
            self.pipeline.long_look_back_seconds if self.long_look(tag) else self.pipeline.look_back_seconds
        )
        return max(self.pipeline.start_ticks(tag) - 1, until - int(seconds * TICKS_PER_SECOND))


@dataclass(slots=True)
class _Draft:
    ranges: dict[str, TagRange] = field(default_factory=dict)
    new: list[Part] = field(default_factory=list)
    again: list[Part] = field(default_factory=list)
    late_left: dict[str, int] = field(default_factory=dict)
    look_back: dict[str, list[HourRows]] = field(default_factory=dict)
    looks: Sequence[HoldRecheck] = ()
    filled_tags: list[str] = field(default_factory=list)
    more: bool = False


def make_plan(inputs: PlanInputs) -> Plan | None:
    """Return the plan of a run, or None if there is nothing to do.

    If builds have written more late rows than one run takes, the plan reads only such rows.
    """
    if (fitting := late_fitting(inputs.late, inputs.pipeline)) < len(inputs.late):
        return _document(inputs, _late_only(inputs, fitting), reread=False)
    draft = _new_rows(inputs)
    _add_late_hours(inputs, draft)
    if not (
        draft.new
        or inputs.looks
        or inputs.late
        or inputs.back_from
        or draft.again
        or _look_back_is_due(inputs)
    ):
        return None
    for parts in (inputs.look_back, inputs.of_holds, inputs.late):
        draft.again.extend(parts)
    draft.looks, draft.filled_tags = inputs.looks, sorted({tag for tag, _ in inputs.late})
    return _document(inputs, draft, reread=False)


def reread_range(inputs: PlanInputs, start: datetime, end: datetime) -> tuple[int, int]:
    """Return the ticks (exclusive, inclusive) between which a range of time is read again."""
    return from_datetime(start) - 1, min(from_datetime(end), inputs.until)


def make_reread(inputs: PlanInputs, start: datetime, end: datetime, parts: Iterable[Part]) -> Plan | None:
    """Return a plan that reads a range again, whatever was delivered of it; None without rows.

    `parts`: the slices of the range that have rows. Watermarks stay.
    """
    after, until = reread_range(inputs, start, end)
    draft = _Draft(again=list(parts))
    draft.ranges = {tag: TagRange(after=after, until=until, window_from=until) for tag in inputs.tags}
    return _document(inputs, draft, reread=True) if draft.again else None


def make_bucket_reread(
    inputs: PlanInputs, buckets: Iterable[tuple[str, int, Slice | None]]
) -> tuple[Plan | None, int]:
    """Return a plan that reads whole (tag, timebucket) again, in their order, and how many of them are
    dealt with.

    `buckets` have the slice of each bucket, None without rows. The plan takes as many as fit a run; it is
    None if none of them has rows.
    """
    draft, rows, taken = _Draft(), 0, 0
    for tag, bucket, part in buckets:
        if part:
            full = len(draft.again) >= inputs.pipeline.max_slices_per_run
            if draft.again and (full or rows + part.rows > inputs.pipeline.max_rows_per_run):
                draft.more = True
                break
            rows += part.rows
            draft.again.append((tag, part))
            draft.ranges[tag] = _covering(inputs, draft.ranges.get(tag), bucket)
        taken += 1
    return (_document(inputs, draft, reread=True) if draft.again else None), taken


def late_fitting(late: Sequence[Part], pipeline: PipelineSettings) -> int:
    """Return how many of the late slices one run takes; at least one, if there is one."""
    rows = accumulate(part.rows for _, part in late)
    within = sum(1 for total in rows if total <= pipeline.max_rows_per_run)
    return min(len(late), max(1, min(within, pipeline.max_slices_per_run)))


def _covering(inputs: PlanInputs, known: TagRange | None, bucket: int) -> TagRange:
    low = bucket_rules.first_ticks(bucket) - 1
    high = min(inputs.until, low + inputs.pipeline.bucket_size.ticks)
    after, until = (min(known.after, low), max(known.until, high)) if known else (low, high)
    return TagRange(after=after, until=until, window_from=until)


def _new_rows(inputs: PlanInputs) -> _Draft:
    """Return a draft with the slices after the watermarks, in time order, until the plan is full."""
    draft, pipeline = _Draft(), inputs.pipeline
    rows, full_at = 0, None
    for tag, part in inputs.new:
        if draft.new and (
            len(draft.new) >= pipeline.max_slices_per_run or rows + part.rows > pipeline.max_rows_per_run
        ):
            full_at, draft.more = part.timebucket, True
            break
        rows += part.rows
        draft.new.append((tag, part))
    if full_at is not None:
        # Every tag ends before the bucket that no longer fits, so that no bucket is planned in part.
        draft.new = [(tag, part) for tag, part in draft.new if part.timebucket < full_at] or draft.new[:1]
    for tag in inputs.tags:
        until = _end(inputs, tag, full_at, draft)
        draft.ranges[tag] = TagRange(
            after=inputs.after(tag),
            until=until,
            # The next look-back window is as long as the one that this run reads.
            window_from=inputs.window_from(tag, until),
            long_look=inputs.long_look(tag),
            back_from=inputs.back_from.get(tag),
        )
    return draft


def _end(inputs: PlanInputs, tag: str, full_at: int | None, draft: _Draft) -> int:
    """Return where a tag's range ends: never before it begins, which is in the future if start_from is."""
    end = inputs.until
    if full_at is not None:
        whole = any(part.timebucket == full_at and planned == tag for planned, part in draft.new)
        end = min(end, bucket_rules.first_ticks(full_at) + whole * inputs.pipeline.bucket_size.ticks - 1)
    return max(inputs.after(tag), end)


def _add_late_hours(inputs: PlanInputs, draft: _Draft) -> None:
    """Add the hours before the watermarks to which rows have come; none while there is a backlog.

    Adds at most max_rows_per_run rows in max_slices_per_run slices, but at least one hour.
    """
    if draft.more:
        return
    rows, pipeline = 0, inputs.pipeline
    for tag, begin, parts in inputs.late_hours:
        total = sum(part.rows for part in parts)
        full = len(draft.again) + len(parts) > pipeline.max_slices_per_run
        if draft.again and (full or rows + total > pipeline.max_rows_per_run):
            draft.more = True
            return
        rows += total
        draft.again.extend((tag, part) for part in parts if part.rows)
        draft.look_back.setdefault(tag, []).append(HourRows(begin=begin, rows=total))


def _look_back_is_due(inputs: PlanInputs) -> bool:
    """Return whether a tag's last look-back window holds another number of rows than when it was read, or a
    long look is due.
    """
    marks = [inputs.marks[tag] for tag in inputs.tags if tag in inputs.marks]
    if any(
        inputs.long_look(mark.tag) and mark.window_from > inputs.window_from(mark.tag, mark.ticks)
        for mark in marks
    ):
        return True
    return any(rows != mark.window_rows for mark, rows in inputs.window_rows)


def _late_only(inputs: PlanInputs, fitting: int) -> _Draft:
    """Return a draft with the first late slices and nothing new.

    New rows follow the late ones in number, so they are read after all of them.
    """
    late = inputs.late
    tags = sorted({tag for tag, _ in late})
    draft = _Draft(again=list(late[:fitting]), filled_tags=tags, more=True)
    for tag, part in reversed(late[fitting:]):
        draft.late_left[tag] = (
            bucket_rules.first_ticks(part.timebucket) if part.after is None else part.after + 1
        )
    for tag in tags:
        ticks = inputs.marks[tag].ticks
        draft.ranges[tag] = TagRange(after=ticks, until=ticks, window_from=ticks)
    return draft


def _document(inputs: PlanInputs, draft: _Draft, *, reread: bool) -> Plan:
    shape = (inputs.pipeline.bucket_size, inputs.pipeline.batch_rows)
    units = list(units_of("new", draft.new, 0, *shape))
    units += units_of("again", distinct(draft.again), len(units), *shape)
    return Plan(
        pipeline=inputs.name,
        run=inputs.run,
        planned_at=inputs.now,
        reread=reread,
        first=inputs.run == 1,  # later runs may find progress even where no watermark has moved yet
        tags=draft.ranges,
        units=units,
        holds=list(draft.looks),
        view_columns=dict(inputs.view_columns),
        build=inputs.built.build if inputs.built and not reread else None,
        late_left=draft.late_left,
        look_back=draft.look_back,
        filled_tags=draft.filled_tags,
        # The run reads a tag's earliest held row only if its hold is due.
        held_ttl_seconds={tag: ttl for tag, ttl in inputs.held_ttls if tag in draft.ranges},
        view=str(inputs.pipeline.view),
        more=draft.more,
    )
