"""The write times of a pipeline's delivered state: a base plus the run's number (docs/decisions/0028).

Rows that another program has written, such as a restore by COPY, have write times of an ordinary clock, which
outrank every run's number.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from cassandra import ConsistencyLevel

from tagmill.cassandra.client import Cassandra, needs_tables
from tagmill.domain import identifiers
from tagmill.errors import ForeignWriteTime

SERIAL = ConsistencyLevel.SERIAL
# tables with a few rows per pipeline: their key behind the pipeline, and a column that every write sets
SMALL = (
    ("watermarks", ("tag",), "ticks"),
    ("view_seen", ("tag",), "build"),
    ("topic_offsets", ("topic", "partition"), "offset"),
)

NOT_AS_WRITTEN = "It does not read back as written; a run that wrote it stays SEALED, and nothing is lost"


@dataclass(frozen=True, slots=True)
class WriteTimes:
    """The write times of every pipeline of one ledger."""

    cassandra: Cassandra
    keyspace: str

    def base(self, pipeline: str) -> int:
        """Return what is added to a run's number, in microseconds; 0 until a restore raised it."""
        needs_tables(self.cassandra, self.keyspace, ["write_times"])
        rows = self.cassandra.execute(
            f"SELECT base FROM {self._table} WHERE pipeline = ?", pipeline, consistency=SERIAL
        )
        return int(rows[0].base) if rows else 0

    def of(self, pipeline: str, run: int) -> int:
        """Return the write time of what a run writes."""
        return self.base(pipeline) + run

    def raise_base(self, pipeline: str, base: int) -> None:
        """Raise the base; a higher one that is in force stays."""
        known = self.base(pipeline)
        if known >= base:
            return
        if not known:
            self.cassandra.transact(
                f"INSERT INTO {self._table} (pipeline, base) VALUES (?, ?) IF NOT EXISTS",
                pipeline,
                base,
                landed=lambda: self.base(pipeline) >= base,
            )
        else:
            self.cassandra.transact(
                f"UPDATE {self._table} SET base = ? WHERE pipeline = ? IF base < ?",
                base,
                pipeline,
                base,
                landed=lambda: self.base(pipeline) >= base,
            )

    def require_own(self, pipeline: str, last_run: int) -> int:
        """Raise ForeignWriteTime for a watermark or offset that no run can have written; return the highest
        write time of a run.
        """
        limit = self.of(pipeline, last_run)
        for what, written in self.small(pipeline):
            if written > limit:
                raise foreign(pipeline, what)
        return limit

    def small(self, pipeline: str) -> Iterable[tuple[str, int]]:
        """Yield each row of the small tables by name, with its write time."""
        keyspace = identifiers.cql(self.keyspace)
        for table, key, column in SMALL:
            columns = f'{", ".join(key)}, WRITETIME("{column}") AS written'
            for row in self.cassandra.execute(
                f"SELECT {columns} FROM {keyspace}.{table} WHERE pipeline = ?", pipeline
            ):
                if row.written is not None:
                    yield f"{table} of {' '.join(str(getattr(row, name)) for name in key)}", row.written

    def raise_above(self, pipeline: str, written: int) -> int:
        """Raise the base above this write time and above the server's clock; return it."""
        rows = self.cassandra.execute("SELECT toUnixTimestamp(now()) AS milliseconds FROM system.local")
        base = max(written, (int(rows[0].milliseconds) + 1) * 1000)
        self.raise_base(pipeline, base)
        return base

    @property
    def _table(self) -> str:
        return f"{identifiers.cql(self.keyspace)}.write_times"


def foreign(pipeline: str, row: str, done: str = "Nothing was sealed") -> ForeignWriteTime:
    """Make the error of a row that another program has written."""
    return ForeignWriteTime(
        f"pipeline {pipeline}: {row} in the ledger was written by another program (its write time is not "
        "a run's), so what a run writes "
        f"there would be lost. {done}. Look and go on: tagmill ledger restore --pipeline {pipeline} --dry-run",
        pipeline=pipeline,
    )
