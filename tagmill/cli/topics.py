"""Plain topics on the command line: what `tagmill run deliver` and `tagmill deadletters replay` do for a
pipeline of kind topic.
"""

import json
from typing import Any

from tagmill.cli.shared import delivering, out, show
from tagmill.config.settings import Settings

COLUMNS = (
    "run",
    "records",
    "rows",
    "known",
    "twice",
    "unreadable",
    "tombstones",
    "nulled",
    "batches",
    "seconds",
)


def deliver(
    configured: Settings,
    pipeline: str,
    *,
    accept_lost: bool = False,
    recreated: bool = False,
    letters: bool = False,
    max_runs: int = 1000,
) -> list[dict[str, Any]]:
    """Deliver run by run until nothing is new; return what each run did.

    With `letters`, an unfinished run is finished, then the dead letters are read once.
    """
    from tagmill.delivery.topics.deliver import deliver as deliver_runs

    with delivering(configured, pipeline, f"tagmill deliver {pipeline}") as by:
        return deliver_runs(
            configured,
            pipeline,
            accept_lost=accept_lost,
            recreated=recreated,
            letters=letters,
            max_runs=max_runs,
            **by,
        )


def shown(pipeline: str, runs: list[dict[str, Any]], *, as_json: bool) -> None:
    """Print what each run did, as a table or as JSON."""
    if as_json:
        print(json.dumps({"pipeline": pipeline, "runs": runs}, default=str))
        return
    for warning in dict.fromkeys(text for run in runs for text in run["warnings"]):
        out.print(f"warning: {warning}")
    if runs:
        show(runs, COLUMNS, as_json=False)
    else:
        out.print(f"pipeline {pipeline}: nothing to do")
