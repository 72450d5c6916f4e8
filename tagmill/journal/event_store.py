"""Read the events, snapshots and metadata of single persistence ids, and delete them as the plugin's Cleanup
does.

Source of each statement: CassandraJournal, CassandraSnapshotStore and Cleanup of pekko-persistence-cassandra
1.1.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from cassandra import ConsistencyLevel

from tagmill.cassandra.client import Cassandra
from tagmill.config.tag_views import PipelineSettings
from tagmill.domain import identifiers
from tagmill.domain.journal_tables import WRITERS_TABLES, JournalTables, event_tags, tag_columns
from tagmill.errors import ConfigurationError, GuardRefused
from tagmill.journal.tag_view_reader import SEARCHED_PARTITIONS, partitions_of

# Deletions of one persistence id that are under way at once.
DELETES_AT_ONCE = 16
# Persistence ids that are cleaned or erased at the same time, and those that are taken from their list per
# group.
IDS_SIDE_BY_SIDE, IDS_AT_ONCE = 8, 64
# Rows of the view that are read into memory before they are deleted together.
ROWS_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Event:
    """The facts of an event that a deletion needs; `written` is its write time in microseconds."""

    sequence_nr: int
    timestamp: UUID
    tags: frozenset[str]
    written: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot without its payload; `timestamp` is in milliseconds since 1970."""

    sequence_nr: int
    timestamp: int


class JournalStore:
    """The events, metadata and snapshots of one journal keyspace, by persistence id."""

    def __init__(
        self, cassandra: Cassandra, journal: JournalTables, snapshot_keyspace: str, snapshot_table: str
    ) -> None:
        self.cassandra, self.journal, self.keyspace = cassandra.application, journal, journal.keyspace
        self.view_table = journal.view
        self.messages, self.metadata = journal.cql(journal.messages), journal.cql(journal.metadata)
        keyspace, tables = journal.keyspace, cassandra.tables(journal.keyspace) or {}
        self.tables = frozenset(tables)
        if missing := [table for table in (journal.messages, journal.metadata) if table not in self.tables]:
            raise ConfigurationError(
                f"keyspace {keyspace} has no table {' and '.join(missing)}. Nothing was done; is it the "
                "journal's keyspace?"
            )
        self.tag_columns = tag_columns(tables[journal.messages].columns)
        self.snapshots_in = f"{snapshot_keyspace}.{snapshot_table}"
        there = snapshot_table in (cassandra.tables(snapshot_keyspace) or {})
        self.snapshot_table = (
            f"{identifiers.cql(snapshot_keyspace)}.{identifiers.cql(snapshot_table)}" if there else None
        )

    # -- reading

    def deleted_to(self, persistence_id: str) -> int:
        """Return metadata.deleted_to, the sequence_nr up to which events were deleted; 0 if none was."""
        rows = self.cassandra.execute(
            f"SELECT deleted_to FROM {self.metadata} WHERE persistence_id = ?", persistence_id
        )
        return int(rows[0].deleted_to or 0) if rows else 0

    def is_listed(self, persistence_id: str) -> bool:
        """Return whether the table all_persistence_ids has a persistence id."""
        listed = self.journal.all_persistence_ids
        return listed in self.tables and bool(
            self.cassandra.execute(
                f"SELECT persistence_id FROM {self.journal.cql(listed)} WHERE persistence_id = ?",
                persistence_id,
            )
        )

    def partitions(self, persistence_id: str, deleted_to: int) -> list[int]:
        """Return the partition_nrs that have events of a persistence id, in order, as the plugin finds
        them.
        """
        return partitions_of(self.cassandra, self.messages, persistence_id, deleted_to)

    def all_partitions(self, persistence_id: str) -> list[int]:
        """Return the partition_nrs that have events, also behind more empty partitions than the plugin
        skips.
        """
        return partitions_of(self.cassandra, self.messages, persistence_id, 0, SEARCHED_PARTITIONS)

    def last(self, persistence_id: str, partition_nr: int) -> int:
        """Return the highest sequence_nr of a partition, 0 if the partition is empty."""
        rows = self.cassandra.execute(
            f"SELECT sequence_nr FROM {self.messages} WHERE persistence_id = ? AND partition_nr = ?"
            " ORDER BY sequence_nr DESC LIMIT 1",
            persistence_id,
            partition_nr,
        )
        return int(rows[0].sequence_nr or 0) if rows else 0

    def events(
        self, persistence_id: str, partitions: Iterable[int], to: int, after: int = 0
    ) -> Iterator[Event]:
        """Yield the events with after < sequence_nr <= to, the highest first, without payload, page by
        page.
        """
        fields = ", ".join(
            ["sequence_nr", "timestamp", *self.tag_columns, "WRITETIME(writer_uuid) AS written"]
        )
        for partition_nr in sorted(partitions, reverse=True):
            for row in self.cassandra.stream(
                f"SELECT {fields} FROM {self.messages} WHERE persistence_id = ? AND partition_nr = ?"
                " AND sequence_nr > ? AND sequence_nr <= ? ORDER BY sequence_nr DESC",
                persistence_id,
                partition_nr,
                after,
                to,
            ):
                yield Event(row.sequence_nr, row.timestamp, event_tags(row), row.written or 0)

    def snapshots(self, persistence_id: str) -> Iterator[Snapshot]:
        """Yield the snapshots of a persistence id, the newest first, without payload."""
        if self.snapshot_table:
            for row in self.cassandra.stream(
                f"SELECT sequence_nr, timestamp FROM {self.snapshot_table} WHERE persistence_id = ? "
                "ORDER BY sequence_nr DESC",
                persistence_id,
                page=100,
            ):
                yield Snapshot(row.sequence_nr, row.timestamp or 0)

    def written_ahead(self, persistence_id: str) -> str | None:
        """Return a table with a row of a persistence id written ahead of this machine's clock, events left
        out; None: no table has one.
        """
        columns = {self.metadata: "deleted_to"} | (
            {self.snapshot_table: "ser_id"} if self.snapshot_table else {}
        )
        columns |= {
            self.journal.cql(table): "sequence_nr" for table in WRITERS_TABLES if table in self.tables
        }
        for table, column in columns.items():
            rows = self.cassandra.execute(
                f"SELECT max(WRITETIME({column})) AS written FROM {table} WHERE persistence_id = ?",
                persistence_id,
            )
            if (rows[0].written or 0) > now_in_microseconds():
                return table
        return None

    # -- deleting

    def note_deleted_to(self, persistence_id: str, to: int) -> None:
        """Write metadata.deleted_to: from now on the plugin and Tagmill count the events up to `to` as
        deleted.
        """
        self._write(
            f"INSERT INTO {self.metadata} (persistence_id, deleted_to) VALUES (?, ?)", [(persistence_id, to)]
        )

    def delete_events(self, persistence_id: str, partitions: Iterable[int], to: int) -> None:
        """Delete the events up to `to` with one range deletion per partition, as the plugin does."""
        self._write(
            f"DELETE FROM {self.messages}"
            " WHERE persistence_id = ? AND partition_nr = ? AND sequence_nr >= 0 AND sequence_nr <= ?",
            ((persistence_id, partition_nr, to) for partition_nr in partitions),
        )

    def delete_view(self, rows: Sequence[tuple[str, int, UUID, str]], view_table: str | None = None) -> None:
        """Delete rows (tag, timebucket, timestamp, persistence_id) of the view, or of another table of views,
        whatever their numbers.

        `rows` is a sequence, because the driver takes the next value in the thread that receives answers,
        where nothing may be read.

        Raises GuardRefused: a row has a later write time than its deletion.
        """
        table, where = (
            self.journal.cql(view_table or self.view_table),
            ("WHERE tag_name = ? AND timebucket = ? AND timestamp = ? AND persistence_id = ?"),
        )
        self._write(f"DELETE FROM {table} {where}", rows)
        standing = self.cassandra.execute_many(f"SELECT persistence_id FROM {table} {where} LIMIT 1", rows)
        if left := next((found[0].persistence_id for found in standing if found), None):
            raise GuardRefused(
                f"{table} still has rows of persistence id {left!r} that were deleted: a clock that was "
                "ahead has written them. What "
                "came before them is deleted; run the same command again once that time has come"
            )

    def delete_snapshots(self, persistence_id: str, before: int | None) -> None:
        """Delete the snapshots of a persistence id below the sequence_nr `before`; None: all of them."""
        if self.snapshot_table is None:
            return
        below, values = (
            ("", (persistence_id,)) if before is None else (" AND sequence_nr < ?", (persistence_id, before))
        )
        self._write(f"DELETE FROM {self.snapshot_table} WHERE persistence_id = ?{below}", [values])

    def forget(self, persistence_id: str, *, numbers: bool) -> None:
        """Delete the metadata and the name of a persistence id, with `numbers` also its tag_write_progress
        and tag_scanning.
        """
        tables = WRITERS_TABLES if numbers else ()
        for table in (*tables, self.journal.metadata, self.journal.all_persistence_ids):
            if table in self.tables:
                self._write(
                    f"DELETE FROM {self.journal.cql(table)} WHERE persistence_id = ?", [(persistence_id,)]
                )

    def _write(self, cql: str, values: Iterable[tuple[Any, ...]]) -> None:
        for _ in self.cassandra.execute_many(cql, values, ConsistencyLevel.LOCAL_QUORUM, DELETES_AT_ONCE):
            pass


