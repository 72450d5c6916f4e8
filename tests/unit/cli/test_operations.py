"""Commands that are made from the declarations of operations."""

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from spark_jobs import operation as job
from tagmill.cli import operations
from tagmill.operations.catalogue import BY_NAME
from tagmill.operations.deletion import CleanParameters
from tagmill.operations.kafka_journal import PurgeParameters, ReplicateParameters
from tagmill.operations.model import OnlyInForm, Option, Parameters
from tagmill.operations.views import MigrateParameters, RebucketParameters, SelectionParameters
from tagmill.views.model import Step
from tests.unit.cli.test_help import ALL


@pytest.mark.parametrize("name", BY_NAME)
def test_operation_has_command_with_its_options(name: str) -> None:
    """Each operation is a command of its name, and a job takes it; each option has the field's words."""
    options = {option: p for p in ALL[f"tagmill {name}"].params for option in p.opts}
    for key, field in BY_NAME[name].parameters.model_fields.items():
        if name == "views tags" or any(isinstance(mark, OnlyInForm) for mark in field.metadata):
            continue
        flags = [mark.flag for mark in field.metadata if isinstance(mark, Option)]
        option = options[flags[0] if flags else f"--{key.replace('_', '-')}"]
        assert option.help.startswith(field.description)
        assert option.required is field.is_required()
    if BY_NAME[name].run:
        needed = ["--pipeline", "p", "--owner", "o", "--operation", name]
        assert job.parse(needed).parameters == {}


def read(model: type[Parameters], *arguments: str) -> Parameters | str:
    """Return the parameters that a command gets from its arguments, or the error that it ends with."""
    got: list[Any] = []
    app = typer.Typer()

    def command(parameters: Any) -> None:
        got.append(parameters)

    command.__annotations__["parameters"] = model
    app.command()(operations.command(command))
    result = CliRunner().invoke(app, arguments)
    return got[0] if got else result.output


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), SelectionParameters()),
        (
            ("--persistence-id", "a", "--persistence-id", "-b"),
            SelectionParameters(persistence_ids=["a", "-b"]),
        ),
        (("--offline", "--tag", "t"), SelectionParameters(offline=True, tags=["t"])),
        (("--step", "tags", "--step", "pids"), MigrateParameters(steps=[Step.TAGS, Step.PIDS])),
        (("--to", "Hour", "--table", "v2"), RebucketParameters(bucket_size="Hour", table="v2")),
        (("--until", "2026-12-31"), PurgeParameters(until=date(2026, 12, 31))),
        (
            ("--write-after", "2026-12-31T01:02:03Z"),
            ReplicateParameters(write_after=datetime(2026, 12, 31, 1, 2, 3, tzinfo=UTC)),
        ),
        (("--to", "5", "--keep", "2"), CleanParameters(to=5, keep=2)),
    ],
)
def test_options_become_parameters(arguments: tuple[str, ...], expected: Parameters) -> None:
    assert read(type(expected), *arguments) == expected


def test_ids_of_file_follow_named_ones(tmp_path: Path) -> None:
    (file := tmp_path / "ids").write_text("b\n\nc\n")
    arguments = ("--persistence-ids", str(file), "--persistence-id", "a")
    assert read(SelectionParameters, *arguments) == SelectionParameters(persistence_ids=["a", "b", "c"])


@pytest.mark.parametrize(
    ("model", "arguments", "words"),
    [
        (RebucketParameters, (), "Missing option '--to'"),
        (SelectionParameters, ("--persistence-id", ""), "error: persistence_ids: "),
        (MigrateParameters, ("--step", "drop"), "'drop' is not one of"),
        (CleanParameters, ("--keep", "0"), "or equal to 1"),
        (SelectionParameters, ("--tag", "a\0b"), "error: "),
    ],
)
def test_wrong_option_ends_command(model: type[Parameters], arguments: tuple[str, ...], words: str) -> None:
    assert words in str(read(model, *arguments))
