"""`tagmill views migrate`: bring a journal of an older plugin to today's schema."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from tagmill.cli.shared import AsJson, Pipeline, Yes, confirm, one_line_errors, out, settings, show, telling
from tagmill.cli.views import DryRun, Offline, PersistenceId, PersistenceIds, named, show_view
from tagmill.views.model import Step

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tagmill.views.migration_plan import MigrationReport, Plan

Steps = Annotated[
    list[Step] | None,
    typer.Option(
        "--step",
        help="Only this one; may be given several times. Else all, but tags only if you say who may not "
        "write.",
    ),
]
SnapshotKeyspace = Annotated[
    str | None,
    typer.Option(
        "--snapshot-keyspace", help="Where the table snapshots is, if not in the journal's keyspace."
    ),
]
DropOld = Annotated[
    bool,
    typer.Option(
        "--drop-old",
        help="Afterwards drop the views eventsbytag… and the columns tag1 to tag3 and message, if "
        "nothing needs them. No way back.",
    ),
]


@one_line_errors
def migrate(
    pipeline: Pipeline,
    step: Steps = None,
    persistence_id: PersistenceId = None,
    persistence_ids: PersistenceIds = None,
    offline: Offline = False,
    snapshot_keyspace: SnapshotKeyspace = None,
    drop_old: DropOld = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Bring a journal of an older plugin to today's tables, columns and tag views.

    Safe to stop and to start again at any moment.
    """
    from tagmill.ledger.lease import this_process
    from tagmill.spark.session import spark_session
    from tagmill.views.migrate import migrate as migrate_journal
    from tagmill.views.migration_plan import Plan

    plan = Plan.of(
        step or (),
        named(persistence_id, persistence_ids),
        offline=offline,
        drop_old=drop_old,
        snapshot_keyspace=snapshot_keyspace,
        dry_run=dry_run,
    )
    configured = settings()
    configured.pipeline(pipeline)
    if not dry_run:
        confirm(_question(plan, pipeline), yes)
    session: AbstractContextManager[SparkSession | None] = (
        spark_session(configured, f"tagmill migrate {pipeline}") if plan.needs_spark else nullcontext()
    )
    with telling(pipeline, "migration") as tell, session as spark:
        done = migrate_journal(
            configured, pipeline, plan, owner=this_process(), spark=spark, dry_run=dry_run, tell=tell
        )
    if as_json:
        print(done.model_dump_json())
    else:
        _show(done)


def _question(plan: Plan, pipeline: str) -> str:
    drop = ", then drop the old views and columns for good" if plan.drop_old else ""
    return f"Migrate the journal of pipeline {pipeline} ({', '.join(plan.steps)}){drop}?"


def _show(done: MigrationReport) -> None:
    if done.schema_changes:
        show(
            [line.model_dump() for line in done.schema_changes], ("step", "what", "statement"), as_json=False
        )
    if done.tags:
        show_view(done.tags)
    if done.dropped:
        show(
            [line.model_dump() for line in done.dropped],
            ("what", "statement"),
            as_json=False,
            title="Dropped, or to be dropped:",
        )
    out.print(done.message, markup=False)