def now_in_microseconds() -> int:
    """Return this machine's time in microseconds since 1970, the unit of write times."""
    return time.time_ns() // 1000


class DeletedIds:
    """The ledger's record of a journal's persistence ids that were deleted for good; no other table has their
    names.
    """

    TABLE = "deleted_ids"

    def __init__(self, cassandra: Cassandra, ledger_keyspace: str, journal: str) -> None:
        self.cassandra, self.journal = cassandra, journal
        self.table = f"{identifiers.cql(ledger_keyspace)}.{self.TABLE}"

    def deleted_to(self, persistence_id: str) -> int | None:
        """Return the sequence_nr up to which a persistence id was deleted; None: the record does not have
        it.
        """
        rows = self.cassandra.execute(
            f"SELECT deleted_to FROM {self.table} WHERE journal = ? AND persistence_id = ?",
            self.journal,
            persistence_id,
        )
        return int(rows[0].deleted_to) if rows else None

    def add(self, persistence_id: str, to: int) -> None:
        """Record that a persistence id was deleted up to `to`; an existing record never gets a lower
        number.
        """
        self.cassandra.write_many(
            f"INSERT INTO {self.table} (journal, persistence_id, deleted_to, deleted_at) VALUES (?, ?, ?, ?)",
            [
                (
                    self.journal,
                    persistence_id,
                    max(to, self.deleted_to(persistence_id) or 0),
                    self.cassandra.now(),
                )
            ],
        )

    def forget(self, persistence_id: str) -> None:
        """Delete the record of a persistence id, so that not even its name stays."""
        self.cassandra.write_many(
            f"DELETE FROM {self.table} WHERE journal = ? AND persistence_id = ?",
            [(self.journal, persistence_id)],
        )


def snapshots_of(pipeline: PipelineSettings) -> tuple[str, str]:
    """Return keyspace and table of the application's snapshots."""
    return pipeline.snapshot_keyspace or f"{pipeline.keyspace}_snapshot", pipeline.snapshot_table
