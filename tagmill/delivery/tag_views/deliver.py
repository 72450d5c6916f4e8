"""Deliver a pipeline of tag views run by run, until nothing is new."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tagmill.config.settings import Settings
from tagmill.delivery.tag_views import steps
from tagmill.domain.batches.states import RunState
from tagmill.runs.progress import Tell, pushing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def deliver(
    settings: Settings,
    pipeline: str,
    *,
    owner: str,
    spark: Callable[[], SparkSession],
    tell: Tell,
    tags: list[str] | None = None,
    reread: tuple[str, str] | None = None,
    max_runs: int = 1000,
) -> list[dict[str, Any]]:
    """Finish the open run, deliver all that is new, and return what each run did, with its seconds.

    Args:
        settings: the configuration.
        pipeline: a pipeline of kind tag_views.
        owner: the name for the lease.
        spark: returns the session; called only for a run that has rows to read.
        tell: is called with a text for each phase.
        tags: only these; None: all.
        reread: a range to read again, two ISO 8601 texts; it is read by one run.
        max_runs: runs at most.

    Raises the errors of the steps; the runs before are delivered.
    """
    runs = list[dict[str, Any]]()
    read = False
    while len(runs) < max_runs and not read:
        begun = time.monotonic()
        planned = steps.plan(settings, pipeline, owner=owner, tags=tags, reread=reread)
        run, fence = planned["run"], planned["fence"]
        if run is None:
            break
        # A run without slices is an earlier one, which is finished first; the range is read by the run after it.
        read = reread is not None and planned["slices"] > 0
        if planned["state"] == RunState.PLANNED:
            tell(f"run {run}: reading and judging {planned['slices'] or ''} slices")
            steps.seal(settings, pipeline, run, fence, owner=owner, spark=spark())
        steps.push(settings, pipeline, run, fence, owner=owner, progress=pushing(run, tell))
        tell(f"run {run}: writing progress")
        closed = steps.close(settings, pipeline, run, fence, owner=owner)
        runs.append({**closed, "seconds": round(time.monotonic() - begun, 1)})
    return runs
