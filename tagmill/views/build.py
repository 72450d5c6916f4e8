"""Build a view once: number the new events of a journal.

A build is safe to kill or freeze at any instruction (sealed_build.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import structlog

from tagmill.config.settings import Settings
from tagmill.config.tag_views import PipelineSettings
from tagmill.domain import clock
from tagmill.domain.timeuuid import from_datetime
from tagmill.errors import GuardRefused, about_pipeline
from tagmill.ledger.same_tables import changed_since_numbered
from tagmill.ledger.view_builds import BuildRow
from tagmill.ledger.view_tables import JournalViews
from tagmill.ledger.view_waiting import WaitingIds, WaitingRow
from tagmill.runs import checkpoints
from tagmill.runs.workspace import open_workspace, silent
from tagmill.views.sealed_build import BUILD, Attempt, Numbering, numbering_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tagmill.runs.progress import Tell
    from tagmill.views.model import Manifest
    from tagmill.views.numbered import Line, Numbered, Refused, Stopped

log = structlog.get_logger()
Result = dict[str, Any]


@about_pipeline
def build(
    settings: Settings,
    pipeline: str,
    *,
    owner: str,
    spark: Callable[[], SparkSession],
    adopt: bool = False,
    tell: Tell | None = None,
) -> Result:
    """Build the view of a pipeline's journal, for all its tags, up to now less the delay.

    A build that was sealed and not finished is finished first. With `adopt`, existing numbers of an
    application are taken as the start. `tell` is called with a text for each phase. `spark` is called for the
    session unless the journal has few persistence ids and new events (`small_run_rows`).

    The result's `refused` counts persistence ids that another writer has numbered since the last build.
    Nothing was written for those, the others are built; `refusal` is that as an error for a person.

    Raises:
        GuardRefused: an application has numbered, and this is the first build; or the journal's tables were
            created again. Nothing was written.
        FenceRaised: another builder took over. LeaseTaken: the pipeline is at work.
    """
    _must_number(pipeline, settings.pipeline(pipeline))
    with numbering_session(
        settings, pipeline, owner=owner, spark=spark, step=BUILD, adopt=adopt, tell=tell or silent
    ) as numbering:
        checkpoints.reached("build.begun")
        return _Builder(numbering).run(adopt)


@about_pipeline
def check(settings: Settings, pipeline: str) -> None:
    """Refuse, before Spark is started, what can't be built; raises GuardRefused, ConfigurationError."""
    from tagmill.journal.frames import JournalSchema

    chosen = settings.pipeline(pipeline)
    _must_number(pipeline, chosen)
    with open_workspace(settings, pipeline) as workspace:
        workspace.journal_store(JournalViews).check(pipeline, chosen.view)
        workspace.journal_store(WaitingIds)
        JournalSchema.load_checked(workspace.cassandra, chosen.journal)


def _must_number(pipeline_name: str, pipeline: PipelineSettings) -> None:
    if pipeline.views != "tagmill":
        raise GuardRefused(
            f"pipeline {pipeline_name}: the application numbers the events of journal {pipeline.keyspace} "
            '(views = "application"). '
            'Nothing was built. If it runs with events-by-tag off, set views = "tagmill"',
            pipeline=pipeline_name,
        )


