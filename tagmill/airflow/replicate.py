"""DAG `replicate_<pipeline>`: replicates the topics of a Kafka Journal to its tables in Cassandra.
docs/kafka-journal.md has the rules.

It may be triggered by hand at any time; if nothing is new, Spark does not start.
"""

from pathlib import Path

from airflow.sdk import DAG, Param, task

from tagmill.airflow import connections
from tagmill.airflow.compat import AirflowSkipException
from tagmill.airflow.factory import LONG, SHORT, SPARK_POOL, new_dag
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

        look() >> ReplicateOperator(
            task_id="replicate",
            pipeline=pipeline,
            application=str(jobs / "replicate.py"),
            conn_id=settings.spark.airflow_connection,
            pool=SPARK_POOL,
            execution_timeout=LONG,
        )
    return dag


def look_for_records(pipeline: str) -> None:
    """Skip the tasks that follow if no record waits to be replicated, so that no JVM starts."""
    from tagmill.kafka_journal.replicate import pending

    with told_to_airflow():
        if pending(connections.load_settings(), pipeline):
            return
    raise AirflowSkipException("nothing is new")
