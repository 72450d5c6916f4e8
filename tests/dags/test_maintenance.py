"""What a person may ask of `maintenance_<pipeline>`, and what its three tasks make of it."""

import json
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

pytest.importorskip("airflow")

from tagmill.airflow import maintenance
from tagmill.airflow.compat import (
    AirflowFailException,
    AirflowSkipException,
    DownstreamTasksSkipped,
    ParamValidationError,
)
from tagmill.airflow.operations import job_arguments, select
from tagmill.errors import ConfigurationError
from tagmill.operations.catalogue import BY_NAME, OPERATIONS, operations_of
from tagmill.operations.kafka_journal import PURGE
from tests.dags.test_integrity import bag
from tests.support.airflow_names import cron

REPORT = {"ok": True, "seconds": 2.5, "exit_code": 0, "rows": 32, "message": "orders:\n# 32 rows would go"}
PIPELINES = {"tag_views": "orders", "topic": "products", "kafka_journal": "carts"}


@pytest.fixture
def dags(config):
    loaded = bag()
    assert loaded.import_errors == {}
    return loaded.dags


class TaskInstance:
    """Part of a TaskInstance that the tasks use; a task reads what an earlier one has pushed."""

    def __init__(self):
        self.pushed = {}

    def xcom_push(self, key, value):
        self.pushed[key] = value

    def xcom_pull(self, task_ids, key):
        assert task_ids == "dry_run"
        return self.pushed.get(key)


@pytest.fixture
def run(dags, monkeypatch):
    """Return run(task, params), which runs a task of maintenance_orders and returns the context.

    `run.performed` has the operation and the `dry_run` of each call.
    """
    ti, performed = TaskInstance(), []
    monkeypatch.setattr(
        maintenance.OperationOperator,
        "perform",
        lambda self, operation, params, context: (
            performed.append((operation.name, params["dry_run"])) or REPORT
        ),
    )

    def execute(task_id, **params):
        dag = dags["maintenance_orders"]
        task = dag.task_dict[task_id]
        merged = {**dag.params.dump(), **params}
        return task.execute({"params": merged, "ti": ti, "task": task})

    execute.performed, execute.ti = performed, ti
    return execute


def test_flow_is_dry_run_approval_change(dags):
    for name in PIPELINES.values():
        tasks = dags[f"maintenance_{name}"].task_dict
        upstream = {task_id: task.upstream_task_ids for task_id, task in tasks.items()}
        assert upstream == {"dry_run": set(), "approve": {"dry_run"}, "change": {"approve"}}
        assert (tasks["dry_run"].pool, tasks["change"].pool) == ("spark", "spark")
        assert getattr(tasks["approve"], "response_timeout", tasks["approve"].execution_timeout) and tasks[
            "approve"
        ].defaults == ["Reject"]


def test_form_has_each_kinds_operations(dags):
    """Forms offer the operations of the pipeline's kind and no field that none of them takes."""
    for kind, name in PIPELINES.items():
        dag = dags[f"maintenance_{name}"]
        params = dag.params
        operations = operations_of(kind)
        assert params.get_param("operation").schema["enum"] == [operation.name for operation in operations]
        fields = {name for operation in operations for name in operation.parameters.model_fields}
        assert set(params) == {"operation", "dry_run", *fields}
        assert all(f"`{field}`" in dag.doc_md for field in fields)
        select(operations, name, params.validate())  # The form as it opens lacks nothing.
    assert {op.name for op in OPERATIONS if op.run is None} == set(maintenance.IN_PROCESS)


def test_dry_run_ends_without_approval(run):
    """Dry runs skip the approval; the report is in XCom, whatever the operation."""
    for params in ({"operation": "views pids"}, {"operation": "views tags", "dry_run": False}):
        with pytest.raises(DownstreamTasksSkipped) as skipped:
            run("dry_run", **params)
        assert set(skipped.value.tasks) == {"approve", "change"}
        assert run.ti.pushed["return_value"] == REPORT
        with pytest.raises(AirflowSkipException):
            run("change", **{**params, "dry_run": True})
    assert run.performed == [("views pids", True), ("views tags", True)]


