"""DAG `maintenance_<pipeline>`: all operations that a person starts by hand, each with a dry run first.

tagmill.operations declares the operations; this module makes the form and the tasks from them.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, Context, Param

from tagmill.airflow import connections, erase, journal_clean, views
from tagmill.airflow.compat import AirflowSkipException, DownstreamTasksSkipped, approval_limits
from tagmill.airflow.dry_run import reports_only
from tagmill.airflow.factory import LONG, SHORT, SPARK_POOL, dry_run_param, new_dag
from tagmill.airflow.failures import told_to_airflow
from tagmill.airflow.inputs import FILE_PARAM, digest
from tagmill.airflow.operations import Field, fields, fields_of, select
from tagmill.airflow.operators import JobOperator, OperationJob
from tagmill.config.settings import Settings
from tagmill.errors import ConfigurationError
from tagmill.operations.catalogue import BY_NAME, operations_of
from tagmill.operations.model import Operation

log = logging.getLogger(__name__)
# A run that waits for an approval blocks the pipeline's other maintenance; after this time it counts as rejected.
ANSWER = timedelta(days=3)
PREVIEW, DIGEST, DECIDED = "preview", "digest", "decided"
# Operations without a Spark job: what does them in the worker's own process.
IN_PROCESS: dict[str, Callable[[str, Mapping[str, Any], Context], dict[str, Any]]] = {
    "views tags": views.list_tags,
    "journal clean": journal_clean.clean,
    "erase": erase.erase,
}
FLOW = """All operations on `{pipeline}` that a person starts by hand.

A run does a dry run of the operation first. With `dry_run` on it ends there. With `dry_run` off it shows what the
dry run counted to a person, in the task `approve`; after the approval the task `change` does the operation. Without
an answer within {days} days nothing is changed.

Fields of another operation have to be left as they are.

| operation | it | its fields |
|---|---|---|
{rows}
"""


def maintenance_dags(settings: Settings, jobs: Path) -> Iterator[DAG]:
    """Yield the DAGs of all pipelines' operations; `jobs` is the folder of the Spark job scripts."""
    for name in settings.pipelines:
        yield maintenance_dag(settings, name, jobs, operations_of("tag_views"))
    for name, topic in settings.topics.items():
        yield maintenance_dag(settings, name, jobs, operations_of("topic"))
        if topic.expire_schedule:
            yield scheduled_dag(
                settings, name, jobs, "expire", BY_NAME["dedup expire"], topic.expire_schedule
            )
    for name, journal in settings.kafka_journals.items():
        yield maintenance_dag(settings, name, jobs, operations_of("kafka_journal"))
        if journal.purge_schedule:
            purge = BY_NAME["kafka-journal purge-expired"]
            yield scheduled_dag(settings, name, jobs, "purge", purge, journal.purge_schedule)


def maintenance_dag(
    settings: Settings, pipeline: str, jobs: Path, operations: Sequence[Operation[Any]]
) -> DAG:
    """Return the DAG `maintenance_<pipeline>` of these operations; `jobs` is the folder of the Spark job
    scripts.
    """
    dag = new_dag(
        "maintenance",
        pipeline,
        description=f"operations on {pipeline} by hand: {', '.join(operation.name for operation in operations)}",
        doc=_doc(pipeline, operations),
        schedule=None,
        params=_params(operations),
    )
    shared: dict[str, Any] = {
        "pipeline": pipeline,
        "jobs": jobs,
        "operations": operations,
        "conn_id": settings.spark.airflow_connection,
        "pool": SPARK_POOL,
        "execution_timeout": LONG,
    }
    with dag:
        approve = ApprovalOperator(
            task_id="approve",
            subject="{{ params.operation }} of " + pipeline,
            body=f"{{{{ ti.xcom_pull(task_ids='dry_run', key='{PREVIEW}') }}}}",
            defaults=ApprovalOperator.REJECT,
            **approval_limits(ANSWER, SHORT),
            retries=0,  # a retry would wait for an answer that was given before
        )
        DryRunOperator(task_id="dry_run", **shared) >> approve >> ChangeOperator(task_id="change", **shared)
    return dag


def scheduled_dag(
    settings: Settings, pipeline: str, jobs: Path, kind: str, operation: Operation[Any], schedule: str
) -> DAG:
    """Return the DAG `<kind>_<pipeline>`, whose schedule starts an operation without a person."""
    dag = new_dag(
        kind,
        pipeline,
        description=f"{operation.description}: {pipeline}, on schedule",
        doc=f"On its schedule it {operation.description}. By hand: `{operation.name}` of the DAG "
        f"`maintenance_{pipeline}`.",
        schedule=schedule,
        params={"dry_run": dry_run_param("only say what would be done; the schedule's own runs do it")},
    )
    with dag:
        ScheduledOperator(
            task_id=operation.step,
            pipeline=pipeline,
            jobs=jobs,
            operations=[operation],
            schedule=schedule,
            conn_id=settings.spark.airflow_connection,
            pool=SPARK_POOL,
            execution_timeout=LONG,
        )
    return dag


