"""What commands print and read, to the letter."""

import io
import json
import os
import subprocess
import sys
from argparse import Namespace

import pytest
import typer

from tagmill.cli import signals
from tagmill.cli.shared import (
    confirm_from_now_on,
    decide,
    err,
    lists_of_ids,
    must_be_keys,
    one_line,
    out,
    person,
    show,
    show_and_ask,
)
from tagmill.config.id_lists import ids_of
from tagmill.errors import ConfigurationError, StoreUnavailable
from tagmill.spark.job_report import job_report
from tagmill.views.selection import Selection


def test_names_are_printed_as_they_are(capsys):
    """Neither styles nor emojis are made of a name, in tables, their titles, lines and errors."""
    names = ["[bold]a", r"a\[b]", "a\\", "[/]", "user:key:7", ":id:", "x:x:x"]
    show([{"name": name} for name in names], ("name",), as_json=False, title=":key:[b]")
    for console in (out, err):
        console.print(*names)
    with pytest.raises(typer.Exit), one_line():
        raise ConfigurationError(" ".join(names))
    (title, _, _, _, *cells, _, line), errors = (text.splitlines() for text in capsys.readouterr())
    assert [title.strip(), *(cell.strip("│ ") for cell in cells)] == [":key:[b]", *names]
    assert [line, *errors] == [" ".join(names), " ".join(names), f"error: {' '.join(names)}"]


def test_control_characters_are_shown_escaped(capsys):
    show(
        [{"tag": "a\nb\x1b[31m\u202e\udc80ü 🙂", "offset": 1654, "rows": 1654}],
        ("tag", "offset", "rows"),
        as_json=False,
    )
    cells = capsys.readouterr().out.splitlines()[3].strip("│ ").split("│")
    assert [cell.strip() for cell in cells] == ["a\\nb\\x1b[31m\\u202e\\udc80ü 🙂", "1654", "1,654"]


def test_reader_that_has_enough_is_no_defect():
    """End with the status of SIGPIPE and without a word, as `tagmill … | head -1` has it."""
    script = """
import typer
from tagmill.cli.shared import one_line, out
def command():
    with one_line():
        for number in range(10**6):
            out.print(number)
typer.run(command)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process:
        assert process.stdout.readline() == b"0\n"
        process.stdout.close()
        assert (process.wait(60), process.stderr.read()) == (141, b"")


def test_person_without_name_is_known_by_number(monkeypatch):
    """In a container a user may have no name, neither in the environment nor in the list of users."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 3)
    assert person() == f"uid {2**31 - 3}"


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


def test_ids_done_are_those_shown(tmp_path):
    """A file of persistence ids may be read again, but not after it has changed: others would go than were shown."""
    (file := tmp_path / "ids").write_text("o-1\n")
    lists = lists_of_ids(["o-2"], file)
    assert [list(next(lists)), list(next(lists))] == [["o-2", "o-1"]] * 2
    file.write_text("o-1\no-3\n")
    with pytest.raises(ConfigurationError, match="has changed since"):
        next(lists)


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


def test_decision_is_about_what_was_shown(monkeypatch, capsys):
    """What a decision would change is shown again, and asked again, if it is something else after the answer."""
    monkeypatch.setattr(sys, "stdin", Terminal("y\ny\n"))
    runs, done = iter([7, 8, 8, 8]), []

    def work(dry_run: bool) -> str:
        run = next(runs)
        done.extend([] if dry_run else [run])
        return f"run {run} {'would be' if dry_run else 'is'} given up"

    decide("Give up the open run?", work, why="stuck", dry_run=False, yes=False)
    printed = capsys.readouterr().out
    assert printed.index("run 7 would be") < printed.index("run 8 would be") < printed.index("run 8 is")
    assert printed.count("[y/N]") == 2 and done == [8]


def test_question_of_today_warns_scripts(monkeypatch, capsys):
    """Where a command did not ask before, scripts go on with a warning; a person is asked."""
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    confirm_from_now_on("Do it?", yes=False)
    assert capsys.readouterr().err == "warning: without a terminal, the next version needs --yes here\n"
    confirm_from_now_on("Do it?", yes=True)
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    with pytest.raises(typer.Exit):
        confirm_from_now_on("Do it?", yes=False)


def _interrupted_then_lost() -> None:
    """Raise what a store raises that stops answering while an interrupt ends the work."""
    try:
        raise KeyboardInterrupt
    finally:
        raise StoreUnavailable("Cassandra did not answer")


def test_command_interrupted_then_lost_is_interrupted(capsys):
    """End with the interrupt's line and status, whatever fails while it unwinds the stack."""
    with pytest.raises(typer.Exit) as ended, one_line():
        _interrupted_then_lost()
    assert ended.value.exit_code == 130
    assert capsys.readouterr().err == f"{signals.TEXT}\n"


def test_job_interrupted_then_lost_is_interrupted(tmp_path):
    """Report the interrupt, whatever fails while it unwinds the stack."""
    args = Namespace(pipeline="p", run=1, config=None, report=tmp_path / "report.json")
    with job_report("seal", args) as report:
        _interrupted_then_lost()
    said = json.loads(args.report.read_text())
    assert (report.exit_code, said["error_type"]) == (130, "KeyboardInterrupt")
