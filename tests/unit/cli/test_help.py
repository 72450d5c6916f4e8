"""The help of all commands, read as one set."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from tagmill.cli.main import app

# Options that mean the same in each command, with the words that their help begins with.
SAME = {
    "--pipeline": ("Pipeline of the configuration.", "Only this pipeline; default: all."),
    "--yes": ("Do it without asking.",),
    "--dry-run": ("Show what would change, and change nothing.",),
    "--why": ("Reason",),
    "--json": ("JSON instead of a table",),
    "--tag": ("Only this tag", "The tag."),
    "--persistence-id": ("Only this persistence_id", "The persistence_id."),
    "--persistence-ids": ("Only the persistence_ids in this file, one a line (UTF-8).",),
    "--limit": ("Lines ", "Events at most."),
    "--home": ("Folder of the stack",),
    "--despite-views": ("Go on where",),
}


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, f"{path} {name}")


ALL = dict(commands(typer.main.get_command(app), "tagmill"))


@pytest.mark.parametrize("path", ALL)
def test_command_summary_is_one_short_line(path: str) -> None:
    """A summary is one sentence with a verb in front, and fits a line of the list of commands."""
    summary = re.split(r"\n\s*\n", ALL[path].help.strip())[0]
    assert re.fullmatch(r"[A-Z][a-z]+,? [^\n]+\.", summary) and len(summary) <= 80
    assert summary.split()[0] not in {"The", "A", "An", "What", "Those", "Of", "Only"}


@pytest.mark.parametrize("path", ALL)
def test_same_options_have_same_words(path: str) -> None:
    """Each option is explained, and one of many commands in the same words everywhere; former ones are hidden."""
    for parameter in ALL[path].params:
        if parameter.name in ("install_completion", "show_completion", "help") or getattr(
            parameter, "hidden", False
        ):
            continue
        words = getattr(parameter, "help", None)
        assert words and words[0].isupper(), parameter.name
        for option in SAME.keys() & set(parameter.opts):
            assert words.startswith(SAME[option]), (option, words)


def test_commands_that_ask_can_also_only_look() -> None:
    """A command with --dry-run has --yes, and the other way round, but for `init`: it makes one new file."""
    options = {path: {option for p in command.params for option in p.opts} for path, command in ALL.items()}
    asking = {path for path, own in options.items() if "--yes" in own} - {"tagmill init"}
    assert asking == {path for path, own in options.items() if "--dry-run" in own} != set()
