"""What the DAGs of all kinds share: how one is made for a pipeline, limits, retries, and params with their JSON schema."""

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Param
from airflow.sdk.exceptions import AirflowTimetableInvalid

from tagmill.errors import ConfigurationError
from tagmill.viewsettings import PipelineSettings

SPARK_POOL, CLICKHOUSE_POOL = "spark", "clickhouse"
# steps whose work doesn't grow with a run's rows; Spark, the inserts and the progress of a capped run (some 3000 persistence ids a second)
SHORT, LONG = timedelta(minutes=10), timedelta(hours=6)
EPOCH = datetime(2015, 1, 1, tzinfo=UTC)  # a backfill can't reach further back: older than any journal of this schema
# the format gives the UI its date picker, but Airflow doesn't check it; the pattern also asks for a time zone
MOMENT = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?(Z|[+-]\d{2}:\d{2})$"
DAY = r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$"
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
        schedule=schedule,
        start_date=EPOCH,
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


def tags_param(configured: PipelineSettings, description: str) -> Param:
    """Some of the pipeline's tags, all by default; Airflow checks the schema before a run exists."""
    tags = list(configured.tags)
    return Param(
        tags, title="Tags", description=description, type="array", items={"type": "string", "enum": tags}, examples=tags,
        minItems=1, uniqueItems=True,
    )  # fmt: skip
