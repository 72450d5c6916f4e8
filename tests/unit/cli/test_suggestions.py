"""A wrong command is answered with the one that it may have meant."""

import pytest
from typer.testing import CliRunner

from tagmill.cli.main import app


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("deliver", "No such command 'deliver'. Did you mean \"tagmill run deliver\"?"),
        ("docter", 'Did you mean "tagmill doctor"?'),
        ("views rebuld", "Did you mean 'rebuild'"),
        ("zzz", "No such command 'zzz'."),
    ],
    ids=["of a group", "outermost", "within a group", "far"],
)
def test_wrong_command_is_answered_with_another(words: str, said: str) -> None:
    done = CliRunner().invoke(app, words.split(), env={"COLUMNS": "200", "TERM": "dumb"})
    assert done.exit_code == 2
    assert said in done.output and ("Did you mean" in done.output) == ("Did you mean" in said)
