"""The new events of a journal, and what numbering them gives, whether Spark does it (many_rows.py) or this process
(few_rows/).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tagmill.errors import GuardRefused
from tagmill.ledger.view_builds import BuildRow
from tagmill.ledger.view_waiting import WaitingRow
from tagmill.views.model import Waiting
from tagmill.views.run_numbering import Sums

if TYPE_CHECKING:
    from tagmill.views.sealed_build import Attempt

# Persistence ids that wait, named in a report.
EXAMPLES = 20


class Line(NamedTuple):
    """The last event of a persistence_id that has a number for a tag."""

    tag: str
    number: int | None
    sequence_nr: int | None
    offset: str | None


class Refused(NamedTuple):
    """The first persistence_id that another writer has numbered.

    `progress`: what the last build recorded; `found`: what tag_write_progress has; `scanned`: tag_scanning.
    """

    persistence_id: str
    progress: Sequence[Line]
    found: Sequence[Line]
    scanned: int | None


class Stopped(NamedTuple):
    """The persistence ids that wait for one reason; the first of them, in front of the event `sequence_nr`.

    `goes_on`: whether the one that the build before has named still waits there.
    """

    reason: str
    ids: int
    persistence_id: str
    sequence_nr: int
    goes_on: bool


@dataclass(frozen=True, slots=True)
class Numbered:
    """What the files of a build hold, and what waits. `written_at`: microseconds, the write time of all rows."""

    persistence_ids: int
    refused: int
    first_refused: Refused | None
    written_at: int
    stopped: Sequence[Stopped]
    examples: Sequence[Waiting]
    moved: int
    events: int
    sums: Sums


@dataclass(frozen=True, slots=True)
class NewEvents:
    """The events of a journal behind its last build, up to `until` (ticks), which an attempt numbers into files below
    `folder`.

    `row`: of the last build; `known`: what it has recorded as waiting. With `adopt`, the numbers that an application gave
    are taken as the start.
    """

    attempt: "Attempt"
    folder: str
    until: int
    row: BuildRow
    known: Sequence[WaitingRow]
    adopt: bool

    def write_time(self) -> int:
        """Return the write time of the build's rows, in microseconds: the time now, later than that of the last build."""
        return max(self.row.written_at + 1, self.attempt.builds.cassandra.now_microseconds())

    def check_refused(self, count: int, first: Refused | None) -> None:
        """Raise GuardRefused if another writer has numbered persistence ids before the first build."""
        if first is None or self.row.build or self.adopt:
            return
        raise GuardRefused(
            f"journal {self.attempt.journal.keyspace}: an application has numbered {count} "
            f"persistence ids (the first: {first.persistence_id!r}; see tag_write_progress and tag_scanning), and "
            f"there is no build of ours. Nothing was written. {way_out(self.attempt.name)}"
        )


def way_out(pipeline: str) -> str:
    """Return what to do where another writer has numbered, as text."""
    return (
        "Turn events-by-tag off in the application, then take its numbers as the start: "
        f"tagmill views build --pipeline {pipeline} --adopt"
    )
