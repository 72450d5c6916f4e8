"""`tagmill views`: build, rebuild, delete and list the tag views of a journal."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tagmill.cli.rebucket import rebucket
from tagmill.cli.shared import (
    AsJson,
    DryRun,
    PersistenceIdsFile,
    Pipeline,
    Tags,
    Yes,
    confirm_from_now_on,
    one_line_errors,
    out,
    settings,
    show,
    show_and_ask,
    telling,
)

if TYPE_CHECKING:
    from tagmill.views.selection import Selection, ViewReport

    Operation = Callable[..., ViewReport]

TAG_COLUMNS = ("tag", "same", "added", "changed", "removed", "unknown", "cleaned")
PersistenceId = Annotated[
    list[str] | None,
    typer.Option(
        "--persistence-id", help="Only this persistence_id. Repeatable. No application may write to it."
    ),
]
Offline = Annotated[
    bool,
    typer.Option(
        "--offline", help="All persistence_ids. The application, or whatever else numbers, is stopped."
    ),
]

app = typer.Typer(help="Build, rebuild, rebucket, migrate, delete and list tag views.", no_args_is_help=True)
app.command()(rebucket)


@app.callback()
def views() -> None:
    """Build, rebuild, rebucket, migrate, delete and list tag views."""


@app.command()
@one_line_errors
def build(
    pipeline: Pipeline,
    adopt: Annotated[
        bool,
        typer.Option(
            "--adopt",
            help="Begin with the numbers that an application has written; it must no longer number.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Number the new events of the pipeline's journal and write tag_views.

    Safe to stop and to start again at any moment.
    """
    from tagmill.errors import GuardRefused
    from tagmill.ledger.lease import this_process
    from tagmill.spark.session import spark_session
    from tagmill.views.build import build as build_views
    from tagmill.views.build import check

    configured, begun = settings(), time.monotonic()
    check(configured, pipeline)
    with (
        telling(pipeline, "starting Spark") as tell,
        spark_session(configured, f"tagmill build {pipeline}") as spark,
    ):
        built = build_views(configured, pipeline, owner=this_process(), spark=spark, adopt=adopt, tell=tell)
    if built["refusal"]:
        raise GuardRefused(built["refusal"])
    built["seconds"] = round(time.monotonic() - begun, 1)
    if as_json:
        print(json.dumps(built, default=str))
        return
    out.print(built["message"], markup=False)
    if built["before_first_time_bucket"]:
        out.print(
            f"{built['before_first_time_bucket']} rows are older than first_time_bucket: readers don't "
            "look there",
            markup=False,
        )
    if built["examples"]:
        show(
            built["examples"],
            ("persistence_id", "sequence_nr", "what"),
            as_json=False,
            title="These wait in front of an event:",
        )


@app.command()
@one_line_errors
def rebuild(
    pipeline: Pipeline,
    persistence_id: PersistenceId = None,
    persistence_ids: PersistenceIdsFile = None,
    offline: Offline = False,
    tag: Tags = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Make tag_views match the journal, as the plugin would number it.

    Safe to stop and to start again at any moment.
    """
    from tagmill.views.rebuild import rebuild

    chosen = _chosen(persistence_id, persistence_ids, offline, tag)
    _do(
        pipeline,
        f"Rebuild tag_views of {_what(chosen)}",
        partial(rebuild, selection=chosen),
        dry_run,
        yes,
        as_json,
    )


@app.command()
@one_line_errors
def delete(
    pipeline: Pipeline,
    persistence_id: PersistenceId = None,
    persistence_ids: PersistenceIdsFile = None,
    offline: Offline = False,
    tag: Tags = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete rows of tag_views that a rebuild can bring back from the journal.

    Their progress goes, too. Safe to stop and to start again at any moment.
    """
    from tagmill.views.delete import delete

    chosen = _chosen(persistence_id, persistence_ids, offline, tag)
    _do(
        pipeline,
        f"Delete tag_views of {_what(chosen)}",
        partial(delete, selection=chosen),
        dry_run,
        yes,
        as_json,
    )


@app.command()
@one_line_errors
def truncate(
    pipeline: Pipeline,
    offline: Annotated[
        bool, typer.Option("--offline", help="The application, or whatever else numbers, is stopped.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Empty tag_views, tag_write_progress and tag_scanning.

    Only if a rebuild can bring all of it back. Safe to stop and to start again at any moment.
    """
    from tagmill.views.delete import truncate
    from tagmill.views.selection import Selection

    Selection.of([], [], offline=offline)
    _do(pipeline, "Truncate tag_views, tag_write_progress and tag_scanning", truncate, dry_run, yes, as_json)


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
    from tagmill.spark.session import session_when_asked
    from tagmill.views.persistence_ids import rebuild_ids

    configured = settings()
    configured.pipeline(pipeline)
    with session_when_asked(configured, f"tagmill pids {pipeline}") as spark:

        def work(look: bool) -> Any:
            with telling(pipeline, "starting Spark") as tell:
                return rebuild_ids(configured, pipeline, spark=spark(), dry_run=look, tell=tell)

        done = show_and_ask(
            f"Add what all_persistence_ids lacks, pipeline {pipeline}?",
            work,
            lambda shown: out.print(shown.message, markup=False),
            dry_run=dry_run,
            yes=yes,
            shown=not as_json,
            ask=confirm_from_now_on,
        )
    if as_json:
        print(done.model_dump_json())
    else:
        out.print(done.message, markup=False)


def named(ids: list[str] | None, file: Path | None) -> list[str]:
    """Return the persistence ids that the options name."""
    from tagmill.config.id_lists import ids_of

    return list(ids_of(ids, file))


def _chosen(ids: list[str] | None, file: Path | None, offline: bool, tags: list[str] | None) -> Selection:
    from tagmill.views.selection import Selection

    return Selection.of(named(ids, file), tags or [], offline=offline)


def _what(selection: Selection) -> str:
    ids = (
        f"{len(selection.persistence_ids)} persistence ids"
        if selection.persistence_ids
        else "all persistence ids"
    )
    return ids + (f", tags {', '.join(selection.tags)}" if selection.tags else "")


def _do(pipeline: str, question: str, operation: Operation, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Show what would change and ask, run the operation, and show what changed."""
    from tagmill.ledger.lease import this_process
    from tagmill.spark.session import session_when_asked

    configured = settings()
    configured.pipeline(pipeline)
    with session_when_asked(configured, f"tagmill views {pipeline}") as spark:

        def work(dry_run: bool) -> ViewReport:
            with telling(pipeline, "starting Spark") as tell:
                return operation(
                    configured, pipeline, owner=this_process(), spark=spark(), dry_run=dry_run, tell=tell
                )

        done = show_and_ask(
            f"{question}, pipeline {pipeline}?",
            work,
            _show_done,
            dry_run=dry_run,
            yes=yes,
            shown=not as_json,
        )
    print(done.model_dump_json()) if as_json else _show_done(done)


def _show_done(done: ViewReport) -> None:
    show_view(done)
    out.print(done.message, markup=False)


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
