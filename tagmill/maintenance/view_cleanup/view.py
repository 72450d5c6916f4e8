"""Deletes proven partitions of a journal's view, the oldest first; a dry run does everything but the
deletion.

The decision is recorded (CLEANING) before anything is deleted, with the moment up to which writes are
deleted. If the process is killed in between, the next cleanup deletes the same again.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from heapq import nsmallest
from itertools import islice
from typing import Any, NamedTuple

from tagmill.clickhouse.client import ClickHouse
from tagmill.config.settings import Settings
from tagmill.config.tag_views import PipelineSettings
from tagmill.delivery.tag_views.holds import first_held, gap_buckets
from tagmill.domain.time_buckets import first_ticks
from tagmill.domain.timeuuid import TICKS_PER_SECOND, to_datetime
from tagmill.journal.tag_view_reader import Views
from tagmill.ledger.cleanups import Cleaning, CleanupLog, finisher
from tagmill.ledger.erasures import Erasures
from tagmill.ledger.progress import Watermark
from tagmill.ledger.view_builds import Builds
from tagmill.maintenance.view_cleanup import readers, rules
from tagmill.maintenance.view_cleanup.rules import (
    Bucket,
    Delivered,
    Held,
    Now,
    Proof,
    Reason,
    Refusal,
    TagState,
)
from tagmill.runs import checkpoints
from tagmill.runs.workspace import Workspace

JUDGED_AT_ONCE = 256
# Buckets per count in ClickHouse: chDB, the local engine, refuses a bound array of more than about 1 KB.
COUNTED_AT_ONCE = 50
HOLDS_AT_ONCE = 500
ROWS_AT_ONCE = 1000


@dataclass(slots=True)
class Found:
    """Result for all candidates: one line per partition that goes (bounded by a run), one per tag and reason
    for those that stay.
    """

    gone: list[dict[str, Any]] = field(default_factory=list)
    refused: dict[tuple[str, Reason], dict[str, Any]] = field(default_factory=dict)
    more: bool = False

    def goes(self, tag: str, timebucket: int, rows: int) -> None:
        """Add a line for a partition that is deleted, or would be."""
        self.gone.append({"tag": tag, "timebucket": timebucket, "begins": _begins(timebucket), "rows": rows})

    def stays(self, bucket: Bucket, why: Refusal) -> None:
        """Count a partition that stays under its tag and reason; the oldest one of the line gives the
        sentence.
        """
        begins = _begins(bucket.timebucket)
        line = self.refused.setdefault(
            (bucket.tag, why.reason),
            {
                "tag": bucket.tag,
                "reason": why.reason.value,
                "buckets": 0,
                "oldest": begins,
                "newest": begins,
                "text": why.text,
            },
        )
        line["buckets"] += 1
        line["newest"] = max(line["newest"], begins)
        if begins < line["oldest"]:
            line |= {"oldest": begins, "text": why.text}


class Standing(NamedTuple):
    """Delivery state of a pipeline: watermarks by tag, ticks from which late rows are read again by tag, and
    the run that is open.
    """

    marks: dict[str, Watermark]
    late: dict[str, int]
    open_run: int | None


class ViewCleanup:
    """Cleans up the view of one pipeline's journal, for the pipeline's tags."""

    def __init__(self, workspace: Workspace, clickhouse: ClickHouse, now: datetime) -> None:
        self.settings, self.ledger, self.name = workspace.settings, workspace.ledger, workspace.name
        self.require_leases = workspace.require_leases
        self.clickhouse, self.pipeline, self.tell = clickhouse, workspace.pipeline, workspace.tell
        self.views = Views(workspace.cassandra, self.pipeline.journal)
        self.views.columns()  # raises unless the keyspace is a journal's
        self.cleaned = CleanupLog(
            workspace.cassandra, workspace.ledger_keyspace, self.pipeline.keyspace, self.pipeline.view
        )
        self.erasures = workspace.journal_store(Erasures)
        self.beside = beside(workspace.settings, self.name)
        self.standings = {one: standing(workspace.of(one)) for one in (self.name, *self.beside)}
        self.decided = decided(workspace)
        self.states = {
            tag: self._state(tag) for tag in {*self.pipeline.tags, *(one.tag for one in self.decided)}
        }
        self.now, self.limit = now, rules.limit(now, self.pipeline.cleanup.older_than_days or 0)
        self.found = Found()

    def run(self, *, delete: bool) -> Found:
        """Finish the deletions decided earlier, then delete proven partitions, at most max_buckets_per_run of
        them; none if cleanup.older_than_days is not set.
        """
        for cleaning in self.decided:
            if self._is_still_delivered(cleaning):
                self._goes(cleaning, cleaning.rows, delete=delete)
        if self.pipeline.cleanup.older_than_days is None:
            return self.found
        most = self.pipeline.cleanup.max_buckets_per_run
        self.tell("judging partitions")
        proven = nsmallest(most + 1, self._proven(), key=lambda pair: (pair[0].timebucket, pair[0].tag))
        self.found.more = len(proven) > most
        remaining = iter(proven[:most])
        while group := list(islice(remaining, COUNTED_AT_ONCE)):
            for cleaning, rows in self._unchanged(group):
                self._goes(cleaning, rows, delete=delete)
            self.tell(f"{len(self.found.gone)} partitions {'deleted' if delete else 'would be deleted'}")
        return self.found

    # -- judging

    def _state(self, tag: str) -> TagState:
        stated = self.pipeline.cleanup.other_readers
        return TagState(
            cleaning=self._delivered(self.name, tag),
            others=[
                self._delivered(name, tag) for name in self.beside if tag in self.settings.pipeline(name).tags
            ],
            readers=None if stated is None else list(readers.positions(self.ledger.cassandra, stated, tag)),
        )

    def _delivered(self, name: str, tag: str) -> Delivered:
        return delivered(
            self.settings.pipeline(name), name, tag, self.standings[name], self._holds(name, tag)
        )

    def _holds(self, name: str, tag: str) -> list[Held]:
        pipeline, found = self.settings.pipeline(name), list[Held]()
        remaining = self.ledger.delivered.holds(name, [tag])
        while group := list(islice(remaining, HOLDS_AT_ONCE)):
            progress = self.ledger.delivered.progress(
                name, ((hold.tag, hold.persistence_id) for hold in group)
            )
            for hold, known in zip(group, progress, strict=True):
                gap = gap_buckets(pipeline.bucket_size, known, hold, pipeline.start_ticks(tag))
                found.append(Held(gap[0], gap[-1], hold.persistence_id))
            found = rules.merged(found)
        return found

    def _proven(self) -> Iterator[tuple[Bucket, dict[str, Proof]]]:
        """Yield the candidates that the audits of all their pipelines prove, with these proofs, in no
        particular order.
        """
        size, known = self.pipeline.bucket_size, {(one.tag, one.timebucket) for one in self.decided}
        tags = set(self.pipeline.tags)
        undecided = (key for key in self.views.partitions() if key[0] in tags and key not in known)
        all_of_them = (Bucket(tag, timebucket, size) for tag, timebucket in undecided)
        candidates = (bucket for bucket in all_of_them if bucket.end <= self.limit)
        while group := list(islice(candidates, JUDGED_AT_ONCE)):
            allowed = [
                bucket
                for bucket in group
                if self._passes(bucket, rules.refused_by_tag(bucket, self.states[bucket.tag]))
            ]
            for bucket, proofs in zip(allowed, self._proofs(allowed), strict=True):
                if self._passes(bucket, rules.refused_by_audit(bucket, self.states[bucket.tag], proofs)):
                    yield bucket, proofs

    def _proofs(self, buckets: list[Bucket]) -> list[dict[str, Proof]]:
        """Return the newest audits of each bucket by pipeline, in the order of `buckets`."""
        found: list[dict[str, Proof]] = [{} for _ in buckets]
        for name in {name for bucket in buckets for name in self.states[bucket.tag].must_prove(bucket)}:
            wanted = [(at, b) for at, b in enumerate(buckets) if name in self.states[b.tag].must_prove(b)]
            rows = self.cleaned.audited(name, ((bucket.tag, bucket.timebucket) for _, bucket in wanted))
            for (at, _), row in zip(wanted, rows, strict=True):
                # An audit from the future ran under a wrong clock, so it does not cover the rows written
                # since then.
                if row and row.audited_at <= self.now:
                    found[at][name] = Proof(row.audited_at, row.rows, row.agrees)
        return found

    def _unchanged(self, group: list[tuple[Bucket, dict[str, Proof]]]) -> Iterator[tuple[Cleaning, int]]:
        """Yield a Cleaning, and the current number of rows, for each partition that is still as its audits
        saw it.
        """
        counts = self.views.written((bucket.tag, bucket.timebucket) for bucket, _ in group)
        there = self._in_clickhouse(group)
        for (bucket, proofs), (rows, newest_write) in zip(group, counts, strict=True):
            before = self.cleaned.rows_before(bucket.tag, bucket.timebucket)
            if not rows or before is None:  # another cleanup has deleted it, or is deleting it
                continue
            in_clickhouse = {name: there.get((name, bucket.tag, bucket.timebucket), 0) for name in proofs}
            now = Now(rows, newest_write, in_clickhouse, before)
            if self._passes(bucket, self._unless_erased(bucket, rules.refused_by_rows(proofs, now), proofs)):
                yield Cleaning(bucket.tag, bucket.timebucket, before + rows, rules.delete_up_to(proofs)), rows

    def _is_still_delivered(self, cleaning: Cleaning) -> bool:
        """Return True if a deletion decided earlier may still proceed.

        Batches may have been withdrawn since the decision, and those are delivered from the view again.
        """
        bucket, state = (
            Bucket(cleaning.tag, cleaning.timebucket, self.pipeline.bucket_size),
            self.states[cleaning.tag],
        )
        must_prove = state.must_prove(bucket)
        there = self._in_clickhouse([(bucket, must_prove)])
        rows = {name: there.get((name, cleaning.tag, cleaning.timebucket), 0) for name in must_prove}
        counted = self._unless_erased(bucket, rules.refused_by_clickhouse(rows, cleaning.rows), must_prove)
        return self._passes(bucket, rules.refused_by_tag(bucket, state) or counted)

    def _unless_erased(
        self, bucket: Bucket, refused: Refusal | None, pipelines: Collection[str]
    ) -> Refusal | None:
        """Drop a NOT_IN_CLICKHOUSE refusal if an erasure explains it: ClickHouse must have each row that the
        partition still holds.

        ClickHouse may lack rows that were cleaned before and erased later. Erasures record how many rows of a
        tag they took, not from which partitions.
        """
        if refused is None or refused.reason != Reason.NOT_IN_CLICKHOUSE:
            return refused
        if not any(self.erasures.unseen(name, bucket.tag) for name in pipelines):
            return refused
        rows = self.views.rows(bucket.tag, bucket.timebucket)
        while group := list(islice(rows, ROWS_AT_ONCE)):
            events = {row.event for row in group}
            asked = {event[:3] for event in events}
            if any(
                events - self.clickhouse.present(self.settings.pipeline(name).destination, asked)
                for name in pipelines
            ):
                return refused
        return None

    def _in_clickhouse(
        self, group: Iterable[tuple[Bucket, Iterable[str]]]
    ) -> dict[tuple[str, str, int], int]:
        """Return the rows in ClickHouse by pipeline, tag and timebucket, for the pipelines that each bucket
        is paired with.
        """
        wanted: dict[tuple[str, str], list[int]] = {}
        for bucket, pipelines in group:
            for name in pipelines:
                wanted.setdefault((name, bucket.tag), []).append(bucket.timebucket)
        size = self.pipeline.bucket_size.milliseconds
        return {
            (name, tag, bucket): rows
            for (name, tag), buckets in wanted.items()
            for bucket, rows in self.clickhouse.bucket_rows(
                self.settings.pipeline(name).destination, tag, buckets, size
            ).items()
        }

    def _passes(self, bucket: Bucket, refusal: Refusal | None) -> bool:
        if refusal:
            self.found.stays(bucket, refusal)
        return refusal is None

    # -- deleting

    def _goes(self, cleaning: Cleaning, rows: int, *, delete: bool) -> None:
        if delete:
            checkpoints.reached("cleanup.before_decision")
            self.require_leases()  # another cleanup may have cleaned more of the partition since
            self.cleaned.decide(self.name, cleaning)
            checkpoints.reached("cleanup.before_delete")
            self.require_leases()  # a withdrawal since the look at ClickHouse would need these rows
            self.views.delete_partition(cleaning.tag, cleaning.timebucket, rules.microseconds(cleaning.up_to))
            checkpoints.reached("cleanup.after_delete")
            self.cleaned.done(self.name, cleaning)
            time.sleep(1 / self.pipeline.cleanup.deletes_per_second)
        self.found.goes(cleaning.tag, cleaning.timebucket, rows)


def decided(workspace: Workspace) -> list[Cleaning]:
    """Return the deletions decided earlier and perhaps not done that a cleanup of this pipeline finishes.

    Those are the ones of its tags, and those of a tag that no pipeline of the journal has any longer (finisher).
    """
    settings, chosen = workspace.settings, workspace.pipeline
    log = CleanupLog(workspace.cassandra, workspace.ledger_keyspace, chosen.keyspace, chosen.view)
    return [
        one
        for decided_by, one in log.unfinished()
        if one.tag in chosen.tags
        or finisher(settings, chosen.keyspace, decided_by, one.tag) == workspace.name
    ]


def standing(workspace: Workspace) -> Standing:
    """Read a pipeline's watermarks, late rows and unfinished run."""
    ledger, name = workspace.ledger, workspace.name
    late = workspace.journal_store(Builds).late(name)
    unfinished = ledger.open_run(name)
    return Standing(ledger.delivered.watermarks(name), late, unfinished.run if unfinished else None)


