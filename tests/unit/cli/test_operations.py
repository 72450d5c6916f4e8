"""Commands that are made from the declarations of operations."""

from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import typer
from typer.testing import CliRunner

from spark_jobs import operation as job
from tagmill.cli import operations
from tagmill.kafka_journal.model import PurgeReport
from tagmill.operations.catalogue import BY_NAME
from tagmill.operations.deletion import CleanParameters
from tagmill.operations.kafka_journal import PURGE, PurgeParameters, ReplicateParameters
from tagmill.operations.model import OnlyInForm, Option, Parameters, Work
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


def test_change_keeps_to_day_that_was_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A purge that is answered after midnight is for the day that was shown."""
    today, asked = iter([date(2026, 12, 1), date(2026, 12, 2)]), []

    def purge(work: Work, parameters: PurgeParameters) -> PurgeReport:
        asked.append(parameters.until)
        until = parameters.until or next(today)
        return PurgeReport(pipeline=work.pipeline, until=until, dry_run=work.dry_run, purged=0, examples=[])

    monkeypatch.setattr(operations, "settings", MagicMock())
    with operations.working(replace(PURGE, run=purge), "carts", PurgeParameters()) as work:
        assert [work(dry_run).until.day for dry_run in (True, False)] == [1, 1]
    assert asked == [None, date(2026, 12, 1)]


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