def test_change_follows_approved_dry_run(run):
    """With dry_run off a dry run comes first, and its counts are shown as text, not as Markdown."""
    params = {"operation": "views rebuild", "dry_run": False, "persistence_ids": ["p-1", "p-2"]}
    assert run("dry_run", **params) == REPORT
    shown = run.ti.pushed["preview"].split("\n\n", 1)[1].splitlines()
    assert [line.strip() for line in shown] == [
        "persistence_ids: 2 named",
        "",
        "The dry run says:",
        "rows: 32",
        "orders:",
        "# 32 rows would go",
    ]
    assert all(line.startswith("    ") for line in shown)
    assert run("change", **params) == REPORT
    assert run.performed == [("views rebuild", True), ("views rebuild", False)]


def test_purge_keeps_to_day_of_dry_run(dags, monkeypatch):
    """A purge without `until` that is approved later purges what its dry run showed, and no ids that expired since."""
    days, ti = [], TaskInstance()

    def perform(self, operation, params, context):
        days.append(params["until"])
        return REPORT | {"until": params["until"] or "2026-12-01"}

    monkeypatch.setattr(maintenance.OperationOperator, "perform", perform)
    dag = dags["maintenance_carts"]
    params = {**dag.params.dump(), "operation": PURGE.name, "dry_run": False}
    for name in ("dry_run", "change"):
        task = dag.task_dict[name]
        assert task.execute({"params": params, "ti": ti, "task": task})["until"] == "2026-12-01"
    assert days == [None, "2026-12-01"]


def test_change_refuses_file_edited_after_approval(run, config, tmp_path, monkeypatch):
    """Persistence ids of a file that differs from the one of the dry run were not approved."""
    (tmp_path / "ids").write_text("p-1\n")
    config.write_text(f'{config.read_text()}[airflow]\ninput_dir = "{tmp_path}"\n')
    monkeypatch.setattr(maintenance.connections, "find", lambda _: None)
    params = {"operation": "erase", "why": "w", "dry_run": False, "persistence_ids_file": "ids"}
    run("dry_run", **params)
    assert run("change", **params) == REPORT
    (tmp_path / "ids").write_text("p-1\np-2\n")
    with pytest.raises(AirflowFailException, match="not the one that the dry run read"):
        run("change", **params)
    assert len(run.performed) == 2


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"operation": "views rebuild"}, "views rebuild of orders: name persistence ids that nobody writes to (--persistence-id), or"),
        ({"operation": "views delete"}, "or say that the application is offline to have all"),
        ({"operation": "views delete", "offline": True, "persistence_ids": ["p"]}, "one of the two"),
        ({"operation": "views truncate"}, "the application must be stopped"),
        ({"operation": "views rebucket", "bucket_size": "Day", "drop_old": True, "abandon": True}, "steps of their own"),
        ({"operation": "views truncate", "dry_run": False}, "the application must be stopped"),
        ({"operation": "views rebucket"}, "set bucket_size to one of Day, Hour, Minute"),
        ({"operation": "journal clean", "to": 5}, "name persistence_ids, or a file of them"),
        ({"operation": "erase"}, "name persistence_ids, or a file of them"),
        ({"operation": "erase", "persistence_ids": ["p"], "why": " ", "dry_run": False}, "in Airflow the param why"),
        ({"operation": "views tags", "persistence_ids": ["p"] * 1001}, "at most 1000 persistence_ids"),
        ({"operation": "views pids", "offline": True, "to": 5}, "views pids of orders: it has no param offline, to"),
        ({"operation": "erase", "persistence_ids": ["p"], "keep": 2}, "it has no param keep"),
    ],
)  # fmt: skip
def test_unfit_fields_fail_with_one_line(run, params, message):
    """Missing fields and fields of other operations fail the first task, before anything is looked at."""
    with pytest.raises(AirflowFailException) as failed:
        run("dry_run", **params)
    text = str(failed.value)
    assert message in text and "Nothing was changed" in text and len(text.splitlines()) == 1
    assert run.performed == []


