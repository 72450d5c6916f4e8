"""Decide what happens to each row of one persistence_id and tag (docs/continuity.md has the table that this
follows).

`judge` walks the numbers upwards from progress. The first number that can't be explained holds everything
after it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import groupby, pairwise

from tagmill.domain.continuity.lives import is_other_life
from tagmill.domain.continuity.model import (
    Action,
    Decision,
    Earlier,
    Evidence,
    FirstSeen,
    Gap,
    GapEvidence,
    Held,
    Interval,
    Judgement,
    Policy,
    Progress,
    Reason,
    Row,
)
from tagmill.errors import GuardRefused

NOTHING_KNOWN = Evidence()
# Doubts about the rows at a number: such rows are dropped if the gap around the number was closed.
UNREADABLE = (Reason.TWO_EVENTS, Reason.NULL_EVENT, Reason.BROKEN_OFFSET, Reason.BROKEN_KEY)
# Doubts about the number itself, which then says nothing about the numbers before it.
UNPLACED = (Reason.BROKEN_KEY, Reason.RENUMBERED)


def judge(
    progress: Progress | None,
    rows: Iterable[Row],
    policy: Policy,
    evidence: GapEvidence | None = None,
    earlier: Earlier | None = None,
    strangers: Collection[str] = (),
) -> Judgement:
    """Decide for all rows of one persistence_id and tag that a run has read.

    `evidence`: that of gaps of an earlier judgement (`Judgement.gaps`). `earlier`: the scan's answer for
    a first number above 1. `strangers`: see lives.is_other_life. Every row gets exactly one decision;
    `progress` of the answer is None if nothing is delivered.
    """
    walk = _Walk(progress, policy, evidence or {}, earlier, strangers)
    ordered = sorted(rows, key=_place)
    for number, same in groupby(ordered, key=lambda row: row.number):
        if rows_of_life := walk.of_this_life(list(same)):
            walk.step(number, rows_of_life)
    return walk.finish()


def _place(row: Row) -> tuple[object, ...]:
    """Return the sort key of a row: of copies with one offset, a sound one comes first, whatever order they
    were read in.
    """
    return (
        row.number,
        row.ticks,
        row.offset,
        row.offset_broken,
        row.event_missing,
        row.sequence_nr,
        row.writer_uuid,
    )


def remove(missing: tuple[Interval, ...], number: int) -> tuple[Interval, ...]:
    """Return the intervals without one number."""
    kept: list[Interval] = []
    for low, high in missing:
        if not low <= number <= high:
            kept.append((low, high))
            continue
        if low < number:
            kept.append((low, number - 1))
        if number < high:
            kept.append((number + 1, high))
    return tuple(kept)


def without(progress: Progress, numbers: Iterable[int]) -> Progress:
    """Return progress in which these numbers are not delivered, as far as it has passed them."""
    gone = {number for number in numbers if 1 <= number <= progress.number}
    return replace(progress, missing=_joined([*progress.missing, *((number, number) for number in gone)]))


def rebased(
    rows: Collection[tuple[int, int, str, str]],
    delivered: Collection[tuple[int, str]],
    last: tuple[int, int, str] | None = None,
) -> Progress | None:
    """Return progress under the numbers of a view that was renumbered, or None if nothing of the view is
    delivered.

    In: rows of the view (number, sequence_nr, offset, writer_uuid), the delivered events (sequence_nr,
    writer_uuid), and the last delivered row (number, sequence_nr, offset) if a person names it. Otherwise that is
    the delivered row with the highest sequence_nr.
    Every number below it is missing if its event is not delivered. Numbers without a row are delivered if as
    many events are delivered between their neighbours as there are numbers.
    """
    of_view = [row[:3] for row in rows if (row[1], row[3]) in delivered]
    last = last or max(of_view, key=lambda row: row[1], default=None)
    if last is None:
        return None
    ordered = sorted({sequence_nr for sequence_nr, _ in delivered})
    missing: list[Interval] = []
    reached, reached_nr = 0, 0
    below = sorted(
        (number, nr, (nr, writer) in delivered) for number, nr, _, writer in rows if number < last[0]
    )
    for number, same in groupby([*below, (*last[:2], True)], key=lambda row: row[0]):
        events = list(same)
        numbers = [sequence_nr for _, sequence_nr, _ in events]
        between = bisect_left(ordered, min(numbers)) - bisect_right(ordered, reached_nr)
        if between < number - reached - 1:
            missing.append((reached + 1, number - 1))
        if not all(there for _, _, there in events):
            missing.append((number, number))
        reached, reached_nr = number, max(numbers)
    number, sequence_nr, offset = last
    return Progress(number, sequence_nr, 0, offset, _joined(missing))


def _joined(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Return the intervals in order, those that touch or overlap joined to one."""
    joined: list[Interval] = []
    for low, high in sorted(intervals):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        else:
            joined.append((low, high))
    return tuple(joined)


