"""`tagmill ledger`: bring a ledger forward whose rows were restored or lost."""

import typer

from tagmill.cli.run import ways_out
from tagmill.cli.shared import (
    AsJson,
    DryRun,
    Pipeline,
    Why,
    Yes,
    confirm,
    one_line_errors,
    out,
    person,
    settings,
)

app = typer.Typer(help="Bring the ledger forward after its rows were restored or lost.", no_args_is_help=True)


@app.command("accept-journal")
@one_line_errors
def accept_journal(pipeline: Pipeline, why: Why, yes: Yes = False) -> None:
    """Continue with a journal's tables that were created again from a backup.

    They hold the same events. Not for a new life of the journal.
    """
    confirm(f"Do the journal's tables hold the events that pipeline {pipeline} has delivered?", yes)
    out.print(ways_out(pipeline, why).accept_journal(), markup=False)


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

    if not dry_run and not why:
        raise typer.BadParameter("give --why, or --dry-run")
    configured = settings()
    with session_when_asked(configured, f"tagmill ledger restore {pipeline}") as spark:
        restoring = Restoring(configured, pipeline, this_process(), person(), why, spark)
        found = restoring.run(dry_run=True)
        if not dry_run:
            if not as_json:
                out.print(found.message, markup=False)
            confirm(f"Bring the ledger of pipeline {pipeline} forward?", yes)
            found = restoring.run(dry_run=False)
    if as_json:
        print(found.model_dump_json())
        return
    for example in found.examples:
        out.print(example, markup=False)
    out.print(found.message, markup=False)
