"""`tagmill ledger`: bring a ledger forward whose rows were restored or lost."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import typer

from tagmill.cli.run import ways_out
from tagmill.cli.shared import (
    AsJson,
    DryRun,
    Pipeline,
    Why,
    Yes,
    decide,
    must_say_why,
    one_line_errors,
    out,
    person,
    settings,
    show_and_ask,
)

if TYPE_CHECKING:
    from tagmill.maintenance.ledger_restore.restore import Restored

app = typer.Typer(help="Bring the ledger forward after its rows were restored or lost.", no_args_is_help=True)


@app.command("accept-journal")
@one_line_errors
def accept_journal(pipeline: Pipeline, why: Why = "", dry_run: DryRun = False, yes: Yes = False) -> None:
    """Continue with a journal's tables that were created again from a backup.

    They hold the same events. Not for a new life of the journal.
    """
    question = f"Do the journal's tables hold the events that pipeline {pipeline} has delivered?"
    action = partial(ways_out, pipeline, why)
    decide(question, lambda look: action(look).accept_journal(), why=why, dry_run=dry_run, yes=yes)


@app.command()
@one_line_errors
def restore(
    pipeline: Pipeline,
    why: Why = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Bring the ledger forward to what ClickHouse has.

    Also above rows that another program wrote. Safe to stop and to start again at any moment.
    """
    from tagmill.ledger.lease import this_process
    from tagmill.maintenance.ledger_restore.restore import Restoring
    from tagmill.spark.session import session_when_asked

    must_say_why(why, dry_run)
    configured = settings()
    with session_when_asked(configured, f"tagmill ledger restore {pipeline}") as spark:

        def work(look: bool) -> Restored:
            who = (this_process(), person(), why)
            return Restoring(configured, pipeline, *who, spark, dry_run=look).run()

        question = f"Bring the ledger of pipeline {pipeline} forward?"
        done = show_and_ask(question, work, _show, dry_run=dry_run, yes=yes, shown=not as_json)
    print(done.model_dump_json()) if as_json else _show(done)


def _show(restored: Restored) -> None:
    for example in restored.examples:
        out.print(example)
    out.print(restored.message)
