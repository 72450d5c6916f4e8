"""Deliver several pipelines in one Spark session: its start costs more than the delivery of some thousand rows.

Each pipeline has its own lease, runs and failure: one that fails leaves the others alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tagmill.config.settings import Settings
from tagmill.delivery.draining import Result
from tagmill.delivery.tag_views import steps
from tagmill.delivery.tag_views.deliver import deliver as deliver_views
from tagmill.delivery.topics import steps as topic_steps
from tagmill.delivery.topics.deliver import deliver as deliver_topic
from tagmill.errors import TransientError
from tagmill.runs import trace_log
from tagmill.runs.progress import Tell
from tagmill.spark import errors
from tagmill.views.build import build, check

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Pipelines whose failure may pass are tried so often, behind the others.
TRIES = 2


@dataclass(frozen=True, slots=True)
class Delivered:
    """Outcome of one pipeline's delivery.

    `rows` and `batches` are those that its `runs` delivered, `run` is the number of the last one. Of a failure,
    `error` is the line for a person, `error_type` its class, `exit_code` as in tagmill.errors.
    """

    pipeline: str
    runs: int = 0
    run: int | None = None
    batches: int = 0
    rows: int = 0
    held: int = 0
    seconds: float = 0.0
    error: str | None = None
    error_type: str | None = None
    exit_code: int = 0
    docs: str | None = None

    @property
    def message(self) -> str:
        """Return what was done, in one line."""
        if self.error:
            return f"pipeline {self.pipeline}: {self.error}"
        if not self.runs:
            return f"pipeline {self.pipeline}: nothing to do"
        return f"pipeline {self.pipeline}: {self.runs} runs, {self.rows} rows, {self.held} held"

    def as_json(self) -> dict[str, Any]:
        """Return the outcome as a document of figures and texts."""
        return {**asdict(self), "message": self.message}


def deliver_together(
    settings: Settings,
    pipelines: Sequence[str],
    *,
    owner: str,
    spark: Callable[[], SparkSession],
    tell: Tell,
) -> list[Delivered]:
    """Deliver all that is new of each pipeline, and return the outcomes in the order of `pipelines`.

    Args:
        settings: the configuration.
        pipelines: of any kind that delivers; one with views = "tagmill" has its view built first.
        owner: the name for the leases.
        spark: returns the session; called only if a pipeline has something to read.
        tell: is called with a text for each phase.

    Raises KeyboardInterrupt, and SparkEnded if the session has ended; what was delivered stays.
    """
    outcomes = dict[str, Delivered]()
    for _ in range(TRIES):
        for name in pipelines:
            if name in outcomes and outcomes[name].exit_code != TransientError.exit_code:
                continue
            said = partial(_told_of, tell, name)
            outcome = _outcome(settings, name, partial(_deliver, settings, name, owner, spark, said))
            assert outcome is not None
            outcomes[name] = outcome
    return list(outcomes.values())


def plan_together(settings: Settings, pipelines: Sequence[str], *, owner: str) -> dict[str, Delivered | None]:
    """Plan each pipeline's next run, without Spark; return None for those with something to do, for the others
    the outcome: nothing to do, or the failure.

    A pipeline whose view is built has always something to do: what is new is known only behind the build.
    """
    return {name: _outcome(settings, name, partial(_plan, settings, name, owner)) for name in pipelines}


def exit_code(outcomes: Sequence[Delivered]) -> int:
    """Return 0 if all pipelines were delivered, else that of the first failure, of those that need a person first."""
    codes = [outcome.exit_code for outcome in outcomes if outcome.exit_code]
    return next((code for code in codes if code != TransientError.exit_code), codes[0] if codes else 0)


def _outcome(settings: Settings, pipeline: str, work: Callable[[], list[Result] | None]) -> Delivered | None:
    """Return what `work` did, from the runs that it returns; None if it returns None."""
    begun = time.monotonic()
    try:
        runs = work()
    except Exception as error:
        if errors.was_interrupted(error):
            raise KeyboardInterrupt from None
        if ended := errors.ended():
            raise ended from error
        told = errors.tell(error, trace_log.folder_of(settings.storage.root), f"deliver {pipeline}")
        return Delivered(
            pipeline,
            seconds=round(time.monotonic() - begun, 1),
            error=told.line,
            error_type=type(told).__name__,
            exit_code=told.exit_code,
            docs=getattr(told, "docs_page", None),
        )
    if runs is None:
        return None
    return Delivered(
        pipeline,
        runs=len(runs),
        run=runs[-1]["run"] if runs else None,
        batches=sum(run["batches"] for run in runs),
        rows=sum(run["rows"] for run in runs),
        held=runs[-1].get("held", 0) if runs else 0,
        seconds=round(time.monotonic() - begun, 1),
    )


def _told_of(tell: Tell, pipeline: str, text: str) -> None:
    tell(f"{pipeline}: {text}")


def _plan(settings: Settings, pipeline: str, owner: str) -> list[Result] | None:
    if pipeline in settings.streams:
        planned = topic_steps.plan(settings, pipeline, owner=owner)
    elif settings.pipeline(pipeline).views == "tagmill":
        check(settings, pipeline)
        return None
    else:
        planned = steps.plan(settings, pipeline, owner=owner)
    return [] if planned["run"] is None else None


def _deliver(
    settings: Settings, pipeline: str, owner: str, spark: Callable[[], SparkSession], tell: Tell
) -> list[Result]:
    if pipeline in settings.streams:
        return deliver_topic(settings, pipeline, owner=owner, spark=spark, tell=tell)
    if settings.pipeline(pipeline).views == "tagmill":
        check(settings, pipeline)
        tell("building the view")
        build(settings, pipeline, owner=owner, spark=spark, tell=tell)
    return deliver_views(settings, pipeline, owner=owner, spark=spark, tell=tell)
