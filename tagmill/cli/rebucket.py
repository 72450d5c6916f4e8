"""`tagmill views rebucket`: move a view to another bucket size."""

import json
import sys
import time
from typing import Annotated, Any

import typer

from tagmill.cli import operations
from tagmill.cli.shared import AsJson, DryRun, Pipeline, Yes, out, show, show_and_ask
from tagmill.operations.views import REBUCKET, RebucketParameters
from tagmill.views.rebucket.advice import Prefix, of_another_prefix

REBUCKETED = (
    "tag", "rows", "rows_in_target", "partitions_before", "partitions", "largest_rows", "largest_bytes", "misplaced", "checksum",
    "checksum_in_target", "verdict",
)  # fmt: skip


@operations.command
def rebucket(
    pipeline: Pipeline,
    parameters: RebucketParameters,
    prefix: Annotated[
        Prefix | None,
        typer.Option("--prefix", help="Print the application's settings with this prefix only."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Move the view to a table with another bucket size.

    Shows what would change and asks; without a terminal only --yes changes anything. Safe to stop and to
    start again at any moment. For example, copy while the application writes, then switch:

    tagmill views rebucket -p orders --to Day

    tagmill views rebucket -p orders --to Day --offline
    """
    parameters.check(dry_run=dry_run)
    with operations.working(REBUCKET, pipeline, parameters) as doing:

        def work(look: bool) -> dict[str, Any]:
            begun = time.monotonic()
            done = doing(look)
            done["lines"] = [line for line in done["lines"] if not of_another_prefix(line, prefix)]
            return {**done, "seconds": round(time.monotonic() - begun, 1)}

        only_look = dry_run or not (yes or sys.stdin.isatty())
        question = f"Do this to the view of pipeline {pipeline}?"
        done = show_and_ask(question, work, _show, dry_run=only_look, yes=yes, shown=not as_json)
    print(json.dumps(done, default=str)) if as_json else _show(done)


def _show(done: dict[str, Any]) -> None:
    if done["tags"]:
        show(done["tags"], REBUCKETED, as_json=False)
    for warning in done["warnings"]:
        out.print(f"warning: {warning}")
    for row in done.get("removed", []):
        out.print(f"removed from the new table, the old one has it no longer: {row}")
    out.print(done["message"])
    for line in done["lines"]:
        out.print(line)
