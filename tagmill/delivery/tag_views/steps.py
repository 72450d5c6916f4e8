"""Do the four steps of a run for the command line and Airflow: each takes the lease, does its work, and
returns what it did.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tagmill.config.settings import Settings
from tagmill.config.tag_views import moment
from tagmill.delivery.tag_views.model import Manifest, Plan
from tagmill.domain.batches.states import RunState
from tagmill.domain.nearest import did_you_mean
from tagmill.errors import ConfigurationError, TerminalError, about_pipeline
from tagmill.ledger.failures import forget_failures
from tagmill.ledger.runs import RunRow
from tagmill.ledger.same_tables import first_abandon, note_tables, require_same_tables
from tagmill.runs import checkpoints
from tagmill.runs.clock import agreed_now
from tagmill.runs.ledger_comparison import require_up_to_date
from tagmill.runs.workspace import Workspace, open_step

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Result = dict[str, Any]


@about_pipeline
def plan(
    settings: Settings,
    pipeline: str,
    *,
    owner: str,
    tags: list[str] | None = None,
    reread: tuple[str, str] | None = None,
    buckets: list[tuple[str, int]] | None = None,
) -> Result:
    """Plan the next run, or take over the one that is not finished.

    `run` of the result is None if there is nothing to do.

    `reread`: a range of time to read again. `buckets`: (tag, timebucket) to read again; `buckets` of the
    result says how many of them, from the first on, are dealt with. `few_rows` says whether the run is sealed
    without Spark, unless something in it is in doubt.
    """
    from tagmill.delivery.tag_views import stops
    from tagmill.delivery.tag_views.plan import make_bucket_reread, make_plan, make_reread
    from tagmill.delivery.tag_views.plan_inputs import InputReader
    from tagmill.runs.sealed_files import create_planned_run

    chosen = settings.pipeline(pipeline)
    wanted = wanted_tags(pipeline, chosen.tags, tags)
    span = _range(reread) if reread else None
    with open_step(settings, pipeline, owner=owner, wait=True, step="plan") as workspace:
        ledger = workspace.ledger
        now = agreed_now(settings, workspace.cassandra)
        # Choose the number first: if this planner sleeps while another planner's run comes and goes, the
        # number is taken.
        number = ledger.free_number(pipeline)
        unfinished = ledger.open_run(pipeline)
        if unfinished:
            return _resume_open_run(workspace, unfinished)
        stops.finish(workspace)
        ledger.delivered.write_times.require_own(pipeline, number)
        require_up_to_date(workspace, number)
        require_same_tables(settings, workspace.cassandra, pipeline)
        note_tables(settings, workspace.cassandra, pipeline)
        reader = InputReader(workspace, wanted, number, now)
        taken = 0
        if buckets is not None:
            made, taken = make_bucket_reread(reader.base, reader.bucket_parts(buckets))
        elif span:
            made = make_reread(reader.base, *span, reader.range_parts(*span))
        else:
            made = make_plan(reader.inputs())
        if made is None:
            forget_failures(settings, workspace.cassandra, pipeline)
            workspace.give_back()
            return {
                "run": None,
                "fence": 0,
                "state": "IDLE",
                "slices": 0,
                "buckets": taken,
                "more": False,
                "message": f"pipeline {pipeline}: nothing to do",
            }
        with workspace.clickhouse() as clickhouse:
            clickhouse.check_for_plan(chosen.destination, chosen.destination_retention_days)
        checkpoints.reached("plan.before_commit")
        row = create_planned_run(workspace, made.run, made, kind="reread" if made.reread else "deliver")
        checkpoints.reached("plan.after_commit")
        few_rows = made.reads_few(chosen.small_run_rows)
        return {**_planned(row, made), "buckets": taken, "few_rows": few_rows}


@about_pipeline
def seal(
    settings: Settings, pipeline: str, run: int, fence: int, *, owner: str, spark: Callable[[], SparkSession]
) -> Result:
    """Seal a planned run: read its rows, judge them and fix its batches, or remove the batches that it
    withdraws.

    `spark` returns the session; it is called only for a run that needs it.
    """
    from tagmill.delivery.tag_views import withdraw
    from tagmill.delivery.tag_views.seal import seal as seal_run

    with open_step(settings, pipeline, owner=owner, step="seal", run=run) as workspace:
        row = workspace.ledger.current(pipeline, run, fence)
        if row.kind == withdraw.KIND:
            manifest = withdraw.seal(workspace, run, fence)
        else:
            if row.state == RunState.PLANNED:
                require_same_tables(settings, workspace.cassandra, pipeline, first_abandon(pipeline))
            manifest = seal_run(workspace, spark, run, fence)
        return _summary(manifest, f"{len(manifest.batches)} batches sealed")


@about_pipeline
def push(
    settings: Settings,
    pipeline: str,
    run: int,
    fence: int,
    *,
    owner: str,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Send the batches of a sealed run to ClickHouse and verify each."""
    from tagmill.delivery.tag_views.push import push as push_run

    with open_step(settings, pipeline, owner=owner, step="push", run=run) as workspace:
        manifest = push_run(workspace, run, fence, progress)
        return _summary(manifest, f"{len(manifest.batches)} batches verified in ClickHouse")


