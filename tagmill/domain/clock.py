"""Tell the time by the servers' clocks. The local clock is compared with them, and decides nothing."""

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tagmill.errors import ClockDiffers


def local() -> datetime:
    """Return the time by this machine's clock, which decides nothing."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Reading:
    """A server's time, asked once and continued with the monotonic clock.

    `ahead`: how far the local clock was ahead of the server's at least, given the duration of the round trip;
    negative: behind.
    """

    where: str
    at: datetime
    received: float
    ahead: timedelta

    def now(self) -> datetime:
        """Return the server's time, never later than its own clock shows."""
        return self.at + timedelta(seconds=time.monotonic() - self.received)


def read(where: str, ask: Callable[[], datetime]) -> Reading:
    """Ask a server for its time, and return a reading on which later changes of the local clock have no
    effect.
    """
    before, began = local(), time.monotonic()
    at = ask()
    received = time.monotonic()
    earliest, latest = before - at, before + timedelta(seconds=received - began) - at
    ahead = timedelta(0) if earliest <= timedelta(0) <= latest else min(earliest, latest, key=abs)
    return Reading(where, at, received, ahead)


def difference(readings: Sequence[Reading], limit_seconds: float) -> str | None:
    """Return a text that says whose clock differs from whose and by how much; None if all are within the
    limit.
    """
    limit = timedelta(seconds=limit_seconds)
    slowest, fastest = (pick(readings, key=lambda reading: reading.ahead) for pick in (max, min))
    furthest = max(readings, key=lambda reading: abs(reading.ahead))
    if slowest.ahead - fastest.ahead > limit:
        wrong, right = (slowest, fastest) if abs(slowest.ahead) > abs(fastest.ahead) else (fastest, slowest)
        return f"the clock of {wrong.where} is {_apart(right.ahead - wrong.ahead)} {right.where}'s"
    if abs(furthest.ahead) > limit:
        return (
            f"the clock of this machine ({socket.gethostname()}) is {_apart(furthest.ahead)} "
            f"{furthest.where}'s"
        )
    return None


def require_agreement(readings: Sequence[Reading], limit_seconds: float) -> None:
    """Raise ClockDiffers when the local clock and the servers' are further apart than the limit."""
    if differing := difference(readings, limit_seconds):
        raise ClockDiffers(
            f"{differing} ([cassandra] max_clock_difference_seconds is {limit_seconds:g}). "
            "Nothing was written. Set the clock, then run the same command again"
        )


def earliest(readings: Sequence[Reading]) -> datetime:
    """Return the earliest of what the servers' clocks show now."""
    return min(reading.now() for reading in readings)


def _apart(ahead: timedelta) -> str:
    return f"{abs(ahead).total_seconds():.0f} s {'ahead of' if ahead > timedelta(0) else 'behind'}"
