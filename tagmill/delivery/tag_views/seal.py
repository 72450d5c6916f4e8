"""Seal a run: read the plan's slices, judge them, and fix the batches.

The commit is one conditional update, PLANNED → SEALED.

Everything is written under a folder of this attempt; files of attempts that don't commit are never read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tagmill.config.settings import Settings
from tagmill.delivery.tag_views.few_rows.seal import seal as seal_few
from tagmill.delivery.tag_views.many_rows import ManyRows
from tagmill.delivery.tag_views.model import Manifest, Plan
from tagmill.delivery.tag_views.run_files import read_manifest, read_plan
from tagmill.delivery.tag_views.sealing import Sealing
from tagmill.domain.batches.states import RunState
from tagmill.errors import FenceRaised, GuardRefused
from tagmill.quality.expectations import preload
from tagmill.runs import checkpoints
from tagmill.runs.ledger_comparison import require_unsent
from tagmill.runs.sealed_files import add_batches, write_document
from tagmill.runs.workspace import Workspace
from tagmill.spark.errors import explained

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def seal(workspace: Workspace, spark: Callable[[], SparkSession], run: int, fence: int) -> Manifest:
    """Seal a planned run and return its manifest; leave a run that is sealed already as it is.

    `spark` returns the session; it is called if the run is too large for this process, or something in it is in doubt.

    Raises DataQualityStop (the run is then ABANDONED, nothing was sealed), FenceRaised if the run was taken
    over.
    """
    ledger, name = workspace.ledger, workspace.name
    files = workspace.files
    row = ledger.current(name, run, fence)
    if row.state != RunState.PLANNED:
        return _sealed_before(workspace, run, fence)
    plan = read_plan(files, row)
    _same_view(workspace.settings, plan)
    require_unsent(workspace, run)
    with explained(workspace.cassandra.where):
        manifest = _sealed(Sealing(workspace, plan, fence), spark)
    checkpoints.reached("seal.before_commit")
    file = f"{files.folder(name, run)}/attempt-{manifest.attempt}/manifest.json"
    sha256 = write_document(files, file, manifest)
    if not ledger.seal(name, run, fence, file, sha256):
        return _sealed_before(workspace, run, fence)
    checkpoints.reached("seal.after_commit")
    add_batches(ledger, manifest)
    return manifest


def _same_view(settings: Settings, plan: Plan) -> None:
    """Raise GuardRefused if the pipeline now reads another table or bucket size than the plan's slices are
    of.
    """
    now = str(settings.pipeline(plan.pipeline).view)
    if plan.view not in (None, now):
        raise GuardRefused(
            f"run {plan.run} of pipeline {plan.pipeline} was planned on {plan.view}, the pipeline now "
            f"reads {now}. Nothing was sealed. "
            "Give it up, the next run reads the same again: tagmill run abandon --pipeline "
            f"{plan.pipeline} --why …",
            pipeline=plan.pipeline,
            run=plan.run,
        )


def _sealed_before(workspace: Workspace, run: int, fence: int) -> Manifest:
    ledger, name = workspace.ledger, workspace.name
    row = ledger.current(name, run, fence)
    if row.state == RunState.ABANDONED:
        raise FenceRaised(
            f"run {run} of pipeline {name} was abandoned ({row.reason}). Nothing was sealed",
            pipeline=name,
            run=run,
        )
    manifest = read_manifest(workspace.files, row)
    if row.state == RunState.SEALED:
        add_batches(ledger, manifest)
    return manifest


def _sealed(sealing: Sealing, spark: Callable[[], SparkSession]) -> Manifest:
    """Do everything except the commit; return the manifest."""
    preload()
    sealing.stop_on_wrong_schema()
    checkpoints.reached("seal.begun")
    if manifest := seal_few(sealing):
        return manifest
    sealing.files.remove_folder(sealing.folder)
    return ManyRows(sealing, spark()).seal()
