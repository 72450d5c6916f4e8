"""One journal cleanup, as the command line and Airflow call it; several persistence ids are cleaned at the
same time.

The order for each one is: the record of what is deleted for good, metadata.deleted_to, rows of the view,
events, snapshots, and finally its name. If the process is killed in between, the next call finds the same
events to delete and does the rest; repeating a step changes nothing.
"""

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

from tagmill.cassandra.client import needs_tables
from tagmill.config.settings import Settings
from tagmill.config.tag_views import PipelineSettings
from tagmill.domain import identifiers
from tagmill.domain.timeuuid import ticks
from tagmill.errors import (
    ConfigurationError,
    PersistenceIdsRefused,
    PersistenceIdsUnknown,
    about_pipeline,
)
from tagmill.journal.event_store import (
    IDS_AT_ONCE,
    IDS_SIDE_BY_SIDE,
    ROWS_AT_ONCE,
    DeletedIds,
    JournalStore,
    Snapshot,
    snapshots_of,
)
from tagmill.ledger.preconditions import check_journal
from tagmill.ledger.same_tables import require_same_tables
from tagmill.maintenance.journal_cleanup.guards import Guards, Seen
from tagmill.maintenance.journal_cleanup.model import Outcome, Total, Wanted, What
from tagmill.runs import checkpoints
from tagmill.runs.progress import Tell
from tagmill.runs.workspace import Workspace, open_workspace, silent

NAMED = 20
LAST_SEQUENCE_NR = 2**63 - 1


@about_pipeline
def clean(
    settings: Settings,
    pipeline: str,
    persistence_ids: Iterable[str],
    wanted: Wanted,
    *,
    owner: str,
    delete: bool,
    tell: Tell = silent,
) -> dict[str, Any]:
    """Delete what `wanted` says of the persistence ids in the pipeline's journal; without `delete`, only
    count what would go.

    Out: dry_run, persistence_ids, events, view_rows, snapshots, refused, unknown, `refusals` (the first:
    persistence_id, tag, reason, text), `unknown_ids` (the first), warnings, message. Raises
    PersistenceIdsUnknown if none of the persistence ids is known. A deletion raises GuardRefused while a run is
    not finished, and LeaseTaken while a pipeline on the journal is at work.
    """
    chosen = settings.pipeline(pipeline)
    # The leases of all pipelines on the journal keep withdrawals out, which take back what was delivered.
    leases = settings.on_journal(chosen.keyspace) if delete else []
    with open_workspace(settings, pipeline, owner=owner, leases=leases, tell=tell) as workspace:
        for name in leases:
            workspace.ledger.require_none_open(name, "Nothing was deleted")
        check_journal(workspace.cassandra, settings, pipeline)
        require_same_tables(settings, workspace.cassandra, pipeline, "Nothing was deleted")
        store = JournalStore(workspace.cassandra, chosen.journal, *snapshots_of(chosen))
        cleaning = _Cleaning(workspace, store, wanted, delete=delete)
        warnings = list(cleaning.warnings())
        total, begun = Total(), time.monotonic()
        remaining = iter(persistence_ids)
        with ThreadPoolExecutor(IDS_SIDE_BY_SIDE, thread_name_prefix="journal-clean") as pool:
            while group := list(islice(remaining, IDS_AT_ONCE)):
                total.add(list(pool.map(cleaning.one, group)), NAMED)
                tell(
                    f"{total.persistence_ids} persistence ids, {total.events} events "
                    f"{'deleted' if delete else 'would go'}"
                )
                due = begun + total.persistence_ids / chosen.cleanup.persistence_ids_per_second
                time.sleep(max(0.0, due - time.monotonic()))
    if total.unknown == total.persistence_ids:
        raise PersistenceIdsUnknown(_nobody(pipeline, chosen, total))
    return _result(pipeline, total, warnings, delete)


def raise_if_refused(done: dict[str, Any]) -> None:
    """Raise PersistenceIdsRefused if a guard refused any persistence id."""
    if done["refused"]:
        raise PersistenceIdsRefused(
            f"{done['message']}. The first refused: {done['refusals'][0]['text']}", pipeline=done["pipeline"]
        )