class _Builder(Attempt):
    """The build of a journal's new events."""

    def __init__(self, numbering: Numbering) -> None:
        super().__init__(numbering)
        self.waiting = self.workspace.journal_store(WaitingIds)
        # What the build before has recorded.
        self.known = self.waiting.current()

    def run(self, adopt: bool) -> Result:
        """Finish what an earlier attempt left, then build what is new."""
        row, finished = self.finish_left(self.row)
        if adopt:
            self._forget_earlier_life(row)
        manifest, numbered = self._seal(row, adopt)
        self._record(self._waiting(numbered.stopped), row)
        if manifest.moved:
            row = self.commit(manifest, row)
            self.write(manifest, row)
        else:
            self.end(row, manifest.until)
        result = self._result(manifest, finished)
        if not numbered.first_refused:
            return {**result, "refused": 0, "refusal": None}
        refusal = self._refusal(numbered.refused, numbered.first_refused, result)
        log.warning("persistence ids are refused", journal=manifest.journal, count=numbered.refused)
        message = f"{result['message']}. {refusal}"
        return {**result, "refused": numbered.refused, "refusal": refusal, "message": message}

    def _forget_earlier_life(self, row: BuildRow) -> None:
        """Delete Tagmill's records of persistence ids that are of an earlier life of the journal.

        The build notes the tables when it is done, so one that was killed is refused or adopts again: the records
        that it wrote are deleted then, too, and its numbers are taken from the tables.
        """
        from tagmill.journal import frames

        workspace = self.workspace
        if changed_since_numbered(workspace.settings, workspace.cassandra, self.name):
            ids = frames.recorded_ids(self.spark, self.journal)
            # No record was written later than the last build, and the next build writes later.
            self.builds.forget((line[frames.ID] for line in ids.toLocalIterator()), row.written_at)

    def _record(self, waiting: list[WaitingRow], row: BuildRow) -> None:
        """Record what waits, in front of the commit: a build that is DONE has always said it.

        The write time is taken before the fence is looked at, so it is earlier than that of any later build.
        """
        newest = max((row_before.written_at for row_before in self.known), default=0)
        written_at = max(self.builds.cassandra.now_microseconds(), newest + 1)
        self.builds.current(row.fence)
        self.waiting.replace(waiting, written_at)

    def _seal(self, row: BuildRow, adopt: bool) -> tuple[Manifest, Numbered]:
        """Read, check and number new events into files."""
        from tagmill.journal.flaws import Reason
        from tagmill.views import few_rows, many_rows
        from tagmill.views.model import Manifest
        from tagmill.views.numbered import NewEvents

        until = from_datetime(
            self.builds.cassandra.now() - timedelta(seconds=self.pipeline.eventual_consistency_delay_seconds)
        )
        self.tell("looking where each persistence id stands")
        new = NewEvents(self, self.new_folder(), until, row, self.known, adopt)
        numbered = few_rows.number(new) or many_rows.number(new)
        late_from = {
            tag: first for tag, first in numbered.sums.earliest.items() if first <= (row.built_to or -1)
        }
        manifest = Manifest(
            journal=self.journal.keyspace,
            view_table=self.journal.view_table,
            pipeline=self.name,
            build=row.build + 1,
            folder=new.folder,
            until=until,
            written_at=numbered.written_at,
            persistence_ids=numbered.persistence_ids,
            moved=numbered.moved,
            events=numbered.events,
            rows=numbered.sums.rows.total(),
            before_first_time_bucket=numbered.sums.early,
            late_from=late_from,
            waiting={
                Reason(one.reason): one.ids for one in numbered.stopped if one.reason != Reason.ELSEWHERE
            },
            examples=list(numbered.examples),
            ttl_seconds=self.pipeline.cleanup.application_ttl_seconds,
        )
        return manifest, numbered

    def _waiting(self, stopped: Sequence[Stopped]) -> list[WaitingRow]:
        """Return what to record of the persistence ids that wait.

        The one that is known already is named again while it waits in front of the same event.
        """
        known = {row.reason: row for row in self.known}
        now = clock.earliest(self.builds.cassandra.clocks)
        return [
            replace(known[one.reason], ids=one.ids)
            if one.goes_on
            else WaitingRow(one.reason, one.ids, one.persistence_id, one.sequence_nr, now)
            for one in sorted(stopped, key=lambda one: one.reason)
        ]

    def _refusal(self, count: int, first: Refused, result: Result) -> str:
        from tagmill.views.numbered import way_out

        others = f" and {count - 1} others" if count > 1 else ""
        return (
            f"journal {self.journal.keyspace}: persistence_id {first.persistence_id!r}{others} was "
            "numbered by somebody else: "
            f"tag_write_progress has {_said(first.found)}, our last build {_said(first.progress)}; "
            "tag_scanning has "
            f"{first.scanned or 'nothing'}. Nothing was written for it, the rest is built: "
            f"{result['rows']} rows "
            f"of {result['moved']} persistence ids. {way_out(self.name)}"
        )

    def _result(self, manifest: Manifest, finished: Manifest | None) -> Result:
        rows, moved = manifest.rows + (finished.rows if finished else 0), manifest.moved
        waiting = sum(manifest.waiting.values())
        for reason, count in manifest.waiting.items():
            log.warning("persistence ids wait", journal=manifest.journal, reason=reason.text, count=count)
        return {
            "journal": manifest.journal,
            "build": manifest.build if moved else manifest.build - 1,
            "persistence_ids": manifest.persistence_ids,
            "moved": moved + (finished.moved if finished else 0),
            "events": manifest.events + (finished.events if finished else 0),
            "rows": rows,
            "before_first_time_bucket": manifest.before_first_time_bucket,
            "waiting": waiting,
            "reasons": {reason.value: count for reason, count in manifest.waiting.items()},
            "examples": [
                {
                    "persistence_id": e.persistence_id,
                    "sequence_nr": e.sequence_nr,
                    "reason": e.reason.value,
                    "what": e.reason.text,
                }
                for e in manifest.examples
            ],
            "message": f"pipeline {self.name}: {rows} rows written to "
            f"{manifest.journal}.{manifest.view_table}, "
            f"{waiting} persistence ids wait"
            + (
                f" ({', '.join(f'{count} × {reason.text}' for reason, count in manifest.waiting.items())})"
                if waiting
                else ""
            ),
        }


def _said(progress: Sequence[Line]) -> str:
    """Return the first three tags of a progress, with their numbers, as text for a message."""
    lines = [f"{line.tag!r} at {line.number}" for line in progress[:3]]
    return ", ".join(lines) + (" …" if len(progress) > 3 else "") if lines else "nothing"
