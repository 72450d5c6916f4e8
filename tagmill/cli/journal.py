"""`tagmill journal`: delete from an application's journal by hand."""

import json
from typing import Annotated, Any

import typer

from tagmill.cli import operations
from tagmill.cli.shared import (
    AsJson,
    DryRun,
    PersistenceIds,
    PersistenceIdsFile,
    Pipeline,
    Yes,
    err,
    is_read_twice,
    lists_of_ids,
    out,
    settings,
    show,
    show_and_ask,
    telling,
)
from tagmill.domain.identifiers import quoted
from tagmill.operations.deletion import CleanParameters

app = typer.Typer(help="Delete events and snapshots from an application's journal.", no_args_is_help=True)


@app.callback()
def journal() -> None:
    """Clean an application's journal."""


@app.command()
@operations.command
def clean(
    pipeline: Pipeline,
    parameters: CleanParameters,
    persistence_id: PersistenceIds = None,
    persistence_ids: PersistenceIdsFile = None,
    before_snapshot: Annotated[
        bool,
        typer.Option(
            "--before-snapshot",
            help="Delete events up to the oldest snapshot that is kept, and older snapshots.",
        ),
    ] = False,
    snapshots: Annotated[
        bool, typer.Option("--snapshots", help="Delete snapshots only, but for those that are kept.")
    ] = False,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Delete all events and all snapshots. Their actors must not be running."),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete events and snapshots of persistence ids, as the plugin's Cleanup does.

    Shows what would go and asks; --dry-run only shows it. Give exactly one of --to, --before-snapshot,
    --snapshots and --all. A persistence id with undelivered events is left as it is, and the exit status is 3
    then. While the actor runs, all but --all is safe. Safe to stop and to start again at any moment. For
    example:

    tagmill journal clean -p orders --persistence-id order-1 --to 100 --dry-run
    """
    from tagmill.ledger.lease import this_process
    from tagmill.maintenance.journal_cleanup.clean import clean as clean_journal
    from tagmill.maintenance.journal_cleanup.model import What

    chosen = {
        What.TO: parameters.to is not None,
        What.BEFORE_SNAPSHOT: before_snapshot,
        What.SNAPSHOTS: snapshots,
        What.ALL: everything,
    }
    named = [what for what, is_wanted in chosen.items() if is_wanted]
    if len(named) != 1:
        raise typer.BadParameter("give exactly one of --to, --before-snapshot, --snapshots and --all")
    if not persistence_id and persistence_ids is None:
        raise typer.BadParameter("name persistence ids: --persistence-id, or a file by --persistence-ids")
    wanted = parameters.model_copy(update={"delete": named[0].value}).wanted()
    lists = lists_of_ids(persistence_id, persistence_ids)
    configured = settings()

    def work(only_count: bool) -> dict[str, Any]:
        ids = next(lists)
        with telling(pipeline, "looking at the journal" if only_count else "cleaning the journal") as tell:
            return clean_journal(
                configured, pipeline, ids, wanted, owner=this_process(), delete=not only_count, tell=tell
            )

    question = _question(configured.pipeline(pipeline).keyspace, wanted)
    shown = not as_json and is_read_twice(persistence_ids)
    done = show_and_ask(question, work, _show, dry_run=dry_run, yes=yes, shown=shown)
    if as_json:
        print(json.dumps(done, default=str))
    else:
        _show(done)
    if done["refused"]:
        raise typer.Exit(3)


def _question(keyspace: str, wanted: Any) -> str:
    what = {
        "to": f"Delete events up to sequence_nr {wanted.to} of these persistence ids",
        "before_snapshot": "Delete events and snapshots before the oldest snapshot that is kept of these "
        "persistence ids",
        "snapshots": "Delete old snapshots of these persistence ids",
        "all": "Delete ALL events and snapshots of these persistence ids, none of whose actors is running,",
    }[wanted.what.value]
    more = [
        *(["with their rows of tag_views"] if wanted.views else []),
        *(["and their names for good"] if wanted.never_again else []),
        *(["DELIVERED OR NOT"] if wanted.force_undelivered else []),
    ]
    return f"{' '.join([what, *more])} in journal {keyspace}?"


def _show(done: dict[str, Any]) -> None:
    if done["refusals"]:
        columns = ("persistence_id", "tag", "reason", "text")
        show(
            done["refusals"],
            columns,
            as_json=False,
            title="The first that were refused, and left as they are:",
        )
    if done["unknown_ids"]:
        out.print(f"not in the journal: {quoted(done['unknown_ids'], done['unknown'])}")
    for warning in done["warnings"]:
        out.print(f"warning: {warning}")
    out.print(done["message"])
    if done["refused"]:
        err.print(f"{done['refused']} of {done['persistence_ids']} persistence ids were refused")
