"""One mechanism for ledger rows that only their newest owner may change (docs/decisions/0081).

Every statement is a lightweight transaction with values bound. After a lost answer the driver sends it again, so
a transaction that was not applied is first looked for among the changes in force.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID, uuid4

from tagmill.cassandra.client import Cassandra
from tagmill.errors import FenceRaised

# The column that says how far a record has come.
STATE = "state"


class Fenced(Protocol):
    """Row with the fence that is in force, and the owner and the attempt that have raised it."""

    @property
    def fence(self) -> int:
        """Return the fence: 1 for the first owner, one more for each later one."""

    @property
    def attempt(self) -> UUID:
        """Return the random id of the takeover in force."""

    @property
    def owner(self) -> str:
        """Return the owner in force."""


Row = TypeVar("Row", bound=Fenced)


@dataclass(frozen=True, slots=True)
class FencedRecord(Generic[Row]):
    """Row of the ledger with the columns `fence`, `attempt` and `owner`, changed only under its newest fence.

    Attributes:
        cassandra: The client of the ledger.
        table: The table with its keyspace, quoted for CQL.
        key: The columns of the primary key and their values.
        read: Reads the row at SERIAL; returns None if there is none.
        name: The record in an error's message, for example "run 7 of pipeline orders".
        untouched: A sentence for errors that says what was not done, and what goes on.
        batch: The id of the batch that the record is of, for errors; None if it is not a batch's.
    """

    cassandra: Cassandra
    table: str
    key: Mapping[str, Any]
    read: Callable[[], Row | None]
    name: str
    untouched: str
    batch: UUID | None = None

    def begin(self, owner: str, columns: Mapping[str, Any]) -> Row:
        """Write the row with fence 1 and return it; raises FenceRaised if it exists."""
        attempt = uuid4()
        values = {**self.key, "fence": 1, "attempt": attempt, "owner": owner, **columns}
        begun = self.cassandra.transact(
            f"INSERT INTO {self.table} ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})"
            " IF NOT EXISTS",
            *values.values(),
            landed=lambda: self._is_attempt(attempt),
        )
        row = self.read()
        if not begun or row is None or row.attempt != attempt:
            raise self._refusal(f"{self.name} was created by somebody else meanwhile. {self.untouched}")
        return row

    def take_over(self, known: Row, owner: str, changes: Mapping[str, Any] | None = None) -> Row:
        """Raise the fence above that of `known`, so that its owner can change nothing more; return the row.

        Raises FenceRaised if another owner has raised it since `known` was read.
        """
        attempt = uuid4()
        values = {"fence": known.fence + 1, "attempt": attempt, "owner": owner, **(changes or {})}
        taken = self._update(known.fence, {}, values, lambda: self._is_attempt(attempt))
        row = self.read()
        if not taken or row is None or row.attempt != attempt:
            raise self._lost(row, known.fence)
        return row

    def current(self, fence: int) -> Row:
        """Return the row if this fence is still in force; raises FenceRaised otherwise."""
        row = self.read()
        if row is None or row.fence != fence:
            raise self._lost(row, fence)
        return row

    def try_move(
        self,
        fence: int,
        expected: Mapping[str, Any],
        changes: Mapping[str, Any],
        landed: Callable[[Row], bool],
    ) -> bool:
        """Change columns while the expected values and the fence are in force; return whether the change is.

        `landed` says whether a row under this fence has the change already, as it has after a lost answer.
        Raises FenceRaised if another fence is in force.
        """
        return self._update(fence, expected, changes, lambda: landed(self.current(fence)))

    def move(
        self,
        fence: int,
        expected: Mapping[str, Any],
        changes: Mapping[str, Any],
        landed: Callable[[Row], bool],
        untouched: str | None = None,
    ) -> None:
        """Change columns as `try_move`; raises FenceRaised also if the row no longer has the expected values.

        `untouched` replaces the record's sentence in the error's message.
        """
        if not self.try_move(fence, expected, changes, landed):
            values = ", ".join(f"{value} ({column})" for column, value in expected.items())
            raise self._refusal(f"{self.name} is no longer {values}. {untouched or self.untouched}")

    def finish(
        self,
        fence: int,
        expected: Mapping[str, Any],
        state: str,
        changes: Mapping[str, Any],
        untouched: str | None = None,
    ) -> None:
        """Set the column `state` once, with other changes; a row that has it under this fence stays as it is.

        Raises FenceRaised as `move`.
        """
        self.move(
            fence,
            expected,
            {STATE: state, **changes},
            lambda row: bool(getattr(row, STATE) == state),
            untouched,
        )

    def _update(
        self,
        fence: int,
        expected: Mapping[str, Any],
        changes: Mapping[str, Any],
        landed: Callable[[], bool],
    ) -> bool:
        return self.cassandra.transact(
            f"UPDATE {self.table} SET {_equal(changes, ', ')} WHERE {_equal(self.key, ' AND ')}"
            f" IF {_equal([*expected, 'fence'], ' AND ')}",
            *changes.values(),
            *self.key.values(),
            *expected.values(),
            fence,
            landed=landed,
        )

    def _is_attempt(self, attempt: UUID) -> bool:
        row = self.read()
        return row is not None and row.attempt == attempt

    def _refusal(self, message: str) -> FenceRaised:
        return FenceRaised(
            message, pipeline=self.key.get("pipeline"), run=self.key.get("run"), batch=self.batch
        )

    def _lost(self, row: Row | None, fence: int) -> FenceRaised:
        if row is None:
            return self._refusal(f"{self.name} is not in the ledger. {self.untouched}")
        return self._refusal(
            f"{self.name} was taken over by {row.owner} (fence {row.fence}, this step has {fence}). "
            f"{self.untouched}"
        )


def _equal(columns: Mapping[str, Any] | list[str], separator: str) -> str:
    return separator.join(f"{column} = ?" for column in columns)
