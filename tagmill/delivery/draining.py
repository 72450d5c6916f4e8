"""Deliver one run after the other: the order of the steps, which pipelines of all kinds share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from tagmill.config.settings import Settings
from tagmill.runs.progress import Tell, pushing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Result = dict[str, Any]


class Steps(Protocol):
    """The steps that follow the plan of a run: the module `steps` of a kind of pipeline."""

    def seal(
        self,
        settings: Settings,
        pipeline: str,
        run: int,
        fence: int,
        *,
        owner: str,
        spark: Callable[[], SparkSession],
    ) -> Result:
        """Fix the run's batches."""

    def push(
        self,
        settings: Settings,
        pipeline: str,
        run: int,
        fence: int,
        *,
        owner: str,
        progress: Callable[[int, int], None] | None = None,
    ) -> Result:
        """Bring the batches to ClickHouse."""

    def close(self, settings: Settings, pipeline: str, run: int, fence: int, *, owner: str) -> Result:
        """Write down what is delivered, and give the lease back."""


def drain(
    settings: Settings,
    pipeline: str,
    steps: Steps,
    *,
    plan: Callable[[], Result],
    reading: Callable[[Result], str | None],
    is_last: Callable[[Result], bool],
    owner: str,
    spark: Callable[[], SparkSession],
    tell: Tell,
    max_runs: int,
) -> list[Result]:
    """Deliver run by run until there is none, and return what each run did, its seconds, and whether its plan left
    `more`.

    Args:
        settings: the configuration.
        pipeline: its name.
        steps: of its kind.
        plan: plans the next run or takes over the open one; its `run` is None if there is none.
        reading: says what is read to seal a planned run; None if it is sealed already.
        is_last: whether no run follows a planned one.
        owner: the name for the lease.
        spark: returns the session; called only for a run whose seal needs it.
        tell: is called with a text for each phase.
        max_runs: runs at most.

    Raises the errors of the steps; the runs before are delivered.
    """
    runs, done = list[Result](), False
    while len(runs) < max_runs and not done:
        begun = time.monotonic()
        planned = plan()
        run, fence = planned["run"], planned["fence"]
        if run is None:
            break
        done = is_last(planned)
        if said := reading(planned):
            tell(f"run {run}: {said}")
            steps.seal(settings, pipeline, run, fence, owner=owner, spark=spark)
        steps.push(settings, pipeline, run, fence, owner=owner, progress=pushing(run, tell))
        tell(f"run {run}: writing progress")
        closed = steps.close(settings, pipeline, run, fence, owner=owner)
        runs.append({**closed, "more": planned["more"], "seconds": round(time.monotonic() - begun, 1)})
    return runs
