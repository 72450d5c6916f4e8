"""One attempt to seal a run of tag views: what it works with, its schema check, and its quality gate."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain
from typing import Any
from uuid import uuid4

import structlog

from tagmill.delivery.tag_views import new_holds, stops
from tagmill.delivery.tag_views.model import Plan
from tagmill.domain import identifiers
from tagmill.domain.batches.states import RunState
from tagmill.domain.time_buckets import BucketSize
from tagmill.errors import DataQualityStop
from tagmill.journal.tag_view_reader import VIEW_COLUMNS, Views
from tagmill.ledger.progress import HoldRow
from tagmill.quality import gate
from tagmill.quality.model import GateVerdict, Reports, SchemaColumn
from tagmill.runs.workspace import Workspace

log = structlog.get_logger()
# Returns new holds, records of seal_outputs.HOLD_SCHEMA.
Holds = Callable[[], Iterable[dict[str, Any]]]


class Sealing:
    """One attempt to seal one run. Its files are below `folder`, relative to the root of `files`."""

    def __init__(self, workspace: Workspace, plan: Plan, fence: int) -> None:
        self.workspace, self.settings = workspace, workspace.settings
        self.pipeline, self.ledger, self.files = workspace.pipeline, workspace.ledger, workspace.files
        self.views = Views(workspace.cassandra, self.pipeline.journal)
        self.plan = plan
        self.fence = fence
        self.attempt = uuid4().hex[:12]
        self.folder = f"{self.files.folder(plan.pipeline, plan.run)}/attempt-{self.attempt}"
        self.written_to = self.ledger.delivered.write_times.of(plan.pipeline, plan.run)

    def frozen(self) -> list[HoldRow]:
        """Return the open holds that this run does not judge again."""
        looked = {(look.tag, look.persistence_id) for look in self.plan.holds}
        holds = self.ledger.delivered.holds(self.plan.pipeline, list(self.plan.tags))
        return [hold for hold in holds if (hold.tag, hold.persistence_id) not in looked]

    def stop_on_wrong_schema(self) -> None:
        """Let the gate stop the run before it reads a view that lacks columns or has other types than a run
        reads.
        """
        found = self.plan.view_columns
        if all(found.get(column) == kind for column, kind in VIEW_COLUMNS.items()):
            return
        self.enforce(Reports(self.pipeline.bucket_size, self.schema(), (), (), ()), tuple)

    def schema(self) -> tuple[SchemaColumn, ...]:
        """Return the columns that a run reads, with the types that the view has."""
        return tuple(
            SchemaColumn(column, kind, self.plan.view_columns.get(column))
            for column, kind in VIEW_COLUMNS.items()
        )

    def enforce(self, reports: Reports, holds: Holds) -> GateVerdict:
        """Let the gate judge the reports, and return its verdict.

        Raises DataQualityStop: the run is then ABANDONED, and the new `holds` (records of HOLD_SCHEMA) are recorded if
        the gate stopped because of persistence_ids.
        """
        plan = self.plan
        docs = self.files.docs(plan.pipeline)
        reports = replace(reports, other_size=self._other_size(reports))
        verdict = gate.judge(reports, self.pipeline.quality, docs_dir=docs, run_name=f"run-{plan.run:08d}")
        for warning in verdict.warnings:
            log.warning("quality", pipeline=plan.pipeline, run=plan.run, warning=warning)
        if verdict.passed:
            return verdict
        reason = "; ".join(verdict.failures)
        recorded = self._abandon(
            identifiers.shortened(f"quality gate: {reason}", 1000),
            holds if new_holds.ABOUT_IDS.issuperset(verdict.stopped_by) else tuple,
        )
        raise DataQualityStop(
            f"run {plan.run} of pipeline {plan.pipeline} stopped by the quality gate: {reason}. Nothing "
            "was sealed or delivered. "
            f"{recorded}See {verdict.docs_page}",
            verdict.docs_page,
            pipeline=plan.pipeline,
            run=plan.run,
        )

    def _abandon(self, reason: str, holds: Holds) -> str:
        """Abandon the run and record the holds that it found, if any are worth recording; return a sentence
        about them.
        """
        plan, file = self.plan, f"{self.folder}/holds.parquet"
        count = new_holds.write(self.files, file, holds())
        if count == 0:
            self.ledger.finish_run(
                plan.pipeline, plan.run, self.fence, RunState.PLANNED, RunState.ABANDONED, reason
            )
            self.files.remove_attempts(plan.pipeline, plan.run)  # report and page are elsewhere
            return ""
        row = self.ledger.current(plan.pipeline, plan.run, self.fence)
        stops.stop(self.workspace, row, self.attempt, file, reason)
        return (
            f"{count} holds were recorded, the next run goes on without them: tagmill holds "
            f"--pipeline {plan.pipeline}. "
        )

    def _other_size(self, reports: Reports) -> BucketSize | None:
        """Return the other bucket size that fits the rows and the partitions of the view, or None.

        It tells a wrong bucket_size from a stray row. A larger size fits if all partitions are buckets of it;
        a smaller one, of which each larger bucket is the start of one too, if most are no larger bucket.
        """
        better, size = reports.better_size, self.pipeline.bucket_size.milliseconds
        if not reports.wrong_bucket or better is None:
            return None
        partitions = chain.from_iterable(self.views.buckets(list(self.plan.tags)).values())
        if better.milliseconds > size:
            return better if all(bucket % better.milliseconds == 0 for bucket in partitions) else None
        starts = Counter(bucket % size == 0 for bucket in partitions)
        return better if starts[False] > starts[True] else None
