"""Shared by the DAGs of all kinds: the DAG of a pipeline, limits, retries, and params with their JSON
schema.
"""

from datetime import timedelta

from airflow.sdk import DAG, Param

from tagmill.airflow.compat import (
    BACKOFF,
    CronTriggerTimetable,
    MultipleCronTriggerTimetable,
)
from tagmill.config.kafka import Stream
from tagmill.config.tag_views import PipelineSettings
from tagmill.domain.schedules import NOT_CRON

Timetable = CronTriggerTimetable | MultipleCronTriggerTimetable
# What a DAG does: its id is `<kind>_<pipeline>`.
KINDS = frozenset({"audit", "cleanup", "deliver", "expire", "maintenance", "purge", "replicate"})
SPARK_POOL, CLICKHOUSE_POOL = "spark", "clickhouse"
# Timeouts. SHORT: for steps whose work doesn't grow with a run's rows. LONG: for Spark, and for the inserts
# and the progress of a capped run (some 3000 persistence ids a second).
SHORT, LONG = timedelta(minutes=10), timedelta(hours=6)
# The first run of a DAG is for a missed moment only if that passed less than this ago. Not zero: a database
# may return that to Airflow as an integer, which means False.
AT_ONCE = timedelta(milliseconds=1)
RETRIES = {
    "retries": 4,
    "retry_delay": timedelta(seconds=20),
    "retry_exponential_backoff": BACKOFF,
    "max_retry_delay": timedelta(minutes=10),
}


def new_dag(
    kind: str,
    pipeline: str,
    *,
    description: str,
    doc: str | None,
    schedule: str | Timetable | None,
    params: dict[str, Param],
) -> DAG:
    """Return the DAG `<kind>_<pipeline>`: one run at a time, no catching up."""
    return DAG(
        dag_id=f"{kind}_{pipeline}",
        description=description,
        doc_md=doc,
        schedule=_timetable(schedule),
        catchup=False,
        max_active_runs=1,
        params=params,
        tags=[kind, pipeline],
        default_args={"owner": "tagmill", **RETRIES},
    )


def _timetable(schedule: str | Timetable | None) -> Timetable | str | None:
    """Return a timetable with nothing to catch up: a DAG that is switched on first runs at the schedule's
    next moment.

    With a start_date Airflow would begin with the missed one, also when a person only triggers a dry run by
    the form.
    """
    if not isinstance(schedule, str) or schedule in NOT_CRON:
        return schedule
    return CronTriggerTimetable(schedule, timezone="UTC", run_immediately=AT_ONCE)


def planning_limit(*configured: PipelineSettings | Stream) -> timedelta:
    """Return the time that a task which plans these pipelines may take: it may wait for a lease first."""
    return SHORT + timedelta(seconds=max(pipeline.lease_wait_seconds for pipeline in configured))


def dry_run_param(description: str) -> Param:
    """Return a new param that is on unless a person switches it off, read by dry_run.reports_only."""
    return Param(True, title="Dry run", type="boolean", description=description)


def tags_param(configured: PipelineSettings, description: str) -> Param:
    """Return a param for some of the pipeline's tags, all by default; Airflow checks its schema before a run
    exists.
    """
    tags = list(configured.tags)
    return Param(
        tags,
        title="Tags",
        description=description,
        type="array",
        items={"type": "string", "enum": tags},
        examples=tags,
        minItems=1,
        uniqueItems=True,
    )
