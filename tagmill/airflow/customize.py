"""Bring the DAGs of a pipeline into line with `[airflow]` and `[pipelines.NAME.airflow]`.

The factories make DAGs with the defaults, so that only this module knows of those settings.
"""

from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from typing import Any

from airflow.sdk import DAG

from tagmill.airflow.factory import CLICKHOUSE_POOL, LONG, RETRIES, SPARK_POOL
from tagmill.config.airflow import DagSettings
from tagmill.errors import ConfigurationError


def customize(dag: DAG, settings: DagSettings) -> None:
    """Set owner, tags, pools, queue, limits and callbacks of a DAG, then let the configured function change it.

    Raises ConfigurationError if an import path leads to nothing.
    """
    dag.tags |= set(settings.tags)
    pools = {SPARK_POOL: settings.spark_pool, CLICKHOUSE_POOL: settings.clickhouse_pool}
    callbacks = [_imported("on_failure", path) for path in settings.on_failure]
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
    if settings.customize:
        _imported("customize", settings.customize)(dag)


def _imported(key: str, path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    try:
        found: Callable[..., Any] = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"airflow.{key}: {path} can't be imported: {error}") from None
    if not callable(found):
        raise ConfigurationError(f"airflow.{key}: {path} is not a function or a notifier")
    return found
