"""The run of each batch in a destination, kept in a table next to it, so that ClickHouse can be compared with
a ledger.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from tagmill.clickhouse.client import ClickHouse
from tagmill.domain import identifiers

# Batches that one query names.
MOST_NAMED = 2000
COLUMNS = ("run", "number", "batch_id", "tag")


class Noted(Protocol):
    """The facts of a manifest's batch that are noted."""

    @property
    def number(self) -> int:
        """Its number in the run."""

    @property
    def batch_id(self) -> str:
        """Its id in the destination."""

    @property
    def tag(self) -> str:
        """Its tag, which is empty for a topic."""


@dataclass(frozen=True, slots=True)
class BatchOrigin:
    """Where a batch comes from: its run, its number there, and its tag."""

    run: int
    number: int
    tag: str


class DestinationBatches:
    """The batches that were ever sent to one destination."""

    def __init__(self, clickhouse: ClickHouse, destination: str) -> None:
        self.clickhouse, self.destination, self.table = clickhouse, destination, f"{destination}_batches"

    def exists(self) -> bool:
        """Return whether `schema apply` has created the table."""
        return bool(self.clickhouse.columns_of(self.table))

    def note(self, run: int, batches: Sequence[Noted]) -> None:
        """Write the batches of a run, before the first of them is sent; those that are noted already stay
        unchanged.
        """
        known = self.of_run(run)
        rows = [
            (run, one.number, UUID(one.batch_id), one.tag)
            for one in batches
            if UUID(one.batch_id) not in known
        ]
        if rows:
            self.clickhouse.insert_rows(self.table, COLUMNS, rows)

    def last_run(self) -> int:
        """Return the newest run whose batches were noted, 0 if none was."""
        return int(self.clickhouse.rows(f"SELECT max(`run`) FROM {identifiers.sql(self.table)}")[0][0])

    def of_run(self, run: int) -> set[UUID]:
        """Return the ids of a run's noted batches."""
        query = f"SELECT `batch_id` FROM {identifiers.sql(self.table)} WHERE `run` = {{run:UInt64}}"
        return {UUID(str(row[0])) for row in self.clickhouse.rows(query, {"run": run})}

    def with_rows(self, batches: Collection[UUID]) -> set[UUID]:
        """Return those of these batches that have rows in the destination, from its projection."""
        query = (
            f"SELECT `batch_id`, count() FROM {identifiers.sql(self.destination)} "
            "WHERE `batch_id` IN %(batches)s GROUP BY `batch_id`"
        )
        named, found = [str(batch) for batch in batches], set[UUID]()
        for begin in range(0, len(named), MOST_NAMED):
            rows = self.clickhouse.rows(query, {"batches": tuple(named[begin : begin + MOST_NAMED])})
            found.update(UUID(str(batch)) for batch, _ in rows)
        return found

    def origins(self) -> Iterator[tuple[UUID, BatchOrigin]]:
        """Yield the id of each noted batch with its run, number and tag."""
        for run, number, batch_id, tag in self.clickhouse.rows(
            f"SELECT `run`, `number`, `batch_id`, `tag` FROM {identifiers.sql(self.table)}"
        ):
            yield UUID(str(batch_id)), BatchOrigin(int(run), int(number), str(tag))

    def count(self) -> int:
        """Return the number of batches that have rows in the destination, from its projection."""
        inner = f"SELECT `batch_id`, count() FROM {identifiers.sql(self.destination)} GROUP BY `batch_id`"
        return int(self.clickhouse.rows(f"SELECT count() FROM ({inner})")[0][0])
