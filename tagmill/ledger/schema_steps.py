"""The version of the ledger's schema: the highest of the numbered files of schema/cassandra that was applied to it."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import tagmill
from tagmill.cassandra.client import Cassandra
from tagmill.domain import identifiers
from tagmill.errors import LedgerNewer
from tagmill.package_files import package_folder

# The partition of the table, which has only one.
LEDGER = "ledger"


@dataclass(frozen=True, slots=True)
class Step:
    """A file of schema/cassandra."""

    number: int
    file: Path


@cache
def known_steps() -> tuple[Step, ...]:
    """Return the steps that this program knows, in their order."""
    files = sorted((package_folder("schema") / "cassandra").glob("[0-9]*.cql"))
    return tuple(Step(int(file.name.partition("_")[0]), file) for file in files)


class SchemaSteps:
    """The applied steps of one ledger."""

    TABLE = "schema_steps"

    def __init__(self, cassandra: Cassandra, ledger_keyspace: str) -> None:
        self.cassandra, self.ledger_keyspace = cassandra, ledger_keyspace
        self.table = f"{identifiers.cql(ledger_keyspace)}.{self.TABLE}"

    def applied(self) -> set[int]:
        """Return the numbers of the applied steps; none for a ledger that is older than the table."""
        if not self.exist():
            return set()
        rows = self.cassandra.execute(f"SELECT step FROM {self.table} WHERE ledger = ?", LEDGER)
        return {row.step for row in rows}

    def record(self, step: int) -> None:
        """Note that a step was applied, by this version of Tagmill."""
        self.cassandra.execute(
            f"INSERT INTO {self.table} (ledger, step, applied_at, program) VALUES (?, ?, ?, ?)",
            LEDGER,
            step,
            self.cassandra.now(),
            tagmill.__version__,
        )

    def require_known(self) -> None:
        """Raise LedgerNewer if a newer program has applied steps that this one does not know."""
        if not self.exist():
            return
        newest = self.cassandra.execute(
            f"SELECT step, program FROM {self.table} WHERE ledger = ? LIMIT 1", LEDGER
        )
        known = known_steps()[-1].number
        if newest and newest[0].step > known:
            raise LedgerNewer(
                f"the ledger {self.ledger_keyspace} has schema step {newest[0].step}, applied by Tagmill "
                f"{newest[0].program}. This is Tagmill {tagmill.__version__}, which knows the steps up to {known}. "
                "Nothing was done. Install the newer version here"
            )

    def exist(self) -> bool:
        """Return whether the ledger has the table of its steps; one that is older, or not there, has not."""
        return not self.cassandra.missing(self.ledger_keyspace, [self.TABLE])
