"""Counts and erases persistence ids in Cassandra: in the application's journal and snapshots, all tag views,
and the records of builds.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import Any

from tagmill.errors import ConfigurationError, GuardRefused
from tagmill.journal.event_store import (
    IDS_AT_ONCE,
    IDS_SIDE_BY_SIDE,
    ROWS_AT_ONCE,
    DeletedIds,
    JournalStore,
    now_in_microseconds,
    snapshots_of,
)
from tagmill.journal.tag_view_reader import ViewRow, Views
from tagmill.ledger.view_builds import Builds
from tagmill.ledger.view_tables import JournalViews
from tagmill.ledger.view_waiting import WaitingIds
from tagmill.maintenance.erasure.model import PLACES
from tagmill.runs.workspace import Workspace

# The highest possible sequence_nr.
END = 2**63 - 1


class JournalOfIds:
    """Persistence ids in one journal keyspace; `name` is a pipeline on it."""

    def __init__(self, workspace: Workspace) -> None:
        settings, chosen = workspace.settings, workspace.pipeline
        self.journal, self.view_table = chosen.keyspace, chosen.view_table
        self.cassandra = workspace.cassandra
        self.beside = [settings.pipeline(one) for one in settings.on_journal(chosen.keyspace)]
        places = dict.fromkeys(snapshots_of(one) for one in self.beside)
        self.stores = [JournalStore(self.cassandra, chosen.journal, *place) for place in places]
        self.store = self.stores[0]
        self._check_snapshots()
        self.for_good = workspace.journal_store(DeletedIds)
        self.builds = workspace.journal_store(Builds)
        self.waiting = workspace.journal_store(WaitingIds)
        self.views = workspace.journal_store(JournalViews)
        self.per_second = chosen.cleanup.persistence_ids_per_second

    def _check_snapshots(self) -> None:
        """Raise ConfigurationError if a pipeline configures a table of snapshots that does not exist."""
        named = {
            snapshots_of(one)
            for one in self.beside
            if one.model_fields_set & {"snapshot_keyspace", "snapshot_table"}
        }
        missing = [store.snapshots_in for store in self.stores if store.snapshot_table is None]
        if wrong := {".".join(place) for place in named} & set(missing):
            raise ConfigurationError(
                f"there is no table {', '.join(sorted(wrong))}, where pipelines on journal "
                f"{self.journal} have their snapshots. "
                "Nothing was erased; set snapshot_keyspace and snapshot_table to where they are, or "
                "leave both out if there are none"
            )

    def warnings(self) -> list[str]:
        """Return a warning if no snapshots were searched: an application without snapshots looks like one
        that has them elsewhere.
        """
        if any(store.snapshot_table for store in self.stores):
            return []
        return [
            f"there is no table {self.store.snapshots_in} (snapshot_keyspace): no snapshots were looked "
            "for, and none erased"
        ]

    # -- counting

    def look(self, persistence_ids: Sequence[str]) -> tuple[dict[str, int], set[str]]:
        """Count events and snapshots, and return which of the persistence ids the journal or the ledger
        knows.

        Raises GuardRefused if a clock that is ahead has written rows which no deletion covers.
        """
        counts, known = dict.fromkeys(PLACES, 0), set[str]()
        with ThreadPoolExecutor(IDS_SIDE_BY_SIDE, thread_name_prefix="erase") as pool:
            for one, (events, snapshots, is_known) in zip(
                persistence_ids, pool.map(self._look, persistence_ids), strict=True
            ):
                counts["events"] += events
                counts["snapshots"] += snapshots
                if is_known:
                    known.add(one)
        return counts, known

    def _look(self, persistence_id: str) -> tuple[int, int, bool]:
        deleted_to = self.store.deleted_to(persistence_id)
        partitions = self.store.all_partitions(persistence_id)
        events, written = 0, 0
        for event in self.store.events(persistence_id, partitions, END):
            events, written = events + 1, max(written, event.written)
        table = (
            self.store.messages if written > now_in_microseconds() else self._written_ahead(persistence_id)
        )
        if table is not None:
            raise GuardRefused(
                f"{table} has rows of persistence id {persistence_id!r} that a clock that was ahead has "
                "written: no deletion covers them "
                "until that time has come. Nothing of these persistence ids was erased; erase the others "
                "without it, and it later"
            )
        snapshots = sum(1 for store in self.stores for _ in store.snapshots(persistence_id))
        is_known = bool(
            events
            or snapshots
            or deleted_to
            or self.store.is_listed(persistence_id)
            or self.builds.numbered_to(persistence_id)
            or self.for_good.deleted_to(persistence_id) is not None
        )
        return events, snapshots, is_known

    def _written_ahead(self, persistence_id: str) -> str | None:
        return next((table for store in self.stores if (table := store.written_ahead(persistence_id))), None)

    def rows(self, persistence_ids: Collection[str]) -> Iterator[tuple[str, ViewRow]]:
        """Yield the persistence ids' rows in all existing tables of views, each with its table, also rows
        whose event is gone.
        """
        wanted = frozenset(persistence_ids)
        for table in self._tables():
            yield from (
                (table, row)
                for row in Views(self.cassandra, replace(self.store.journal, view=table)).of_ids(wanted)
            )

    def _tables(self) -> list[str]:
        """Return the existing tables of views: the one in force, then earlier ones not dropped and the one
        that a rebucket fills.
        """
        standing = self.views.standing()
        others = (
            [view.view.table for view in standing.tables.values() if view.dropped_at is None]
            if standing
            else []
        )
        there = self.cassandra.tables(self.journal) or {}
        return [table for table in dict.fromkeys([self.view_table, *others]) if table in there]

    # -- erasing

    def erase_events(self, persistence_ids: Sequence[str]) -> None:
        """Delete events, then snapshots, of the persistence ids.

        deleted_to is written before: what is left after a kill counts as deleted.
        """
        remaining, begun, done = iter(persistence_ids), time.monotonic(), 0
        with ThreadPoolExecutor(IDS_SIDE_BY_SIDE, thread_name_prefix="erase") as pool:
            while group := list(islice(remaining, IDS_AT_ONCE)):
                list(pool.map(self._erase_events, group))
                done += len(group)
                time.sleep(max(0.0, begun + done / self.per_second - time.monotonic()))

    def _erase_events(self, persistence_id: str) -> None:
        deleted_to = self.store.deleted_to(persistence_id)
        if partitions := self.store.all_partitions(persistence_id):
            self.store.note_deleted_to(
                persistence_id, max(deleted_to, self.store.last(persistence_id, partitions[-1]))
            )
            self.store.delete_events(persistence_id, partitions, END)
        for store in self.stores:
            store.delete_snapshots(persistence_id, None)

    def erase_rows(self, persistence_ids: Collection[str]) -> None:
        """Delete the persistence ids' rows from all tables of views."""
        for table, rows in _groups(self.rows(persistence_ids)):
            self.store.delete_view(rows, table)

    def erase_names(self, persistence_ids: Sequence[str]) -> None:
        """Delete what is left of the persistence ids: metadata, numbers, their names, and the records of
        builds and journal cleanups.
        """
        newest, now = self.builds.newest(), self.builds.cassandra.now_microseconds()
        self.builds.forget(persistence_ids, max(now, newest.written_at if newest else 0))
        self.waiting.forget(persistence_ids, now)
        for one in persistence_ids:
            self.store.forget(one, numbers=True)
            self.for_good.forget(one)


def _groups(rows: Iterable[tuple[str, ViewRow]]) -> Iterator[tuple[str, list[tuple[str, int, Any, str]]]]:
    """Yield keys for JournalStore.delete_view in groups of at most ROWS_AT_ONCE, each with the one table that
    they are of.
    """
    table, group = "", list[tuple[str, int, Any, str]]()
    for of, row in rows:
        if group and (of != table or len(group) == ROWS_AT_ONCE):
            yield table, group
            group = []
        table = of
        group.append((row.tag, row.timebucket, row.timestamp, row.persistence_id))
    if group:
        yield table, group
