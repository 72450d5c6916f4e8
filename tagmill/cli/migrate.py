"""`tagmill views migrate`: bring a journal of an older plugin to today's schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tagmill.cli import operations
from tagmill.cli.shared import AsJson, DryRun, Pipeline, Yes, out, show
from tagmill.cli.views import show_view
from tagmill.operations.views import MIGRATE, MigrateParameters

if TYPE_CHECKING:
    from tagmill.views.migration_plan import MigrationReport, Plan


@operations.command
def migrate(
    pipeline: Pipeline,
    parameters: MigrateParameters,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Bring a journal of an older plugin to today's tables, columns and tag views.

    Safe to stop and to start again at any moment.
    """
    question = _question(parameters.plan(dry_run=dry_run), pipeline)
    operations.run(MIGRATE, pipeline, parameters, question, _show, dry_run=dry_run, yes=yes, as_json=as_json)


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
    out.print(done.message)
