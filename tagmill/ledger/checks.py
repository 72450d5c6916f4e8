"""The newest check of each tag of a pipeline, so that a later look can say what was proven, and when."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tagmill.cassandra.client import Cassandra, needs_tables, utc
from tagmill.domain import identifiers

# the tag of a pipeline that has none: a topic or a Kafka Journal
WHOLE = ""


@dataclass(frozen=True, slots=True)
class CheckRow:
    """A check as the ledger has it.

    `run` is the newest closed run that it covers; `rows` and `checksum` are the destination's.
    """

    tag: str
    checked_at: datetime
    run: int
    rows: int
    checksum: int
    agrees: bool
    finding: str


FIELDS = ", ".join(CheckRow.__dataclass_fields__)


class Checks:
    """The checks of one pipeline."""

    def __init__(self, cassandra: Cassandra, ledger_keyspace: str, pipeline: str) -> None:
        self.cassandra = cassandra
        self.pipeline = pipeline
        self.table = f"{identifiers.cql(ledger_keyspace)}.checks"
        needs_tables(cassandra, ledger_keyspace, ["checks", "failures"])

    def newest(self) -> dict[str, CheckRow]:
        """Return the newest check by tag."""
        rows = self.cassandra.execute(f"SELECT {FIELDS} FROM {self.table} WHERE pipeline = ?", self.pipeline)
        return {row.tag: _row(row) for row in rows}

    def write(self, checks: Iterable[CheckRow]) -> int:
        """Replace the newest check of each tag."""
        return self.cassandra.write_many(
            f"INSERT INTO {self.table} (pipeline, {FIELDS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                (self.pipeline, *(getattr(check, name) for name in CheckRow.__dataclass_fields__))
                for check in checks
            ),
        )

    def amend(self, masked: Callable[[str], str]) -> int:
        """Rewrite findings that `masked` changes."""
        return self.cassandra.write_many(
            f"UPDATE {self.table} SET finding = ? WHERE pipeline = ? AND tag = ?",
            (
                (masked(check.finding), self.pipeline, tag)
                for tag, check in self.newest().items()
                if masked(check.finding) != check.finding
            ),
        )


def _row(row: Any) -> CheckRow:
    return CheckRow(**{**row._asdict(), "checked_at": utc(row.checked_at), "finding": row.finding or ""})
