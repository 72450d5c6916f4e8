"""Deliver a pipeline of tag views run by run, until nothing is new."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tagmill.config.settings import Settings
from tagmill.delivery.draining import Result, drain
from tagmill.delivery.tag_views import steps
from tagmill.domain.batches.states import RunState
from tagmill.runs.progress import Tell

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
) -> list[Result]:
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

    def reading(planned: Result) -> str | None:
        sealed = planned["state"] != RunState.PLANNED
        return None if sealed else f"reading and judging {planned['slices'] or ''} slices"

    return drain(
        settings,
        pipeline,
        steps,
        plan=lambda: steps.plan(settings, pipeline, owner=owner, tags=tags, reread=reread),
        reading=reading,
        # A run without slices is an earlier one, which is finished first; the range is read by the run after it.
        is_last=lambda planned: reread is not None and planned["slices"] > 0,
        owner=owner,
        spark=spark,
        tell=tell,
        max_runs=max_runs,
    )