def delivered(
    pipeline: PipelineSettings, name: str, tag: str, stands: Standing, holds: Sequence[Held] = ()
) -> Delivered:
    """Return the delivery state of a tag in a pipeline.

    needs_from is the earliest moment that runs read again: their look-back windows, and what builds have
    written late.
    """
    mark = stands.marks.get(tag)
    again: list[int] = []
    if mark:
        again = [mark.window_from, mark.ticks - int(pipeline.long_look_back_seconds * TICKS_PER_SECOND)]
        again.extend(ticks for late, ticks in stands.late.items() if late == tag)
    return Delivered(name, pipeline.start_ticks(tag), min(again) if again else None, holds, stands.open_run)


def beside(settings: Settings, name: str) -> list[str]:
    """Return the other configured pipelines that deliver a tag of this one from the same journal."""
    chosen = settings.pipeline(name)
    return [
        other
        for other, pipeline in settings.pipelines.items()
        if other != name and pipeline.keyspace == chosen.keyspace and set(pipeline.tags) & set(chosen.tags)
    ]


def expiring(workspace: Workspace) -> Iterable[str]:
    """Yield a warning for each tag whose undelivered rows the application's own TTL deletes within
    min_ttl_warning_seconds.
    """
    ledger = workspace.ledger
    pipeline = workspace.pipeline
    views, marks = Views(workspace.cassandra, pipeline.journal), ledger.delivered.watermarks(workspace.name)
    after = {
        tag: marks[tag].ticks if tag in marks else pipeline.start_ticks(tag) - 1 for tag in pipeline.tags
    }
    oldest: dict[str, int] = {}
    for tag, bucket in views.partitions():
        if tag in after and bucket >= pipeline.bucket_size.start(after[tag]):
            oldest[tag] = min(bucket, oldest.get(tag, bucket))
    parts: list[tuple[str, int, int, int | None]] = [
        (tag, bucket, after[tag], None) for tag, bucket in oldest.items()
    ]
    parts += first_held(ledger, workspace.name, pipeline, pipeline.tags)
    soon = pipeline.quality.min_ttl_warning_seconds
    for (tag, *_), (rows, ttl) in zip(parts, views.count(parts), strict=True):
        if rows and ttl is not None and ttl < soon:
            yield (
                f"tag {tag!r}: undelivered rows expire in {ttl} s by the application's "
                "events-by-tag.time-to-live"
            )


def _begins(timebucket: int) -> str:
    return f"{to_datetime(first_ticks(timebucket)):%Y-%m-%dT%H:%M:%SZ}"
