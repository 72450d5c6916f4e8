"""A reference for the rules of numbering, with which the build has to agree: one persistence_id at a time, in
plain Python.
"""

from collections import defaultdict
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Event:
    """A row of messages; `flaw` is a Reason's value that says what is wrong with the row."""

    sequence_nr: int
    tags: tuple[str, ...] = ()
    flaw: str | None = None
    writer: int = 0


@dataclass
class Stand:
    """How far the build of a persistence_id has come; `numbers` maps a tag to (number, sequence_nr)."""

    sequence_nr: int = 0
    deleted_to: int = 0
    numbers: dict[str, tuple[int, int]] = field(default_factory=dict)


def build(stand: Stand, journal: list[Event]) -> tuple[dict[tuple[str, int], int], Stand, str | None]:
    """Return the numbers by (tag, sequence_nr), the new Stand, and why the build stops before the last event
    (None if it doesn't).
    """
    start = max(stand.sequence_nr, stand.deleted_to)
    by_number: dict[int, list[Event]] = defaultdict(list)
    for event in journal:
        if event.sequence_nr > start:
            by_number[event.sequence_nr].append(event)
    upto, reason = start, None
    while upto < max(by_number, default=0):
        found = by_number.get(upto + 1, [])
        reasons = (
            [event.flaw for event in found if event.flaw]
            + ["hole"] * (not found)
            + ["two_writers"] * (len(found) > 1)
        )
        if reasons:
            reason = min(reasons)
            break
        upto += 1
    numbers: dict[tuple[str, int], int] = {}
    last = dict(stand.numbers)
    for sequence_nr in range(start + 1, upto + 1):
        for tag in by_number[sequence_nr][0].tags:
            number, before = last.get(tag, (0, 0))
            if sequence_nr > before:
                last[tag] = (number + 1, sequence_nr)
                numbers[tag, sequence_nr] = number + 1
    return numbers, Stand(upto, stand.deleted_to, last), reason
