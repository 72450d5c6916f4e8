"""How many rows of each hour of a view are accounted for, and when they were last counted."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from tagmill.cassandra.client import Cassandra, needs_tables, utc
from tagmill.config.settings import Settings
from tagmill.domain import identifiers

# Tags whose hours are read at once: each may have thousands.
TAGS_AT_ONCE = 16


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

    def of(self, first_hours: Mapping[str, int]) -> Iterator[dict[int, HourCount]]:
        """Yield the hours of each of these tags from its first one on, by their begin."""
        query = (
            f"SELECT hour, rows, run, counted_at FROM {self.table} WHERE pipeline = ? AND tag = ? "
            "AND hour >= ?"
        )
        remaining = iter(first_hours.items())
        while group := list(islice(remaining, TAGS_AT_ONCE)):
            values = ((self.pipeline, tag, begin) for tag, begin in group)
            for rows in self.cassandra.execute_many(query, values):
                yield {row.hour: HourCount(row.hour, row.rows, row.run, utc(row.counted_at)) for row in rows}

    def write(self, counts: Iterable[tuple[str, HourCount]]) -> None:
        """Write hours of tags."""
        self.cassandra.write_many(
            f"INSERT INTO {self.table} (pipeline, tag, hour, rows, run, counted_at) VALUES (?, ?, ?, ?, "
            "?, ?) USING TTL ?",
            (
                (self.pipeline, tag, hour.begin, hour.rows, hour.run, hour.counted_at, self.keep_seconds)
                for tag, hour in counts
            ),
        )


def hour_counts(settings: Settings, cassandra: Cassandra, pipeline: str) -> HourCounts:
    """Return those of a pipeline of tag views, kept for twice its largest window."""
    largest = max(settings.pipeline(pipeline).look_back_windows_seconds, default=0)
    return HourCounts(cassandra, settings.cassandra.ledger_keyspace, pipeline, max(1, int(2 * largest)))
