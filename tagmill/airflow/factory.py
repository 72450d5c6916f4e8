"""What the DAGs of all kinds share: how one is made for a pipeline, limits, retries, and params with their JSON schema."""

from datetime import timedelta

from airflow.sdk import DAG, CronTriggerTimetable, Param
from airflow.sdk.exceptions import AirflowTimetableInvalid

from tagmill.errors import ConfigurationError
from tagmill.viewsettings import PipelineSettings

SPARK_POOL, CLICKHOUSE_POOL = "spark", "clickhouse"
# steps whose work doesn't grow with a run's rows; Spark, the inserts and the progress of a capped run (some 3000 persistence ids a second)
SHORT, LONG = timedelta(minutes=10), timedelta(hours=6)
# the format gives the UI its date picker, but Airflow doesn't check it; the pattern also asks for a time zone
MOMENT = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?(Z|[+-]\d{2}:\d{2})$"
DAY = r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$"
# Airflow's schedules that no cron expression stands for
NOT_CRON = frozenset({"@once", "@continuous"})
# Of a moment that has passed; not zero, which a database may give back to Airflow as an integer, and that means False.
AT_ONCE = timedelta(milliseconds=1)
RETRIES = {
    "retries": 4,
    "retry_delay": timedelta(seconds=20),
    "retry_exponential_backoff": 2.0,  # a factor in Airflow 3; True would mean 1
    "max_retry_delay": timedelta(minutes=10),
}


def new_dag(
    kind: str, pipeline: str, *, description: str, doc: str | None, schedule: str | None, params: dict[str, Param]
) -> DAG:
    """The DAG `<kind>_<pipeline>`; one run at a time, no catching up. Raises ConfigurationError for a schedule that is none."""
    dag = DAG(
        dag_id=f"{kind}_{pipeline}",
        description=description,
        doc_md=doc,
        schedule=_timetable(schedule),
        catchup=False,
        max_active_runs=1,
        params=params,
        tags=["tagmill", pipeline],
        default_args={"owner": "tagmill", **RETRIES},
    )
    try:
        dag.timetable.validate()
    except AirflowTimetableInvalid as error:
        raise ConfigurationError(f"pipelines.{pipeline}: the schedule {schedule!r} of {dag.dag_id} is none: {error}") from None
    return dag


def _timetable(schedule: str | None) -> CronTriggerTimetable | str | None:
    """Return a timetable with nothing to catch up: a DAG that is switched on first runs at the schedule's next moment.

    A start_date would let Airflow begin with the missed one, also when a person only triggers a dry run by the form.
    """
    if schedule is None or schedule in NOT_CRON:
        return schedule
    return CronTriggerTimetable(schedule, timezone="UTC", run_immediately=AT_ONCE)


def dry_run_param(description: str) -> Param:
    """Return a new param that is on unless a person switches it off, read by dryrun.reports_only."""
    return Param(True, title="Dry run", type="boolean", description=description)


def tags_param(configured: PipelineSettings, description: str) -> Param:
    """Some of the pipeline's tags, all by default; Airflow checks the schema before a run exists."""
    tags = list(configured.tags)
    return Param(
        tags, title="Tags", description=description, type="array", items={"type": "string", "enum": tags}, examples=tags,
        minItems=1, uniqueItems=True,
    )  # fmt: skip
