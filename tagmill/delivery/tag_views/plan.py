"""Plan what a run reads: each tag from its watermark to now less the delay, capped, with look-back and the
buckets of holds.

Only counts and bucket names are read here. If there is nothing to do there is no plan, and Spark does not
start.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import accumulate, islice

from tagmill.config.tag_views import PipelineSettings
from tagmill.delivery.tag_views import holds as hold_looks
from tagmill.delivery.tag_views.look_back import Found, LookBack, part_of
from tagmill.delivery.tag_views.model import HoldLook, HourRows, Plan, Slice, TagRange
from tagmill.delivery.tag_views.scan_units import distinct, units_of
from tagmill.domain import time_buckets as bucket_rules
from tagmill.domain.timeuuid import TICKS_PER_SECOND, from_datetime
from tagmill.journal.tag_view_reader import Views
from tagmill.ledger.progress import Watermark
from tagmill.ledger.runs import Ledger

# Time between two long look-backs of a tag.
LONG_LOOK_EVERY = timedelta(hours=1)
# Slices that are counted as a group.
COUNT_AT_ONCE = 256
# Of a backlog's neighbouring buckets one in this many is counted (see _sized).
COUNT_EVERY = 8
# Possible buckets since the last scan above which the view's partitions are scanned again instead of counting
# each bucket.
MAX_GUESSED_BUCKETS = 5000


@dataclass(frozen=True, slots=True)
class Built:
    """The extent of a view's builds: the newest build or rebuild, its end, and by tag from where rows have
    come late (both in ticks).

    `to` is None if the application writes what is new.
    """

    build: int
    to: int | None
    late: dict[str, int]


@dataclass(slots=True)
class _Draft:
    ranges: dict[str, TagRange] = field(default_factory=dict)
    new: list[tuple[str, Slice]] = field(default_factory=list)
    again: list[tuple[str, Slice]] = field(default_factory=list)
    late_left: dict[str, int] = field(default_factory=dict)
    look_back: dict[str, list[HourRows]] = field(default_factory=dict)
    filled_tags: list[str] = field(default_factory=list)
    more: bool = False


class Planner:
    """The planner of one pipeline's next run."""

    def __init__(
        self,
        ledger: Ledger,
        views: Views,
        name: str,
        pipeline: PipelineSettings,
        tags: list[str],
        now: datetime,
        built: Built | None = None,
        brought_back: Mapping[str, Watermark] | None = None,
        look_back: LookBack | None = None,
    ) -> None:
        """Read the watermarks and set the tick up to which the plan may read.

        `built` is given if Tagmill has written the view: rows after the end of a build aren't in the view
        yet. `brought_back`: watermarks to go on from, in place of those that are in the future.
        """
        self.ledger = ledger
        self.views = views
        self.name = name
        self.known_as = pipeline.view.key(name)
        self.pipeline = pipeline
        self.tags = tags
        self.now = now
        until = from_datetime(now - timedelta(seconds=pipeline.eventual_consistency_delay_seconds))
        self.until = until if built is None or built.to is None else min(until, built.to)
        self.built, self.look_back = built, look_back
        self._scanned: set[str] = set()
        marks = ledger.delivered.watermarks(name)
        self.marks = {**marks, **(brought_back or {})}
        self.back_from = {tag: marks[tag].ticks for tag in brought_back or {}}

    def plan(self, run: int) -> Plan | None:
        """Return the plan of a run, or None if there is nothing to do.

        If builds have written more late rows than one run takes, the plan reads only such rows.
        """
        columns = self.views.columns()
        late = self._late_slices()
        if (fitting := self._fitting(late)) < len(late):
            return self._document(run, self._late_only(late, fitting), [], columns, reread=False)
        draft = self._new_rows()
        looks = list(hold_looks.looks(self.ledger, self.views, self.name, self.pipeline, self.tags, self.now))
        found = self._found_late(run, draft)
        if not (draft.new or looks or late or self.back_from or found.slices or self._look_back_due()):
            return None
        draft.again.extend(found.slices)
        draft.look_back, draft.more = found.hours, draft.more or found.more
        for tag in draft.ranges:
            draft.again.extend(self._look_back(tag, draft.ranges[tag]))
        draft.again.extend(self._hold_slices(looks))
        draft.again.extend(late)
        draft.filled_tags = sorted({tag for tag, _ in late})
        return self._document(run, draft, [look for look, _ in looks], columns, reread=False)

    def reread(self, run: int, start: datetime, end: datetime) -> Plan | None:
        """Return a plan that reads a range again, whatever was delivered of it; None without rows.

        Watermarks stay.
        """
        columns = self.views.columns()
        after, until = from_datetime(start) - 1, min(from_datetime(end), self.until)
        draft = _Draft()
        for tag, found in self.views.buckets(self.tags).items():
            draft.ranges[tag] = TagRange(after=after, until=until, window_from=until)
            parts = [self._slice(bucket, after, until) for bucket in found]
            draft.again.extend(self._counted((tag, part) for part in parts if part))
        return self._document(run, draft, [], columns, reread=True) if draft.again else None

    def reread_buckets(self, run: int, buckets: list[tuple[str, int]]) -> tuple[Plan | None, int]:
        """Return a plan that reads whole (tag, timebucket) again, in their order, and how many of them are
        dealt with.

        The plan takes as many as fit a run; it is None if none of them has rows.
        """
        columns = self.views.columns()
        draft, rows, taken = _Draft(), 0, 0
        parts = [
            (tag, self._slice(bucket, bucket_rules.first_ticks(bucket) - 1, self.until))
            for tag, bucket in buckets
        ]
        for first in range(0, len(parts), COUNT_AT_ONCE):
            group = parts[first : first + COUNT_AT_ONCE]
            counted = {
                (tag, part.timebucket): part for tag, part in self._counted((t, p) for t, p in group if p)
            }
            for tag, bucket in buckets[first : first + COUNT_AT_ONCE]:
                part = counted.get((tag, bucket))
                full = len(draft.again) >= self.pipeline.max_slices_per_run
                if part and draft.again and (full or rows + part.rows > self.pipeline.max_rows_per_run):
                    draft.more = True
                    return self._document(run, draft, [], columns, reread=True), taken
                taken += 1
                if part:
                    rows += part.rows
                    draft.again.append((tag, part))
                    draft.ranges[tag] = self._reread_range(draft.ranges.get(tag), bucket)
        return (self._document(run, draft, [], columns, reread=True) if draft.again else None), taken

    def _reread_range(self, known: TagRange | None, bucket: int) -> TagRange:
        low = bucket_rules.first_ticks(bucket) - 1
        high = min(self.until, low + self.pipeline.bucket_size.ticks)
        after, until = (min(known.after, low), max(known.until, high)) if known else (low, high)
        return TagRange(after=after, until=until, window_from=until)

    # -- new rows

    def _new_rows(self) -> _Draft:
        """Return a draft with the slices after the watermarks, in time order, until the plan is full."""
        draft = _Draft()
        candidates = sorted(
            ((tag, part) for tag in self.tags for part in self._candidates(tag)),
            key=lambda item: (item[1].timebucket, item[0]),
        )
        rows, full_at = 0, None
        for tag, part in self._sized(candidates):
            if draft.new and (
                len(draft.new) >= self.pipeline.max_slices_per_run
                or rows + part.rows > self.pipeline.max_rows_per_run
            ):
                full_at, draft.more = part.timebucket, True
                break
            rows += part.rows
            draft.new.append((tag, part))
        if full_at is not None:
            # Every tag ends before the bucket that no longer fits, so that no bucket is planned in part.
            draft.new = [(tag, part) for tag, part in draft.new if part.timebucket < full_at] or draft.new[:1]
        for tag in self.tags:
            draft.ranges[tag] = self._range(tag, self._end(tag, full_at, draft))
        return draft

    def _end(self, tag: str, full_at: int | None, draft: _Draft) -> int:
        """Return where a tag's range ends: never before it begins, which is in the future if start_from
        is.
        """
        end = self.until
        if full_at is not None:
            whole = any(part.timebucket == full_at and planned == tag for planned, part in draft.new)
            end = min(end, bucket_rules.first_ticks(full_at) + whole * self.pipeline.bucket_size.ticks - 1)
        return max(self._after(tag), end)

    def _after(self, tag: str) -> int:
        mark = self.marks.get(tag)
        return mark.ticks if mark else self.pipeline.start_ticks(tag) - 1

    def _candidates(self, tag: str) -> Iterator[Slice]:
        after = self._after(tag)
        for bucket in self._buckets(tag, after, filled=bool(self.built and tag in self.built.late)):
            part = self._slice(bucket, after, self.until)
            if part:
                yield part

    def _buckets(self, tag: str, after: int, *, filled: bool) -> list[int]:
        """Return the buckets to read from `after` on: up to the last scan those that it found, after it every
        possible one.

        The view is scanned if it never was, or if the last scan is too old. `filled`: rows may have come into
        buckets that did not exist when they were scanned, so those are scanned again, once per plan.
        """
        size = self.pipeline.bucket_size
        scanned_to, known = self.ledger.delivered.known_buckets(self.known_as, tag)
        if scanned_to is not None and scanned_to > size.start(from_datetime(self.now)):
            scanned_to = None  # a wrong clock scanned into the future: buckets have come since
        first, now_bucket = size.start(after), size.start(self.until)
        never = (
            scanned_to is None
            or (now_bucket - max(scanned_to, first)) // size.milliseconds > MAX_GUESSED_BUCKETS
        )
        reach = now_bucket if scanned_to is None or never else scanned_to
        if never or filled and first < reach and tag not in self._scanned:
            self._scanned.add(tag)
            known = self.views.buckets([tag])[tag]
            self.ledger.delivered.keep_buckets(self.known_as, tag, [b for b in known if b <= reach], reach)
        guessed = range(max(reach, first), now_bucket + 1, size.milliseconds)
        return sorted({bucket for bucket in known if bucket >= first} | set(guessed))

    def _slice(self, bucket: int, after: int, until: int) -> Slice | None:
        return part_of(self.pipeline.bucket_size, bucket, after, until)

    def _counted(self, parts: Iterable[tuple[str, Slice]]) -> Iterator[tuple[str, Slice]]:
        """Yield the slices that have rows, with their counts and TTLs; counted in groups, so that a full plan
        stops the counting.
        """
        remaining = iter(parts)
        while group := list(islice(remaining, COUNT_AT_ONCE)):
            counts = self.views.count((tag, part.timebucket, part.after, part.until) for tag, part in group)
            for (tag, part), (rows, ttl) in zip(group, counts, strict=True):
                if rows:
                    yield tag, part.model_copy(update={"rows": rows, "ttl_seconds": ttl})

    def _sized(self, parts: Iterable[tuple[str, Slice]]) -> Iterator[tuple[str, Slice]]:
        """Yield the new slices that have rows, with counted or estimated sizes.

        In a long backlog of whole buckets that a scan has found, one of COUNT_EVERY buckets of a tag is
        counted, and the others are taken to be as large. Sizes decide how the work is divided, not what is
        delivered. (Counting all took an eighth of the time of a whole delivery.)
        """
        counted: dict[str, Slice] = {}
        since: dict[str, int] = {}
        existing = {tag: set(self.ledger.delivered.known_buckets(self.known_as, tag)[1]) for tag in self.tags}
        remaining = iter(parts)
        while group := list(islice(remaining, COUNT_AT_ONCE)):
            sample = []
            for tag, part in group:
                guess = part.whole and part.timebucket in existing[tag] and since.get(tag, 0) % COUNT_EVERY
                since[tag] = since.get(tag, 0) + 1
                if not guess:
                    sample.append((tag, part))
            sizes = {(tag, part.timebucket): part for tag, part in self._counted(sample)}
            asked = {(tag, part.timebucket) for tag, part in sample}
            for tag, part in group:
                key = (tag, part.timebucket)
                if key in sizes:
                    counted[tag] = sizes[key]
                    yield tag, sizes[key]
                elif key not in asked:
                    like = counted.get(tag)
                    yield (
                        tag,
                        part.model_copy(
                            update={
                                "rows": like.rows if like else 1,
                                "ttl_seconds": like.ttl_seconds if like else None,
                            }
                        ),
                    )

    # -- rows to look at again

    def _found_late(self, run: int, draft: _Draft) -> Found:
        """Return the hours before the watermarks to which rows have come; none while there is a backlog.

        Tags with late rows of builds are left out, because those are delivered first.
        """
        if self.look_back is None or draft.more:
            return Found()
        late = self.built.late if self.built else {}
        return self.look_back.find(
            run, {tag: self.marks[tag].ticks for tag in self.tags if tag in self.marks and tag not in late}
        )

    def _look_back_due(self) -> bool:
        """Return whether a tag's last look-back window holds another number of rows than when it was read, or
        a long look is due.
        """
        marks = [mark for tag, mark in self.marks.items() if tag in self.tags]
        if any(
            self._long_look(mark) and mark.window_from > self._window_from(mark, long=True) for mark in marks
        ):
            return True
        parts = [(mark, self._window(mark.tag, mark.window_from, mark.ticks)) for mark in marks]
        flat = [(mark.tag, part) for mark, window in parts for part in window]
        counts = iter(self.views.count((tag, part.timebucket, part.after, part.until) for tag, part in flat))
        return any(sum(next(counts)[0] for _ in window) != mark.window_rows for mark, window in parts)

    def _long_look(self, mark: Watermark) -> bool:
        return mark.long_look_at is None or abs(self.now - mark.long_look_at) >= LONG_LOOK_EVERY

    def _window_from(self, mark: Watermark, *, long: bool) -> int:
        seconds = self.pipeline.long_look_back_seconds if long else self.pipeline.look_back_seconds
        return max(self.pipeline.start_ticks(mark.tag) - 1, mark.ticks - int(seconds * TICKS_PER_SECOND))

    def _range(self, tag: str, until: int) -> TagRange:
        """Return a tag's range; its next look-back window is as long as the one that this run reads."""
        mark = self.marks.get(tag)
        long_look = mark is None or self._long_look(mark)
        seconds = self.pipeline.long_look_back_seconds if long_look else self.pipeline.look_back_seconds
        window_from = max(self.pipeline.start_ticks(tag) - 1, until - int(seconds * TICKS_PER_SECOND))
        return TagRange(
            after=self._after(tag),
            until=until,
            window_from=window_from,
            long_look=long_look,
            back_from=self.back_from.get(tag),
        )

    def _look_back(self, tag: str, span: TagRange) -> Iterator[tuple[str, Slice]]:
        mark = self.marks.get(tag)
        if mark:
            low = min(self._window_from(mark, long=span.long_look), span.window_from)
            yield from self._counted((tag, part) for part in self._window(tag, low, mark.ticks))

    def _window(self, tag: str, after: int, until: int) -> list[Slice]:
        size = self.pipeline.bucket_size
        first, last = size.start(max(after, 0)), size.start(until)
        parts = (self._slice(bucket, after, until) for bucket in range(first, last + 1, size.milliseconds))
        # Bounds stay even where they equal the bucket's, because rows outside their bucket are not part of a
        # window.
        return [part.model_copy(update={"after": after, "until": until}) for part in parts if part]

    def _hold_slices(self, looks: list[tuple[HoldLook, int]]) -> Iterator[tuple[str, Slice]]:
        """Yield the slices from the first gap of a tag's holds to its watermark."""
        first: dict[str, int] = {}
        for look, from_ticks in looks:
            first[look.tag] = min(from_ticks, first.get(look.tag, from_ticks))
        yield from self._up_to_watermarks(first)

    def _late_slices(self) -> list[tuple[str, Slice]]:
        """Return, in time order, the slices that builds have filled with late rows, at times before the
        watermark.

        A row is late if its persistence_id had to wait in the journal.
        """
        late = self.built.late if self.built else {}
        found = self._up_to_watermarks({tag: ticks for tag, ticks in late.items() if tag in self.tags})
        return sorted(found, key=lambda item: (item[1].timebucket, item[0]))

    def _fitting(self, late: list[tuple[str, Slice]]) -> int:
        """Return how many of the late slices one run takes; at least one, if there is one."""
        rows = accumulate(part.rows for _, part in late)
        within = sum(1 for total in rows if total <= self.pipeline.max_rows_per_run)
        return min(len(late), max(1, min(within, self.pipeline.max_slices_per_run)))

    def _late_only(self, late: list[tuple[str, Slice]], fitting: int) -> _Draft:
        """Return a draft with the first late slices and nothing new.

        New rows follow the late ones in number, so they are read after all of them.
        """
        draft = _Draft(again=late[:fitting], filled_tags=sorted({tag for tag, _ in late}), more=True)
        for tag, part in reversed(late[fitting:]):
            draft.late_left[tag] = (
                bucket_rules.first_ticks(part.timebucket) if part.after is None else part.after + 1
            )
        for tag in {tag for tag, _ in late}:
            ticks = self.marks[tag].ticks
            draft.ranges[tag] = TagRange(after=ticks, until=ticks, window_from=ticks)
        return draft

    def _up_to_watermarks(self, first: dict[str, int]) -> Iterator[tuple[str, Slice]]:
        """Yield, by tag, the slices with rows from a tick to the tag's watermark."""
        for tag, from_ticks in first.items():
            mark = self.marks.get(tag)
            if mark:
                known = self._buckets(tag, from_ticks, filled=True)
                parts = (self._slice(bucket, from_ticks - 1, mark.ticks) for bucket in known)
                yield from self._counted((tag, part) for part in parts if part)

    # -- the document

    def _document(
        self, run: int, draft: _Draft, looks: list[HoldLook], columns: dict[str, str], *, reread: bool
    ) -> Plan:
        shape = (self.pipeline.bucket_size, self.pipeline.batch_rows)
        units = list(units_of("new", draft.new, 0, *shape))
        units += units_of("again", distinct(draft.again), len(units), *shape)
        return Plan(
            pipeline=self.name,
            run=run,
            planned_at=self.now,
            reread=reread,
            first=run == 1,  # later runs may find progress even where no watermark has moved yet
            tags=draft.ranges,
            units=units,
            holds=looks,
            view_columns=columns,
            build=self.built.build if self.built and not reread else None,
            late_left=draft.late_left,
            look_back=draft.look_back,
            filled_tags=draft.filled_tags,
            held_ttl_seconds=self._held_ttls(draft),
            view=str(self.pipeline.view),
            more=draft.more,
        )

    def _held_ttls(self, draft: _Draft) -> dict[str, int]:
        """Return, for each tag that is read, the remaining TTL of its earliest held row.

        The run reads that row only if its hold is due.
        """
        parts = [
            part
            for tag in draft.ranges
            if (part := hold_looks.first_held(self.ledger, self.name, self.pipeline, tag))
        ]
        counts = self.views.count(parts)
        return {tag: ttl for (tag, *_), (_, ttl) in zip(parts, counts, strict=True) if ttl is not None}
