"""DAG `deliver_all`: all pipelines that are due, in one Spark session: plan → deliver → one task for each.

`plan` plans each pipeline's next run, so Spark starts only where something is new; `deliver` brings all of them to
ClickHouse, one behind the other. Then each pipeline's own task succeeds, or fails with that pipeline's error: one
that fails leaves the others alone. docs/delivery.md has what a delivery does.
"""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, Context, get_current_context, task
from croniter import croniter

from tagmill.airflow import connections
from tagmill.airflow.compat import (
    AirflowFailException,
    AirflowSkipException,
    DownstreamTasksSkipped,
    MultipleCronTriggerTimetable,
)
from tagmill.airflow.factory import AT_ONCE, LONG, SHORT, SPARK_POOL, new_dag, planning_limit
from tagmill.airflow.failures import failure, told_to_airflow
from tagmill.airflow.operators import DeliverOperator
from tagmill.airflow.steps import owner
from tagmill.config.settings import Settings
from tagmill.domain.schedules import NOT_CRON, cron_of
from tagmill.errors import LeaseTaken

log = logging.getLogger(__name__)
DAG_ID = "deliver_all"
# Time after which `plan` leaves the other pipelines to `deliver`.
PLANNING = SHORT / 2


def shared(settings: Settings) -> dict[str, str]:
    """Return the schedules of the pipelines that share a session, by pipeline: empty unless it is configured."""
    if not settings.airflow.shared_session:
        return {}
    return {
        name: pipeline.schedule
        for name, pipeline in {**settings.pipelines, **settings.streams}.items()
        if pipeline.schedule is not None and pipeline.schedule not in NOT_CRON
    }


def own_schedule(settings: Settings, pipeline: str, schedule: str | None) -> str | None:
    """Return the schedule of a pipeline's own DAG: None where `deliver_all` delivers it."""
    return None if pipeline in shared(settings) else schedule


def together_dag(settings: Settings, jobs: Path) -> DAG:
    """Return the DAG `deliver_all`, due whenever one of its pipelines is; `jobs` is the folder of the Spark job
    scripts.
    """
    schedules, delivering = shared(settings), {**settings.pipelines, **settings.streams}
    dag = new_dag(
        "deliver",
        "all",
        description=f"{len(schedules)} pipelines to ClickHouse in one Spark session, exactly once",
        doc=__doc__,
        schedule=MultipleCronTriggerTimetable(
            *sorted(set(schedules.values())), timezone="UTC", run_immediately=AT_ONCE
        ),
        params={},
    )
    with dag:

        @task(execution_timeout=planning_limit(*(delivering[name] for name in schedules)))
        def plan() -> dict[str, Any]:
            return planned_runs(schedules, get_current_context())

        planned = plan()
        deliver = DeliverOperator(
            task_id="deliver",
            planned=planned,
            application=str(jobs / "deliver.py"),
            conn_id=settings.spark.airflow_connection,
            pool=SPARK_POOL,
            execution_timeout=LONG,
        )
        for name in schedules:
            asset = Asset(name=f"tagmill_{name}", uri=f"tagmill://delivered/{name}", group="tagmill")

            @task(
                task_id=task_of(name),
                outlets=[asset],
                retries=0,
                trigger_rule="none_failed",
                execution_timeout=SHORT,
            )
            def outcome(
                planned: Any, delivered: Any, pipeline: str = name, asset: Asset = asset
            ) -> dict[str, Any]:
                return told(pipeline, planned, delivered, asset, get_current_context())

            outcome(planned, deliver.output)
    return dag


def task_of(pipeline: str) -> str:
    """Return the id of a pipeline's own task."""
    return f"pipeline_{pipeline}"