@pytest.mark.parametrize(
    ("operation", "params", "parameters"),
    [
        ("views rebuild", {"offline": True}, {"offline": True}),
        (
            "views rebuild",
            {"persistence_ids": ["o-1", "-x"], "tags": ["t"], "dry_run": False},
            {"persistence_ids": ["o-1", "-x"], "tags": ["t"]},
        ),
        ("views delete", {"offline": True}, {"offline": True}),
        ("views truncate", {}, {}),
        ("views pids", {}, {}),
        ("views migrate", {"steps": None, "snapshot_keyspace": ""}, {}),
        (
            "views migrate",
            {"steps": ["tables", "tags"], "offline": True, "drop_old": True, "snapshot_keyspace": "snap", "dry_run": False},
            {"steps": ["tables", "tags"], "offline": True, "drop_old": True, "snapshot_keyspace": "snap"},
        ),
        ("repair", {"why": ""}, {}),
        ("repair", {"why": "seen", "full": True, "dry_run": False}, {"why": "seen", "full": True}),
        ("views rebucket", {"bucket_size": "Hour"}, {"bucket_size": "Hour"}),
        (
            "views rebucket",
            {"bucket_size": "Minute", "offline": True, "drop_old": True, "dry_run": False},
            {"bucket_size": "Minute", "offline": True, "drop_old": True},
        ),
        (
            "views rebucket",
            {"bucket_size": "Day", "abandon": True, "table": "tag_views_2"},
            {"bucket_size": "Day", "abandon": True, "table": "tag_views_2"},
        ),
        ("dedup expire", {"dry_run": False}, {}),
        ("dedup rekey", {}, {}),
        ("dedup rekey", {"drop_unreadable": True, "dry_run": False}, {"drop_unreadable": True}),
        ("kafka-journal purge-expired", {}, {}),
        ("kafka-journal purge-expired", {"until": "2026-12-31", "dry_run": False}, {"until": "2026-12-31"}),
    ],
)  # fmt: skip
def test_params_become_arguments_of_job(dags, operation, params, parameters):
    """Params become the job's parameters, which its model takes; dry_run is on unless switched off."""
    declared = BY_NAME[operation]
    dag = dags[f"maintenance_{PIPELINES[declared.kind]}"]
    dag.params.update({"operation": operation, **params})
    task = dag.task_dict["change"]
    task.set_arguments(declared, dag.params.validate())
    _, name, _, given, *dry_run = task.job_arguments()
    assert (name, json.loads(given)) == (operation, parameters)
    assert dry_run == ([] if params.get("dry_run") is False else ["--dry-run"])
    assert declared.parameters.of(json.loads(given)) == declared.parameters.of(parameters)
    assert (task.application.rpartition("/")[2], task.step) == ("operation.py", declared.step)
    assert task.stores == ("cassandra", "clickhouse", *(["kafka"] if declared.kafka else []))


@pytest.mark.parametrize(
    ("pipeline", "params"),
    [
        ("orders", {"operation": "views"}),
        ("orders", {"operation": "dedup rekey"}),
        ("orders", {"dry_run": "no"}),
        ("orders", {"persistence_ids": ["", "x"]}),
        ("orders", {"tags": ["a\0b"]}),
        ("orders", {"tags": ["a\nb", "a\0b"]}),
        ("orders", {"steps": ["drop"]}),
        ("orders", {"bucket_size": "Week"}),
        ("orders", {"table": "Tag-Views"}),
        ("products", {"drop_unreadable": "yes"}),
        ("carts", {"until": "2026-13-01"}),
        ("carts", {"until": "2026-12-31T00:00Z"}),
        ("carts", {"until": "tomorrow"}),
    ],
)
def test_values_outside_schema_create_no_run(dags, pipeline, params):
    with pytest.raises(ParamValidationError):
        dags[f"maintenance_{pipeline}"].params.update(params)
        dags[f"maintenance_{pipeline}"].params.validate()


def test_until_is_day_of_calendar(dags):
    with pytest.raises(ConfigurationError, match="^until: .*day value is outside.*Nothing was changed$"):
        job_arguments(PURGE, {"until": "2026-02-30", "dry_run": True})


def test_scheduled_operation_changes_on_schedule_only(dags, config, run):
    """Operations with a schedule in the configuration have a DAG, whose runs by hand are dry runs."""
    assert "expire_products" not in dags and cron(dags["purge_carts"].timetable) == "0 0 * * *"
    text = config.read_text()
    config.write_text(text.replace('format = "json"', 'format = "json"\nexpire_schedule = "@weekly"'))
    expire = bag().dags["expire_products"]
    assert cron(expire.timetable) == "0 0 * * 0"
    now = datetime.now(tz=UTC)
    for dag in (dags["purge_carts"], expire):
        (task,) = dag.tasks
        for run_type, params in (("scheduled", {"dry_run": True}), ("manual", {"dry_run": True})):
            dag_run = SimpleNamespace(run_type=run_type, run_id="r", start_date=now, run_after=now)
            task.execute({"dag_run": dag_run, "params": params})
    names = ("kafka-journal purge-expired", "dedup expire")
    assert run.performed == [(name, dry_run) for name in names for dry_run in (False, True)]
