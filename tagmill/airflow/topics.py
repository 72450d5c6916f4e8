"""DAG `deliver_<pipeline>` of a topic or a Kafka Journal: plan → seal → push → close, as for tag views;
docs/topics.md has what each does.

If nothing is new, or too few and too young records are, all that follows is skipped, so Spark does not start.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, Context, Param, get_current_context, task

from tagmill.airflow import connections
from tagmill.airflow.compat import AirflowSkipException
from tagmill.airflow.factory import CLICKHOUSE_POOL, LONG, SHORT, SPARK_POOL, new_dag, planning_limit
from tagmill.airflow.failures import small, told_to_airflow
from tagmill.airflow.operators import DrainBacklogOperator, TopicSealOperator
from tagmill.airflow.steps import owner
from tagmill.airflow.together import own_schedule
from tagmill.config.kafka import TopicSettings
from tagmill.config.settings import Settings

log = logging.getLogger(__name__)


def topic_dag(settings: Settings, pipeline: str, jobs: Path) -> DAG:
    """Return the DAG `deliver_<pipeline>` of a topic or a Kafka Journal; `jobs` is the folder of the Spark
    job scripts.
    """
    configured = settings.stream(pipeline)
    asset = Asset(name=f"tagmill_{pipeline}", uri=f"tagmill://delivered/{pipeline}", group="tagmill")
    dag = new_dag(
        "deliver",
        pipeline,
        description=f"what is new of {pipeline} to ClickHouse table {configured.destination}, each event "
        "once",
        doc=__doc__,
        schedule=own_schedule(settings, pipeline, configured.schedule),
        params=_params() if isinstance(configured, TopicSettings) else {},
    )
    with dag:

        @task(execution_timeout=planning_limit(configured))
        def plan() -> dict[str, Any]:
            return planned_run(pipeline, get_current_context())

        @task(pool=CLICKHOUSE_POOL, execution_timeout=LONG)
        def push(planned: Any) -> dict[str, Any]:
            return step("push", pipeline, planned, get_current_context())

        @task(outlets=[asset], execution_timeout=LONG)
        def close(planned: Any, pushed: Any) -> dict[str, Any]:
            context = get_current_context()
            closed = step("close", pipeline, planned, context)
            facts = {
                "pipeline": pipeline,
                "run": planned["run"],
                "rows": pushed["rows"],
                "batches": pushed["batches"],
            }
            context["outlet_events"][asset].extra = facts
            return closed

        planned = plan()
        seal = TopicSealOperator(
            task_id="seal",
            pipeline=pipeline,
            planned=planned,
            application=str(jobs / "seal.py"),
            conn_id=settings.spark.airflow_connection,
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
    return dag


def _params() -> dict[str, Param]:
    """Return the params that only pipelines of kind topic have."""
    return {
        "accept_lost": Param(
            False,
            title="Accept lost records",
            type="boolean",
            description="go on although records are gone from Kafka",
        ),
        "replay_dead_letters": Param(
            False,
            title="Replay dead letters",
            type="boolean",
            description="read the records again that could not be read",
        ),
    }


def planned_run(pipeline: str, context: Context) -> dict[str, Any]:
    """Plan a run, or take over an unfinished one; if there is none, the tasks that follow are skipped.

    Out: run, fence, state, records, few_rows, more, message.
    """
    from tagmill.delivery.topics import steps

    with told_to_airflow():
        settings = connections.load_settings()
        accept_lost, letters = (
            bool(context["params"].get(name)) for name in ("accept_lost", "replay_dead_letters")
        )
        planned = steps.plan(
            settings, pipeline, owner=owner(context), accept_lost=accept_lost, letters=letters
        )
    log.info("%s", planned["message"])
    if planned["run"] is None:
        raise AirflowSkipException(planned["message"])
    return small(planned)


def step(name: str, pipeline: str, planned: Mapping[str, Any], context: Context) -> dict[str, Any]:
    """Push or close the planned run, as `name` says. Out: run, batches, rows, the counts, message."""
    from tagmill.delivery.topics import steps

    with told_to_airflow():
        done = getattr(steps, name)(
            connections.load_settings(), pipeline, planned["run"], planned["fence"], owner=owner(context)
        )
    for warning in done["warnings"] if name == "push" else ():
        log.warning("%s", warning)
    log.info("%s", done["message"])
    return small(done)
