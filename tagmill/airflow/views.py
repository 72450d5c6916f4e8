"""DAGs `views_rebuild_<pipeline>`, `views_delete_`, `views_truncate_`, `views_pids_`, `views_migrate_` and
`views_tags_`: by hand.

None has a schedule, and each only says what it would change unless the param `dry_run` is switched off;
`views_tags_` changes nothing. docs/rebuild.md and docs/migrate.md have what they do.
"""

import logging
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Context, Param, get_current_context, task

from tagmill.airflow import connections
from tagmill.airflow.factory import LONG, SPARK_POOL, dry_run_param, new_dag
from tagmill.airflow.failures import told_to_airflow
from tagmill.airflow.operators import ViewsOperator
from tagmill.config.settings import Settings
from tagmill.domain.identifiers import quoted

log = logging.getLogger(__name__)
RETURNED = 100
DRY_RUN = dry_run_param("only count and show what would change; switch it off to change it")
STOPPED = "the application, or whoever else numbers, is stopped"
OFFLINE = Param(
    False,
    title="Offline",
    type="boolean",
    description=f"all persistence ids: {STOPPED}; else name persistence ids",
)
# A key of the application's tables: not empty, and without the character NUL.
TEXT = {"type": "string", "minLength": 1, "pattern": "^[^\\u0000]*$"}
# The type allows null because the form sends null for a list that was emptied.
TEXTS: dict[str, Any] = {"type": ["array", "null"], "items": TEXT, "uniqueItems": True, "maxItems": 1000}
CHOICE = {
    "persistence_ids": Param(
        [],
        title="Persistence ids",
        description="only these, which nobody may write to; or all, offline",
        **TEXTS,
    ),
    "offline": OFFLINE,
    "tags": Param([], title="Tags", description="only rows of these tags; empty: all", **TEXTS),
}
# The values of tagmill.views.model.Step, which is not loaded when DAG files are parsed.
STEPS = ["tables", "tags-column", "columns", "pids", "tags"]
MIGRATION = {
    "steps": Param(
        [], title="Steps", description="only these; empty: all, but tags only with persistence ids or offline",
        **{**TEXTS, "items": {"type": "string", "enum": STEPS}}, examples=STEPS,
    ),
    "persistence_ids": CHOICE["persistence_ids"],
    "offline": OFFLINE,
    "snapshot_keyspace": Param(
        None, title="Snapshots", type=["null", "string"], pattern="^[A-Za-z0-9_]*$",
        description="the snapshot store's keyspace; empty: as the journal's",
    ),
    "drop_old": Param(
        False, title="Drop what is old", type="boolean",
        description="afterwards drop the views eventsbytag and the columns tag1 to tag3 and message: there is no way back",
    ),
}  # fmt: skip
TRUNCATE_OFFLINE = Param(
    False, title="Offline", type="boolean", description=f"{STOPPED}; required to truncate"
)
# Each operation's description and its params.
OPERATIONS: dict[str, tuple[str, dict[str, Param]]] = {
    "rebuild": ("makes {0}.tag_views what the journal says, as the plugin would number it", CHOICE),
    "delete": ("deletes rows of {0}.tag_views, and their progress, that a rebuild can bring back", CHOICE),
    "truncate": (
        "empties tag_views, tag_write_progress and tag_scanning of {0}",
        {"offline": TRUNCATE_OFFLINE},
    ),
    "pids": ("adds to {0}.all_persistence_ids those that have events and are not listed", {}),
    "migrate": (
        "brings {0}, written by an older plugin, to today's tables, columns and tag views",
        MIGRATION,
    ),
}


def views_dags(settings: Settings, pipeline: str, jobs: Path) -> Iterator[DAG]:
    """Yield the DAGs `views_<operation>_<pipeline>` of one pipeline; `jobs` is the folder of the Spark job
    scripts.
    """
    keyspace = settings.pipeline(pipeline).keyspace
    for operation, (description, params) in OPERATIONS.items():
        with new_dag(
            f"views_{operation}",
            pipeline,
            description=description.format(keyspace),
            doc=__doc__,
            schedule=None,
            params=deepcopy(
                {**params, "dry_run": DRY_RUN}
            ),  # a Param keeps the value of the run that it serves
        ) as dag:
            ViewsOperator(
                task_id=operation,
                operation=operation,
                pipeline=pipeline,
                application=str(jobs / "views.py"),
                conn_id=settings.spark.airflow_connection,
                pool=SPARK_POOL,
                execution_timeout=LONG,
            )
        yield dag
    yield _tags_dag(keyspace, pipeline)


def _tags_dag(keyspace: str, pipeline: str) -> DAG:
    dag = new_dag(
        "views_tags",
        pipeline,
        description=f"lists the tags of {keyspace}",
        doc=listed.__doc__,
        schedule=None,
        params={
            "persistence_id": Param(
                None,
                title="Persistence id",
                type=["null", "string"],
                minLength=1,
                description="those of this one, with its numbers",
            )
        },
    )
    with dag:

        @task(execution_timeout=LONG)
        def tags() -> dict[str, Any]:
            return listed(pipeline, get_current_context())

        tags()
    return dag


def listed(pipeline: str, context: Context) -> dict[str, Any]:
    """List the tags that the view has rows of; for a persistence id, those that it was numbered for.

    The task's log has all of them.

    Out: tags (the first hundred lines), message.
    """
    from tagmill.views.tags import tags

    one = context["params"]["persistence_id"]
    with told_to_airflow():
        lines = tags(connections.load_settings(), pipeline, one)
    for line in lines:
        log.info("%s", ", ".join(f"{name} {value}" for name, value in line.items()))
    message = f"{len(lines)} tags" + (f" of {quoted([one])}" if one else "")
    log.info("%s", message)
    return {
        "tags": [{name: str(value) for name, value in line.items()} for line in lines[:RETURNED]],
        "message": message,
    }
