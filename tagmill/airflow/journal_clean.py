"""Operation `journal clean` of a DAG `maintenance_<pipeline>`, plain Python; its params are what `tagmill
journal clean` takes as options.
"""

import logging
from collections.abc import Mapping
from typing import Any

from airflow.sdk import Context

from tagmill.airflow import connections
from tagmill.airflow.failures import small, told_to_airflow
from tagmill.airflow.inputs import ids_of
from tagmill.airflow.steps import owner
from tagmill.domain.identifiers import QUOTED, quoted
from tagmill.operations.deletion import CleanParameters

log = logging.getLogger(__name__)


def clean(pipeline: str, params: Mapping[str, Any], context: Context) -> dict[str, Any]:
    """Delete events, or snapshots, of the persistence ids that the params name, as the plugin's Cleanup does.

    Unless the param `dry_run` is switched off, it only says what would go. A persistence id with undelivered
    events is left as it is: the task cleans the others and fails. Out: persistence_ids, events, view_rows,
    snapshots, refused, unknown, message.
    """
    from tagmill.maintenance.journal_cleanup import clean as library

    with told_to_airflow():
        settings = connections.load_settings()
        given = {name: params[name] for name in CleanParameters.model_fields}
        done = library.clean(
            settings,
            pipeline,
            ids_of(params, settings.airflow),
            CleanParameters.of(given).wanted(),
            owner=owner(context),
            delete=not params["dry_run"],
            tell=log.info,
        )
        for line in done["refusals"][:QUOTED]:
            log.info("refused: %(text)s", line)
        if done["unknown"]:
            log.info("not in the journal: %s", quoted(done["unknown_ids"], done["unknown"]))
        for warning in done["warnings"]:
            log.warning("%s", warning)
        log.info("%s", done["message"])
        library.raise_if_refused(done)
    return small(done)
