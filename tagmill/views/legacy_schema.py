"""Compare the layout of an older journal with today's: find the tables and columns to add and to drop, each
as one statement.

Sources: 'Migration' in the documentation of akka-persistence-cassandra (0.9 to 0.10, 0.54 to 0.59, 0.80 and
later, 0.80+ to 1.0), and createTables and addTagsColumn of the plugin's EventsByTagMigration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from tagmill.cassandra.client import Cassandra
from tagmill.cassandra.schema import Table
from tagmill.domain import identifiers
from tagmill.domain.documents import Document
from tagmill.domain.journal_tables import OLD_TAGS, WRITERS_TABLES, JournalTables
from tagmill.errors import ConfigurationError, StoreUnavailable
from tagmill.ledger.schema import journal_tables
from tagmill.views.model import Step

AGREEMENT_SECONDS = 60
TAGS = {"tags": "set<text>"}
# Columns of event and snapshot that the migration from 0.9 to 0.10 adds. The column `message` stays as it is.
EVENT = {
    "writer_uuid": "text",
    "ser_id": "int",
    "ser_manifest": "text",
    "event_manifest": "text",
    "event": "blob",
}
SNAPSHOT = {"ser_id": "int", "ser_manifest": "text", "snapshot_data": "blob"}
# Columns of metadata, of an event or a snapshot, that the migration from 0.54 to 0.59 adds.
META = {"meta_ser_id": "int", "meta_ser_manifest": "text", "meta": "blob"}
# Materialized views of plugins before 0.80, which by default named them after the tag's column.
OLD_VIEWS = ("eventsbytag", "eventsbytag1", "eventsbytag2", "eventsbytag3")
OLD_COLUMNS = (*OLD_TAGS, "message")


class Change(Document):
    """A statement that is due; `what`: a description of what it creates, adds or drops."""

    step: str
    what: str
    statement: str


class Layout:
    """The tables, columns and materialized views of a journal's keyspace, at the time when this object is
    created.
    """

    def __init__(
        self,
        cassandra: Cassandra,
        journal: JournalTables,
        snapshot_table: str,
        snapshot_keyspace: str | None = None,
    ) -> None:
        """Read the schema of the journal's and the snapshots' keyspaces.

        Without `snapshot_keyspace`, the snapshots' keyspace is the journal's, or the one with `_snapshot`
        appended to its name if only that has the table. Raises ConfigurationError: a keyspace does not exist,
        or it has no table of events (snapshots).
        """
        keyspace = journal.keyspace
        self.cassandra, self.journal, self.keyspace = cassandra, journal, keyspace
        self.snapshot_table = snapshot_table
        self.tables = _tables(cassandra, keyspace)
        self._must_have(keyspace, self.tables, journal.messages, "is it the journal's keyspace?")
        beside = cassandra.tables(f"{keyspace}_snapshot") or {}
        here = snapshot_table in self.tables or snapshot_table not in beside
        self.snapshots = snapshot_keyspace or (keyspace if here else f"{keyspace}_snapshot")
        self.of_snapshots = _tables(cassandra, self.snapshots)
        if snapshot_keyspace:
            self._must_have(
                snapshot_keyspace, self.of_snapshots, snapshot_table, "is it the snapshot store's keyspace?"
            )

    def _must_have(self, keyspace: str, tables: Mapping[str, Table], table: str, question: str) -> None:
        if table not in tables:
            raise ConfigurationError(
                f"keyspace {keyspace} has no table {table}. Nothing was changed; {question}"
            )

    def columns(self, table: str | None = None) -> dict[str, str]:
        """Return the columns of a journal's table, by default messages, with their CQL types; empty if the
        table does not exist.
        """
        return _columns(self.tables, table or self.journal.messages)

    @property
    def made(self) -> list[str]:
        """The tables that a migration creates if they are missing."""
        journal = self.journal
        return [journal.view, *WRITERS_TABLES, journal.metadata, journal.all_persistence_ids]

    @property
    def views(self) -> set[str]:
        """The materialized views on messages."""
        return set(self.tables[self.journal.messages].views)

    def due(self, steps: Iterable[str]) -> list[Change]:
        """Return the changes that these steps still need, in order.

        Raises ConfigurationError when a column has another type.
        """
        made = {
            Step.TABLES: self._new_tables,
            Step.TAGS_COLUMN: self._tags_column,
            Step.COLUMNS: self._new_columns,
        }
        return [change for step in Step if step in set(steps) and step in made for change in made[step]()]

    def too_much(self) -> list[Change]:
        """Return the changes that drop what the plugin doesn't need once the tags are migrated: views, then
        the columns that these hold.

        One statement drops all columns: with only some of them dropped, events would seem to have only some
        of their tags.
        """
        name, messages = identifiers.cql(self.keyspace), self.journal.messages
        views = [view for view in OLD_VIEWS if view in self.views]
        columns = [column for column in OLD_COLUMNS if column in self.columns()]
        listed = ", ".join(columns)
        return [
            *(
                _change(
                    "drop", f"materialized view {view}", f"DROP MATERIALIZED VIEW IF EXISTS {name}.{view}"
                )
                for view in views
            ),
            *(
                [
                    _change(
                        "drop",
                        f"columns of {messages}: {listed}",
                        f"ALTER TABLE {self.journal.cql(messages)} DROP ({listed})",
                    )
                ]
                if columns
                else []
            ),
        ]

    def _new_tables(self) -> Iterator[Change]:
        creating = journal_tables(self.journal)
        for table in self.made:
            if table not in self.tables:
                yield _change(Step.TABLES, f"table {table}", creating[table])

    def _tags_column(self) -> Iterator[Change]:
        return self._missing(Step.TAGS_COLUMN, self.keyspace, self.tables, self.journal.messages, TAGS)

    def _new_columns(self) -> Iterator[Change]:
        for table, columns in ((self.journal.messages, EVENT | META), (self.journal.view, META)):
            if table in self.tables:
                yield from self._missing(Step.COLUMNS, self.keyspace, self.tables, table, columns)
        if (table := self.snapshot_table) in self.of_snapshots:
            yield from self._missing(Step.COLUMNS, self.snapshots, self.of_snapshots, table, SNAPSHOT | META)

    def _missing(
        self, step: str, keyspace: str, tables: Mapping[str, Table], table: str, columns: Mapping[str, str]
    ) -> Iterator[Change]:
        there = _columns(tables, table)
        for column, kind in columns.items():
            if column not in there:
                statement = (
                    f"ALTER TABLE {identifiers.cql(keyspace)}.{identifiers.cql(table)} ADD {column} {kind}"
                )
                yield _change(step, f"column {table}.{column} {kind}", statement)
            elif there[column] != kind:
                raise ConfigurationError(
                    f"{keyspace}.{table} has a column {column} of the type {there[column]}, the plugin's "
                    f"has {kind}. Nothing was "
                    "changed; is it the plugin's table?"
                )


def run(cassandra: Cassandra, change: Change, *, still_due: Callable[[], bool]) -> None:
    """Run a statement and wait until the nodes agree on the schema; raises StoreUnavailable when they don't
    in time.

    A refused statement counts as done if it is no longer due: an earlier try whose answer was lost, or
    another client, has done it.
    """
    try:
        cassandra.execute(change.statement)
    except ConfigurationError:
        if still_due():
            raise
    if not cassandra.cluster.control_connection.wait_for_schema_agreement(wait_time=AGREEMENT_SECONDS):
        raise StoreUnavailable(
            f"{cassandra.where}: the nodes don't agree on the schema {AGREEMENT_SECONDS} s after: "
            f"{change.what}. Nothing else was "
            "changed; when all nodes are up, run the same command again"
        )


def _change(step: str, description: str, statement: str) -> Change:
    return Change(step=step, what=description, statement=statement)


def _columns(tables: Mapping[str, Table], table: str) -> dict[str, str]:
    return dict(tables[table].columns) if table in tables else {}


def _tables(cassandra: Cassandra, keyspace: str) -> Mapping[str, Table]:
    tables = cassandra.tables(keyspace)
    if tables is None:
        raise ConfigurationError(
            f"keyspace {keyspace} does not exist in {cassandra.where}. Nothing was changed; check the "
            "pipeline's keyspace"
        )
    return tables