def close(progress: Progress | None, gap: Gap) -> Progress:
    """Return progress after the numbers of a gap were given up, so that what comes after it continues.

    Its sequence_nr is the last one that a given-up number can have, so that one that turns up later is late,
    not renumbered.
    Raises GuardRefused for numbers that progress has passed: giving those up would take progress back.
    """
    if gap.first != (progress.number + 1 if progress else 1):
        passed = f"progress is {progress.number}" if progress else "nothing is delivered"
        waits = gap.first > (progress.number + 1 if progress else 1)
        way_on = "numbers before them come first: tagmill run deliver" if waits else "repair the view's rows"
        raise GuardRefused(
            f"numbers {gap.first} to {gap.last} can't be given up ({passed}). Nothing was changed; {way_on}"
        )
    missing = progress.missing if progress else ()
    if missing and missing[-1][1] == gap.first - 1:
        missing = (*missing[:-1], (missing[-1][0], gap.last))
    else:
        missing = (*missing, (gap.first, gap.last))
    if progress is None:
        return Progress(gap.last, gap.before_sequence_nr - 1, 0, "", missing)
    sequence_nr = max(progress.sequence_nr, gap.before_sequence_nr - 1)
    return replace(progress, number=gap.last, sequence_nr=sequence_nr, missing=missing)


