"""The persistence ids that wait in builds of tag views: their number for each reason, and one example.

A build replaces all rows of its journal at once (docs/decisions/0086).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from tagmill.cassandra.client import Cassandra, needs_tables, utc
from tagmill.domain import identifiers


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """The persistence ids of a journal that wait for one reason.

    `persistence_id` is one of them (empty once it was erased), in front of the event `sequence_nr`; `since`
    is when a build first named it there. `written_at` is in microseconds, 0 if not yet written.
    """

    reason: str
    ids: int
    persistence_id: str
    sequence_nr: int
    since: datetime
    written_at: int = 0


class WaitingIds:
    """The persistence ids of one journal keyspace that wait in builds of its view."""

    TABLE = "view_waiting"

    def __init__(self, cassandra: Cassandra, ledger_keyspace: str, journal: str) -> None:
        self.cassandra = cassandra
        self.journal = journal
        self.table = f"{identifiers.cql(ledger_keyspace)}.{self.TABLE}"
        needs_tables(cassandra, ledger_keyspace, [self.TABLE])

    def current(self) -> list[WaitingRow]:
        """Return the rows that the newest build wrote, sorted by reason; none if nothing waits."""
        rows = self.cassandra.execute(
            "SELECT reason, ids, persistence_id, sequence_nr, since, WRITETIME(ids) AS written_at "
            f"FROM {self.table} WHERE journal = ?",
            self.journal,
        )
        return [WaitingRow(**{**row._asdict(), "since": utc(row.since)}) for row in rows if row.ids]

    def replace(self, rows: Sequence[WaitingRow], written_at: int) -> None:
        """Replace all rows of the journal in one batch, so that a kill leaves either the old or the new ones.

        `written_at` (microseconds) decides between two builds: rows of the earlier one never replace those of
        the later one.
        """
        insert = (
            f"INSERT INTO {self.table} (journal, reason, ids, persistence_id, sequence_nr, since) "
            "VALUES (?, ?, ?, ?, ?, ?) USING TIMESTAMP ?; "
        )
        values = [
            value
            for row in rows
            for value in (
                self.journal,
                row.reason,
                row.ids,
                row.persistence_id,
                row.sequence_nr,
                row.since,
                written_at,
            )
        ]
        self.cassandra.write_many(
            f"BEGIN UNLOGGED BATCH DELETE FROM {self.table} USING TIMESTAMP ? WHERE journal = ?; "
            f"{insert * len(rows)}APPLY BATCH",
            [(written_at - 1, self.journal, *values)],
        )

    def forget(self, persistence_ids: Collection[str], written_at: int) -> None:
        """Remove the names of these persistence ids, which no longer wait; `written_at` is in microseconds."""
        rows = self.current()
        if not any(row.persistence_id in persistence_ids for row in rows):
            return
        left = [
            replace(row, persistence_id="", ids=row.ids - 1) if row.persistence_id in persistence_ids else row
            for row in rows
        ]
        newest = max(row.written_at for row in rows)
        self.replace([row for row in left if row.ids], max(written_at, newest + 1))
