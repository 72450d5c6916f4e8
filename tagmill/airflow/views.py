"""Operation `views tags` of a DAG `maintenance_<pipeline>`, plain Python: it only reads."""

import logging
from collections.abc import Mapping
from typing import Any

from airflow.sdk import Context

from tagmill.airflow import connections
from tagmill.airflow.failures import told_to_airflow
from tagmill.domain.identifiers import quoted

log = logging.getLogger(__name__)
RETURNED = 100


def list_tags(pipeline: str, params: Mapping[str, Any], context: Context) -> dict[str, Any]:
    """List the tags that the view has rows of; for named persistence ids, those that they were numbered for.

    The task's log has all of them.

    Out: tags (the first hundred lines), message.
    """
    from tagmill.views.tags import tags

    ids = params["persistence_ids"] or []
    with told_to_airflow():
        settings = connections.load_settings()
        lines = [
            line for persistence_id in ids or [None] for line in tags(settings, pipeline, persistence_id)
        ]
    for line in lines:
        log.info("%s", ", ".join(f"{name} {value}" for name, value in line.items()))
    message = f"{len(lines)} tags" + (f" of {quoted(ids)}" if ids else "")
    log.info("%s", message)
    return {
        "tags": [{name: str(value) for name, value in line.items()} for line in lines[:RETURNED]],
        "message": message,
    }
