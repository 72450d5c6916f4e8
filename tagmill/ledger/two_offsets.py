"""Events that a destination has under two offsets, kept in a table next to it.

The view that shows each event once groups by `event_time`, since all tags of an event share its offset; so a
filter on it prunes. Damaged data may have one event under two offsets: the view shows the events noted here
once, with the earlier time.
"""

from datetime import timedelta

from tagmill.clickhouse.client import ClickHouse
from tagmill.domain import identifiers
from tagmill.domain.timeuuid import TICKS_PER_MILLISECOND, TICKS_PER_SECOND
from tagmill.ledger.batch_times import Times

# Two offsets of one event that lie further apart than this are not searched for.
APART = timedelta(days=7)
_KEY = "`persistence_id`, `sequence_nr`"
# Settings of the search, which groups up to a month of rows: it spills to disk above 1 GB and uses few
# threads.
_SEARCH = {"max_bytes_before_external_group_by": 1_000_000_000, "max_threads": 2}


class TwoOffsets:
    """The events under two offsets of one destination of tag views."""

    def __init__(self, clickhouse: ClickHouse, destination: str) -> None:
        self.clickhouse, self.destination = clickhouse, destination
        self.name = f"{destination}_twice"
        self.table = identifiers.sql(self.name)

    def exists(self) -> bool:
        """Return whether `schema apply` has created the table."""
        return bool(self.clickhouse.columns_of(self.name))

    def note(self, batch_id: str, times: Times) -> None:
        """Note the events of a batch that the destination also has under another time; a repetition adds
        nothing.
        """
        first, last = times.first_ms * TICKS_PER_MILLISECOND, (times.last_ms + 1) * TICKS_PER_MILLISECOND
        within = _within("first", "last")
        of_batch = (
            f"SELECT {_KEY} FROM {identifiers.sql(self.destination)} WHERE `batch_id` = "
            f"{{batch:UUID}} AND {within}"
        )
        self._add(f"({_KEY}) IN ({of_batch})", first, last, {"batch": batch_id})

    def find_all(self) -> None:
        """Note all events of the destination that it has under two times, a month at a time."""
        ticks = "intDiv(toUnixTimestamp64Nano(CAST({}(`event_time`) AS DateTime64(9, 'UTC'))), 100)"
        query = (
            f"SELECT count(), {ticks.format('min')}, {ticks.format('max')} FROM "
            f"{identifiers.sql(self.destination)}"
        )
        ((rows, begin, last),) = self.clickhouse.rows(query)
        month = 30 * 86_400 * TICKS_PER_SECOND
        while rows and begin <= last:
            self._add("1", begin, min(begin + month, last), {})
            begin += month

    def _add(self, condition: str, first: int, last: int, values: dict[str, str]) -> None:
        apart = int(APART.total_seconds()) * TICKS_PER_SECOND
        settings = ", ".join(f"{name} = {value}" for name, value in _SEARCH.items())
        self.clickhouse.command(
            f"INSERT INTO {self.table} ({_KEY}) SELECT {_KEY} FROM {identifiers.sql(self.destination)} "
            f"WHERE {_within('low', 'high')} AND {condition} AND ({_KEY}) NOT IN (SELECT {_KEY} FROM "
            f"{self.table}) "
            f"GROUP BY {_KEY} HAVING min(`event_time`) != max(`event_time`) SETTINGS {settings}",
            {**values, "first": first, "last": last, "low": first - apart, "high": last + apart},
        )


def _within(low: str, high: str) -> str:
    """Return the condition that event_time is between two bound numbers of ticks, inclusive."""
    at = "CAST(fromUnixTimestamp64Nano({{{}:Int64}} * 100, 'UTC') AS DateTime64(7, 'UTC'))"
    return f"`event_time` >= {at.format(low)} AND `event_time` <= {at.format(high)}"
