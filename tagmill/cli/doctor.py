"""`tagmill doctor`: one line a check, and what to do."""

import json
from typing import Annotated

import typer
from rich.text import Text

from tagmill.cli import shared
from tagmill.cli.shared import AsJson, MaybePipeline, one_line_errors, out
from tagmill.doctor.model import Finding, Level

STYLES = {Level.FINE: "green", Level.WARNING: "yellow", Level.WRONG: "bold red"}
# Width in columns of the checks' names, of which those of a long pipeline's name are wider.
NAME_WIDTH = 30


@one_line_errors
def doctor(
    pipeline: MaybePipeline = None,
    as_json: AsJson = False,
    spark: Annotated[
        bool, typer.Option("--spark/--no-spark", help="Check the executors, too, by a small Spark job.")
    ] = False,
) -> None:
    """Check all that a first run needs, and say what to do.

    One line a check: ✓ is fine, ! is worth a look or could not be checked, ✗ is wrong and has a cure. Nothing
    is changed: a file is written to the storage root and removed again.

    Exit status: 0 if nothing is wrong, 2 otherwise.
    """
    from tagmill.doctor.examination import examine

    findings = []
    for finding in examine(shared.config_file[0], pipeline, spark=spark):
        findings.append(finding)
        if not as_json:
            out.print(_line(finding))
    if as_json:
        print(json.dumps([_row(finding) for finding in findings], ensure_ascii=False))
    if any(finding.level is Level.WRONG for finding in findings):
        raise typer.Exit(2)


def _row(finding: Finding) -> dict[str, str]:
    level = finding.level
    return {"check": finding.check, "level": level.name.lower(), "said": finding.said, "cure": finding.cure}


def _line(finding: Finding) -> Text:
    cure = f" → {finding.cure}" if finding.cure else ""
    mark = (finding.level.value, STYLES[finding.level])
    return Text.assemble(mark, f" {finding.check:<{NAME_WIDTH}} {finding.said}", (cure, "bold"))
