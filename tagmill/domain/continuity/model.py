"""The vocabulary of the rules: what was seen, what is known, and what happens."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

Interval = tuple[int, int]


class Action(StrEnum):
    """The action on one row of the view."""

    DELIVER = "deliver"
    LATE = "late"
    DROP = "drop"
    HOLD = "hold"


class Reason(StrEnum):
    """The reason of an action; stable codes in the ledger, in reports and in the documentation."""

    NEXT = "next"
    ALREADY_DELIVERED = "already_delivered"
    BELOW_FIRST_OR_CLOSED = "below_first_or_closed"
    DUPLICATE = "duplicate_same_event"
    BACKFILLED = "healed_from_journal"
    CLOCK_SKEW = "clock_skew"
    GAP = "hole"
    GAP_TOO_WIDE = "too_many_missing"
    GAP_TOO_LARGE = "gap_too_large"
    FIRST_SEEN = "first_seen"
    RENUMBERED = "renumbered"
    ANOTHER_LIFE = "another_life"
    TWO_EVENTS = "two_events_one_number"
    NULL_EVENT = "null_event"
    BROKEN_OFFSET = "broken_offset"
    BROKEN_KEY = "broken_key"
    GIVEN_UP = "given_up"
    SET_APART = "set_apart"
    RELEASED = "released"


class FirstSeen(StrEnum):
    """The policy for a first number above 1."""

    REQUIRE_ONE = "require_one"
    ASSUME_FIRST = "assume_first"
    SCAN = "scan"


@dataclass(frozen=True, slots=True)
class Row:
    """Key columns of one row of tag_views.

    `handle` says where the whole row is; the rules only pass it on. `ticks`: time of the offset, 100 ns since
    1970.
    """

    number: int
    sequence_nr: int
    ticks: int
    offset: str
    writer_uuid: str
    event_missing: bool = False
    offset_broken: bool = False
    handle: object = None


@dataclass(frozen=True, slots=True)
class Progress:
    """The delivered numbers of one persistence_id and tag: 1..number, less those in `missing`.

    `life_from`: where its present life begins, in ticks; earlier rows are of an earlier life. 0 in the first life.
    """

    number: int
    sequence_nr: int
    ticks: int
    offset: str
    missing: tuple[Interval, ...] = ()
    life_from: int = 0

    def of_earlier_life(self, ticks: int) -> bool:
        """Return whether a row of this time is of an earlier life; times before 1970 are below 0."""
        return self.life_from > 0 and ticks < self.life_from

    def delivered(self, number: int) -> bool:
        """Return whether this number has been delivered."""
        return 1 <= number <= self.number and not any(low <= number <= high for low, high in self.missing)

    @property
    def first_number(self) -> int:
        """The lowest number delivered."""
        return self.missing[0][1] + 1 if self.missing and self.missing[0][0] == 1 else 1


@dataclass(frozen=True, slots=True)
class Gap:
    """A gap: missing numbers first..last between the sequence_nrs of two neighbours (both exclusive; 0 =
    before the first event).
    """

    first: int
    last: int
    after_sequence_nr: int
    before_sequence_nr: int

    @property
    def size(self) -> int:
        """The number of missing numbers."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Evidence:
    """The journal's evidence about a gap.

    `events`: the journal's events with the tag between the neighbours, in order of sequence_nr; None if not
    searched, or if they are `too_large` to be kept. `deleted_to`: of the metadata table, 0 if absent.
    `seen_at_ticks`: when the gap was first seen.
    """

    events: tuple[Row, ...] | None = None
    deleted_to: int = 0
    seen_at_ticks: int | None = None
    too_large: bool = False


@dataclass(frozen=True, slots=True)
class Earlier:
    """The result of a scan before the run's range: the highest number there, or None without rows."""

    highest: int | None


@dataclass(frozen=True, slots=True)
class Policy:
    """The pipeline's choices, and the time now."""

    first_seen: FirstSeen
    now_ticks: int
    gap_timeout_ticks: int
    max_missing_to_search: int
    starts_in_past_bucket: bool = True


@dataclass(frozen=True, slots=True)
class Decision:
    """The action on one row, and the row's place in the order: the running maximum of the ticks."""

    row: Row
    action: Action
    reason: Reason
    order_ticks: int


@dataclass(frozen=True, slots=True)
class Held:
    """The hold of a persistence_id: `gap` are the numbers that it waits for, or the number that is in
    doubt.
    """

    reason: Reason
    gap: Gap
    first_ticks: int
    rows: int


@dataclass(slots=True)
class Judgement:
    """The outcome for one persistence_id and tag: decisions, progress, a hold if there is one, and gaps found
    and closed.
    """

    decisions: list[Decision] = field(default_factory=list)
    progress: Progress | None = None
    held: Held | None = None
    gaps: list[Gap] = field(default_factory=list)
    closed: list[Gap] = field(default_factory=list)


GapEvidence = Mapping[Gap, Evidence]
