"""Removes what is past retention_days: rows and files of finished runs, the gate's pages, old audits, job
reports.

One row of each batch stays as its proof, so that `check` still judges every delivered row. The order is:
write the proof, delete the run from the ledger, remove its files. If the process is killed in between, the
next cleanup removes folders named after a run that the ledger no longer has.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from tagmill.delivery.destination_retention import readable_times
from tagmill.delivery.tag_views.run_files import read_manifest
from tagmill.delivery.topics import run_files as topics
from tagmill.domain.batches.states import BatchState
from tagmill.ledger import audits
from tagmill.ledger.audits import AuditRow, Audits
from tagmill.ledger.batch_times import BatchTimes
from tagmill.ledger.retired_batches import Retired, RetiredBatch
from tagmill.ledger.runs import BatchRow, RunRow
from tagmill.maintenance.view_cleanup.rules import past_retention
from tagmill.quality import docs
from tagmill.runs import checkpoints
from tagmill.runs.report_folders import REPORTS, SHARED_REPORTS
from tagmill.runs.sealed_files import Sealed
from tagmill.runs.storage import SLICES, RunFiles
from tagmill.runs.workspace import Workspace

RUNS_AT_ONCE = 1000
AUDITS_AT_ONCE = 10_000
_RUN_FOLDER = re.compile(r"run-(\d{8,})")


@dataclass(slots=True)
class Removed:
    """Counts of runs, batches, audits and job reports that were removed, or would be; `more`: runs beyond
    RUNS_AT_ONCE are left for the next cleanup.
    """

    runs: int = 0
    batches: int = 0
    audits: int = 0
    reports: int = 0
    more: bool = False


def old_reports(workspace: Workspace, now: datetime, *, delete: bool) -> int:
    """Count the job reports past retention, and remove them if `delete`: those of the pipeline, and those of jobs
    of several pipelines, which count once they are past retention for each pipeline.
    """
    settings, files = workspace.settings, workspace.files
    every = {**settings.pipelines, **settings.streams, **settings.kafka_journals}
    days = {name: one.retention_days for name, one in every.items()}
    own, of_all = (now - timedelta(days=age) for age in (days[workspace.name], max(days.values())))
    clear = files.remove_older if delete else files.count_older
    return clear(f"{workspace.name}/{REPORTS}", own) + clear(SHARED_REPORTS, of_all)


class Retention:
    """Removes runs, files, pages, audits and job reports past retention of one pipeline that delivers."""

    def __init__(self, workspace: Workspace, now: datetime) -> None:
        self.ledger, self.name, self.files = workspace.ledger, workspace.name, workspace.files
        self.workspace, self.now = workspace, now
        self.before = now - timedelta(days=workspace.delivering.retention_days)
        of_stream = workspace.name in workspace.settings.streams
        self.read: Callable[[RunFiles, RunRow], Sealed] = topics.read_manifest if of_stream else read_manifest
        self.retired = workspace.store(Retired)
        self.times = workspace.store(BatchTimes)
        self.audits = workspace.store(Audits)
        views = workspace.settings.pipelines
        self.tags = views[self.name].tags if self.name in views else []
        self.last_run = self.ledger.last_run(self.name)

    def run(self, *, delete: bool) -> Removed:
        """Count the runs, batches, audits and job reports past retention, and remove them if `delete`."""
        removed = Removed()
        for row, batches in self._due():
            if removed.runs == RUNS_AT_ONCE:
                removed.more = True
                break
            removed.runs += 1
            removed.batches += len(batches)
            if delete:
                self._retire(row, batches)
        old_audits = self._old_audits()
        removed.audits = len(old_audits)
        if delete:
            self._move_mark()
            self._sweep(old_audits)
        removed.reports = old_reports(self.workspace, self.now, delete=delete)
        return removed

    # -- runs

    def _due(self) -> Iterator[tuple[RunRow, list[BatchRow]]]:
        """Yield finished runs past retention with their batches, the oldest first.

        The newest run stays, since its number determines the next one. While a run is open, none is yielded:
        it may withdraw batches of older runs. A run with a batch that is NEW is skipped.
        """
        if self.ledger.open_run(self.name):
            return
        for number in range(self.retired.up_to() + 1, self.last_run):
            row = self.ledger.run(self.name, number)
            if row is None:
                continue
            if not past_retention(row.state.is_open, row.closed_at or row.planned_at, self.before):
                return
            batches = self.ledger.batches(self.name, number)
            if all(batch.state != BatchState.NEW for batch in batches):
                yield row, batches

    def _retire(self, row: RunRow, batches: list[BatchRow]) -> None:
        there = [batch for batch in batches if batch.state == BatchState.IN_CLICKHOUSE]
        if there:
            sealed = {batch.number: batch for batch in self.read(self.files, row).batches}
            checksums = {number: batch.checksum for number, batch in sealed.items()}
            # Times are written before the proof, since a retired batch without times counts as past the
            # destination's retention.
            self.times.write(row.run, readable_times(self.files, (sealed[batch.number] for batch in there)))
            self.retired.keep(
                RetiredBatch(row.run, b.number, b.batch_id, b.generation, b.tag, b.rows, checksums[b.number])
                for b in there
            )
        checkpoints.reached("retention.before_delete")
        self.ledger.delete_run(row)
        checkpoints.reached("retention.after_delete")

    def _move_mark(self) -> None:
        """Raise the mark of retired runs to the last run before the first one that stays."""
        known = mark = self.retired.up_to()
        while mark + 1 < self.last_run and self.ledger.run(self.name, mark + 1) is None:
            mark += 1
        if mark > known:
            self.retired.move_up_to(mark)

    def _sweep(self, old_audits: list[AuditRow]) -> None:
        """Remove the files of runs that left the ledger, the given audits with their pages, and slices of a
        rekeying past retention.

        Files of a run under way stay: it is the newest run, or newer.
        """
        mark, docs_dir = self.retired.up_to(), f"{self.name}/docs"
        for folder, number in self._gone(self.name, mark):
            self.ledger.delete_batches(
                self.name, number
            )  # a process that deleted the run may have been killed before this
            self.files.remove_folder(f"{self.name}/{folder}")
        pages = [page for page, _ in self._gone(docs_dir, mark)] + [
            f"audit-{row.audit:08d}" for row in old_audits
        ]
        if pages:
            docs.forget(self.files.docs(self.name), pages)
        for row in old_audits:
            self.files.remove_folder(audits.folder(self.name, row.audit))
            self.audits.forget(row)
        self.files.remove_older_folders(f"{self.name}/{SLICES}", self.before)

    def _gone(self, place: str, mark: int) -> Iterator[tuple[str, int]]:
        for folder in self.files.folders(place):
            found = _RUN_FOLDER.fullmatch(folder)
            number = int(found[1]) if found else self.last_run
            if number <= mark or (number < self.last_run and self.ledger.run(self.name, number) is None):
                yield folder, number

    # -- audits

    def _old_audits(self) -> list[AuditRow]:
        """Return the audits past retention, except the newest one and the newest one of each tag that is done."""
        done = self.audits.last_done_of(self.tags).values()
        kept = {row.audit for row in (*self.audits.newest(1), *done)}
        return [
            row
            for row in self.audits.newest(AUDITS_AT_ONCE)
            if row.audit not in kept and past_retention(False, row.done_at or row.started_at, self.before)
        ]
