"""One erasure, as the command line and Airflow call it: count what exists, write the record, erase place by
place.

Sources are erased before copies: the journal, the views, the sealed files, ClickHouse, the ledger. If the
process is killed after the record was written, the next call does all steps again: each erases what is left,
and the plan in the ledger has all figures. Until the erasure is done, every other work on the journal's
pipelines is refused (ledger.erasures).
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from tagmill.clickhouse.client import ClickHouse
from tagmill.config.settings import Settings
from tagmill.delivery.dependent_views import require_no_views
from tagmill.delivery.tag_views import stops, withdraw
from tagmill.domain.batches.states import RunState
from tagmill.errors import (
    BatchDiffers,
    PersistenceIdsUnknown,
    StoreUnavailable,
    WorkUnfinished,
    about,
    about_pipeline,
)
from tagmill.ledger.attempts import of_builds
from tagmill.ledger.checks import Checks
from tagmill.ledger.cleanups import CleanupLog
from tagmill.ledger.erasure_plans import ErasurePlans
from tagmill.ledger.erasures import ErasedRows, ErasureRow, Erasures, ErasureState
from tagmill.ledger.failures import Failures
from tagmill.ledger.two_offsets import TwoOffsets
from tagmill.ledger.view_builds import Builds, BuildState
from tagmill.ledger.view_tables import JournalViews
from tagmill.maintenance.erasure.batches import SealedBatches
from tagmill.maintenance.erasure.files import Evidence, SharedEvidence
from tagmill.maintenance.erasure.journal import JournalOfIds
from tagmill.maintenance.erasure.model import ErasurePlan, PipelineLoss
from tagmill.maintenance.erasure.name_matching import ErasedNames
from tagmill.maintenance.erasure.report import Total, differs, nobody, result
from tagmill.maintenance.erasure.survey import ErasureSurvey, Found, of_ledger
from tagmill.runs import checkpoints
from tagmill.runs.ledger_comparison import require_up_to_date
from tagmill.runs.progress import Tell
from tagmill.runs.sealed_files import read_document
from tagmill.runs.workspace import Workspace, open_workspace, silent

KIND = "erase"
# Persistence ids per erasure; a longer list takes several erasures.
AT_ONCE = 10_000


@about_pipeline
def erase(
    settings: Settings,
    pipeline: str,
    persistence_ids: Iterable[str],
    *,
    owner: str,
    who: str,
    why: str,
    delete: bool,
    tell: Tell = silent,
    despite_views: bool = False,
) -> dict[str, Any]:
    """Erase persistence ids of the pipeline's journal everywhere, in all pipelines on it; without `delete`,
    only count them.

    An unfinished erasure is finished first; without persistence ids, nothing else is done.

    Out: pipeline, journal, dry_run, persistence_ids, unknown, `unknown_ids` (the first), erased_before,
    `erasures` (their numbers), `counts` (model.PLACES), warnings, message.

    Raises GuardRefused while a run, build, cleanup or resend is not finished, and LeaseTaken while other work
    on the journal is under way. Raises ConfigurationError if none of the persistence ids is known. Raises
    BatchDiffers if all is erased and ClickHouse has other rows of a batch than it should.
    """
    journal = settings.pipeline(pipeline).keyspace
    names = settings.on_journal(journal)
    kept: list[str] = []
    # Those of rebuckets, runs, builds, cleanups and audits.
    leases = [f"{journal}/rebucket", *names, *(f"{name}/audit" for name in names)] if delete else []
    with (
        open_workspace(settings, pipeline, owner=owner, leases=leases, tell=tell) as workspace,
        workspace.clickhouse() as clickhouse,
    ):
        views = workspace.journal_store(JournalViews)
        for name in names:
            views.check(name, settings.pipeline(name).view)
        for name in names:
            clickhouse.check_destination(settings.pipeline(name).destination)
            what = f"nothing of pipeline {name} is erased, since views would keep it"
            table = settings.pipeline(name).destination
            with about(pipeline=name):
                keep = require_no_views(clickhouse, table, what, despite_views=despite_views or not delete)
            if keep:
                kept.append(f"what is erased of {table} stays in the materialized views {keep}")
        work = _Erasing(workspace, names, clickhouse)
        total = Total()
        total.warnings.extend(kept)
        why = "; ".join([why, *kept])
        work.left(total, delete=delete)
        remaining = iter(persistence_ids)
        while group := list(dict.fromkeys(islice(remaining, AT_ONCE))):
            work.group(group, total, who, why, delete=delete)
    if total.differing:
        raise BatchDiffers(differs(pipeline, total), batch=total.differing[0])
    if total.is_nothing and (delete or total.persistence_ids):
        raise PersistenceIdsUnknown(nobody(pipeline, work.journal, total))
    total.warnings.extend(work.of_ids.warnings())
    return result(pipeline, work.journal, total, delete=delete)


class _Erasing:
    """Carries out the erasures of one call."""

    def __init__(self, workspace: Workspace, names: Sequence[str], clickhouse: ClickHouse) -> None:
        self.workspace, self.settings, self.ledger = workspace, workspace.settings, workspace.ledger
        self.name, self.owner, self.tell = workspace.name, workspace.owner, workspace.tell
        self.names, self.clickhouse, self.files = names, clickhouse, workspace.files
        self.journal = workspace.pipeline.keyspace
        self.erasures = workspace.journal_store(Erasures)
        self.plans = ErasurePlans(workspace.cassandra, workspace.ledger_keyspace, self.erasures)
        self.of_ids = JournalOfIds(workspace)

    def left(self, total: Total, *, delete: bool) -> None:
        """Finish an unfinished erasure; a dry run only warns of it.

        If there is none, a deletion removes leftover plans.
        """
        row = self.erasures.unfinished()
        if row is None:
            if delete:
                self._remove_plans()
            return
        if not delete:
            total.warnings.append(
                f"erasure {row.erasure} of {row.persistence_ids} persistence ids is not finished: the "
                "next one finishes it"
            )
            return
        self._settle_runs(going_on=True)
        total.persistence_ids += row.persistence_ids
        self._finish(row, total)

    def group(self, persistence_ids: list[str], total: Total, who: str, why: str, *, delete: bool) -> None:
        """Count what exists of some persistence ids, and erase those that are known if `delete`."""
        if delete:
            self._settle_runs(going_on=False)
            self._must_be_cleaned()
        # The numbers are read before anything is counted: if a process that slept claims one meanwhile,
        # nothing is erased.
        number = self.erasures.next_number() if delete else 0
        runs = {name: self.ledger.free_number(name) for name in self.names}
        self.tell(f"looking for {len(persistence_ids)} persistence ids")
        found = ErasureSurvey(self.workspace, self.clickhouse, self.names).found(persistence_ids, runs)
        unknown = [one for one in persistence_ids if one not in found.known]
        total.note_unknown(unknown, self.erasures.erased(unknown))
        chosen = [one for one in persistence_ids if one in found.known]
        total.persistence_ids += len(persistence_ids)
        if not chosen:
            return
        if not delete:
            total.add(found.counts)
            return
        self._finish(self._begin(number, chosen, found, who, why), total)

    # -- unfinished work

    def _settle_runs(self, *, going_on: bool) -> None:
        """Raise GuardRefused while a run or a build of the journal is not finished.

        While an erasure is unfinished (`going_on`), no other process can finish a run. A run that a process
        planned late, after it had slept, is abandoned.
        """
        for name in self.names:
            row = self.ledger.open_run(name)
            if row and going_on and row.state == RunState.PLANNED and row.kind != withdraw.KIND:
                row = self.ledger.raise_fence(row, self.owner)
                self.ledger.finish_run(
                    name, row.run, row.fence, RunState.PLANNED, RunState.ABANDONED, "an erasure is under way"
                )
            else:
                self.ledger.require_none_open(name, "Nothing was erased")
            stops.finish(self.workspace.of(name))
        builds = self.workspace.journal_store(Builds)
        newest = builds.newest()
        # After the takeover, a builder that wakes up late can't commit what it has read.
        if newest and builds.take_over(self.owner, newest.bucket_size).state == BuildState.SEALED:
            raise WorkUnfinished(
                f"build {newest.build} of journal {self.journal} is not finished. Nothing was erased; "
                "first: tagmill views build, or "
                f"tagmill views rebuild, --pipeline {self.name}",
                pipeline=self.name,
            )

    def _must_be_cleaned(self) -> None:
        """Raise WorkUnfinished while a cleanup is not finished: the next cleanup counts in ClickHouse the rows
        that it had decided on.
        """
        view = self.workspace.pipeline.view
        CleanupLog(
            self.ledger.cassandra, self.settings.cassandra.ledger_keyspace, self.journal, view
        ).require_finished(self.settings, "Nothing was erased")

    # -- the record

    def _begin(
        self, number: int, persistence_ids: list[str], survey: Found, who: str, why: str
    ) -> ErasureRow:
        """Write the plan and the record of an erasure, which has to be finished from here on.

        Each pipeline gives the erasure a number among its runs, so that a process which planned a run before
        has lost that number. Raises GuardRefused if the ledger of one is older than ClickHouse.
        """
        for name in survey.pipelines:
            require_up_to_date(self.workspace.of(name), done="Nothing was erased")
        for name, of_pipeline in survey.pipelines.items():
            self.ledger.claim(name, of_pipeline.run)
            self.ledger.create_run(
                name,
                of_pipeline.run,
                kind=KIND,
                state=RunState.CLOSED,
                owner=self.owner,
                reason=f"{who}: {why}",
            )
        plan = ErasurePlan(
            journal=self.journal,
            erasure=number,
            persistence_ids=persistence_ids,
            pipelines=survey.pipelines,
            counts=survey.counts,
        )
        sha256 = self.plans.write(number, plan.model_dump_json().encode())
        checkpoints.reached("erase.planned")
        row = ErasureRow(
            self.journal,
            number,
            ErasureState.ERASING,
            self.owner,
            who,
            why,
            len(persistence_ids),
            survey.counts,
            None,
            sha256,
            self.ledger.cassandra.now(),
            None,
        )
        self.erasures.begin(row)
        checkpoints.reached("erase.recorded")
        return row

    def _plan(self, row: ErasureRow) -> ErasurePlan:
        """Return the plan of an erasure from the ledger, or from the file that an earlier version wrote."""
        if row.plan_file:
            of = f"erasure {row.erasure}, journal {row.journal}"
            return read_document(self.files, ErasurePlan, row.plan_file, row.plan_sha256, of=of)
        return ErasurePlan.model_validate_json(self.plans.read(row))

    def _remove_plans(self) -> None:
        """Remove all plans of erasures, also one that was never recorded: they name persistence ids.

        Earlier versions wrote them as files.
        """
        self.plans.remove(self.owner)
        for name in self.names:
            self.files.remove_folder(f"{name}/erasures")

    # -- place by place

    def _finish(self, row: ErasureRow, total: Total) -> None:
        plan = self._plan(row)
        ids = plan.persistence_ids
        self.tell(f"erasure {row.erasure}: the journal")
        self.of_ids.erase_events(ids)
        checkpoints.reached("erase.events_erased")
        self.tell(f"erasure {row.erasure}: tag views")
        self.of_ids.erase_rows(ids)
        self.of_ids.erase_names(ids)
        differing: list[str] = []
        for name in plan.pipelines:
            if name in self.settings.pipelines:
                differing += self._pipeline(row, plan, name)
            else:
                total.warnings.append(
                    f"pipeline {name} is not in the configuration any more: its files and its rows were "
                    "left as they are"
                )
        self.tell(f"erasure {row.erasure}: reports and traces of all pipelines")
        SharedEvidence(self.settings, ids).erase()
        checkpoints.reached("erase.before_end")
        self.erasures.finish(row, ids)
        self._remove_plans()
        total.erasures.append(row.erasure)
        total.differing += differing
        total.add(plan.counts)

    def _pipeline(self, row: ErasureRow, plan: ErasurePlan, name: str) -> list[str]:
        """Erase files, ClickHouse rows and ledger entries of one pipeline; return the batches that then
        differ in ClickHouse.
        """
        ids, of_pipeline = plan.persistence_ids, plan.pipelines[name]
        sealed = SealedBatches(self.workspace.of(name), ids)
        self.tell(f"erasure {row.erasure}: files of {name}")
        sealed.reseal(row.erasure, self.owner, self.clickhouse, of_pipeline.retired)
        Evidence(self.settings, name, ids).erase()
        self.tell(f"erasure {row.erasure}: ClickHouse, {name}")
        self._clickhouse(self.settings.pipeline(name).destination, ids)
        self._ledger(row, name, ids, of_pipeline)
        return list(sealed.differing(row.erasure, self.clickhouse, of_pipeline.retired))

    def _clickhouse(self, table: str, ids: Sequence[str]) -> None:
        self.clickhouse.sync_replica(table)
        if (two_offsets := TwoOffsets(self.clickhouse, table)).exists():
            self.clickhouse.delete_ids(two_offsets.name, ids)
        if not self.clickhouse.of_ids(table, ids)[0]:
            return
        self.clickhouse.delete_ids(table, ids)
        self.clickhouse.sync_replica(table)
        if self.clickhouse.of_ids(table, ids)[0]:
            raise StoreUnavailable(
                f"{self.clickhouse.where}: {table} still has rows that were to be erased. Nothing is "
                "lost; run the same command again"
            )

    def _ledger(self, row: ErasureRow, name: str, ids: Sequence[str], of_pipeline: PipelineLoss) -> None:
        """End progress and holds under the erasure's number, and correct watermarks, so that `check` counts
        what is left.

        Persistence ids in records of the ledger are masked, and the erasure is recorded as an intervention.
        """
        run, keys = of_pipeline.run, list(of_ledger(self.workspace.of(name), ids))
        self.ledger.delivered.delete_progress(name, run, keys)
        self.ledger.delivered.end_holds(name, run, keys)
        tags = [ErasedRows(one.tag, one.rows, one.batches, one.unseen) for one in of_pipeline.tags]
        self.erasures.keep_rows(name, row.erasure, tags)
        marks = self.ledger.delivered.watermarks(name)
        for tag in tags:
            mark = marks.get(tag.tag)
            if mark and mark.run < run:
                less = replace(
                    mark, run=run, delivered=mark.delivered - tag.rows, batches=mark.batches - tag.batches
                )
                self.ledger.delivered.write_watermark(name, less)
        masked, keyspace = ErasedNames(ids).masked, self.settings.cassandra.ledger_keyspace
        self.ledger.amend_interventions(name, masked)
        Checks(self.ledger.cassandra, keyspace, name).amend(masked)
        for recorded in (name, of_builds(name)):
            Failures(self.ledger.cassandra, keyspace, recorded).amend(masked)
        what = "; ".join(
            [f"erase {row.persistence_ids} persistence ids (erasure {row.erasure})", *self.of_ids.warnings()]
        )
        self.ledger.record_intervention(name, run, row.who, what, row.why)
