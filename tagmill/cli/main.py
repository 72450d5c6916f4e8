"""All commands of `tagmill`, put together."""

import json
from pathlib import Path
from typing import Annotated

import typer

import tagmill
from tagmill.cli import (
    audit,
    cleanup,
    config,
    deadletters,
    dedup,
    doctor,
    erase,
    events,
    explain,
    init,
    interventions,
    journal,
    kafka_journal,
    ledger,
    local,
    migrate,
    run,
    shared,
    status,
    views,
)
from tagmill.cli.exit_codes import EPILOG
from tagmill.cli.shared import AsJson, Pipeline, one_line_errors, out, settings, show
from tagmill.cli.suggestions import SuggestingGroup
from tagmill.runs.privacy import keep_from_others

app = typer.Typer(
    cls=SuggestingGroup,
    help="Deliver tagged events from Cassandra and Kafka to ClickHouse, exactly once.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog=EPILOG,
)
schema = typer.Typer(
    help="Create the tables that Tagmill needs, and compare a topic's.", no_args_is_help=True
)
app.add_typer(local.app, name="local")
app.add_typer(schema, name="schema")
app.add_typer(config.app, name="config")
app.add_typer(run.app, name="run")
app.add_typer(views.app, name="views")
app.add_typer(journal.app, name="journal")
app.add_typer(kafka_journal.app, name="kafka-journal")
app.add_typer(deadletters.app, name="deadletters")
app.add_typer(dedup.app, name="dedup")
views.app.command()(migrate.migrate)
app.add_typer(interventions.holds, name="holds")
app.add_typer(interventions.progress, name="progress")
app.add_typer(interventions.batches, name="batches")
app.add_typer(ledger.app, name="ledger")
app.command()(init.init)
app.command()(explain.explain)
app.command()(doctor.doctor)
app.command()(status.status)
app.command()(status.check)
app.command()(status.runs)
app.command()(audit.audit)
app.command()(audit.audits)
app.command()(audit.repair)
app.command()(cleanup.cleanup)
app.command()(erase.erase)
app.command()(erase.erasures)
app.command()(events.events)


def _print_version(wanted: bool) -> None:
    if wanted:
        out.print(tagmill.__version__)
        raise typer.Exit()


@app.callback()
def configure(
    config_file: Annotated[
        Path | None,
        typer.Option("--config", help="Configuration file; default: $TAGMILL_CONFIG, else ./tagmill.toml."),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log what the steps do, as JSON lines on stderr.")
    ] = False,
    print_version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    """Apply the options that all commands share."""
    shared.config_file[0] = config_file
    shared.quiet_logs(verbose)


@app.command()
def version() -> None:
    """Print the version."""
    out.print(tagmill.__version__)


@schema.command("apply")
@one_line_errors
def apply_schema() -> None:
    """Create the tables, views and columns that are missing.

    These are the ledger, views that Tagmill builds, each pipeline's table in ClickHouse, and new columns of
    topics. Changes nothing else.
    """
    from tagmill.delivery.topics import destination_table
    from tagmill.ledger import schema as tables

    configured = settings()
    for apply in (tables.apply, destination_table.apply):
        for name in apply(configured):
            out.print(f"in place: {name}")


@schema.command("diff")
@one_line_errors
def diff_schema(pipeline: Pipeline, as_json: AsJson = False) -> None:
    """Show what `schema apply` would change of a topic's table.

    Also names the fields of its schema files that no column holds.
    """
    from tagmill.delivery.topics.destination_table import diff

    found = diff(settings(), pipeline)
    if as_json:
        print(json.dumps(found))
        return
    if found["columns"]:
        show(found["columns"], ("column", "there", "configured", "what"), as_json=False)
    else:
        there = "has the columns that are configured" if found["exists"] else "is not there yet"
        out.print(f"pipeline {pipeline}: its table {there}")
    if found["unmapped"]:
        out.print(f"in the payload only: {', '.join(found['unmapped'])}")


def main() -> None:
    """Run the command line; other users can't read the files that it writes."""
    keep_from_others()
    app()
