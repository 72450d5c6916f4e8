"""DAG `cleanup_<pipeline>`: one task, plain Python.

It always exists; it has a schedule where cleanup is enabled.
"""

from typing import Any

from airflow.sdk import DAG, get_current_context, task

from tagmill.airflow import steps
from tagmill.airflow.factory import LONG, dry_run_param, new_dag
from tagmill.config.settings import Settings


def cleanup_dag(settings: Settings, pipeline: str) -> DAG:
    """Return the DAG `cleanup_<pipeline>`."""
    of_kafka = {**settings.streams, **settings.kafka_journals}
    if pipeline in of_kafka:
        what, schedule = "", of_kafka[pipeline].cleanup_schedule
    else:
        configured = settings.pipeline(pipeline)
        what = f"partitions of {configured.keyspace}.{configured.view_table} that are proven delivered, and "
        schedule = configured.cleanup.schedule if configured.cleanup.enabled else None
    dag = new_dag(
        "cleanup",
        pipeline,
        description=f"deletes {what}what is past retention",
        doc=steps.cleanup.__doc__,
        schedule=schedule,
        params={"dry_run": dry_run_param("only say what would be deleted; the schedule's own runs delete")},
    )
    with dag:

        @task(execution_timeout=LONG)
        def cleanup() -> dict[str, Any]:
            return steps.cleanup(pipeline, schedule, get_current_context())

        cleanup()
    return dag
