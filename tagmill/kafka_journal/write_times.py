"""Choose the write time of a replication: later than that of every row that it writes over or deletes.

Cassandra keeps what has the latest write time. A replicator whose clock was ahead has left rows that an
ordinary write does not replace.
"""

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tagmill.errors import GuardRefused

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# If a row is further ahead of the clock than this, a person has to decide: all later writes would be as far
# ahead.
MAX_AHEAD = timedelta(days=1)
# Microseconds beyond the newest entry's write time: its events, whose write times are not read, may be
# slightly newer.
SLACK = 1_000_000


@dataclass(frozen=True, slots=True)
class Overwritten:
    """A row of the application that is written over: what it is, and its write time in microseconds."""

    row: str
    written: int


class WriteTimes:
    """Write times of one attempt at replicating.

    `write_after`: a person accepts write times up to this moment.
    """

    def __init__(self, pipeline: str, write_after: datetime | None) -> None:
        self.pipeline = pipeline
        self.least = microseconds(write_after) + 1 if write_after else 0

    def choose(self, newest: Overwritten | None, floor: int) -> tuple[int, list[str]]:
        """Return the write time (microseconds), at least `floor`, and a warning where a row was ahead of the
        clock.

        Raises GuardRefused: a row is further ahead than MAX_AHEAD.
        """
        now = time.time_ns() // 1000
        written_at = max(now, floor, self.least)
        if newest is None or newest.written < written_at:
            return written_at, []
        if newest.written - now > MAX_AHEAD / timedelta(microseconds=1):
            raise GuardRefused(
                f"{self.pipeline}: {newest.row} was written at {moment(newest.written)}, ahead of the "
                "clock, and outranks what would be "
                f"written now. Nothing was sealed. {self.way_on(newest.written)}",
                pipeline=self.pipeline,
            )
        return newest.written + SLACK, [ahead(newest)]

    def outranked(self, row: str, written: int | None) -> GuardRefused:
        """Return the error for a row that did not become what was written.

        `written` None: a deletion covers it.
        """
        by = f"a write at {moment(written)}" if written else "a deletion whose time Cassandra does not tell"
        return GuardRefused(
            f"{self.pipeline}: {row} is not what was written: it is outranked by {by}, of another "
            "replicator or a clock that was "
            f"ahead. The replication stays sealed, pointers did not move. {self.way_on(written)}",
            pipeline=self.pipeline,
        )

    def way_on(self, written: int | None) -> str:
        """Return what to do next, with the command that replicates with write times later than `written`
        (microseconds).
        """
        after = moment(written) if written else "MOMENT, later than that clock's time"
        return (
            "End every other replicator of this keyspace, then write with later times: "
            f"tagmill kafka-journal replicate --pipeline {self.pipeline} --write-after {after}"
        )


def ahead(row: Overwritten) -> str:
    """Return the warning for a row that is written over with a time ahead of the clock."""
    return (
        f"{row.row} was written at {moment(row.written)}, ahead of the clock; it was written over "
        "with a later time"
    )


def microseconds(at: datetime) -> int:
    """Return the microseconds from 1970 to a moment, which is in UTC if it has no zone."""
    return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - EPOCH) // timedelta(microseconds=1)


def moment(written: int) -> str:
    """Return a write time as text, rounded up to a second; the number itself if no datetime can hold it."""
    try:
        return f"{EPOCH + timedelta(seconds=-(-written // 1_000_000)):%Y-%m-%dT%H:%M:%SZ}"
    except OverflowError:
        return f"{written} µs"
