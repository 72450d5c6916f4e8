"""`tagmill views migrate`: bring a journal of an older plugin to today's schema."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from tagmill.cli.shared import (
    AsJson,
    DryRun,
    PersistenceIdsFile,
    Pipeline,
    Yes,
    one_line_errors,
    out,
    settings,
    show,
    show_and_ask,
    telling,
)
from tagmill.cli.views import Offline, PersistenceId, named, show_view
from tagmill.views.model import Step

if TYPE_CHECKING:
    from tagmill.views.migration_plan import MigrationReport, Plan

Steps = Annotated[
    list[Step] | None,
    typer.Option(
        "--step",
        help="Only this step. Repeatable. Default: all; tags only with --persistence-id, "
        "--persistence-ids or --offline.",
    ),
]
SnapshotKeyspace = Annotated[
    str | None,
    typer.Option(
        "--snapshot-keyspace",
        help="Keyspace of the table snapshots; default: the pipeline's, else the journal's.",
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
    persistence_ids: PersistenceIdsFile = None,
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
    from tagmill.spark.session import session_when_asked
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
    with ExitStack() as stack:
        spark = None
        if plan.needs_spark:
            spark = stack.enter_context(session_when_asked(configured, f"tagmill migrate {pipeline}"))

        def work(dry_run: bool) -> MigrationReport:
            with telling(pipeline, "migration") as tell:
                return migrate_journal(
                    configured,
                    pipeline,
                    plan,
                    owner=this_process(),
                    spark=spark and spark(),
                    dry_run=dry_run,
                    tell=tell,
                )

        question = _question(plan, pipeline)
        done = show_and_ask(question, work, _show, dry_run=dry_run, yes=yes, shown=not as_json)
    print(done.model_dump_json()) if as_json else _show(done)


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
