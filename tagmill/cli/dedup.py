"""`tagmill dedup`: the ids of a topic's delivered events, made again under another rule, or deleted past
their window.
"""

from typing import Annotated, Any

import typer

from tagmill.cli.shared import (
    AsJson,
    DryRun,
    Pipeline,
    Yes,
    one_line_errors,
    out,
    person,
    settings,
    show_and_ask,
    telling,
)

app = typer.Typer(
    help="Make the ids of delivered events again, or delete those past their window.", no_args_is_help=True
)


@app.command()
@one_line_errors
def rekey(
    pipeline: Pipeline,
    dry_run: DryRun = False,
    drop_unreadable: Annotated[
        bool,
        typer.Option("--drop-unreadable", help="Drop ids whose payload gives none under the new rule."),
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Make all ids again from the stored payloads.

    The rule and the shards that are configured now apply. Safe to stop and to start again at any moment.
    """
    from tagmill.delivery.topics.rekey_ids import rekey as library
    from tagmill.ledger.lease import this_process
    from tagmill.spark.session import session_when_asked

    configured = settings()
    configured.topic(pipeline)
    with session_when_asked(configured, f"tagmill dedup rekey {pipeline}") as spark:

        def work(dry_run: bool) -> Any:
            with telling(pipeline, "looking") as tell:
                return library(
                    configured,
                    pipeline,
                    owner=this_process(),
                    who=person(),
                    spark=spark,
                    dry_run=dry_run,
                    drop_unreadable=drop_unreadable,
                    tell=tell,
                )

        question = f"Make the ids of pipeline {pipeline} again?"
        done = show_and_ask(question, work, _show, dry_run=dry_run, yes=yes, shown=not as_json)
    print(done.model_dump_json()) if as_json else _show(done)


@app.command()
@one_line_errors
def expire(pipeline: Pipeline, dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete the ids of events that were delivered before the window.

    The window is `window_days`. Never deletes an id whose batch is not in ClickHouse.
    """
    from tagmill.delivery.topics.expire_ids import expire as library
    from tagmill.ledger.lease import this_process
    from tagmill.spark.session import session_when_asked

    configured = settings()
    chosen = configured.topic(pipeline)
    with session_when_asked(configured, f"tagmill dedup expire {pipeline}") as spark:

        def work(dry_run: bool) -> Any:
            with telling(pipeline, "counting ids" if dry_run else "deleting ids"):
                return library(configured, pipeline, owner=this_process(), spark=spark, dry_run=dry_run)

        question = (
            f"Delete the ids of pipeline {pipeline} that were delivered over {chosen.window_days} days ago?"
        )
        done = show_and_ask(question, work, _show, dry_run=dry_run, yes=yes, shown=not as_json)
    print(done.model_dump_json()) if as_json else _show(done)


def _show(done: Any) -> None:
    for example in getattr(done, "examples", ()):
        out.print(example, markup=False)
    out.print(done.message, markup=False)
