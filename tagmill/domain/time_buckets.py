"""Timebuckets: the time slice of a tag that one tag_views partition holds. Pure.

Source: TimeBucket in akka-persistence-cassandra and pekko-persistence-cassandra: floor(unix_ms / size_ms) *
size_ms.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from tagmill.domain.journal_tables import VIEW_TABLE
from tagmill.domain.timeuuid import TICKS_PER_MILLISECOND


class BucketSize(StrEnum):
    """events-by-tag.bucket-size of the plugin."""

    DAY = "Day"
    HOUR = "Hour"
    MINUTE = "Minute"

    @property
    def milliseconds(self) -> int:
        """Length of a bucket in milliseconds."""
        return {"Day": 86_400_000, "Hour": 3_600_000, "Minute": 60_000}[self.value]

    @property
    def ticks(self) -> int:
        """Length of a bucket in 100 ns ticks."""
        return self.milliseconds * TICKS_PER_MILLISECOND

    def start(self, ticks: int) -> int:
        """Return the timebucket (milliseconds since 1970) that a moment in ticks falls in."""
        unix_ms = ticks // TICKS_PER_MILLISECOND
        return unix_ms - unix_ms % self.milliseconds


@dataclass(frozen=True, slots=True)
class View:
    """A table of tag views, and the size of its buckets: events-by-tag.table and events-by-tag.bucket-size of
    the plugin.
    """

    table: str
    size: BucketSize

    def __str__(self) -> str:
        """Return the table and the size of its buckets, as messages name them."""
        return f"{self.table} ({self.size.value})"

    def key(self, of: str) -> str:
        """Return the name under which the ledger keeps what it knows of the partitions of a view; `of`: a
        pipeline or a journal.

        Another table has other partitions: what was known of the old ones doesn't hold for them.
        """
        return of if self.table == VIEW_TABLE else f"{of}/{self.table}"


def first_ticks(timebucket: int) -> int:
    """Return the first tick of a bucket."""
    return timebucket * TICKS_PER_MILLISECOND


def month(ticks: int) -> str:
    """Return the ClickHouse partition (YYYYMM, UTC) of a moment in ticks."""
    return datetime.fromtimestamp(ticks // 10_000_000, tz=UTC).strftime("%Y%m")
