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
from tagmill.airflow.operations import fields
from tagmill.airflow.operators import OperationJob
from tagmill.config.settings import Settings
from tagmill.operations.kafka_journal import REPLICATE


def replicate_dag(settings: Settings, pipeline: str, jobs: Path) -> DAG:
    """Return the DAG `replicate_<pipeline>`; `jobs` is the folder of the Spark job scripts."""
    configured = settings.kafka_journal(pipeline)
    lost = next(field for field in fields(REPLICATE) if field.name == "accept_lost")
    dag = new_dag(
        "replicate",
        pipeline,
        description=f"topics of Kafka Journal {pipeline} into keyspace {configured.keyspace}",
        doc=__doc__,
        schedule=configured.schedule,
        params={"accept_lost": Param(False, title=lost.title, description=lost.description, **lost.schema)},
    )
    with dag:

        @task(execution_timeout=SHORT)
        def look() -> None:
            look_for_records(pipeline)

        look() >> OperationJob(
            task_id="replicate",
            pipeline=pipeline,
            operation=REPLICATE,
            jobs=jobs,
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
