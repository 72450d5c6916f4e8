"""The proof of runs past retention: one row per batch, so that `check` can still compare every delivered row
with what was sealed.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from uuid import UUID

from tagmill.cassandra.client import Cassandra, needs_tables
from tagmill.domain import identifiers

TABLES = ("retired", "retired_batches")
RUNS_A_PARTITION = 1000


@dataclass(frozen=True, slots=True)
class RetiredBatch:
    """A batch in ClickHouse whose run, plan, manifest and file are gone."""

    run: int
    number: int
    batch_id: UUID
    generation: int
    tag: str
    rows: int
    checksum: int


FIELDS = "run, batch_no, batch_id, generation, tag, rows, checksum"


class Retired:
    """The retired runs of one pipeline."""

    def __init__(self, cassandra: Cassandra, ledger_keyspace: str, pipeline: str) -> None:
        needs_tables(cassandra, ledger_keyspace, TABLES)
        self.cassandra = cassandra
        self.pipeline = pipeline
        self.table = f"{identifiers.cql(ledger_keyspace)}.retired_batches"
        self.mark = f"{identifiers.cql(ledger_keyspace)}.retired"

    def up_to(self) -> int:
        """Return the number up to which runs were retired from the ledger, 0 if none was."""
        rows = self.cassandra.execute(f"SELECT retired_to FROM {self.mark} WHERE pipeline = ?", self.pipeline)
        return int(rows[0].retired_to) if rows else 0

    def move_up_to(self, run: int) -> None:
        """Record that all runs up to this one were retired from the ledger."""
        self.cassandra.write_many(
            f"INSERT INTO {self.mark} (pipeline, retired_to) VALUES (?, ?)", [(self.pipeline, run)]
        )

    def keep(self, batches: Iterable[RetiredBatch]) -> int:
        """Write the proof of these batches and return how many; a repetition writes the same."""
        return self.cassandra.write_many(
            f"INSERT INTO {self.table} (pipeline, thousand, {FIELDS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                (
                    self.pipeline,
                    b.run // RUNS_A_PARTITION,
                    b.run,
                    b.number,
                    b.batch_id,
                    b.generation,
                    b.tag,
                    b.rows,
                    b.checksum,
                )
                for b in batches
            ),
        )

    def batches(self, last_run: int) -> Iterator[RetiredBatch]:
        """Yield all retired batches up to `last_run`, the oldest run first."""
        for thousand in range(last_run // RUNS_A_PARTITION + 1):
            for row in self.cassandra.stream(
                f"SELECT {FIELDS} FROM {self.table} WHERE pipeline = ? AND thousand = ?",
                self.pipeline,
                thousand,
            ):
                yield RetiredBatch(*row)

    def of_run(self, run: int) -> list[RetiredBatch]:
        """Return the retired batches of one run."""
        rows = self.cassandra.execute(
            f"SELECT {FIELDS} FROM {self.table} WHERE pipeline = ? AND thousand = ? AND run = ?",
            self.pipeline,
            run // RUNS_A_PARTITION,
            run,
        )
        return [RetiredBatch(*row) for row in rows]

    def forget(self, batch: RetiredBatch) -> None:
        """Delete the proof of a batch; it needs none if nothing of it is left in ClickHouse."""
        self.cassandra.write_many(
            f"DELETE FROM {self.table} WHERE pipeline = ? AND thousand = ? AND run = ? AND batch_no = ?",
            [(self.pipeline, batch.run // RUNS_A_PARTITION, batch.run, batch.number)],
        )
