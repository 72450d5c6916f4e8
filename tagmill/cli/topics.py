"""Plain topics on the command line: what `tagmill run deliver` and `tagmill deadletters replay` do for a
pipeline of kind topic.
"""

import json
import time
from collections.abc import Callable
from typing import Any

from tagmill.cli.shared import out, show, telling
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
    from tagmill.delivery.topics import steps
    from tagmill.ledger.lease import this_process
    from tagmill.spark.session import session_when_asked

    owner, done, read = this_process(), list[dict[str, Any]](), False
    with (
        telling(pipeline, "planning") as tell,
        session_when_asked(configured, f"tagmill deliver {pipeline}") as spark,
    ):
        while len(done) < max_runs and not read:
            begun = time.monotonic()
            planned = steps.plan(
                configured,
                pipeline,
                owner=owner,
                accept_lost=accept_lost,
                recreated=recreated,
                letters=letters,
            )
            run, fence = planned["run"], planned["fence"]
            if run is None:
                break
            read = letters and planned["planned_now"]
            tell(f"run {run}: reading {planned['records'] or ''} records")
            steps.seal(configured, pipeline, run, fence, owner=owner, spark=spark())
            steps.push(configured, pipeline, run, fence, owner=owner, progress=_pushing(run, tell))
            closed = steps.close(configured, pipeline, run, fence, owner=owner)
            done.append({**closed, "seconds": round(time.monotonic() - begun, 1)})
    return done


def _pushing(run: int, tell: Callable[[str], None]) -> Callable[[int, int], None]:
    return lambda at, of: tell(f"run {run}: pushing {at} of {of}")


def shown(pipeline: str, runs: list[dict[str, Any]], *, as_json: bool) -> None:
    """Print what each run did, as a table or as JSON."""
    if as_json:
        print(json.dumps({"pipeline": pipeline, "runs": runs}, default=str))
        return
    for warning in dict.fromkeys(text for run in runs for text in run["warnings"]):
        out.print(f"warning: {warning}", markup=False)
    if runs:
        show(runs, COLUMNS, as_json=False)
    else:
        out.print(f"pipeline {pipeline}: nothing to do", markup=False)