@about_pipeline
def close(settings: Settings, pipeline: str, run: int, fence: int, *, owner: str) -> Result:
    """Write progress, holds and watermarks of a pushed run, and give the lease back."""
    from tagmill.delivery.tag_views.close import close as close_run

    with open_step(settings, pipeline, owner=owner, step="close", run=run) as workspace:
        manifest = close_run(workspace, run, fence)
        forget_failures(settings, workspace.cassandra, pipeline)
        held = workspace.ledger.delivered.held_rows(pipeline, settings.pipeline(pipeline).tags)
        workspace.give_back()
        return _summary(manifest, "closed", held)


def _resume_open_run(workspace: Workspace, row: RunRow) -> Result:
    """Take over an unclosed run, which is finished first; its previous worker can't change anything any
    longer.
    """
    row = workspace.ledger.raise_fence(row, workspace.owner)
    return {
        "run": row.run,
        "fence": row.fence,
        "state": row.state.value,
        "slices": 0,
        "buckets": 0,
        "more": True,
        "message": f"pipeline {row.pipeline}: run {row.run} was not finished ({row.state}), going on with it",
    }


def _planned(row: RunRow, made: Plan) -> Result:
    slices = sum(len(unit.slices) for unit in made.units)
    return {
        "run": row.run,
        "fence": row.fence,
        "state": row.state.value,
        "slices": slices,
        "more": made.more,
        "message": f"pipeline {row.pipeline}: run {row.run} planned, {made.rows} new rows in {slices} slices",
    }


def _summary(manifest: Manifest, outcome: str, held_rows: Mapping[str, int] | None = None) -> Result:
    """Return what a step did.

    `held_rows` by tag are those of all open holds, as `status` shows them; without it, those that the run
    read are counted.
    """
    tags = [
        {"tag": tag, **done.model_dump(include={"delivered", "late", "dropped", "held"})}
        for tag, done in manifest.tags.items()
    ]
    rows = sum(batch.rows for batch in manifest.batches)
    held, said = sum(done.held for done in manifest.tags.values()), ""
    if held_rows is not None:
        tags = [{**line, "held": held_rows.get(line["tag"], 0)} for line in tags]
        held = sum(held_rows.values())
        said = f", {held} held"
    return {
        "run": manifest.run,
        "batches": len(manifest.batches),
        "rows": rows,
        "held": held,
        "tags": tags,
        "findings": manifest.findings,
        "docs": manifest.docs_page,
        "more": manifest.more,
        "message": f"pipeline {manifest.pipeline}: run {manifest.run} {outcome}, {rows} rows{said}",
    }


def wanted_tags(pipeline: str, known: list[str], wanted: list[str] | None) -> list[str]:
    """Return the named tags, or all if none is named; raise ConfigurationError for a tag that the pipeline
    doesn't have.
    """
    if unknown := [tag for tag in wanted or [] if tag not in known]:
        raise ConfigurationError(
            f"pipeline {pipeline} has no tag {', '.join(map(repr, unknown))} (it has: {', '.join(known)})"
            f"{did_you_mean(unknown[0], known)}",
            pipeline=pipeline,
        )
    return wanted or known


def _range(reread: tuple[str, str]) -> tuple[datetime, datetime]:
    try:
        start, end = (moment(text) for text in reread)
    except ValueError as error:
        raise TerminalError(
            f"re-read range: {error}. Give ISO date-times, such as 2026-01-31T00:00:00Z"
        ) from None
    if start >= end:
        raise TerminalError(
            f"re-read range: {start.isoformat()} is not before {end.isoformat()}. Nothing was planned"
        )
    return start, end
