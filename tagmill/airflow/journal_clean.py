"""DAG `journal_clean_<pipeline>`: one task, plain Python, never scheduled; its params are what `tagmill
journal clean` takes as options.
"""

import logging
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Context, Param, get_current_context, task

from tagmill.airflow import connections
from tagmill.airflow.factory import LONG, MOMENT, dry_run_param, new_dag
from tagmill.airflow.failures import small, told_to_airflow
from tagmill.airflow.inputs import ids_of, ids_params, names_none
from tagmill.airflow.steps import owner
from tagmill.config.settings import Settings
from tagmill.domain.identifiers import QUOTED, quoted

if TYPE_CHECKING:
    from tagmill.maintenance.journal_cleanup.model import Wanted

log = logging.getLogger(__name__)
NONE_NAMED = (
    "no persistence id is named, so nothing would be deleted: fill in persistence_ids, or "
    "persistence_ids_file"
)


def journal_clean_dag(settings: Settings, pipeline: str) -> DAG:
    """Return the DAG `journal_clean_<pipeline>`."""
    dag = new_dag(
        "journal_clean",
        pipeline,
        description="deletes events and snapshots of persistence ids of "
        f"{settings.pipeline(pipeline).keyspace} that a person names",
        doc=clean.__doc__,
        schedule=None,
        params=_params(),
    )
    with dag:

        @task(execution_timeout=LONG)
        def journal_clean() -> dict[str, Any]:
            return clean(pipeline, get_current_context())

        journal_clean()
    return dag


def clean(pipeline: str, context: Context) -> dict[str, Any]:
    """Delete events, or snapshots, of the persistence ids that the params name, as the plugin's Cleanup does.

    Unless the param `dry_run` is switched off, it only says what would go. A persistence id with undelivered
    events is left as it is: the task cleans the others and fails. Out: persistence_ids, events, view_rows,
    snapshots, refused, unknown, message.
    """
    from tagmill.maintenance.journal_cleanup import clean as library

    params = context["params"]
    if params["dry_run"] and names_none(params):
        log.info(NONE_NAMED)
        return {"persistence_ids": 0, "message": NONE_NAMED}
    with told_to_airflow():
        settings = connections.load_settings()
        done = library.clean(
            settings,
            pipeline,
            ids_of(params, settings.airflow),
            wanted_of(params),
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


def wanted_of(params: Mapping[str, Any]) -> "Wanted":
    """Return the options that the params give; raises ConfigurationError for those that don't go together."""
    from tagmill.maintenance.journal_cleanup.model import Wanted, What

    newer = params["keep_newer_than"]
    return Wanted(
        What(params["delete"]),
        params["to"],
        params["keep"],
        datetime.fromisoformat(newer) if newer else None,
        params["never_again"],
        params["views"],
        params["force_undelivered"],
        params["force_unread"],
    )


def _params() -> dict[str, Param]:
    what = {
        "to": "events up to a sequence_nr",
        "before_snapshot": "events and snapshots before the oldest snapshot that is kept",
        "snapshots": "old snapshots only",
        "all": "all events and snapshots: their actors must not be running",
    }
    return {
        **ids_params(),
        "delete": Param(
            "to",
            title="What",
            type="string",
            enum=list(what),
            values_display=what,
            description="what is deleted of each of them",
        ),
        "to": Param(
            None,
            title="Up to sequence_nr",
            type=["null", "integer"],
            minimum=1,
            description="required for: events up to a sequence_nr",
        ),
        "keep": Param(
            1, title="Keep snapshots", type="integer", minimum=1, description="so many of each stay at least"
        ),
        "keep_newer_than": Param(
            None,
            title="Keep newer snapshots",
            type=["null", "string"],
            format="date-time",
            pattern=MOMENT,
            description="than this moment, too",
        ),
        "never_again": _switch("Never again", "with all: their names go, too, and must never be used again"),
        "views": _switch("Rows of tag_views", "of the events that go"),
        "force_undelivered": _switch(
            "Force: undelivered", "delete events that a pipeline has not delivered, too"
        ),
        "force_unread": _switch(
            "Force: unread", "delete rows of tag_views that runs or other readers may still read, too"
        ),
        "dry_run": dry_run_param("only say what would go; switch it off to delete"),
    }


def _switch(title: str, description: str) -> Param:
    return Param(False, title=title, type="boolean", description=description)
