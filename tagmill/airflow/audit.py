"""DAG `audit_<pipeline>`: compare journal, tag views, progress and ClickHouse; it fails when they don't
agree.

It changes nothing, unless the param `repair` is set, and may run while deliveries run. The operation `repair` of
the DAG `maintenance_<pipeline>` asks before it repairs. docs/audit.md has what it finds.
"""

from pathlib import Path

from airflow.sdk import DAG, Param

from tagmill.airflow.factory import LONG, SPARK_POOL, new_dag, tags_param
from tagmill.airflow.operators import AuditOperator
from tagmill.config.settings import Settings


def audit_dag(settings: Settings, pipeline: str, jobs: Path) -> DAG:
    """Return the DAG `audit_<pipeline>`; `jobs` is the folder of the Spark job scripts."""
    configured = settings.pipeline(pipeline)
    dag = new_dag(
        "audit",
        pipeline,
        description=f"{configured.keyspace}: journal, tag views, progress and ClickHouse table "
        f"{configured.destination} agree",
        doc=__doc__,
        schedule=configured.audit_schedule,
        params={
            "tags": tags_param(configured, "audit only these tags of the pipeline"),
            "full": Param(
                False,
                title="Read everything",
                description="read again what an earlier audit has proven and what has not changed since",
                type="boolean",
            ),
            "repair": Param(
                False,
                title="Repair",
                description="repair what is found, at once and for all tags, and audit again; the next version "
                f"has this only as operation `repair` of the DAG maintenance_{pipeline}, which asks first",
                type="boolean",
            ),
        },
    )
    with dag:
        AuditOperator(
            task_id="audit",
            pipeline=pipeline,
            application=str(jobs / "audit.py"),
            conn_id=settings.spark.airflow_connection,
            pool=SPARK_POOL,
            execution_timeout=LONG,
        )
    return dag
