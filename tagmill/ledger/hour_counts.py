"""How many rows of each hour of a view are accounted for, and when they were last counted."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from tagmill.cassandra.client import Cassandra, needs_tables, utc
from tagmill.config.settings import Settings
from tagmill.domain import identifiers


@dataclass(frozen=True, slots=True)
class HourCount:
    """An hour of a tag (`begin`: milliseconds): its rows that `run` and those before it read or found
    delivered.
    """

    begin: int
    rows: int
    run: int
    counted_at: datetime


class HourCounts:
    """Those of one pipeline. Each expires `keep_seconds` after it was written."""

    TABLE = "hour_counts"

    def __init__(self, cassandra: Cassandra, ledger_keyspace: str, pipeline: str, keep_seconds: int) -> None:
        self.cassandra, self.pipeline, self.keep_seconds = cassandra, pipeline, keep_seconds
        self.table = f"{identifiers.cql(ledger_keyspace)}.{self.TABLE}"
        needs_tables(cassandra, ledger_keyspace, [self.TABLE])

    def of(self, tag: str, from_begin: int) -> dict[int, HourCount]:
        """Return the hours of a tag from one on, by their begin."""
        query = (
            f"SELECT hour, rows, run, counted_at FROM {self.table} WHERE pipeline = ? AND tag = ? "
            "AND hour >= ?"
        )
        rows = self.cassandra.stream(query, self.pipeline, tag, from_begin)
        return {row.hour: HourCount(row.hour, row.rows, row.run, utc(row.counted_at)) for row in rows}

    def write(self, tag: str, counts: Iterable[HourCount]) -> None:
        """Write hours of a tag."""
        self.cassandra.write_many(
            f"INSERT INTO {self.table} (pipeline, tag, hour, rows, run, counted_at) VALUES (?, ?, ?, ?, "
            "?, ?) USING TTL ?",
            (
                (self.pipeline, tag, one.begin, one.rows, one.run, one.counted_at, self.keep_seconds)
                for one in counts
            ),
        )


def hour_counts(settings: Settings, cassandra: Cassandra, pipeline: str) -> HourCounts:
    """Return those of a pipeline of tag views, kept for twice its largest window."""
    largest = max(settings.pipeline(pipeline).look_back_windows_seconds, default=0)
    return HourCounts(cassandra, settings.cassandra.ledger_keyspace, pipeline, max(1, int(2 * largest)))
