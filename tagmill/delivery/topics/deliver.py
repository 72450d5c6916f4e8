"""Deliver a topic or a Kafka Journal run by run, until nothing is new."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tagmill.config.settings import Settings
from tagmill.delivery.topics import steps
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
    accept_lost: bool = False,
    recreated: bool = False,
    letters: bool = False,
    max_runs: int = 1000,
) -> list[dict[str, Any]]:
    """Finish the open run, deliver all that is new, and return what each run did, with its seconds.

    Args:
        settings: the configuration.
        pipeline: a pipeline of kind topic or kafka_journal_events.
        owner: the name for the lease.
        spark: returns the session; called only for a run that has records to read.
        tell: is called with a text for each phase.
        accept_lost: go on although records are gone from Kafka that were never delivered.
        recreated: read a topic that was created again from its first record.
        letters: read the dead letters, once, instead of what is new.
        max_runs: runs at most.

    Raises the errors of the steps; the runs before are delivered.
    """
    runs, read = list[dict[str, Any]](), False
    while len(runs) < max_runs and not read:
        begun = time.monotonic()
        planned = steps.plan(
            settings, pipeline, owner=owner, accept_lost=accept_lost, recreated=recreated, letters=letters
        )
        run, fence = planned["run"], planned["fence"]
        if run is None:
            break
        read = letters and planned["planned_now"]
        tell(f"run {run}: reading {planned['records'] or ''} records")
        steps.seal(settings, pipeline, run, fence, owner=owner, spark=spark())
        steps.push(settings, pipeline, run, fence, owner=owner, progress=pushing(run, tell))
        closed = steps.close(settings, pipeline, run, fence, owner=owner)
        runs.append({**closed, "seconds": round(time.monotonic() - begun, 1)})
    return runs
