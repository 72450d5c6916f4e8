"""`tagmill views rebucket`: move a view to another bucket size."""

import json
import sys
import time
from typing import Annotated, Any

import typer

from tagmill.cli.shared import (
    AsJson,
    DryRun,
    Pipeline,
    Yes,
    one_line_errors,
    out,
    settings,
    show,
    show_and_ask,
    telling,
)
from tagmill.domain.time_buckets import BucketSize
from tagmill.views.rebucket.advice import Prefix, of_another_prefix

REBUCKETED = (
    "tag", "rows", "rows_in_target", "partitions_before", "partitions", "largest_rows", "largest_bytes", "misplaced", "checksum",
    "checksum_in_target", "verdict",
)  # fmt: skip


@one_line_errors
def rebucket(
    pipeline: Pipeline,
    to: Annotated[BucketSize, typer.Option("--to", help="Bucket size that the view is to have.")],
    table: Annotated[
        str | None,
        typer.Option(
            "--table", help="Name of the new table; default: tag_views_ and the size, in lower case."
        ),
    ] = None,
    offline: Annotated[
        bool,
        typer.Option(
            "--offline", help="The application is stopped: copy what came since, verify, and switch."
        ),
    ] = False,
    drop_old: Annotated[
        bool,
        typer.Option(
            "--drop-old", help="After the switch: drop the old table, if the new one has every row of it."
        ),
    ] = False,
    abandon: Annotated[
        bool, typer.Option("--abandon", help="Give it up before the switch: drop the new table.")
    ] = False,
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
    from tagmill.ledger.lease import this_process
    from tagmill.spark.session import session_when_asked
    from tagmill.views.rebucket import rebucket as library

    if offline + drop_old + abandon > 1:
        raise typer.BadParameter(
            "--offline, --drop-old and --abandon are steps of their own: give one of them"
        )
    configured = settings()
    if not abandon:
        library.check(configured, pipeline, to, table)
    with session_when_asked(configured, f"tagmill rebucket {pipeline}") as spark:

        def work(dry_run: bool) -> dict[str, Any]:
            begun = time.monotonic()
            if abandon:
                done = library.abandon(configured, pipeline, owner=this_process(), dry_run=dry_run)
            else:
                with telling(pipeline, "starting Spark") as tell:
                    done = library.rebucket(
                        configured,
                        pipeline,
                        to=to,
                        owner=this_process(),
                        spark=spark(),
                        table=table,
                        offline=offline,
                        drop_old=drop_old,
                        dry_run=dry_run,
                        tell=tell,
                    )
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
        out.print(f"warning: {warning}", markup=False)
    for row in done.get("removed", []):
        out.print(f"removed from the new table, the old one has it no longer: {row}", markup=False)
    out.print(done["message"], markup=False)
    for line in done["lines"]:
        out.print(line, markup=False)
