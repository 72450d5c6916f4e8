"""`tagmill config`: the configuration that is in force, and the schema of its file."""

import json
from dataclasses import asdict

import typer

from tagmill.cli import shared
from tagmill.cli.shared import AsJson, one_line_errors, show

app = typer.Typer(
    help="Show the configuration that is in force, and the schema of its file.", no_args_is_help=True
)


@app.command()
@one_line_errors
def schema() -> None:
    """Print the JSON Schema of the configuration file, for editors.

    A first line `#:schema ./tagmill.schema.json` lets editors with Taplo complete and check the file.
    """
    from tagmill.config.json_schema import schema as made

    print(json.dumps(made(), indent=1))


@app.command("show")
@one_line_errors
def show_values(as_json: AsJson = False) -> None:
    """Show each key's value and where it comes from; secrets are masked.

    That is the file, a variable of the environment, a connection of Airflow, or the default.
    """
    from tagmill.config.sources import effective

    values = [asdict(value) for value in effective(shared.config_file[0])]
    if not as_json:
        values = [{**value, "value": json.dumps(value["value"], ensure_ascii=False)} for value in values]
    show(values, ("key", "value", "source"), as_json=as_json)
