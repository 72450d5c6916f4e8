"""The commands, put together."""

from pathlib import Path
from typing import Annotated

import typer

import tagmill
from tagmill.cli import (
    audit,
    cleanup,
    deadletters,
    erase,
    events,
    journal,
    kafkajournal,
    local,
    look,
    mend,
    migrate,
    run,
    shared,
    views,
)  # fmt: skip
from tagmill.cli.shared import one_line_errors, out, settings

app = typer.Typer(
    help="Tagged events from Cassandra to ClickHouse, exactly once.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
schema = typer.Typer(help="The tables that Tagmill needs.", no_args_is_help=True)
app.add_typer(local.app, name="local")
app.add_typer(schema, name="schema")
app.add_typer(run.app, name="run")
app.add_typer(views.app, name="views")
app.add_typer(journal.app, name="journal")
app.add_typer(kafkajournal.app, name="kafka-journal")
app.add_typer(deadletters.app, name="deadletters")
views.app.command()(migrate.migrate)
app.add_typer(mend.holds, name="holds")
app.add_typer(mend.progress, name="progress")
app.add_typer(mend.batches, name="batches")
app.command()(look.status)
app.command()(look.check)
app.command()(look.runs)
app.command()(audit.audit)
app.command()(audit.audits)
app.command()(cleanup.cleanup)
app.command()(erase.erase)
app.command()(erase.erasures)
app.command()(events.events)


@app.callback()
def configure(
    config: Annotated[Path | None, typer.Option(help="Configuration file; default $TAGMILL_CONFIG, else ./tagmill.toml.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what the steps do, as JSON lines on stderr.")] = False,
) -> None:
    """Options of all commands."""
    shared.config_file[0] = config
    shared.quiet_logs(verbose)


@app.command()
def version() -> None:
    """The version."""
    out.print(tagmill.__version__)


@schema.command("apply")
@one_line_errors
def apply_schema() -> None:
    """Create what is missing: the ledger, tables of views that Tagmill builds, each pipeline's table in ClickHouse. No more."""
    from tagmill.stores.schema import apply

    for name in apply(settings()):
        out.print(f"in place: {name}", markup=False)


def main() -> None:
    """Entry point."""
    app()
