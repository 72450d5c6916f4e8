"""`tagmill cleanup`: deletes what is proven delivered and past its time; shows it first, and asks."""

import json
import sys
from typing import Any

import typer

from tagmill.cli.shared import AsJson, DryRun, Pipeline, Yes, one_line_errors, out, settings, show, telling


@one_line_errors
def cleanup(
    pipeline: Pipeline,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete view partitions that are proven delivered, and what is past retention.

    That is files and ledger rows. Shows what would go and asks; without a terminal only --yes deletes.
    """
    _clean(pipeline, as_json, delete=yes and not dry_run)
    if not (yes or dry_run or as_json) and sys.stdin.isatty() and typer.confirm("Delete it?"):
        _clean(pipeline, as_json, delete=True)


def _clean(pipeline: str, as_json: bool, *, delete: bool) -> None:
    from tagmill.ledger.lease import this_process
    from tagmill.maintenance.view_cleanup.clean import clean

    with telling(pipeline, "cleanup") as tell:
        done = clean(settings(), pipeline, owner=this_process(), delete=delete, tell=tell)
    if as_json:
        print(json.dumps(done, default=str))
    else:
        _show(done, delete)


def _show(done: dict[str, Any], delete: bool) -> None:
    if done["partitions"]:
        title = "Partitions that were deleted:" if delete else "Partitions that would be deleted:"
        show(done["partitions"], ("tag", "begins", "timebucket", "rows"), as_json=False, title=title)
    if done["refused"]:
        show(
            done["refused"],
            ("tag", "reason", "buckets", "oldest", "newest", "text"),
            as_json=False,
            title="Partitions that stay:",
        )
    for warning in done["warnings"]:
        out.print(f"warning: {warning}", markup=False)
    out.print(done["message"], markup=False)
    if done["more"]:
        out.print("there is more: the next cleanup goes on", markup=False)
