"""`tagmill dedup`: the ids of a topic's delivered events, made again under another rule, or deleted past
their window.
"""

from typing import Annotated

import typer

from tagmill.cli.shared import AsJson, Pipeline, Yes, confirm, one_line_errors, out, person, settings, telling

app = typer.Typer(
    help="Ids of delivered events: make them again, delete those past their window.", no_args_is_help=True
)
DryRun = Annotated[bool, typer.Option("--dry-run", help="Count, and change nothing.")]


@app.command()
@one_line_errors
def rekey(
    pipeline: Pipeline,
    dry_run: DryRun = False,
    drop_unreadable: Annotated[
        bool,
        typer.Option("--drop-unreadable", help="Let ids go whose payload gives none under the new rule."),
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Make all ids again from the stored payloads, by the rule and the shards that are configured now.

    Safe to stop and start again.
    """
    from tagmill.delivery.topics.rekey_ids import rekey as library
    from tagmill.ledger.lease import this_process
    from tagmill.spark.session import session_when_asked

    configured = settings()
    configured.topic(pipeline)
    if not dry_run:
        confirm(f"Make the ids of pipeline {pipeline} again?", yes)
    with (
        telling(pipeline, "looking") as tell,
        session_when_asked(configured, f"tagmill dedup rekey {pipeline}") as spark,
    ):
        done = library(
            configured,
            pipeline,
            owner=this_process(),
            who=person(),
            spark=spark,
            dry_run=dry_run,
            drop_unreadable=drop_unreadable,
            tell=tell,
        )
    if as_json:
        print(done.model_dump_json())
        return
    for example in done.examples:
        out.print(example, markup=False)
    out.print(done.message, markup=False)


@app.command()
@one_line_errors
def expire(pipeline: Pipeline, dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete the ids of events that were delivered before the window (window_days); never one whose batch is
    not in ClickHouse.
    """
    from tagmill.delivery.topics.expire_ids import expire as library
    from tagmill.ledger.lease import this_process
    from tagmill.spark.session import session_when_asked

    configured = settings()
    chosen = configured.topic(pipeline)
    if not dry_run:
        confirm(
            f"Delete the ids of pipeline {pipeline} that were delivered over {chosen.window_days} days ago?",
            yes,
        )
    with (
        telling(pipeline, "deleting ids"),
        session_when_asked(configured, f"tagmill dedup expire {pipeline}") as spark,
    ):
        done = library(configured, pipeline, owner=this_process(), spark=spark, dry_run=dry_run)
    print(done.model_dump_json()) if as_json else out.print(done.message, markup=False)