def planned_runs(schedules: Mapping[str, str], context: Context) -> dict[str, Any]:
    """Plan the next run of each pipeline that is due; the tasks of those with nothing to do are skipped.

    Out: `deliver`, the pipelines with something to do, and `failed`, the failures of the others by pipeline.
    """
    from tagmill.delivery.together import Delivered, plan_together

    with told_to_airflow():
        due = _due(schedules, context)
        outcomes = plan_together(
            connections.load_settings(), due, owner=owner(context), seconds=PLANNING.total_seconds()
        )
    deliver = [name for name, outcome in outcomes.items() if outcome is None]
    failed = {
        name: outcome.as_json()
        for name, outcome in outcomes.items()
        if isinstance(outcome, Delivered) and outcome.error
    }
    for name, outcome in outcomes.items():
        log.info("%s", f"pipeline {name}: something to do" if outcome is None else outcome.message)
    result = {"deliver": deliver, "failed": failed}
    idle = [task_of(name) for name in schedules if name not in deliver and name not in failed]
    skipped = idle + ([] if deliver else ["deliver"])
    if not skipped:
        return result
    context["ti"].xcom_push(key="return_value", value=result)
    raise DownstreamTasksSkipped(tasks=skipped)  # type: ignore[no-untyped-call]


def _due(schedules: Mapping[str, str], context: Context) -> Sequence[str]:
    """Return the pipelines that the previous run left over, then those whose schedule had a moment since; by
    hand, all.
    """
    dag_run = context["dag_run"]
    if dag_run.run_type != "scheduled" or (before := context["ti"].get_previous_dagrun()) is None:
        return list(schedules)
    left_over = _left_over(schedules, before.run_id, context["ti"])
    due = (
        name
        for name, schedule in schedules.items()
        if croniter(cron_of(schedule), before.run_after).get_next(datetime) <= dag_run.run_after
    )
    return list(dict.fromkeys([*left_over, *due]))


def _left_over(schedules: Mapping[str, str], run_id: str, ti: Any) -> list[str]:
    """Return the pipelines that a run had to deliver and whose own tasks did not succeed (all, if its plan failed),
    and those of which it left more. Those that had no turn come first, or others could keep them waiting for ever.
    """
    planned = ti.xcom_pull(task_ids="plan", run_id=run_id)
    tried = schedules if planned is None else {*planned["deliver"], *planned["failed"]}
    states = ti.get_task_states(dag_id=DAG_ID, run_ids=[run_id]).get(run_id, {})
    outcomes = (ti.xcom_pull(task_ids="deliver", run_id=run_id) or {}).get("outcomes", {})

    def is_left(name: str) -> bool:
        outcome = outcomes.get(name, {})
        idle = outcome and not (outcome["runs"] or outcome["error"])
        return bool(outcome.get("more")) or (states.get(task_of(name)) != "success" and not idle)

    return sorted(
        (name for name in schedules if name in tried and is_left(name)),
        key=lambda name: bool(outcomes.get(name, {}).get("runs")),
    )


def told(
    pipeline: str,
    planned: Mapping[str, Any],
    delivered: Mapping[str, Any] | None,
    asset: Asset,
    context: Context,
) -> dict[str, Any]:
    """Return a pipeline's outcome and tell the asset's consumers of it, or raise its failure."""
    outcome = planned["failed"].get(pipeline) or (delivered or {}).get("outcomes", {}).get(pipeline)
    if outcome is None:
        raise AirflowSkipException(f"pipeline {pipeline}: nothing to do")
    if outcome["error_type"] == LeaseTaken.__name__:  # to come back later would read the same outcome
        raise AirflowFailException(f"{outcome['message']}. The next run of {DAG_ID} delivers it")
    if outcome["error"]:
        raise failure(outcome["error_type"], outcome["exit_code"], outcome["message"], outcome["docs"])
    if not outcome["runs"]:
        later = f". The next run of {DAG_ID} delivers it" if outcome.get("more") else ""
        raise AirflowSkipException(f"{outcome['message']}{later}")
    log.info("%s", outcome["message"])
    context["outlet_events"][asset].extra = {
        "pipeline": pipeline,
        "run": outcome["run"],
        "rows": outcome["rows"],
        "batches": outcome["batches"],
    }
    return {key: outcome[key] for key in ("pipeline", "runs", "rows", "held", "seconds", "message")}
