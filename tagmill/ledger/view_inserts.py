"""What is known of each insert that materialized views depend on, kept until its batch is verified."""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from tagmill.cassandra.client import Cassandra, needs_tables
from tagmill.domain import identifiers
from tagmill.ledger.runs import BatchRow

TABLE = "view_inserts"


class Outcome(StrEnum):
    """BEGUN: no answer came.

    DONE: ClickHouse confirmed it, so the views have the rows. FAILED: the answer was an error.
    """

    BEGUN = "begun"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ViewInsert:
    """The last insert of a batch's generation: the views that depended on the table, the error, and who
    accepted it.
    """

    outcome: Outcome
    views: str
    error: str
    accepted_by: str | None

    @property
    def is_whole(self) -> bool:
        """Whether the views have the batch: confirmed by ClickHouse, or accepted by a person."""
        return self.outcome == Outcome.DONE or self.accepted_by is not None


class ViewInserts:
    """The inserts of one run."""

    def __init__(self, cassandra: Cassandra, ledger_keyspace: str, pipeline: str, run: int) -> None:
        needs_tables(cassandra, ledger_keyspace, (TABLE,))
        self.cassandra, self.pipeline, self.run = cassandra, pipeline, run
        self.table = f"{identifiers.cql(ledger_keyspace)}.{TABLE}"

    def note(self, batch: BatchRow, outcome: Outcome, views: str, error: str = "") -> None:
        """Write what is known of the insert of a batch's generation."""
        self.cassandra.write_many(
            f"INSERT INTO {self.table} (pipeline, run, batch_no, generation, outcome, views, error, at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    self.pipeline,
                    self.run,
                    batch.number,
                    batch.generation,
                    outcome.value,
                    views,
                    error,
                    datetime.now(UTC),
                )
            ],
        )

    def accept(self, batch: BatchRow, who: str, why: str) -> None:
        """Write that a person has seen to the views."""
        self.cassandra.write_many(
            f"INSERT INTO {self.table} (pipeline, run, batch_no, generation, accepted_by, accepted_why) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            [(self.pipeline, self.run, batch.number, batch.generation, who, why)],
        )

    def find(self, batch: BatchRow) -> ViewInsert | None:
        """Return what is known of the insert of a batch's generation."""
        rows = self.cassandra.execute(
            f"SELECT outcome, views, error, accepted_by FROM {self.table} "
            "WHERE pipeline = ? AND run = ? AND batch_no = ? AND generation = ?",
            self.pipeline,
            self.run,
            batch.number,
            batch.generation,
        )
        if not rows:
            return None
        row = rows[0]
        return ViewInsert(
            Outcome(row.outcome or Outcome.BEGUN), row.views or "", row.error or "", row.accepted_by
        )

    def forget(self, batch: BatchRow) -> None:
        """Remove what is known of a batch that is verified."""
        self.cassandra.write_many(
            f"DELETE FROM {self.table} WHERE pipeline = ? AND run = ? AND batch_no = ? AND generation = ?",
            [(self.pipeline, self.run, batch.number, batch.generation)],
        )
