"""`tagmill local`: the one-machine stack, for people who try Tagmill from a checkout."""

import dataclasses
import json
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Column, Table
from rich.text import Text

import tagmill
from tagmill.cli.shared import one_line, to_the_letter
from tagmill.domain import identifiers
from tagmill.errors import ConfigurationError

app = typer.Typer(
    help="Start and stop the one-machine stack: Cassandra, Kafka, ClickHouse, Airflow.",
    no_args_is_help=True,
)
console = to_the_letter()

Home = Annotated[
    Path | None, typer.Option(help="Folder of the stack; default: $TAGMILL_HOME, else build/local.")
]
Parts = Annotated[
    list[str] | None,
    typer.Option("--part", help="Only cassandra, clickhouse, kafka or airflow; default: all. Repeatable."),
]
CassandraPort = Annotated[
    int | None, typer.Option(min=1024, max=65535, help="Port of CQL; the internal port is 10000 higher.")
]
ClickHousePort = Annotated[
    int | None, typer.Option("--clickhouse-port", min=1024, max=65535, help="Port of HTTP.")
]
KafkaPort = Annotated[
    int | None, typer.Option(min=1024, max=65535, help="Port of clients; another is 10000 higher.")
]
AirflowPort = Annotated[int | None, typer.Option(min=1024, max=65535, help="Port of UI and REST.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]


@app.command()
def up(
    home: Home = None,
    part: Parts = None,
    cassandra_port: CassandraPort = None,
    clickhouse_port: ClickHousePort = None,
    kafka_port: KafkaPort = None,
    airflow_port: AirflowPort = None,
) -> None:
    """Start the stack; it keeps running until `tagmill local down`."""
    with _one_line():
        layout = _local("layout").resolve(
            home,
            {
                "cassandra": cassandra_port,
                "clickhouse": clickhouse_port,
                "kafka": kafka_port,
                "airflow": airflow_port,
            },
        )
        stack = _local("stack").Stack(layout)
        with _interruptible():
            stack.up(part or (), console.print)
        for chosen in stack.parts(part or ()):
            console.print(f"{chosen.name}: {chosen.where()}")
        console.print(
            f"configuration: {layout.config}\nstop: tagmill local down"
            + (f" --home {shlex.quote(str(home))}" if home else "")
        )


@app.command()
def down(home: Home = None, part: Parts = None) -> None:
    """Stop the stack; its data stay."""
    with _one_line():
        _stack(home).down(part or (), console.print)


@app.command()
def status(home: Home = None, as_json: AsJson = False) -> None:
    """Show which parts are up.

    Exit status: 3 when one is down.
    """
    with _one_line():
        found = _stack(home).status()
        if as_json:
            typer.echo(json.dumps([dataclasses.asdict(part) for part in found]))
        else:
            console.print(_table(found))
        if not all(part.up for part in found):
            raise typer.Exit(3)


@app.command()
def load(
    case: Annotated[str, typer.Argument(help="A folder of tests/fixtures/pekko.")],
    keyspace: Annotated[
        str, typer.Option(help="Keyspace to load it into.", callback=lambda name: _identifier(name))
    ],
    drop: Annotated[bool, typer.Option("--drop", help="Drop the keyspace first.")] = False,
    home: Home = None,
) -> None:
    """Load a journal that the real plugin wrote; loading it again changes nothing."""
    with _one_line():
        with _local("cql").session(_stack(home).cassandra.port) as session:
            for table, rows in _local("fixtures").load_case(session, case, keyspace, drop).items():
                console.print(f"{keyspace}.{table}: {rows} rows")


def _stack(home: Path | None) -> Any:
    return _local("stack").Stack(_local("layout").resolve(home))


def _local(module: str) -> Any:
    """Import a module of the folder `local` in the checkout that this package was installed from.

    Raises ConfigurationError if this package was not installed from a checkout, or a package is missing.
    """
    root = Path(tagmill.__file__).resolve().parents[1]
    if not (root / "local" / "stack.py").is_file():
        raise ConfigurationError(
            "`tagmill local` needs a checkout of the project (the folder `local`), this Tagmill is an "
            "installed package"
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    try:
        return import_module(f"local.{module}")
    except ModuleNotFoundError as error:
        missing = error.name
        raise ConfigurationError(
            f"`tagmill local` needs the package {missing}, which is not in this environment. Run bin/setup"
        ) from None


def _table(parts: list[Any]) -> Table:
    table = Table("part", "state", "pid", Column("where", overflow="fold"))
    for part in parts:
        state = Text("up", "green") if part.up else Text("down", "red")
        table.add_row(part.part, state, str(part.pid or "-"), part.where)
    return table


def _identifier(name: str) -> str:
    try:
        return identifiers.identifier(name)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


@contextmanager
def _interruptible() -> Iterator[None]:
    """End a start at SIGTERM as at Ctrl-C: the parts that were started are stopped again."""
    before: dict[int, Callable[..., Any] | int | None] = {}

    def stop(number: int, _: Any) -> None:
        raise KeyboardInterrupt(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for changed, handler in before.items():
            signal.signal(changed, handler)


@contextmanager
def _one_line() -> Iterator[None]:
    """End the command with one line on stderr and an exit code (shared.one_line), which says more of Ctrl-C and of
    an OSError.
    """
    with one_line():
        try:
            yield
        except KeyboardInterrupt:
            typer.echo("stopped: nothing that this command started is left running", err=True)
            raise typer.Exit(130) from None
        except BrokenPipeError:
            raise
        except OSError as error:
            raise _local("errors").explained(error) from None