class _Cleaning:
    """Judges and cleans one persistence id at a time; safe to call from several threads."""

    def __init__(self, workspace: Workspace, store: JournalStore, wanted: Wanted, *, delete: bool) -> None:
        self.store, self.wanted, self.delete = store, wanted, delete
        self.size = workspace.pipeline.bucket_size
        self.require_leases = workspace.require_leases
        self.guards = Guards(workspace, store, wanted)
        needs_tables(workspace.cassandra, workspace.ledger_keyspace, [DeletedIds.TABLE])
        self.for_good = workspace.journal_store(DeletedIds)

    def warnings(self) -> Iterator[str]:
        """Yield the warnings to show before any deletion; raises ConfigurationError if a table is missing
        that `wanted` needs.
        """
        if self.store.snapshot_table is None and self.wanted.what in (What.BEFORE_SNAPSHOT, What.SNAPSHOTS):
            raise ConfigurationError(
                f"there is no table {self.store.snapshots_in}. Nothing was deleted; set the pipeline's "
                "snapshot_keyspace"
            )
        if self.store.snapshot_table is None and self.wanted.what is What.ALL:
            yield (
                f"there is no table {self.store.snapshots_in} (snapshot_keyspace): no snapshots were "
                "looked for"
            )
        if self.wanted.views and self.store.view_table not in self.store.tables:
            raise ConfigurationError(
                f"keyspace {self.store.keyspace} has no table {self.store.view_table}. Nothing was "
                "deleted; leave out --views"
            )

    def one(self, persistence_id: str) -> Outcome:
        """Judge one persistence id and, unless it is refused or this is a dry run, delete what `wanted` says
        of it.
        """
        deleted_to = self.store.deleted_to(persistence_id)
        oldest = (
            self.wanted.oldest_kept(self.store.snapshots(persistence_id))
            if self.wanted.what is not What.TO
            else None
        )
        asked = self._asked(oldest)
        partitions, last = self._there(persistence_id, deleted_to, asked)
        if not (partitions or deleted_to or oldest or self._is_known(persistence_id)):
            return Outcome(persistence_id, unknown=True)
        # Never beyond the last event: a running actor would write its next events below deleted_to, and never
        # see them again.
        to = asked if self.wanted.what is What.BEFORE_SNAPSHOT else min(asked, last)
        seen = self.guards.look(persistence_id, partitions, to)
        refused = self.guards.refused(persistence_id, seen)
        if refused:
            return Outcome(persistence_id, to, refused=refused)
        snapshots = self._snapshots_that_go(persistence_id, oldest)
        if self.delete:
            self.require_leases()  # a withdrawal since the look at ClickHouse would need these events
            if self.wanted.never_again:
                self.for_good.add(persistence_id, max(to, deleted_to))
            self._delete_events(persistence_id, deleted_to, partitions, to, seen)
            self._delete_snapshots(persistence_id, snapshots, oldest)
            if self.wanted.never_again:
                self.store.forget(persistence_id, numbers=self.wanted.views)
        return Outcome(persistence_id, to, seen.events, seen.view_rows, snapshots)

    # -- judging

    def _is_known(self, persistence_id: str) -> bool:
        return self.store.is_listed(persistence_id) or self.for_good.deleted_to(persistence_id) is not None

    def _asked(self, oldest: Snapshot | None) -> int:
        """Return the sequence_nr up to which events are to be deleted, whether or not they exist; 0 for
        none.
        """
        if self.wanted.what is What.BEFORE_SNAPSHOT:
            return oldest.sequence_nr if oldest else 0
        if self.wanted.what is What.ALL:
            return LAST_SEQUENCE_NR
        return self.wanted.to or 0

    def _there(self, persistence_id: str, deleted_to: int, asked: int) -> tuple[list[int], int]:
        """Return the partitions that have events, and the last sequence_nr that exists or existed.

        If `asked` is above it, partitions behind empty ones are searched, too.
        """
        partitions = self.store.partitions(persistence_id, deleted_to)
        last = self._last(persistence_id, deleted_to, partitions)
        if asked > last:
            partitions = self.store.all_partitions(persistence_id)
            last = self._last(persistence_id, deleted_to, partitions)
        return partitions, last

    def _last(self, persistence_id: str, deleted_to: int, partitions: list[int]) -> int:
        return max(deleted_to, self.store.last(persistence_id, partitions[-1]) if partitions else 0)

    def _snapshots_that_go(self, persistence_id: str, oldest: Snapshot | None) -> int:
        if oldest is None:
            return 0
        all_go = self.wanted.what is What.ALL
        return sum(
            all_go or one.sequence_nr < oldest.sequence_nr for one in self.store.snapshots(persistence_id)
        )

    # -- deleting

    def _delete_events(
        self, persistence_id: str, deleted_to: int, partitions: list[int], to: int, seen: Seen
    ) -> None:
        if to > deleted_to:
            self.store.note_deleted_to(persistence_id, to)
        checkpoints.reached("journal_clean.noted")
        if seen.events == 0:
            return
        if self.wanted.views:
            rows = (
                (tag, self.size.start(ticks(event.timestamp)), event.timestamp, persistence_id)
                for event in self.store.events(persistence_id, partitions, to)
                for tag in event.tags
            )
            while group := list(islice(rows, ROWS_AT_ONCE)):
                self.store.delete_view(group)
            checkpoints.reached("journal_clean.views_deleted")
        self.store.delete_events(persistence_id, partitions, to)

    def _delete_snapshots(self, persistence_id: str, snapshots: int, oldest: Snapshot | None) -> None:
        if snapshots:
            keep_from = oldest.sequence_nr if oldest and self.wanted.what is not What.ALL else None
            self.store.delete_snapshots(persistence_id, keep_from)


def _nobody(pipeline_name: str, pipeline: PipelineSettings, total: Total) -> str:
    if not total.persistence_ids:
        return f"pipeline {pipeline_name}: no persistence id was named. Nothing was deleted"
    first = identifiers.quoted(total.unknown_ids, total.unknown)
    return (
        f"pipeline {pipeline_name}: journal {pipeline.keyspace} knows none of the {total.persistence_ids} "
        f"persistence ids (the first: {first}). "
        "Nothing was deleted; are they written as in the column persistence_id?"
    )


def _result(pipeline: str, total: Total, warnings: list[str], delete: bool) -> dict[str, Any]:
    done = "deleted" if delete else "would be deleted"
    left = [f"{total.refused} refused"] * (total.refused > 0) + [f"{total.unknown} not in the journal"] * (
        total.unknown > 0
    )
    tail = f"; {', '.join(left)}" if left else ""
    return {
        "pipeline": pipeline,
        "dry_run": not delete,
        "persistence_ids": total.persistence_ids,
        "events": total.events,
        "view_rows": total.view_rows,
        "snapshots": total.snapshots,
        "refused": total.refused,
        "unknown": total.unknown,
        "refusals": total.refusals,
        "unknown_ids": total.unknown_ids,
        "warnings": warnings,
        "message": f"pipeline {pipeline}: of {total.persistence_ids} persistence ids {total.events} "
        f"events, {total.view_rows} rows of the "
        f"view and {total.snapshots} snapshots {done}{tail}",
    }
