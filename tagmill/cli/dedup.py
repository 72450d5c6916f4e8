"""`tagmill dedup`: the ids of a topic's delivered events, made again under another rule, or deleted past
their window.
"""

from typing import Any

import typer

from tagmill.cli import operations
from tagmill.cli.shared import AsJson, DryRun, Pipeline, Yes, one_line_errors, out, settings
from tagmill.operations.model import NoParameters
from tagmill.operations.topics import EXPIRE, REKEY, RekeyParameters

app = typer.Typer(
    help="Make the ids of delivered events again, or delete those past their window.", no_args_is_help=True
)


@app.command()
@operations.command
def rekey(
    pipeline: Pipeline,
    parameters: RekeyParameters,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Make all ids again from the stored payloads.

    The rule and the shards that are configured now apply. Safe to stop and to start again at any moment.
    """
    question = f"Make the ids of pipeline {pipeline} again?"
    operations.run(REKEY, pipeline, parameters, question, _show, dry_run=dry_run, yes=yes, as_json=as_json)


@app.command()
@one_line_errors
def expire(pipeline: Pipeline, dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete the ids of events that were delivered before the window.

    The window is `window_days`. Never deletes an id whose batch is not in ClickHouse.
    """
    days = settings().topic(pipeline).window_days
    question = f"Delete the ids of pipeline {pipeline} that were delivered over {days} days ago?"
    operations.run(
        EXPIRE, pipeline, NoParameters(), question, _show, dry_run=dry_run, yes=yes, as_json=as_json
    )


def _show(done: Any) -> None:
    for example in getattr(done, "examples", ()):
        out.print(example)
    out.print(done.message)
