"""Operation `erase` of a DAG `maintenance_<pipeline>`, plain Python; its params are what `tagmill erase` takes
as options.
"""

import logging
from collections.abc import Mapping
from typing import Any

from airflow.sdk import Context

from tagmill.airflow import connections
from tagmill.airflow.failures import small, told_to_airflow
from tagmill.airflow.inputs import ids_of
from tagmill.airflow.steps import owner

log = logging.getLogger(__name__)


def erase(pipeline: str, params: Mapping[str, Any], context: Context) -> dict[str, Any]:
    """Erase the persistence ids that the params name: journal, snapshots, views, sealed files, ClickHouse,
    ledger. For good.

    Unless the param `dry_run` is switched off, it only counts them. Airflow keeps the params of a run: name a
    file rather than the ids, or delete the run afterwards. Out: persistence_ids, unknown, erased_before,
    erasures, message.
    """
    from tagmill.maintenance.erasure import erase as library

    with told_to_airflow():
        settings = connections.load_settings()
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
