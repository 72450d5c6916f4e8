"""The ids of the tables that a pipeline reads: a table that was dropped and created again holds another life
of the journal.
"""

from collections.abc import Sequence
from uuid import UUID

from tagmill.cassandra.client import Cassandra, needs_tables
from tagmill.domain import identifiers


class JournalTableIds:
    """The tables of one journal keyspace, as its pipelines know them."""

    def __init__(self, cassandra: Cassandra, ledger_keyspace: str, journal: str) -> None:
        needs_tables(cassandra, ledger_keyspace, ["journal_tables"])
        self.cassandra, self.journal = cassandra, journal
        self.table = f"{identifiers.cql(ledger_keyspace)}.journal_tables"

    def changed(self, pipeline: str, tables: Sequence[str]) -> list[str]:
        """Return those of the tables that have another id than when the pipeline read them first."""
        known = self._known(pipeline)
        return [name for name, id_ in self._current(tables).items() if known.get(name, id_) != id_]

    def note(self, pipeline: str, tables: Sequence[str]) -> None:
        """Note the ids of those tables that the pipeline reads for the first time."""
        known = self._known(pipeline)
        self._write(pipeline, {name: id_ for name, id_ in self._current(tables).items() if name not in known})

    def accept(self, pipeline: str, tables: Sequence[str]) -> None:
        """Note the ids that the tables have now."""
        self._write(pipeline, self._current(tables))

    def forget(self, table: str) -> None:
        """Note that a table was dropped on purpose, for all pipelines."""
        self.cassandra.write_many(
            f"DELETE FROM {self.table} WHERE journal = ? AND table_name = ?", [(self.journal, table)]
        )

    def _known(self, pipeline: str) -> dict[str, UUID]:
        rows = self.cassandra.execute(
            f"SELECT table_name, pipeline, table_id FROM {self.table} WHERE journal = ?", self.journal
        )
        return {row.table_name: row.table_id for row in rows if row.pipeline == pipeline}

    def _current(self, tables: Sequence[str]) -> dict[str, UUID]:
        found = self.cassandra.execute(
            "SELECT table_name, id FROM system_schema.tables WHERE keyspace_name = ?", self.journal
        )
        return {row.table_name: row.id for row in found if row.table_name in tables}

    def _write(self, pipeline: str, ids: dict[str, UUID]) -> None:
        self.cassandra.write_many(
            f"INSERT INTO {self.table} (journal, table_name, pipeline, table_id) VALUES (?, ?, ?, ?)",
            ((self.journal, name, pipeline, id_) for name, id_ in ids.items()),
        )
