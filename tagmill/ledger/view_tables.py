"""Which table holds a journal's tag views after a rebucket (a copy with another bucket size), and which table
is being filled.

The static columns are moved by lightweight transactions that say IF fence = ?, so a copier that wakes up late
switches nothing. A journal that was never rebucketed has no row: then the configuration alone says what its
view is.
"""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from cassandra import ConsistencyLevel

from tagmill.cassandra.client import Cassandra, needs_tables, utc
from tagmill.domain import identifiers
from tagmill.domain.time_buckets import BucketSize, View
from tagmill.errors import FenceRaised, ViewDiffers
from tagmill.ledger.fenced_record import FencedRecord

SERIAL = ConsistencyLevel.SERIAL


@dataclass(frozen=True, slots=True)
class ViewTable:
    """A table of tag views; `source` and the moments are None for the table that the journal began with."""

    view: View
    source: str | None
    begun_at: datetime | None
    switched_at: datetime | None
    dropped_at: datetime | None

    @property
    def was_in_force(self) -> bool:
        """Whether the journal's view was ever in this table: then the ledger knows partitions under its
        name.
        """
        return self.source is None or self.switched_at is not None


@dataclass(frozen=True, slots=True)
class ViewTableState:
    """The state of a journal's views: the table in force, the one being filled, and all that are known."""

    fence: int
    attempt: UUID
    owner: str
    current: str
    copying: str | None
    tables: dict[str, ViewTable]

    @property
    def view(self) -> View:
        """The view in force."""
        return self.tables[self.current].view

    @property
    def filling(self) -> View | None:
        """The view that is being filled, None if there is none."""
        return self.tables[self.copying].view if self.copying else None


class JournalViews:
    """The tables of tag views of one journal keyspace."""

    TABLE = "journal_views"

    def __init__(self, cassandra: Cassandra, ledger_keyspace: str, journal: str) -> None:
        self.cassandra = cassandra
        self.journal = journal
        self.table = f"{identifiers.cql(ledger_keyspace)}.{self.TABLE}"
        needs_tables(cassandra, ledger_keyspace, [self.TABLE])
        self.record = FencedRecord(
            cassandra,
            self.table,
            {"journal": journal},
            self.standing,
            f"the rebucket of journal {journal}",
            "This one switched and dropped nothing",
        )

    def standing(self) -> ViewTableState | None:
        """Return the state of the journal's views; None: the journal was never rebucketed."""
        rows = self.cassandra.execute(
            f"SELECT * FROM {self.table} WHERE journal = ?", self.journal, consistency=SERIAL
        )
        if not rows or rows[0].fence is None:
            return None
        tables = {
            row.view_table: ViewTable(
                View(row.view_table, BucketSize(row.bucket_size)),
                row.source,
                *(utc(moment) for moment in (row.begun_at, row.switched_at, row.dropped_at)),
            )
            for row in rows
            if row.view_table is not None
        }
        first = rows[0]
        return ViewTableState(first.fence, first.attempt, first.owner, first.current, first.copying, tables)

    def check(self, pipeline: str, view: View) -> None:
        """Raise ConfigurationError if the configuration names another view than the journal has."""
        standing = self.standing()
        if standing is None or standing.view == view:
            return
        now, size = standing.view.table, standing.view.size.value
        raise ViewDiffers(
            f"pipelines.{pipeline}: journal {self.journal} has its tag views in {standing.view}, the "
            f"configuration says {view}. "
            f'Nothing was done; set view_table = "{now}" and bucket_size = "{size}"',
            pipeline=pipeline,
        )

    def earlier(self, view: View) -> list[View]:
        """Return the views of the journal in other tables than that of `view`: earlier ones, and one that
        is being filled.
        """
        standing = self.standing()
        return (
            [one.view for one in standing.tables.values() if one.view.table != view.table] if standing else []
        )

    # -- a rebucket

    def take_over(self, owner: str, view: View) -> ViewTableState:
        """Raise the fence; the first time, also record `view` as the one in force.

        Raises FenceRaised, also if another view than `view` is in force by now.
        """
        self.cassandra.check_clocks()
        known = self.standing()
        if known is None:
            # The table's row has no effect before the transaction, so a kill between them leaves a journal
            # that was never rebucketed.
            self._note(view, None)
            return self.record.begin(owner, {"current": view.table})
        if known.current != view.table:
            raise FenceRaised(
                f"journal {self.journal}: its view was in {view}, and is in {known.view} by now. Nothing was "
                "switched or dropped; look how it is: tagmill status"
            )
        return self.record.take_over(known, owner)

    def current(self, standing: ViewTableState) -> ViewTableState:
        """Return the state if this fence is still in force; raises FenceRaised otherwise."""
        return self.record.current(standing.fence)

    def begin(self, standing: ViewTableState, target: View) -> ViewTableState:
        """Record that `target` is being filled from now on; raises FenceRaised.

        If the view was in a table of this name before, the record keeps that.
        """
        now, known = self.cassandra.now(), standing.tables.get(target.table)
        self._note(
            target,
            standing.current,
            now,
            (known.switched_at or now) if known and known.was_in_force else None,
        )
        return self._move(standing, standing.current, target.table)

    def switch(self, standing: ViewTableState) -> ViewTableState:
        """Put the table that was being filled in force as the journal's view; raises FenceRaised."""
        assert standing.copying is not None  # noqa: S101 - begun
        self.cassandra.write_many(
            f"UPDATE {self.table} SET switched_at = ? WHERE journal = ? AND view_table = ?",
            [(self.cassandra.now(), self.journal, standing.copying)],
        )
        return self._move(standing, standing.copying, None)

    def give_up(self, standing: ViewTableState) -> ViewTableState:
        """Record that the table being filled was given up, so that none is being filled; raises
        FenceRaised.
        """
        assert standing.copying is not None  # noqa: S101 - begun
        given_up, moved = standing.tables[standing.copying], self._move(standing, standing.current, None)
        if given_up.was_in_force:
            self.dropped(moved, given_up.view.table)
        else:
            self.cassandra.write_many(
                f"DELETE FROM {self.table} WHERE journal = ? AND view_table = ?",
                [(self.journal, given_up.view.table)],
            )
        return moved

    def dropped(self, standing: ViewTableState, table: str) -> None:
        """Record that an earlier table was dropped, and when; raises FenceRaised, as there may be another of its name."""
        self.current(standing)
        self.cassandra.write_many(
            f"UPDATE {self.table} SET dropped_at = ? WHERE journal = ? AND view_table = ?",
            [(self.cassandra.now(), self.journal, table)],
        )

    def _note(
        self,
        view: View,
        source: str | None,
        begun_at: datetime | None = None,
        switched_at: datetime | None = None,
    ) -> None:
        self.cassandra.write_many(
            f"INSERT INTO {self.table} (journal, view_table, bucket_size, source, begun_at, switched_at, "
            "dropped_at)"
            " VALUES (?, ?, ?, ?, ?, ?, null)",
            [(self.journal, view.table, view.size.value, source, begun_at, switched_at)],
        )

    def _move(self, standing: ViewTableState, current: str, copying: str | None) -> ViewTableState:
        self.record.move(
            standing.fence,
            {"current": standing.current},
            {"current": current, "copying": copying},
            lambda now: (now.current, now.copying) == (current, copying),
        )
        return self.record.current(standing.fence)
