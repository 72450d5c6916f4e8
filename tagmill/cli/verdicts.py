"""Verdicts on the command line: lines of many pipelines, of which some cannot be read, and the exit status of
all together.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import typer

from tagmill.cli.shared import log_folder
from tagmill.domain.verdict import Level, unknown
from tagmill.spark import errors

Line = dict[str, Any]
# The worst first: data known to be wrong rank before a pipeline that could not be read.
EXIT_STATUSES = (3, 2, 1, 75)


def lines_of(
    names: Iterable[str], read: Callable[[str], Iterable[Line]], *, named: str | None = None
) -> list[Line]:
    """Return the lines of each pipeline, or of the `named` one.

    A pipeline that cannot be read, whatever the error, gets a line that says why; for the `named` one the
    error is raised.
    """
    lines: list[Line] = []
    for name in names:
        if named not in (None, name):
            continue
        try:
            lines += read(name)
        except Exception as error:
            if named or errors.was_interrupted(error):
                raise
            told = errors.tell(error, log_folder(), f"tagmill {name}")
            verdict = unknown(told.line)
            lines.append(
                {
                    "pipeline": name,
                    "verdict": verdict.word,
                    "level": verdict.level.label,
                    "exit_status": told.exit_code,
                }
            )
    return lines


def level_of(line: Mapping[str, Any]) -> Level:
    """Return the level of a line's verdict."""
    return Level[line["level"].upper()]


def end(lines: Iterable[Line], *, worst: Level) -> None:
    """Exit with the worst status among lines worse than `worst`: 3 for data, the error's own for a pipeline
    that cannot be read.
    """
    statuses = {line.get("exit_status", 3) for line in lines if level_of(line) > worst}
    for exit_status in EXIT_STATUSES:
        if exit_status in statuses:
            raise typer.Exit(exit_status)