class _Walk:
    """One pass over the numbers of one persistence_id and tag, in rising order."""

    def __init__(
        self,
        progress: Progress | None,
        policy: Policy,
        evidence: GapEvidence,
        earlier: Earlier | None,
        strangers: Collection[str],
    ) -> None:
        self.known = progress
        self.policy = policy
        self.evidence = evidence
        self.earlier = earlier
        self.strangers = strangers
        self.order_ticks = progress.ticks if progress else 0
        self.out = Judgement()
        self.held: tuple[Reason, Gap] | None = None
        self.held_rows: list[Row] = []

    def of_this_life(self, rows: list[Row]) -> list[Row]:
        """Drop rows of an earlier life, and return the others."""
        if self.known is None or not self.known.life_from:
            return rows
        kept = []
        for row in rows:
            if self.known.of_earlier_life(row.ticks) and not row.offset_broken:
                self._decide(row, Action.DROP, Reason.ALREADY_DELIVERED)
            else:
                kept.append(row)
        return kept

    def step(self, number: int, rows: list[Row]) -> None:
        """Judge all rows that claim one number."""
        if self.known and self.known.delivered(number) and is_other_life(rows, self.strangers):
            self._hold(rows) if self.held else self._start_hold(Reason.ANOTHER_LIFE, number, rows)
            return
        if (
            self.known
            and self.known.delivered(number)
            and all(r.sequence_nr <= self.known.sequence_nr for r in rows)
        ):
            for row in rows:
                self._decide(row, Action.DROP, Reason.ALREADY_DELIVERED)
            return
        if self.held:
            self._hold(rows)
            return
        doubt = self._doubt(number, rows)
        if doubt in UNREADABLE and self._is_missing(number):
            for row in rows:
                self._decide(row, Action.DROP, Reason.GIVEN_UP)
        elif doubt in UNPLACED:
            self._start_hold(doubt, number, rows)
        elif not self._reach(number, min(row.sequence_nr for row in rows)):
            self._hold(rows)
        elif doubt:
            self._start_hold(doubt, number, rows)
        else:
            self._deliver_number(rows[0], rows[1:])

    def finish(self) -> Judgement:
        """Return the judgement; a hold carries the earliest time of the rows that it keeps back."""
        if self.held:
            reason, gap = self.held
            ticks = [row.ticks for row in self.held_rows if not row.offset_broken]
            self.out.held = Held(reason, gap, min(ticks, default=self.policy.now_ticks), len(self.held_rows))
        self.out.progress = self.known
        return self.out

    def _doubt(self, number: int, rows: list[Row]) -> Reason | None:
        """Return the reason not to trust the rows at this number, or None."""
        if number < 1 or any(row.sequence_nr < 1 for row in rows):
            return Reason.BROKEN_KEY
        if len({(row.sequence_nr, row.writer_uuid) for row in rows}) > 1:
            return Reason.TWO_EVENTS
        if any(row.offset_broken for row in rows):
            return Reason.BROKEN_OFFSET
        if all(row.event_missing for row in rows[:1]):
            return Reason.NULL_EVENT
        if self.known and (number > self.known.number) != (rows[0].sequence_nr > self.known.sequence_nr):
            return Reason.RENUMBERED
        return None

    def _is_passed(self, number: int) -> bool:
        return self.known is not None and number <= self.known.number

    def _is_missing(self, number: int) -> bool:
        """Return whether this number lies in a gap that was closed, or below the first one delivered."""
        return (
            self.known is not None and 1 <= number <= self.known.number and not self.known.delivered(number)
        )

    def _reach(self, number: int, sequence_nr: int) -> bool:
        """Fill or close the gap before this number, or start a hold at it; return whether every number before
        is accounted for.
        """
        next_number = self._next_number()
        if number <= next_number:
            return True
        gap = Gap(next_number, number - 1, self.known.sequence_nr if self.known else 0, sequence_nr)
        if self.known is None and self._accepted_as_first(gap):
            self.known = close(None, gap)
            return True
        self.out.gaps.append(gap)
        evidence = self.evidence.get(gap, NOTHING_KNOWN)
        if evidence.events is not None and _fills(evidence.events, gap):
            for missing, event in enumerate(evidence.events, start=gap.first):
                self._deliver(replace(event, number=missing), Reason.BACKFILLED)
            return True
        if self._deleted(gap, evidence):
            self.out.closed.append(gap)
            self.known = close(self.known, gap)
            return True
        reason = Reason.FIRST_SEEN if self.known is None else Reason.GAP
        if gap.size > self.policy.max_missing_to_search:
            reason = Reason.GAP_TOO_WIDE
        elif evidence.too_large:
            reason = Reason.GAP_TOO_LARGE
        self.held = (reason, gap)
        return False

    def _accepted_as_first(self, gap: Gap) -> bool:
        choice = self.policy.first_seen
        if choice == FirstSeen.ASSUME_FIRST and self.policy.starts_in_past_bucket:
            return True
        if choice == FirstSeen.REQUIRE_ONE or self.earlier is None:
            return False
        return self.earlier.highest is None or self.earlier.highest == gap.last

    def _deleted(self, gap: Gap, evidence: Evidence) -> bool:
        """Return whether the application has deleted a gap's events and the gap was seen at least the gap
        timeout ago.
        """
        if evidence.seen_at_ticks is None or gap.before_sequence_nr - 1 > evidence.deleted_to:
            return False
        return self.policy.now_ticks - evidence.seen_at_ticks >= self.policy.gap_timeout_ticks

    def _next_number(self) -> int:
        return self.known.number + 1 if self.known else 1

    def _deliver_number(self, row: Row, copies: list[Row]) -> None:
        """Deliver the earliest row of a number, as late if progress has passed it, and drop the others as
        copies of its event.
        """
        if self._is_passed(row.number):
            self._deliver_late(row)
        else:
            self._deliver(row)
        for copy in copies:
            self._decide(copy, Action.DROP, Reason.DUPLICATE)

    def _deliver(self, row: Row, reason: Reason | None = None) -> None:
        skewed = row.ticks < self.order_ticks
        self.order_ticks = max(self.order_ticks, row.ticks)
        self.out.decisions.append(
            Decision(
                row,
                Action.DELIVER,
                reason or (Reason.CLOCK_SKEW if skewed else Reason.NEXT),
                self.order_ticks,
            )
        )
        known = self.known or Progress(0, 0, 0, "")
        self.known = replace(
            known, number=row.number, sequence_nr=row.sequence_nr, ticks=row.ticks, offset=row.offset
        )

    def _deliver_late(self, row: Row) -> None:
        assert self.known is not None  # noqa: S101 - only numbers at or below progress are late
        self.known = replace(self.known, missing=remove(self.known.missing, row.number))
        self._decide(row, Action.LATE, Reason.BELOW_FIRST_OR_CLOSED)

    def _decide(self, row: Row, action: Action, reason: Reason) -> None:
        self.out.decisions.append(Decision(row, action, reason, row.ticks))

    def _start_hold(self, reason: Reason, number: int, rows: list[Row]) -> None:
        """Hold at this number for what is wrong with it.

        The hold covers missing numbers before it, so that closing the hold gives up both.
        """
        first = number if number < 1 or self._is_passed(number) else self._next_number()
        after = self.known.sequence_nr if self.known else 0
        self.held = (reason, Gap(first, number, after, max(row.sequence_nr for row in rows) + 1))
        self._hold(rows)

    def _hold(self, rows: list[Row]) -> None:
        assert self.held is not None  # noqa: S101 - set by _reach or _start_hold
        self.held_rows.extend(rows)
        for row in rows:
            self._decide(row, Action.HOLD, self.held[0])


def _fills(events: tuple[Row, ...], gap: Gap) -> bool:
    """Return whether events fill a gap: one per missing number, rising between the gap's neighbours, none of
    them broken.
    """
    in_order = fit_between(gap, [event.sequence_nr for event in events])
    return in_order and not any(event.event_missing or event.offset_broken for event in events)


def fit_between(gap: Gap, sequence_nrs: Sequence[int]) -> bool:
    """Return whether there is one event per missing number of a gap, rising between the gap's neighbours."""
    numbers = (gap.after_sequence_nr, *sequence_nrs, gap.before_sequence_nr)
    return len(sequence_nrs) == gap.size and all(low < high for low, high in pairwise(numbers))
