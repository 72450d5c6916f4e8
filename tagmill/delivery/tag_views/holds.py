"""Choose the open holds that a run judges again: the view, or what the journal proves, has changed since they
were judged.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from heapq import nsmallest
from zlib import crc32

from tagmill.config.tag_views import PipelineSettings
from tagmill.delivery.tag_views.model import HoldRecheck
from tagmill.domain.continuity.model import Gap, Progress, Reason
from tagmill.domain.continuity.rules import fit_between
from tagmill.domain.time_buckets import BucketSize
from tagmill.domain.timeuuid import TICKS_PER_SECOND, from_datetime
from tagmill.domain.timeuuid import ticks as ticks_of
from tagmill.journal.tag_view_reader import JournalEvent, JournalKey, Views
from tagmill.ledger.progress import HoldRow
from tagmill.ledger.runs import Ledger

# Holds that one plan probes; the others wait for their turn. A probe reads key columns on the server.
MAX_PROBES = 2000
# Buckets of a hold that a probe reads, the last ones. A run that reads a missing number in an earlier one says so
# (seal_outputs.in_their_gaps).
MAX_BUCKETS = 50
# Bytes of payloads that a run takes from the journal for one gap at most.
MAX_GAP_BYTES = 512 * 1024 * 1024
# Reasons of holds that wait for missing numbers, which may come into the view or be in the journal.
WAIT_FOR_NUMBERS = (
    Reason.GAP.value,
    Reason.FIRST_SEEN.value,
    Reason.GAP_TOO_WIDE.value,
    Reason.GAP_TOO_LARGE.value,
)


def holds_to_recheck(
    ledger: Ledger, views: Views, name: str, pipeline: PipelineSettings, tags: list[str], now: datetime
) -> Iterator[tuple[HoldRecheck, int]]:
    """Yield the holds to judge again, each with the tick from which the view must be read for it.

    Ends after five times lease_seconds; a later plan looks at the other holds.
    """
    end = time.monotonic() + pipeline.lease_seconds * 5
    waiting = (hold for hold in ledger.delivered.holds(name, tags) if hold.reason != Reason.SET_APART)
    for hold in pick_holds(waiting, now):
        if time.monotonic() > end:
            return
        progress = next(iter(ledger.delivered.progress(name, [(hold.tag, hold.persistence_id)])))
        buckets = gap_buckets(pipeline.bucket_size, progress, hold, pipeline.start_ticks(hold.tag))
        seen = views.fingerprint(hold.tag, hold.persistence_id, buckets[-MAX_BUCKETS:])
        if seen != hold.seen or _journal_has_an_answer(views, hold, pipeline, now):
            yield _look(hold, seen), buckets[0] * 10_000


def pick_holds(holds: Iterable[HoldRow], now: datetime) -> list[HoldRow]:
    """Return at most MAX_PROBES holds: first those without a fingerprint, then others, in an order that
    changes with `now`.

    A hold has no fingerprint before its first probe and after an intervention.
    """
    return nsmallest(
        MAX_PROBES,
        holds,
        key=lambda hold: (
            hold.seen != "",
            crc32(f"{now:%FT%T.%f} {hold.tag} {hold.persistence_id}".encode()),
        ),
    )


def gap_buckets(size: BucketSize, progress: Progress | None, hold: HoldRow, start_ticks: int) -> range:
    """Return the buckets that may have a hold's missing rows: those of the last delivered event and of the
    first held, all between, and one on each side.

    The first held row may be earlier than the last delivered event, where clocks of writers differ.
    """
    delivered = progress.ticks if progress and progress.ticks else min(hold.from_ticks, max(start_ticks, 0))
    low, high = sorted((delivered, hold.from_ticks))
    first, last = size.start(low) - size.milliseconds, size.start(high) + size.milliseconds
    return range(first, last + 1, size.milliseconds)


def first_held(
    ledger: Ledger, name: str, pipeline: PipelineSettings, tags: Iterable[str]
) -> list[tuple[str, int, int, int]]:
    """Return where the earliest held row of each tag with holds lies: (tag, timebucket, after, until), as
    Views.count takes it.
    """
    first: dict[str, int] = {}
    for hold in ledger.delivered.holds(name, tags):
        first[hold.tag] = min(hold.from_ticks, first.get(hold.tag, hold.from_ticks))
    return [(tag, pipeline.bucket_size.start(ticks), ticks - 1, ticks) for tag, ticks in first.items()]


def set_apart(tag: str, persistence_id: str, from_ticks: int, run: int, since: datetime) -> HoldRow:
    """Return the hold of a persistence_id that no run judges until it is released."""
    return HoldRow(
        tag, persistence_id, Reason.SET_APART.value, Gap(0, 0, 0, 0), from_ticks, 0, run, since, seen=""
    )


def to_judge_again(hold: HoldRow) -> HoldRow | None:
    """Return a hold that the next plan judges again; None if the view has no row left to be judged.

    A hold without a fingerprint is judged again.
    """
    return replace(hold, seen="") if hold.held_rows else None


def _journal_has_an_answer(views: Views, hold: HoldRow, pipeline: PipelineSettings, now: datetime) -> bool:
    """Return whether the journal can fill the gap now, or the application has deleted all of it and the gap
    timeout is over.

    Without a held row there is nothing that an answer would deliver.
    """
    if not hold.held_rows or hold.reason not in WAIT_FOR_NUMBERS:
        return False
    old_enough = (
        from_datetime(now) - from_datetime(hold.since) >= pipeline.gap_timeout_seconds * TICKS_PER_SECOND
    )
    if old_enough and hold.gap.before_sequence_nr - 1 <= views.deleted_to(hold.persistence_id):
        return True
    if hold.reason == Reason.GAP_TOO_LARGE or hold.gap.size > pipeline.max_missing_to_search:
        return False
    keys = views.journal_keys(hold.tag, hold.persistence_id, hold.gap, hold.gap.size + 1)
    return _fill(keys, pipeline, hold.tag, hold.gap)


def events_of_gap(
    views: Views, pipeline: PipelineSettings, tag: str, persistence_id: str, gap: Gap
) -> list[JournalEvent] | None:
    """Return the journal's events that fill a gap, in order; None if they have more than MAX_GAP_BYTES.

    Returns an empty list unless the rules take them (continuity.rules), and all are at or after the tag's
    start: what would be refused would be asked for by each plan.
    """
    events = views.journal_events(tag, persistence_id, gap, gap.size + 1, MAX_GAP_BYTES)
    if sum(event.size for event in events) > MAX_GAP_BYTES:
        return None
    return events if _fill([event.key for event in events], pipeline, tag, gap) else []


def _fill(keys: Sequence[JournalKey], pipeline: PipelineSettings, tag: str, gap: Gap) -> bool:
    start = pipeline.start_ticks(tag)
    fit = all(key.is_whole for key in keys) and fit_between(gap, [key.sequence_nr for key in keys])
    return fit and all(ticks_of(key.offset) >= start for key in keys)


def _look(hold: HoldRow, seen: str) -> HoldRecheck:
    return HoldRecheck(
        tag=hold.tag,
        persistence_id=hold.persistence_id,
        reason=hold.reason,
        first_missing=hold.gap.first,
        last_missing=hold.gap.last,
        after_sequence_nr=hold.gap.after_sequence_nr,
        before_sequence_nr=hold.gap.before_sequence_nr,
        from_ticks=hold.from_ticks,
        since_run=hold.since_run,
        since=hold.since,
        seen=seen,
    )
