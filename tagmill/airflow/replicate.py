"""DAG `replicate_<pipeline>`: replicates the topics of a Kafka Journal to its tables in Cassandra.
docs/kafka-journal.md has the rules.

It may be triggered by hand at any time; if nothing is new, Spark does not start. The DAG
`purge_expired_<pipeline>` publishes Purge actions for ids that have expired, which the next replication
follows.
"""

from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, task
from airflow.sdk.exceptions import AirflowSkipException

from tagmill.airflow import connections
from tagmill.airflow.factory import DAY, LONG, SHORT, SPARK_POOL, dry_run_param, new_dag
from tagmill.airflow.failures import told_to_airflow
from tagmill.airflow.operators import ReplicateOperator
from tagmill.config.settings import Settings


def replicate_dag(settings: Settings, pipeline: str, jobs: Path) -> DAG:
    """Return the DAG `replicate_<pipeline>`; `jobs` is the folder of the Spark job scripts."""
    configured = settings.kafka_journal(pipeline)
    dag = new_dag(
        "replicate",
        pipeline,
        description=f"topics of Kafka Journal {pipeline} into keyspace {configured.keyspace}",
        doc=__doc__,
        schedule=configured.schedule,
        params={
            "accept_lost": Param(
                False,
                title="Accept lost records",
                type="boolean",
                description="go on although records are gone from Kafka",
            )
        },
    )
    with dag:

        @task(execution_timeout=SHORT)
        def look() -> None:
            look_for_records(pipeline)

        look() >> _operator("replicate", settings, pipeline, jobs, configured.schedule)
    return dag


def purge_expired_dag(settings: Settings, pipeline: str, jobs: Path) -> DAG:
    """Return the DAG `purge_expired_<pipeline>`; `jobs` is the folder of the Spark job scripts."""
    configured = settings.kafka_journal(pipeline)
    dag = new_dag(
        "purge_expired",
        pipeline,
        description=f"Purge actions for ids of {configured.keyspace} that have expired",
        doc=__doc__,
        schedule=configured.purge_schedule,
        params={
            "until": Param(
                None,
                title="Until",
                description="ids that expire on this day or before; empty: today, UTC",
                type=["null", "string"],
                format="date",
                pattern=DAY,
            ),
            "dry_run": dry_run_param("only count and name some; the schedule's own runs publish"),
        },
    )
    with dag:
        _operator("purge_expired", settings, pipeline, jobs, configured.purge_schedule)
    return dag


def look_for_records(pipeline: str) -> None:
    """Skip the tasks that follow if no record waits to be replicated, so that no JVM starts."""
    from tagmill.kafka_journal.replicate import pending

    with told_to_airflow():
        if pending(connections.load_settings(), pipeline):
            return
    raise AirflowSkipException("nothing is new")


def _operator(operation: str, settings: Settings, pipeline: str, jobs: Path, schedule: str | None) -> Any:
    return ReplicateOperator(
        task_id=operation,
        operation=operation,
        pipeline=pipeline,
        unattended=schedule,
        application=str(jobs / "replicate.py"),
        conn_id=settings.spark.airflow_connection,
        pool=SPARK_POOL,
        execution_timeout=LONG,
    )
