"""Bring the DAGs of a pipeline into line with `[airflow]` and `[pipelines.NAME.airflow]`.

The factories make DAGs with the defaults, so that only this module knows of those settings.
"""

import warnings
from collections.abc import Sequence
from datetime import timedelta

from airflow.sdk import DAG

from tagmill.airflow.callbacks import Called, NotInstalled, deadline_missed, imported, made
from tagmill.airflow.compat import AsyncCallback, DeadlineAlert, DeadlineReference
from tagmill.airflow.factory import CLICKHOUSE_POOL, LONG, RETRIES, SPARK_POOL
from tagmill.config.airflow import Callback, DagSettings


def customize(dag: DAG, settings: DagSettings) -> None:
    """Set owner, tags, pools, queue, limits and callbacks of a DAG, then let the configured function change it.

    A notifier that is not installed is a warning. Raises ConfigurationError if an import path leads to nothing.
    """
    dag.tags |= set(settings.tags)
    pools = {SPARK_POOL: settings.spark_pool, CLICKHOUSE_POOL: settings.clickhouse_pool}
    callbacks = _callbacks(dag, "on_failure", settings.on_failure)
    for task in dag.tasks:
        task.owner = settings.owner
        task.pool = pools.get(task.pool, task.pool)
        if task.retries == RETRIES["retries"]:  # not a task that must not be tried again
            task.retries = settings.retries
            task.retry_delay = timedelta(seconds=settings.retry_delay_seconds)
        if task.execution_timeout == LONG:
            task.execution_timeout = timedelta(seconds=settings.execution_timeout_seconds)
        if settings.queue is not None:
            task.queue = settings.queue
        if callbacks:
            task.on_failure_callback = callbacks
    if settings.deadline_seconds is not None and dag.schedule is not None:
        dag.deadline = [_deadline(dag, settings.deadline_seconds, settings.on_deadline)]
    if settings.customize:
        imported("customize", settings.customize)(dag)


def _deadline(dag: DAG, seconds: float, callbacks: Sequence[Callback]) -> DeadlineAlert:
    """Return the alert of a DAG; its callbacks are made here, too, so that a wrong one is an import error.

    It counts from the run's queueing: runs that are triggered without a logical date have no other moment.
    """
    _callbacks(dag, "on_deadline", callbacks)
    configured = [
        callback if isinstance(callback, str) else callback.model_dump(mode="json") for callback in callbacks
    ]
    return DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=timedelta(seconds=seconds),
        callback=AsyncCallback(deadline_missed, {"deadline_seconds": seconds, "callbacks": configured}),
    )


def _callbacks(dag: DAG, key: str, configured: Sequence[Callback]) -> list[Called]:
    """Return the callbacks of a key; of one that is not installed, warn in the import's log and on the DAG's page."""
    callbacks = []
    for callback in configured:
        try:
            callbacks.append(made(key, callback))
        except NotInstalled as error:
            warnings.warn(str(error), stacklevel=2)
            dag.doc_md = f"**Warning:** {error}.\n\n{dag.doc_md or ''}"
    return callbacks
