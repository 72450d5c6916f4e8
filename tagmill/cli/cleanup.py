"""`tagmill cleanup`: deletes what is proven delivered and past its time; shows it first, and asks."""

import json
import sys
from typing import Any

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
    from tagmill.ledger.lease import this_process
    from tagmill.maintenance.view_cleanup.clean import clean

    def work(look: bool) -> dict[str, Any]:
        with telling(pipeline, "cleanup") as tell:
            return clean(settings(), pipeline, owner=this_process(), delete=not look, tell=tell)

    only_look = dry_run or not yes and (as_json or not sys.stdin.isatty())
    done = show_and_ask("Delete it?", work, _show, dry_run=only_look, yes=yes)
    print(json.dumps(done, default=str)) if as_json else _show(done)


def _show(done: dict[str, Any]) -> None:
    if done["partitions"]:
        title = f"Partitions that {'would be' if done['dry_run'] else 'were'} deleted:"
        show(done["partitions"], ("tag", "begins", "timebucket", "rows"), as_json=False, title=title)
    if done["refused"]:
        show(
            done["refused"],
            ("tag", "reason", "buckets", "oldest", "newest", "text"),
            as_json=False,
            title="Partitions that stay:",
        )
    for warning in done["warnings"]:
        out.print(f"warning: {warning}")
    out.print(done["message"])
    if done["more"]:
        out.print("there is more: the next cleanup goes on")
