"""Deliver several pipelines in one Spark session: its start costs more than the delivery of some thousand rows.

Each pipeline has its own lease, runs and failure: one that fails leaves the others alone.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
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

# Times that a pipeline is tried whose failure may pass: again in the next round.
TRIES = 2
# Runs of one pipeline at most.
MOST_RUNS = 1000


@dataclass(frozen=True, slots=True)
class Delivered:
    """Outcome of one pipeline's delivery.

    `rows` and `batches` are those that its `runs` delivered, `run` is the number of the last one. With `more`
    its last plan left something, or its turn did not come before the time was over. Of a failure, `error` is the
    line for a person, `error_type` its class, `exit_code` as in tagmill.errors.
    """

    pipeline: str
    runs: int = 0
    run: int | None = None
    batches: int = 0
    rows: int = 0
    held: int = 0
    seconds: float = 0.0
    more: bool = False
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
            left = "its turn did not come before the time was over" if self.more else "nothing to do"
            return f"pipeline {self.pipeline}: {left}"
        left = "; more is left" if self.more else ""
        return f"pipeline {self.pipeline}: {self.runs} runs, {self.rows} rows, {self.held} held{left}"

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
    seconds: float | None = None,
) -> list[Delivered]:
    """Deliver all that is new of each pipeline, and return the outcomes in the order of `pipelines`.

    Each round has one run of each pipeline, so that the backlog of one keeps no other waiting. A pipeline takes part
    in the next one if its plan left more; what has come meanwhile is left to the next delivery.

    Args:
        settings: the configuration.
        pipelines: of any kind that delivers; one with views = "tagmill" has its view built first.
        owner: the name for the leases.
        spark: returns the session; called only if a pipeline has something to read.
        tell: is called with a text for each phase.
        seconds: no run begins after them; None: whenever.

    Raises KeyboardInterrupt, and SparkEnded if the session has ended; what was delivered stays.
    """
    begun = time.monotonic()
    outcomes = {name: Delivered(name) for name in pipelines}
    built, failures, waiting = set[str](), Counter[str](), list(pipelines)
    while waiting:
        again = list[str]()
        for name in waiting:
            if seconds is not None and time.monotonic() - begun >= seconds:
                outcomes[name] = replace(outcomes[name], more=True)
                continue
            said = partial(_told_of, tell, name)
            turn = _outcome(settings, name, partial(_deliver, settings, name, owner, spark, said, built))
            assert turn is not None
            outcomes[name] = _together(outcomes[name], turn)
            failures[name] = failures[name] + 1 if turn.error else 0
            may_pass = turn.exit_code == TransientError.exit_code and failures[name] < TRIES
            if may_pass or (turn.more and outcomes[name].runs < MOST_RUNS):
                again.append(name)
        waiting = again
    return list(outcomes.values())


def plan_together(
    settings: Settings, pipelines: Sequence[str], *, owner: str, seconds: float | None = None
) -> dict[str, Delivered | None]:
    """Plan each pipeline's next run, without Spark; return None for those with something to do, for the others
    the outcome: nothing to do, or the failure.

    A pipeline whose view is built has always something to do: what is new is known only behind the build. After
    `seconds`, each pipeline that is left counts as one with something to do.
    """
    begun, outcomes = time.monotonic(), dict[str, Delivered | None]()
    for name in pipelines:
        is_late = seconds is not None and time.monotonic() - begun >= seconds
        outcomes[name] = None if is_late else _outcome(settings, name, partial(_plan, settings, name, owner))
    return outcomes


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
        more=bool(runs and runs[-1]["more"]),
        seconds=round(time.monotonic() - begun, 1),
    )


def _together(before: Delivered, turn: Delivered) -> Delivered:
    """Return the outcome of a pipeline's turns: those before, and one more."""
    return replace(
        turn,
        runs=before.runs + turn.runs,
        run=turn.run if turn.runs else before.run,
        batches=before.batches + turn.batches,
        rows=before.rows + turn.rows,
        held=turn.held if turn.runs else before.held,
        seconds=round(before.seconds + turn.seconds, 1),
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
    settings: Settings,
    pipeline: str,
    owner: str,
    spark: Callable[[], SparkSession],
    tell: Tell,
    built: set[str],
) -> list[Result]:
    """Deliver one run of a pipeline; its view is built before the first one, and its name added to `built`."""
    if pipeline in settings.streams:
        return deliver_topic(settings, pipeline, owner=owner, spark=spark, tell=tell, max_runs=1)
    if settings.pipeline(pipeline).views == "tagmill" and pipeline not in built:
        check(settings, pipeline)
        tell("building the view")
        build(settings, pipeline, owner=owner, spark=spark, tell=tell)
        built.add(pipeline)
    return deliver_views(settings, pipeline, owner=owner, spark=spark, tell=tell, max_runs=1)
