"""Deliver a topic or a Kafka Journal run by run, until nothing is new."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tagmill.config.settings import Settings
from tagmill.delivery.draining import Result, drain
from tagmill.delivery.topics import steps
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
    accept_lost: bool = False,
    recreated: bool = False,
    letters: bool = False,
    max_runs: int = 1000,
) -> list[Result]:
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
    return drain(
        settings,
        pipeline,
        steps,
        plan=lambda: steps.plan(
            settings, pipeline, owner=owner, accept_lost=accept_lost, recreated=recreated, letters=letters
        ),
        # A sealed run may still have ids to note, which sealing it again does.
        reading=lambda planned: f"reading {planned['records'] or ''} records",
        is_last=lambda planned: letters and planned["planned_now"],
        owner=owner,
        spark=spark,
        tell=tell,
        max_runs=max_runs,
    )
