"""Read what the plan of a run is decided from: watermarks, builds, holds, and counts of the view's rows.

Only counts and bucket names are read here.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from itertools import islice

import structlog

from tagmill.delivery.tag_views import holds as hold_looks
from tagmill.delivery.tag_views.future_watermarks import brought_back
from tagmill.delivery.tag_views.look_back import HOUR_MS, LookBack, part_of
from tagmill.delivery.tag_views.model import Slice
from tagmill.delivery.tag_views.plan import Part, PlanInputs, ViewCoverage, late_fitting, reread_range
from tagmill.domain import time_buckets as bucket_rules
from tagmill.domain.timeuuid import from_datetime, to_datetime
from tagmill.errors import StoreUnavailable, ViewNotBuilt
from tagmill.journal.tag_view_reader import Views
from tagmill.ledger.hour_counts import hour_counts
from tagmill.ledger.progress import Watermark
from tagmill.ledger.view_builds import BuildRow, Builds, BuildState
from tagmill.runs.workspace import Workspace

log = structlog.get_logger()
# Slices that are counted as a group.
COUNT_AT_ONCE = 256
# Of a backlog's neighbouring buckets one in this many is counted (see _sized).
COUNT_EVERY = 8
# Possible buckets since the last scan above which the view's partitions are scanned again instead of counting
# each bucket.
MAX_GUESSED_BUCKETS = 5000


class InputReader:
    """The reader of one plan's inputs. `base` has those that any plan of the pipeline needs."""

    def __init__(
        self, workspace: Workspace, tags: Sequence[str], run: int, now: datetime, *, only_look: bool = False
    ) -> None:
        """Read the watermarks and builds.

        With `only_look`, nothing is noted in the ledger for later plans, and no size is estimated. Raises ConfigurationError if Tagmill
        writes the view but has never built it.
        """
        ledger, name = workspace.ledger, workspace.name
        self.only_look = only_look
        self._found_buckets: dict[str, tuple[int | None, list[int]]] = {}
        self.workspace, self.ledger, self.pipeline = workspace, ledger, workspace.pipeline
        self.bucket_cache_key = self.pipeline.view.key(name)
        self.views = Views(workspace.cassandra, self.pipeline.journal)
        self._scanned: set[str] = set()
        back = _brought_back(workspace, tags, now)
        marks = ledger.delivered.watermarks(name)
        self.base = PlanInputs(
            name=name,
            run=run,
            pipeline=self.pipeline,
            tags=tags,
            now=now,
            marks={**marks, **back},
            back_from={tag: marks[tag].ticks for tag in back},
            built=_built(workspace),
            view_columns=self.views.columns(),
        )
        self.base = replace(self.base, held_ttls=self._held_ttls())

    def inputs(self) -> PlanInputs:
        """Return the inputs of a run that delivers.

        If builds have written more late rows than one run takes, nothing else is read.
        """
        late = self._late_slices()
        inputs = replace(self.base, late=late)
        if late_fitting(late, self.pipeline) < len(late):
            return inputs
        looks = list(
            hold_looks.holds_to_recheck(
                self.ledger, self.views, inputs.name, self.pipeline, list(inputs.tags), inputs.now
            )
        )
        first_gaps: dict[str, int] = {}
        for look, from_ticks in looks:
            first_gaps[look.tag] = min(from_ticks, first_gaps.get(look.tag, from_ticks))
        return replace(
            inputs,
            looks=[look for look, _ in looks],
            new=self._new_slices(),
            late_hours=self._late_hours(),
            window_rows=self._window_rows(),
            look_back=self._look_back(),
            of_holds=self._up_to_watermarks(first_gaps),
        )

    def range_parts(self, start: datetime, end: datetime) -> Iterator[Part]:
        """Yield the slices with rows of a range of time."""
        after, until = reread_range(self.base, start, end)
        for tag, buckets in self._existing_buckets.items():
            parts = (self._slice(bucket, after, until) for bucket in buckets)
            yield from self._counted((tag, part) for part in parts if part)

    def bucket_parts(self, buckets: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int, Slice | None]]:
        """Yield each (tag, timebucket) with its slice, None without rows; counted in groups."""
        remaining = iter(buckets)
        while group := list(islice(remaining, COUNT_AT_ONCE)):
            parts = (
                (tag, self._slice(bucket, bucket_rules.first_ticks(bucket) - 1, self.base.until))
                for tag, bucket in group
            )
            counted = {
                (tag, part.timebucket): part for tag, part in self._counted((t, p) for t, p in parts if p)
            }
            yield from ((tag, bucket, counted.get((tag, bucket))) for tag, bucket in group)

    # -- buckets

    def _buckets(self, tag: str, after: int, *, filled: bool) -> list[int]:
        """Return the buckets to read from `after` on: up to the last scan those that it found, after it every
        possible one.

        The view is scanned if it never was, or if the last scan is too old. `filled`: rows may have come into
        buckets that did not exist when they were scanned, so those are scanned again, once per plan.
        """
        size = self.pipeline.bucket_size
        scanned_to, known = self._known_buckets(tag)
        if scanned_to is not None and scanned_to > size.start(from_datetime(self.base.now)):
            scanned_to = None  # a wrong clock scanned into the future: buckets have come since
        first, now_bucket = size.start(after), size.start(self.base.until)
        never = (
            scanned_to is None
            or (now_bucket - max(scanned_to, first)) // size.milliseconds > MAX_GUESSED_BUCKETS
        )
        reach = now_bucket if scanned_to is None or never else scanned_to
        if never or filled and first < reach and tag not in self._scanned:
            self._scanned.add(tag)
            known = self._existing_buckets[tag]
            self._keep_buckets(tag, [b for b in known if b <= reach], reach)
        # The scan may be of a time when the pipeline had buckets of another size.
        begin = size.start(bucket_rules.first_ticks(max(reach, first)))
        guessed = range(begin, now_bucket + 1, size.milliseconds)
        return sorted({bucket for bucket in known if bucket >= first} | set(guessed))

    @cached_property
    def _existing_buckets(self) -> dict[str, list[int]]:
        """Return the buckets of all tags; a scan of the view costs the same for one tag as for all."""
        return self.views.buckets(self.base.tags)

    def _known_buckets(self, tag: str) -> tuple[int | None, list[int]]:
        if tag not in self._found_buckets:
            self._found_buckets[tag] = self.ledger.delivered.known_buckets(self.bucket_cache_key, tag)
        return self._found_buckets[tag]

    def _keep_buckets(self, tag: str, buckets: list[int], scanned_to: int) -> None:
        self._found_buckets[tag] = (scanned_to, buckets)
        if not self.only_look:
            self.ledger.delivered.keep_buckets(self.bucket_cache_key, tag, buckets, scanned_to)

    def _slice(self, bucket: int, after: int, until: int) -> Slice | None:
        return part_of(self.pipeline.bucket_size, bucket, after, until)

    def _counted(self, parts: Iterable[Part]) -> Iterator[Part]:
        """Yield the slices that have rows, with their counts and TTLs; counted in groups, so that a full plan
        stops the counting.
        """
        remaining = iter(parts)
        while group := list(islice(remaining, COUNT_AT_ONCE)):
            counts = self.views.count((tag, part.timebucket, part.after, part.until) for tag, part in group)
            for (tag, part), (rows, ttl) in zip(group, counts, strict=True):
                if rows:
                    yield tag, part.model_copy(update={"rows": rows, "ttl_seconds": ttl})

    # -- new rows

    def _new_slices(self) -> Iterator[Part]:
        """Yield the slices after the watermarks, in time order."""
        yield from self._sized(
            sorted(
                ((tag, part) for tag in self.base.tags for part in self._candidates(tag)),
                key=lambda item: (item[1].timebucket, item[0]),
            )
        )

    def _candidates(self, tag: str) -> Iterator[Slice]:
        after, built = self.base.after(tag), self.base.built
        for bucket in self._buckets(tag, after, filled=bool(built and tag in built.late)):
            part = self._slice(bucket, after, self.base.until)
            if part:
                yield part

    def _sized(self, parts: Iterable[Part]) -> Iterator[Part]:
        """Yield the new slices that have rows, with counted or estimated sizes.

        In a long backlog of whole buckets that a scan has found, one of COUNT_EVERY buckets of a tag is
        counted, and the others are taken to be as large. Sizes decide how the work is divided, not what is
        delivered. (Counting all took an eighth of the time of a whole delivery.)
        """
        counted: dict[str, Slice] = {}
        since: dict[str, int] = {}
        existing = {tag: set(self._known_buckets(tag)[1]) for tag in self.base.tags}
        remaining = iter(parts)
        while group := list(islice(remaining, COUNT_AT_ONCE)):
            sample = []
            for tag, part in group:
                guess = (
                    not self.only_look
                    and part.whole
                    and part.timebucket in existing[tag]
                    and since.get(tag, 0) % COUNT_EVERY
                )
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

    def _late_slices(self) -> list[Part]:
        """Return, in time order, the slices that builds have filled with late rows, at times before the
        watermark.

        A row is late if its persistence_id had to wait in the journal.
        """
        late = self.base.built.late if self.base.built else {}
        slices = self._up_to_watermarks({tag: ticks for tag, ticks in late.items() if tag in self.base.tags})
        return sorted(slices, key=lambda item: (item[1].timebucket, item[0]))

    def _up_to_watermarks(self, first: Mapping[str, int]) -> Iterator[Part]:
        """Yield, by tag, the slices with rows from a tick to the tag's watermark."""
        parts = (
            (tag, self._slice(bucket, from_ticks - 1, mark.ticks))
            for tag, from_ticks in first.items()
            if (mark := self.base.marks.get(tag))
            for bucket in self._buckets(tag, from_ticks, filled=True)
        )
        yield from self._counted((tag, part) for tag, part in parts if part)

    def _late_hours(self) -> Iterator[tuple[str, int, list[Slice]]]:
        """Yield the hours before the watermarks to which rows have come.

        Tags with late rows of builds are left out, because those are delivered first.
        """
        inputs, late = self.base, self.base.built.late if self.base.built else {}
        look_back = LookBack(
            hour_counts(self.workspace.settings, self.workspace.cassandra, inputs.name),
            self.views,
            self.pipeline,
            self._delivered,
            inputs.now,
            only_look=self.only_look,
        )
        judged = (tag for tag in inputs.tags if tag in inputs.marks and tag not in late)
        yield from look_back.with_more(inputs.run, {tag: inputs.marks[tag].ticks for tag in judged})

    def _delivered(self, tag: str, hours: Sequence[int]) -> Mapping[int, int] | None:
        try:
            with self.workspace.clickhouse() as clickhouse:
                return clickhouse.bucket_rows(self.pipeline.destination, tag, hours, HOUR_MS)
        except StoreUnavailable as error:
            log.warning(
                "hours were not compared with ClickHouse, a later run does",
                pipeline=self.base.name,
                tag=tag,
                error=str(error),
            )
            return None

    def _window_rows(self) -> Iterator[tuple[Watermark, int]]:
        marks = [self.base.marks[tag] for tag in self.base.tags if tag in self.base.marks]
        windows = [(mark, self._window(mark.tag, mark.window_from, mark.ticks)) for mark in marks]
        flat = [(mark.tag, part) for mark, window in windows for part in window]
        counts = iter(self.views.count((tag, part.timebucket, part.after, part.until) for tag, part in flat))
        for mark, window in windows:
            yield mark, sum(next(counts)[0] for _ in window)

    def _look_back(self) -> Iterator[Part]:
        """Yield the slices of the look-back windows that end at the watermarks."""
        yield from self._counted(
            (tag, part)
            for tag in self.base.tags
            if (mark := self.base.marks.get(tag))
            for part in self._window(tag, self.base.window_from(tag, mark.ticks), mark.ticks)
        )

    def _window(self, tag: str, after: int, until: int) -> list[Slice]:
        size = self.pipeline.bucket_size
        first, last = size.start(max(after, 0)), size.start(until)
        parts = (self._slice(bucket, after, until) for bucket in range(first, last + 1, size.milliseconds))
        # Bounds stay even where they equal the bucket's, because rows outside their bucket are not part of a
        # window.
        return [part.model_copy(update={"after": after, "until": until}) for part in parts if part]

    def _held_ttls(self) -> Iterator[tuple[str, int]]:
        """Yield, for each tag, the remaining TTL of its earliest held row."""
        parts = hold_looks.first_held(self.ledger, self.base.name, self.pipeline, self.base.tags)
        counts = self.views.count(parts)
        yield from ((tag, ttl) for (tag, *_), (_, ttl) in zip(parts, counts, strict=True) if ttl is not None)


