"""DAG `deliver_<pipeline>` from the validated configuration: plan → seal → push → close → once more if the plan was capped.

Where Tagmill keeps the view itself (views = "tagmill"), build comes before plan.

Airflow's interval is only a label: a late, manual or repeated run does the same right thing. See docs/ for what each task does.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, Param, get_current_context, task

from tagmill.airflow import steps
from tagmill.airflow.operators import BuildOperator, DrainBacklogOperator, SealOperator
from tagmill.settings import PipelineSettings, Settings

SPARK_POOL, CLICKHOUSE_POOL = "spark", "clickhouse"
SHORT, LONG = timedelta(minutes=10), timedelta(hours=6)  # the ledger's steps; Spark and the inserts of a capped run
EPOCH = datetime(2015, 1, 1, tzinfo=UTC)  # a backfill can't reach further back: older than any journal of this schema
# the format gives the UI its date picker, but Airflow doesn't check it; the pattern also asks for a time zone
MOMENT = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?(Z|[+-]\d{2}:\d{2})$"
RETRIES = {
    "retries": 4,
    "retry_delay": timedelta(seconds=20),
    "retry_exponential_backoff": 2.0,  # a factor in Airflow 3; True would mean 1
    "max_retry_delay": timedelta(minutes=10),
}


def deliver_dag(settings: Settings, pipeline: str, jobs: Path) -> DAG:
    """The DAG of one pipeline; `jobs` is the folder of the Spark job scripts. Holds names and figures, no secret."""
    configured = settings.pipeline(pipeline)
    asset = Asset(name=f"tagmill_{pipeline}", uri=f"tagmill://delivered/{pipeline}", group="tagmill")
    dag = DAG(
        dag_id=f"deliver_{pipeline}",
        description=f"{configured.keyspace}.tag_views to ClickHouse table {configured.destination}, exactly once",
        doc_md=__doc__,
        schedule=configured.schedule,
        start_date=EPOCH,
        catchup=False,
        max_active_runs=1,
        params=_params(configured),
        tags=["tagmill", pipeline],
        default_args={"owner": "tagmill", **RETRIES},
    )
    with dag:
        _tasks(pipeline, configured, asset, settings.spark.airflow_connection, jobs)
    return dag


def _tasks(pipeline: str, configured: PipelineSettings, asset: Asset, spark_connection: str, jobs: Path) -> None:
    @task(execution_timeout=SHORT)
    def plan() -> dict[str, Any]:
        return steps.plan(pipeline, get_current_context())

    @task(pool=CLICKHOUSE_POOL, execution_timeout=LONG)
    def push(planned: Any) -> dict[str, Any]:
        return steps.push(pipeline, planned, get_current_context())

    @task(outlets=[asset], execution_timeout=SHORT)
    def close(planned: Any, pushed: Any) -> dict[str, Any]:
        return steps.close(pipeline, planned, pushed, asset, get_current_context())

    planned = plan()
    if configured.views == "tagmill":
        build = BuildOperator(
            task_id="build",
            pipeline=pipeline,
            application=str(jobs / "build.py"),
            conn_id=spark_connection,
            pool=SPARK_POOL,
            execution_timeout=LONG,
        )
        build >> planned
    seal = SealOperator(
        task_id="seal",
        pipeline=pipeline,
        planned=planned,
        application=str(jobs / "seal.py"),
        conn_id=spark_connection,
        pool=SPARK_POOL,
        execution_timeout=LONG,
    )
    pushed = push(planned)
    again = DrainBacklogOperator(
        task_id="again",
        planned=planned,
        trigger_dag_id=f"deliver_{pipeline}",
        trigger_run_id="backlog__{{ dag_run.start_date | ts_nodash }}__{{ ti.xcom_pull(task_ids='plan')['run'] }}",
        execution_timeout=SHORT,
    )
    seal >> pushed
    close(planned, pushed) >> again


def _params(configured: PipelineSettings) -> dict[str, Param]:
    """What a person may choose when triggering; the JSON schema is checked by Airflow before the run exists."""
    moment: dict[str, Any] = {"type": ["null", "string"], "format": "date-time", "pattern": MOMENT}
    tags = list(configured.tags)
    return {
        "tags": Param(
            tags,
            title="Tags",
            description="deliver only these tags of the pipeline",
            type="array",
            items={"type": "string", "enum": tags},
            examples=tags,
            minItems=1,
            uniqueItems=True,
        ),
        "reread_from": Param(
            None, title="Read again from", description="with 'until': a range to read again; nothing is delivered twice", **moment
        ),
        "reread_until": Param(None, title="Read again until", description="end of the range, exclusive", **moment),
    }
