"""Verdicts on the command line: lines of many pipelines, of which some cannot be read, and the exit status of all together."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import typer

from tagmill.domain.verdict import Level, unknown
from tagmill.errors import TagmillError

Line = dict[str, Any]
# the worst first; what is not known to be wrong comes behind what is
EXIT_STATUSES = (3, 2, 1, 75)


def lines_of(names: Iterable[str], read: Callable[[str], Iterable[Line]], *, named: str | None = None) -> list[Line]:
    """Return the lines of each pipeline; of one that cannot be read a line that says why, unless it is the one that was `named`."""
    lines: list[Line] = []
    for name in names:
        if named not in (None, name):
            continue
        try:
            lines += read(name)
        except TagmillError as error:
            if named:
                raise
            verdict = unknown(str(error))
            lines.append(
                {"pipeline": name, "verdict": verdict.word, "level": verdict.level.label, "exit_status": error.exit_code}
            )
    return lines


def level_of(line: Mapping[str, Any]) -> Level:
    """Return how bad a line is."""
    return Level[line["level"].upper()]


def end(lines: Iterable[Line], *, worst: Level) -> None:
    """End with the worst exit status of lines that are worse than `worst`: 3 for data, that of the error for what is not known."""
    statuses = {line.get("exit_status", 3) for line in lines if level_of(line) > worst}
    for exit_status in EXIT_STATUSES:
        if exit_status in statuses:
            raise typer.Exit(exit_status)