def built_by(newest: BuildRow | None, *, grows: bool, late: Mapping[str, int]) -> ViewCoverage | None:
    """Return the extent of a view's builds; None if the view was never built.

    A build that is not done does not count. `grows`: Tagmill writes what is new.
    """
    if newest is None:
        return None
    done = newest.build if newest.state == BuildState.DONE else newest.build - 1
    return ViewCoverage(done, newest.built_to if grows else None, late)


def _built(workspace: Workspace) -> ViewCoverage | None:
    keyspace = workspace.pipeline.keyspace
    builds = workspace.journal_store(Builds)
    newest = builds.newest()
    if (builder := workspace.settings.builder(keyspace)) and (newest is None or newest.built_to is None):
        raise ViewNotBuilt(
            f"pipeline {workspace.name}: the view of journal {keyspace} was never built (views = "
            '"tagmill"). Nothing was planned. '
            f"Build it: tagmill views build --pipeline {builder}",
            pipeline=workspace.name,
        )
    return built_by(newest, grows=builder is not None, late=builds.late(workspace.name) if newest else {})


def _brought_back(workspace: Workspace, tags: Sequence[str], now: datetime) -> dict[str, Watermark]:
    """Return where the tags go on whose watermark is in the future, and log a warning for each."""
    back = {tag: mark for tag, mark in brought_back(workspace, now).items() if tag in tags}
    for tag, mark in back.items():
        log.warning(
            "the watermark is in the future, this run brings it back",
            pipeline=workspace.name,
            tag=tag,
            to=f"{to_datetime(mark.ticks):%FT%TZ}",
        )
    return back
