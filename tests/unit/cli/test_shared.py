"""What commands print and read, to the letter."""

import io
import sys

import pytest
import typer

from tagmill.cli.shared import confirm_from_now_on, must_be_keys, show, show_and_ask
from tagmill.config.id_lists import ids_of
from tagmill.errors import ConfigurationError
from tagmill.views.selection import Selection


def test_names_are_printed_as_they_are(capsys):
    names = ["[bold]a", r"a\[b]", "a\\", "[/]"]
    show([{"name": name} for name in names], ("name",), as_json=False)
    printed = capsys.readouterr().out
    assert all(name in printed for name in names)


def test_names_too_long_for_key_are_refused():
    """Refuse names that are too long for a key, with their size, wherever they come from."""
    long = 70_000 * "x"
    for mistake in (
        lambda: must_be_keys([None, 3, ["o-1", long]]),
        lambda: ids_of(["o-1", long], None),
        lambda: Selection.of([long], [], offline=False),
        lambda: Selection.of([], [long], offline=True),
    ):
        with pytest.raises(ConfigurationError, match="has 70000 bytes"):
            mistake()


class Terminal(io.StringIO):
    """Standard input with a person in front."""

    def isatty(self) -> bool:
        return True


DID = ["did"]
LOOKED = ["looked"]
SHOWN = ["looked", "shown looked"]


@pytest.mark.parametrize(
    ("stdin", "options", "happens"),
    [
        (Terminal(), {"dry_run": True}, LOOKED),
        (Terminal(), {"dry_run": True, "yes": True}, LOOKED),
        (Terminal(), {"yes": True}, DID),
        (Terminal("y\n"), {}, [*SHOWN, "did"]),
        (Terminal("n\n"), {}, [*SHOWN, "exit 2"]),
        (Terminal("y\n"), {"shown": False}, DID),
        (io.StringIO("y\n"), {}, ["exit 2"]),
        (io.StringIO(), {"yes": True}, DID),
    ],
    ids=["look", "look wins", "yes", "answer yes", "answer no", "json", "no terminal", "no terminal, yes"],
)
def test_command_shows_before_it_asks(monkeypatch, stdin, options, happens):
    """Without --yes a person sees what would change and is asked; without a terminal nothing is done."""
    done: list[str] = []

    def work(dry_run: bool) -> str:
        done.append("looked" if dry_run else "did")
        return done[-1]

    monkeypatch.setattr(sys, "stdin", stdin)
    given = {"dry_run": False, "yes": False, "shown": True} | options
    try:
        assert show_and_ask("Do it?", work, lambda shown: done.append(f"shown {shown}"), **given) == done[-1]
    except typer.Exit as ended:
        done.append(f"exit {ended.exit_code}")
    assert done == happens


def test_question_of_today_warns_scripts(monkeypatch, capsys):
    """Where a command did not ask before, scripts go on with a warning; a person is asked."""
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    confirm_from_now_on("Do it?", yes=False)
    assert capsys.readouterr().err == "warning: without a terminal, the next version needs --yes here\n"
    confirm_from_now_on("Do it?", yes=True)
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    with pytest.raises(typer.Exit):
        confirm_from_now_on("Do it?", yes=False)
