"""`tagmill views`: build, rebuild, delete and list the tag views of a journal."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated

import typer

from tagmill.cli import operations
from tagmill.cli.rebucket import rebucket
from tagmill.cli.shared import (
    AsJson,
    DryRun,
    Pipeline,
    Yes,
    confirm_from_now_on,
    one_line_errors,
    out,
    settings,
    show,
)
from tagmill.errors import GuardRefused
from tagmill.operations.model import NoParameters
from tagmill.operations.views import (
    BUILD,
    DELETE,
    PIDS,
    REBUILD,
    TRUNCATE,
    BuildParameters,
    SelectionParameters,
    TruncateParameters,
)

if TYPE_CHECKING:
    from tagmill.views.selection import ViewReport

TAG_COLUMNS = ("tag", "same", "added", "changed", "removed", "unknown", "cleaned")
app = typer.Typer(help="Build, rebuild, rebucket, migrate, delete and list tag views.", no_args_is_help=True)
app.command()(rebucket)


@app.callback()
def views() -> None:
    """Build, rebuild, rebucket, migrate, delete and list tag views."""


@app.command()
@operations.command
def build(pipeline: Pipeline, parameters: BuildParameters, as_json: AsJson = False) -> None:
    """Number the new events of the pipeline's journal and write tag_views.

    Safe to stop and to start again at any moment.
    """
    begun = time.monotonic()
    with operations.working(BUILD, pipeline, parameters) as work:
        built = work(False)
    if built["refusal"]:
        raise GuardRefused(built["refusal"], pipeline=pipeline)
    built["seconds"] = round(time.monotonic() - begun, 1)
    if as_json:
        print(json.dumps(built, default=str))
        return
    out.print(built["message"])
    if built["before_first_time_bucket"]:
        out.print(
            f"{built['before_first_time_bucket']} rows are older than first_time_bucket: readers don't "
            "look there",
        )
    if built["examples"]:
        show(
            built["examples"],
            ("persistence_id", "sequence_nr", "what"),
            as_json=False,
            title="These wait in front of an event:",
        )


@app.command()
@operations.command
def rebuild(
    pipeline: Pipeline,
    parameters: SelectionParameters,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Make tag_views match the journal, as the plugin would number it.

    Safe to stop and to start again at any moment.
    """
    question = f"Rebuild tag_views of {_words(parameters)}, pipeline {pipeline}?"
    operations.run(
        REBUILD, pipeline, parameters, question, _show_done, dry_run=dry_run, yes=yes, as_json=as_json
    )


@app.command()
@operations.command
def delete(
    pipeline: Pipeline,
    parameters: SelectionParameters,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete rows of tag_views that a rebuild can bring back from the journal.

    Their progress goes, too. Safe to stop and to start again at any moment.
    """
    question = f"Delete tag_views of {_words(parameters)}, pipeline {pipeline}?"
    operations.run(
        DELETE, pipeline, parameters, question, _show_done, dry_run=dry_run, yes=yes, as_json=as_json
    )


@app.command()
@operations.command
def truncate(
    pipeline: Pipeline,
    parameters: TruncateParameters,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Empty tag_views, tag_write_progress and tag_scanning.

    Only if a rebuild can bring all of it back. Safe to stop and to start again at any moment.
    """
    question = f"Truncate tag_views, tag_write_progress and tag_scanning, pipeline {pipeline}?"
    operations.run(
        TRUNCATE, pipeline, parameters, question, _show_done, dry_run=dry_run, yes=yes, as_json=as_json
    )


@app.command()
@one_line_errors
def tags(
    pipeline: Pipeline,
    persistence_id: Annotated[
        str | None, typer.Option("--persistence-id", help="Only this persistence_id, with its numbers.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the tags that the view has rows of.

    For a persistence_id, those that it was numbered for.
    """
    from tagmill.views import tags as library

    lines = library.tags(settings(), pipeline, persistence_id)
    show(lines, library.OF_VIEW if persistence_id is None else library.OF_ID, as_json=as_json)


@app.command()
@one_line_errors
def pids(pipeline: Pipeline, dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False) -> None:
    """Add persistence ids that have events to all_persistence_ids.

    Only those that it lacks.
    """
    operations.run(
        PIDS,
        pipeline,
        NoParameters(),
        f"Add what all_persistence_ids lacks, pipeline {pipeline}?",
        lambda done: out.print(done.message),
        dry_run=dry_run,
        yes=yes,
        as_json=as_json,
        ask=confirm_from_now_on,
    )


def _words(selection: SelectionParameters) -> str:
    named = selection.persistence_ids
    ids = f"{len(named)} persistence ids" if named else "all persistence ids"
    return ids + (f", tags {', '.join(selection.tags)}" if selection.tags else "")


def _show_done(done: ViewReport) -> None:
    show_view(done)
    out.print(done.message)


def show_view(done: ViewReport) -> None:
    """Print what changed in a view, or would change."""
    show([line.model_dump() for line in done.tags], TAG_COLUMNS, as_json=False)
    if done.changes:
        columns = ("tag", "persistence_id", "sequence_nr", "tag_pid_sequence_nr", "what")
        show(
            [line.model_dump() for line in done.changes],
            columns,
            as_json=False,
            title="The first rows that change:",
        )
    if done.left_examples:
        rows = [line.model_dump() for line in done.left_examples]
        show(
            rows,
            ("persistence_id", "sequence_nr", "why"),
            as_json=False,
            title="Left as they are, for what stands behind:",
        )
