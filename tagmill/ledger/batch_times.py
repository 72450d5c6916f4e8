"""First and last time of the rows of each delivered batch, which stay when its sealed file is gone."""

from collections.abc import Iterable
from dataclasses import dataclass

from tagmill.cassandra.client import Cassandra, needs_tables
from tagmill.domain import identifiers

TABLE = "batch_times"
RUNS_A_PARTITION = 1000


@dataclass(frozen=True, slots=True)
class Times:
    """The first and the last time of a batch's rows, in milliseconds since 1970."""

    first_ms: int
    last_ms: int


class BatchTimes:
    """The times of one pipeline's batches."""

    def __init__(self, cassandra: Cassandra, ledger_keyspace: str, pipeline: str) -> None:
        needs_tables(cassandra, ledger_keyspace, (TABLE,))
        self.cassandra, self.pipeline = cassandra, pipeline
        self.table = f"{identifiers.cql(ledger_keyspace)}.{TABLE}"

    def write(self, run: int, times: Iterable[tuple[int, Times]]) -> None:
        """Write the times of batches of a run, by batch number."""
        self.cassandra.write_many(
            f"INSERT INTO {self.table} (pipeline, thousand, run, batch_no, first_ms, last_ms) VALUES (?, "
            "?, ?, ?, ?, ?)",
            (
                (self.pipeline, run // RUNS_A_PARTITION, run, number, one.first_ms, one.last_ms)
                for number, one in times
            ),
        )

    def read(self, last_run: int) -> dict[tuple[int, int], Times]:
        """Return all times up to a run, by run and batch number."""
        query = (
            f"SELECT run, batch_no, first_ms, last_ms FROM {self.table} WHERE pipeline = ? AND thousand = ?"
        )
        return {
            (row.run, row.batch_no): Times(row.first_ms, row.last_ms)
            for thousand in range(last_run // RUNS_A_PARTITION + 1)
            for row in self.cassandra.stream(query, self.pipeline, thousand)
        }
