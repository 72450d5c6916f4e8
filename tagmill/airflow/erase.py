"""DAG `erase_<pipeline>`: one task, plain Python, never scheduled; its params are what `tagmill erase` takes
as options.
"""

import logging
from typing import Any

from airflow.sdk import DAG, Context, Param, get_current_context, task

from tagmill.airflow import connections
from tagmill.airflow.factory import LONG, dry_run_param, new_dag
from tagmill.airflow.failures import small, told_to_airflow
from tagmill.airflow.inputs import ids_of, ids_params
from tagmill.airflow.steps import owner
from tagmill.config.settings import Settings

log = logging.getLogger(__name__)


def erase_dag(settings: Settings, pipeline: str) -> DAG:
    """Return the DAG `erase_<pipeline>`."""
    dag = new_dag(
        "erase",
        pipeline,
        description=f"erases persistence ids of {settings.pipeline(pipeline).keyspace} that a person "
        "names, wherever they went",
        doc=erase.__doc__,
        schedule=None,
        params=_params(),
    )
    with dag:

        @task(task_id="erase", execution_timeout=LONG)
        def erase_ids() -> dict[str, Any]:
            return erase(pipeline, get_current_context())

        erase_ids()
    return dag


def erase(pipeline: str, context: Context) -> dict[str, Any]:
    """Erase the persistence ids that the params name: journal, snapshots, views, sealed files, ClickHouse,
    ledger. For good.

    Unless the param `dry_run` is switched off, it only counts them. Airflow keeps the params of a run: name a
    file rather than the ids, or delete the run afterwards. Out: persistence_ids, unknown, erased_before,
    erasures, message.
    """
    from tagmill.errors import ConfigurationError
    from tagmill.maintenance.erasure import erase as library

    params = context["params"]
    with told_to_airflow():
        settings = connections.load_settings()
        if not params["dry_run"] and not (params["why"] or "").strip():
            raise ConfigurationError("param why is empty. Nothing was erased; say why, it is recorded")
        done = library.erase(
            settings,
            pipeline,
            ids_of(params, settings.airflow),
            owner=owner(context),
            who=f"DAG run {context['dag_run'].run_id}",
            why=params["why"] or "",
            delete=not params["dry_run"],
            tell=log.info,
        )
    for warning in done["warnings"]:
        log.warning("%s", warning)
    log.info("%s", done["message"])
    return small(done)


def _params() -> dict[str, Param]:
    return {
        **ids_params(),
        "why": Param(
            None,
            title="Why",
            type=["null", "string"],
            description="is recorded; don't name the persistence id",
        ),
        "dry_run": dry_run_param("only count what would go; switch it off to erase"),
    }