class OperationOperator(OperationJob):
    """Runs one of several operations, as a Spark job or in the worker's own process.

    Args:
        operations: those that a run may name.
    """

    def __init__(self, *, operations: Sequence[Operation[Any]], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.operations = operations

    def perform(
        self, operation: Operation[Any], params: Mapping[str, Any], context: Context
    ) -> dict[str, Any]:
        """Run the operation, or a dry run of it, as `dry_run` of the params says. Out: its report."""
        if function := IN_PROCESS.get(operation.name):
            return function(self.pipeline, params, context)
        with told_to_airflow():
            self.set_arguments(operation, params)
        return JobOperator.execute(self, context)

    def _report_name(self) -> str:
        return f"{self.step}-{self.task_id}"


class DryRunOperator(OperationOperator):
    """Checks the run's params and does a dry run of the operation that they name."""

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Do the dry run. Out: its report.

        The tasks that follow are skipped if the param `dry_run` is on, or the operation changes nothing.
        """
        params = dict(context["params"])
        with told_to_airflow():
            operation, _ = select(self.operations, self.pipeline, params)
            file_digest = _digest(operation, params)
        report = self.perform(operation, {**params, "dry_run": True}, context)
        ti = context["ti"]
        ti.xcom_push(key=PREVIEW, value=preview(operation, params, report))
        if operation.changes and not params["dry_run"]:
            ti.xcom_push(key=DIGEST, value=file_digest)
            ti.xcom_push(key=DECIDED, value={name: report[name] for name in operation.from_dry_run})
            return report
        ti.xcom_push(key="return_value", value=report)
        log.info("%s of %s: nothing was changed", operation.name, self.pipeline)
        following = sorted(task.task_id for task in context["task"].get_flat_relatives(upstream=False))
        raise DownstreamTasksSkipped(tasks=following)  # type: ignore[no-untyped-call]


class ChangeOperator(OperationOperator):
    """Does the operation that the run's params name, once a person has approved it."""

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Do the operation with what its dry run decided. Out: its report."""
        params = dict(context["params"])
        if params["dry_run"]:
            raise AirflowSkipException("dry_run is on: nothing was changed")
        params |= context["ti"].xcom_pull(task_ids="dry_run", key=DECIDED) or {}
        with told_to_airflow():
            operation, _ = select(self.operations, self.pipeline, params)
            if _digest(operation, params) != context["ti"].xcom_pull(task_ids="dry_run", key=DIGEST):
                raise ConfigurationError(
                    f"param {FILE_PARAM}: the file is not the one that the dry run read. Nothing was changed; "
                    "trigger the DAG again"
                )
        return self.perform(operation, params, context)


class ScheduledOperator(OperationOperator):
    """Does an operation when the configuration's schedule says so; any other run is a dry run unless `dry_run`
    is off.
    """

    def __init__(self, *, schedule: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.schedule = schedule

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Do the operation with its fields as they are by default. Out: its report."""
        (operation,) = self.operations
        return self.perform(operation, {"dry_run": reports_only(context, self.schedule)}, context)


def preview(operation: Operation[Any], params: Mapping[str, Any], report: Mapping[str, Any]) -> str:
    """Return Markdown that shows a person the fields of a run and what its dry run counted.

    Texts that come from an application stay in a code block, so that they are not read as Markdown.
    """
    values = [
        f"{field.name}: {_short(params[field.name])}" for field in fields(operation) if field.is_set(params)
    ]
    counts = [
        f"{name}: {value}"
        for name, value in report.items()
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and name not in ("exit_code", "seconds")
    ]
    lines = [*values, "", "The dry run says:", *counts, str(report.get("message") or "")]
    return f"{operation.name} {operation.description}.\n\n" + "\n".join(
        f"    {part}" for line in lines for part in (line.splitlines() or [""])
    )


def _short(value: Any) -> str:
    if isinstance(value, list):
        return f"{len(value)} named"
    return str(value)[:200]


def _digest(operation: Operation[Any], params: Mapping[str, Any]) -> str | None:
    """Return the digest of the file that the params name, or None."""
    if not params.get(FILE_PARAM):
        return None
    return digest(FILE_PARAM, params[FILE_PARAM], connections.load_settings().airflow)


def _params(operations: Sequence[Operation[Any]]) -> dict[str, Param]:
    """Return the form: the operation, `dry_run`, and each field once, with the operations that take it."""
    display = {operation.name: f"{operation.name}: {operation.description}" for operation in operations}
    return {
        "operation": Param(
            operations[0].name,
            title="Operation",
            type="string",
            enum=list(display),
            values_display=display,
            description="what is done; only its own fields may be set",
        ),
        "dry_run": dry_run_param("only count and show what would change; off: change it, after an approval"),
        **{field.name: _param(field, names) for field, names in fields_of(operations)},
    }


def _param(field: Field, names: Sequence[str]) -> Param:
    section: dict[str, Any] = {"section": names[0]} if len(names) == 1 else {}
    return Param(field.default, title=field.title, description=field.description, **section, **field.schema)


def _doc(pipeline: str, operations: Sequence[Operation[Any]]) -> str:
    rows = [
        f"| `{operation.name}` | {operation.description} | "
        f"{', '.join(f'`{name}`' for name in operation.parameters.model_fields)} |"
        for operation in operations
    ]
    return FLOW.format(pipeline=pipeline, days=ANSWER.days, rows="\n".join(rows))
