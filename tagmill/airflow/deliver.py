"""DAG `deliver_<pipeline>` from the validated configuration: plan → seal → push → close → once more if the
plan was capped.

Where Tagmill keeps the view itself (views = "tagmill"), build comes before plan.

Airflow's interval is only a label: a late, manual or repeated run delivers the same. See docs/ for what each
task does.
"""

from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, Param, get_current_context, task

from tagmill.airflow import steps
from tagmill.airflow.factory import (
    CLICKHOUSE_POOL,
    LONG,
    SHORT,
    SPARK_POOL,
    new_dag,
    planning_limit,
    tags_param,
)
from tagmill.airflow.operations import MOMENT
from tagmill.airflow.operators import DrainBacklogOperator, OperationJob, SealOperator
from tagmill.airflow.together import own_schedule
from tagmill.config.settings import Settings
from tagmill.config.tag_views import PipelineSettings
from tagmill.operations.views import BUILD


def deliver_dag(settings: Settings, pipeline: str, jobs: Path) -> DAG:
    """Return the DAG `deliver_<pipeline>`; `jobs` is the folder of the Spark job scripts.

    The DAG holds names and figures, no secret.
    """
    configured = settings.pipeline(pipeline)
    asset = Asset(name=f"tagmill_{pipeline}", uri=f"tagmill://delivered/{pipeline}", group="tagmill")
    dag = new_dag(
        "deliver",
        pipeline,
        description=f"{configured.keyspace}.{configured.view_table} to ClickHouse table "
        f"{configured.destination}, exactly once",
        doc=__doc__,
        schedule=own_schedule(settings, pipeline, configured.schedule),
        params=_params(configured),
    )
    with dag:
        _tasks(pipeline, configured, asset, settings.spark.airflow_connection, jobs)
    return dag


def _tasks(
    pipeline: str, configured: PipelineSettings, asset: Asset, spark_connection: str, jobs: Path
) -> None:
    @task(execution_timeout=planning_limit(configured))
    def plan() -> dict[str, Any]:
        return steps.plan(pipeline, get_current_context())

    @task(pool=CLICKHOUSE_POOL, execution_timeout=LONG)
    def push(planned: Any) -> dict[str, Any]:
        return steps.push(pipeline, planned, get_current_context())

    @task(outlets=[asset], execution_timeout=LONG)
    def close(planned: Any, pushed: Any) -> dict[str, Any]:
        return steps.close(pipeline, planned, pushed, asset, get_current_context())

    planned = plan()
    if configured.views == "tagmill":
        build = OperationJob(
            task_id="build",
            pipeline=pipeline,
            operation=BUILD,
            jobs=jobs,
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
        trigger_run_id="backlog__{{ dag_run.start_date | ts_nodash }}__{{ "
        "ti.xcom_pull(task_ids='plan')['run'] }}",
        execution_timeout=SHORT,
    )
    seal >> pushed
    close(planned, pushed) >> again


def _params(configured: PipelineSettings) -> dict[str, Param]:
    """Return the params that a person may set when triggering; Airflow checks their JSON schema before the
    run exists.
    """
    moment: dict[str, Any] = {"type": ["null", "string"], "format": "date-time", "pattern": MOMENT}
    return {
        "tags": tags_param(configured, "deliver only these tags of the pipeline"),
        "reread_from": Param(
            None,
            title="Read again from",
            description="with 'until': a range to read again; nothing is delivered twice",
            **moment,
        ),
        "reread_until": Param(
            None, title="Read again until", description="end of the range, exclusive", **moment
        ),
    }
