"""`tagmill cleanup`: deletes what is proven delivered and past its time; by default only says what would go."""

import json
from typing import Annotated

import typer

from tagmill.cli.shared import AsJson, Pipeline, one_line_errors, out, settings, show, telling


@one_line_errors
def cleanup(
    pipeline: Pipeline,
    delete: Annotated[bool, typer.Option("--yes/--dry-run", help="Delete it; without --yes only say what would go.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete view partitions that are proven delivered, and files and ledger rows past retention. A dry run unless --yes."""
    from tagmill.cleanup.clean import clean
    from tagmill.stores.lease import this_process

    configured = settings()
    with telling(pipeline, "cleanup") as tell:
        done = clean(configured, pipeline, owner=this_process(), delete=delete, tell=tell)
    if as_json:
        print(json.dumps(done, default=str))
        return
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
