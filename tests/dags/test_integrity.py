"""DAGs as the DAG processor loads them, and the policies for DAGs and tasks. No server, no database."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tagmill.views.model import Step
from tests.dags.conftest import PROJECT

pytest.importorskip("airflow")

from tagmill.airflow.compat import BACKOFF
from tests.support.airflow_names import cron, first_run


def bag():
    from tests.support.airflow_names import DagBag

    return DagBag(dag_folder=str(PROJECT / "dags"))


@pytest.fixture
def dags(config):
    loaded = bag()
    assert loaded.import_errors == {}
    return loaded.dags


def test_each_pipeline_of_the_configuration_is_a_dag(dags):
    kinds = {
        "orders": ("deliver", "audit", "cleanup", "maintenance"),
        "payments": ("deliver", "audit", "cleanup", "maintenance"),
        "carts": ("replicate", "purge", "cleanup", "maintenance"),
        "products": ("deliver", "cleanup", "maintenance"),
        "cart_events": ("deliver", "cleanup"),
    }
    assert {dag_id: dag.tags for dag_id, dag in dags.items()} == {
        f"{kind}_{name}": {kind, name} for name in kinds for kind in kinds[name]
    }


def test_dags_have_docs_no_catchup_single_run(dags):
    """DAGs have documentation, no catch-up and one active run at a time."""
    for dag in dags.values():
        assert dag.catchup is False
        assert dag.max_active_runs == 1
        assert dag.doc_md


def test_no_two_dags_share_a_param(dags):
    params = [dag.params.get_param(name) for dag in dags.values() for name in dag.params]
    assert len({id(param) for param in params}) == len(params) > 20


def test_tasks_time_out_and_retry_with_backoff(dags):
    """Tasks have a time limit and at least three retries with exponential backoff; a question is asked once."""
    for task in (task for dag in dags.values() for task in dag.tasks):
        assert task.execution_timeout, task.task_id
        assert task.retries >= 3 or task.task_id == "approve", task.task_id
        assert task.retry_exponential_backoff == BACKOFF, task.task_id


def test_what_grows_with_a_run_has_hours(dags):
    """Steps whose time grows with the run may take at least six hours."""
    for name in ("deliver_orders", "deliver_products"):
        limits = {task.task_id: task.execution_timeout for task in dags[name].tasks}
        assert all(limits[step] >= timedelta(hours=6) for step in ("seal", "push", "close"))


def test_owner_of_simultaneous_dags_differs():
    """DAGs that are due at the same moment share a run id and must still act as different owners in the
    ledger.
    """
    from types import SimpleNamespace

    from tagmill.airflow.steps import owner

    due = "scheduled__2026-11-24T00:00:00+00:00"
    of = {
        owner({"dag_run": SimpleNamespace(dag_id=dag, run_id=due)})
        for dag in ("deliver_orders", "cleanup_orders")
    }
    assert len(of) == 2


def test_heavy_tasks_take_a_slot_of_their_pool(dags):
    pools = {task.task_id: task.pool for task in dags["deliver_orders"].tasks}
    assert pools == {
        "plan": "default_pool",
        "seal": "spark",
        "push": "clickhouse",
        "close": "default_pool",
        "again": "default_pool",
    }


def test_each_step_waits_for_the_one_before_it(dags):
    tasks = dags["deliver_orders"].task_dict
    assert tasks["seal"].upstream_task_ids == {"plan"}
    assert tasks["push"].upstream_task_ids == {"plan", "seal"}
    assert tasks["close"].upstream_task_ids == {"plan", "push"}
    assert tasks["again"].upstream_task_ids == {"plan", "close"}


def test_deliver_dag_builds_own_view_before_plan(dags):
    """Pipelines whose view Tagmill keeps build it before they plan a run; others have no such task."""
    tasks = dags["deliver_payments"].task_dict
    assert tasks["plan"].upstream_task_ids == {"build"} and tasks["build"].upstream_task_ids == set()
    assert tasks["build"].pool == "spark" and tasks["build"].application.endswith("/spark_jobs/operation.py")
    assert tasks["build"].operation.name == "views build"
    assert "build" not in dags["deliver_orders"].task_dict


def test_jobs_get_logins_of_both_stores(dags):
    """Each Spark job gets the login of Cassandra and of ClickHouse, which an Airflow connection alone may have."""
    jobs = [task for dag in dags.values() for task in dag.tasks if hasattr(task, "job_arguments")]
    assert len(jobs) > 10
    assert all(task.stores[:2] == ("cassandra", "clickhouse") for task in jobs), jobs


def test_audit_dag_is_one_spark_job(dags):
    """Audits are one Spark job over the tags of the param; an unknown tag is refused."""
    from tagmill.airflow.compat import ParamValidationError

    dag = dags["audit_orders"]
    (task,) = dag.tasks
    assert (task.pool, task.application.split("/")[-1], task.outlets) == ("spark", "audit.py", [])
    params = dag.params
    params.update({"tags": ["order", 'it\'s "quoted" / ünï']})
    task.tags = params.validate()["tags"]
    assert task.job_arguments() == ["--tag=order", '--tag=it\'s "quoted" / ünï']
    with pytest.raises(ParamValidationError):
        params.update({"tags": ["nope"]})
        params.validate()


def test_audit_dag_repair_param_starts_repair(dags):
    """Switching on param repair makes the audit repair, for a reason that names the DAG run."""
    from types import SimpleNamespace

    from tagmill.airflow.compat import ParamValidationError

    dag = dags["audit_orders"]
    (task,) = dag.tasks
    assert dag.params["repair"] is False and dag.params["full"] is False
    for repair, full, arguments in (
        (True, False, ["--repair", "param repair of DAG run manual-1"]),
        (True, True, ["--full", "--repair", "param repair of DAG run manual-1"]),
        (False, False, ["--tag=order"]),
        (False, True, ["--full", "--tag=order"]),
    ):
        params = {"tags": ["order"], "full": full, "repair": repair}
        task.set_arguments(params, SimpleNamespace(run_id="manual-1"))
        assert list(task.job_arguments()) == arguments
    with pytest.raises(ParamValidationError):
        dag.params.update({"repair": "yes"})
        dag.params.validate()


def test_replicate_dag_looks_before_spark_job(dags):
    """Replications look for work first and are one Spark job then; param accept_lost reaches the job."""
    from tagmill.airflow.compat import ParamValidationError

    dag = dags["replicate_carts"]
    assert cron(dag.timetable) == "*/10 * * * *" and set(dag.task_dict) == {"look", "replicate"}
    task = dag.task_dict["replicate"]
    assert (task.pool, task.application.split("/")[-1], task.upstream_task_ids) == (
        "spark",
        "operation.py",
        {"look"},
    )
    for params, parameters in (({}, "{}"), ({"accept_lost": True}, '{"accept_lost":true}')):
        dag.params.update(params)
        task.set_arguments(task.operation, {**dag.params.validate(), "dry_run": False})
        arguments = ["--operation", "kafka-journal replicate", "--parameters", parameters]
        assert list(task.job_arguments()) == arguments
    with pytest.raises(ParamValidationError):
        dag.params.update({"accept_lost": "yes"})
        dag.params.validate()


def test_topic_dag_has_four_delivery_steps(dags):
    """Topics are delivered by plan, seal, push and close, and a task that triggers the next run."""
    from tagmill.airflow.compat import ParamValidationError

    dag = dags["deliver_products"]
    assert list(dag.topological_sort()) and set(dag.task_dict) == {"plan", "seal", "push", "close", "again"}
    seal, push = dag.task_dict["seal"], dag.task_dict["push"]
    assert (seal.pool, seal.application.split("/")[-1], push.pool) == ("spark", "seal.py", "clickhouse")
    assert push.upstream_task_ids == {"plan", "seal"} and dag.task_dict["close"].upstream_task_ids == {
        "plan",
        "push",
    }
    for name in ("accept_lost", "replay_dead_letters"):
        with pytest.raises(ParamValidationError):
            dag.params.update({name: "yes"})
            dag.params.validate()
        dag.params.update({name: False})


def test_kafka_journal_dag_has_no_params(dags):
    """Deliveries of a Kafka journal have the same steps and no params.

    Retention runs only if it has a schedule.
    """
    journal = dags["deliver_cart_events"]
    assert set(journal.task_dict) == {"plan", "seal", "push", "close", "again"} and not journal.params
    assert dags["cleanup_products"].schedule is None
    assert cron(dags["cleanup_carts"].timetable) == "0 0 1 * *"
    assert cron(dags["cleanup_cart_events"].timetable) == "0 0 * * 0"


def test_topic_backlog_triggers_another_run(dags, monkeypatch):
    """Remaining records trigger another run.

    It repeats the params only if an earlier DAG run planned the run at hand.
    """
    from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator

    from tagmill.airflow.compat import AirflowSkipException

    task, triggered = dags["deliver_products"].task_dict["again"], []
    monkeypatch.setattr(TriggerDagRunOperator, "execute", lambda self, context: triggered.append(self.conf))
    asked = {"accept_lost": True, "replay_dead_letters": True}
    task.planned = {"more": True, "planned_now": True}  # This run applied the params itself.
    task.execute({"params": asked})
    task.planned = {"more": True, "planned_now": False}
    task.execute({"params": asked})
    task.execute({"params": {"accept_lost": False, "replay_dead_letters": False}})
    assert triggered == [{}, asked, {}]
    task.planned = {"more": False}
    with pytest.raises(AirflowSkipException):
        task.execute({"params": {}})


def test_close_announces_the_pipelines_asset(dags):
    (asset,) = dags["deliver_orders"].task_dict["close"].outlets
    assert (asset.name, asset.uri) == ("tagmill_orders", "tagmill://delivered/orders")


def test_the_schedule_is_the_configurations(dags):
    always = {dag_id: dag for dag_id, dag in dags.items() if dag_id.startswith(("deliver_", "audit_"))}
    assert {dag_id: cron(dag.timetable) for dag_id, dag in always.items()} == {
        "deliver_orders": "0 * * * *",
        "deliver_payments": "30 2 * * *",
        "deliver_products": "0 * * * *",
        "deliver_cart_events": "0 * * * *",
        "audit_orders": "0 0 * * *",
        "audit_payments": "45 3 * * 1",
    }


def test_cleanup_dag_scheduled_only_if_enabled(config, dags):
    """Cleanups run daily for pipelines that enable them and have no schedule for others."""
    assert dags["cleanup_orders"].schedule is None and dags["cleanup_payments"].schedule is None
    config.write_text(config.read_text() + "[pipelines.payments.cleanup]\nenabled = true\n")
    switched = bag().dags
    assert switched["cleanup_orders"].schedule is None
    assert cron(switched["cleanup_payments"].timetable) == "0 0 * * *"


def test_dags_can_be_serialised_and_hold_no_secret(config, monkeypatch):
    monkeypatch.setenv("TAGMILL_CASSANDRA__PASSWORD", "s3cr3t-of-cassandra")
    monkeypatch.setenv("TAGMILL_CLICKHOUSE__PASSWORD", "s3cr3t-of-clickhouse")
    from tests.support.airflow_names import DagSerialization

    for dag in bag().dags.values():
        assert "s3cr3t" not in json.dumps(DagSerialization.to_dict(dag))


@pytest.mark.parametrize(
    "params",
    [
        {"tags": ["order"]},
        {"tags": ["billing", 'it\'s "quoted" / ünï']},
        {"reread_from": "2026-11-21T07:00:00Z", "reread_until": "2026-11-21T08:00:00.000+00:00"},
    ],
)
def test_valid_params_are_accepted(dags, params):
    merged = dags["deliver_orders"].params
    merged.update(params)
    assert merged.validate()["tags"]


@pytest.mark.parametrize(
    "params",
    [
        {"tags": ["nope"]},
        {"tags": []},
        {"tags": "order"},
        {"tags": ["order", "order"]},
        {"reread_from": "yesterday"},
        {"reread_from": "2026-11-21T07:00:00"},
    ],
)
def test_wrong_params_are_refused_before_a_run_exists(dags, params):
    from tagmill.airflow.compat import ParamValidationError

    merged = dags["deliver_orders"].params
    with pytest.raises(ParamValidationError):
        merged.update(params)
        merged.validate()


@pytest.mark.parametrize("dry_run", ["yes", None, 1])
def test_cleanup_dry_run_is_true_or_false(dags, dry_run):
    from tagmill.airflow.compat import ParamValidationError

    merged = dags["cleanup_orders"].params
    assert merged.validate() == {"dry_run": True}
    merged.update({"dry_run": False})
    assert merged.validate() == {"dry_run": False}
    with pytest.raises(ParamValidationError):
        merged.update({"dry_run": dry_run})
        merged.validate()


def test_every_form_can_be_triggered_as_it_opens(dags):
    """Airflow's form counts an emptied field as null, and null as missing unless its type allows it.

    REST checks only the schema.
    """
    for dag_id, dag in dags.items():
        assert dag.params.validate() is not None
        for name in dag.params:
            schema = dag.params.get_param(name).schema
            types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
            assert "null" in types or dag.params[name] not in (None, "", []), (dag_id, name)
            dag.params[name] = None if "null" in types else dag.params[name]
        assert dag.params.validate() is not None, dag_id


def test_forms_list_what_can_be_chosen(dags):
    params = dags["maintenance_orders"].params
    assert params.get_param("steps").schema["examples"] == [step.value for step in Step]


def test_dry_run_is_on_wherever_it_is(dags):
    """Keep one convention: what changes or deletes by hand only reports until a person switches `dry_run`
    off.
    """
    with_it = {dag_id for dag_id, dag in dags.items() if "dry_run" in dag.params}
    assert all(dags[dag_id].params["dry_run"] is True for dag_id in with_it)
    reading = ("deliver_", "audit_", "replicate_")
    assert set(dags) - with_it == {dag_id for dag_id in dags if dag_id.startswith(reading)}


def test_dag_switched_on_waits_for_its_next_moment(dags, config):
    """Airflow would otherwise begin with the missed run, next to the one by whose form a person has unpaused
    the DAG.
    """
    from tests.support.airflow_names import DagSerialization

    config.write_text(config.read_text() + "[pipelines.payments.cleanup]\nenabled = true\n")
    scheduled = [dag for dag in bag().dags.values() if dag.schedule]
    assert len(scheduled) >= 9
    for dag in scheduled:
        stored = DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(dag))))
        assert first_run(stored) > datetime.now(tz=UTC), dag.dag_id


def test_unknown_key_is_named_import_error(config):
    """Name an unknown key of the configuration in the import error of every DAG file."""
    config.write_text(config.read_text().replace("bucket_size =", "bucket_sise =", 1))
    errors = bag().import_errors
    assert {Path(file).name for file in errors} == {path.name for path in (PROJECT / "dags").glob("*.py")}
    assert all("pipelines.orders.bucket_sise: unknown key" in error for error in errors.values())


@pytest.mark.parametrize("key", ["schedule", "audit_schedule"])
def test_invalid_schedule_is_import_error_naming_pipeline(config, key):
    """Name the pipeline's key and its text in each import error if the text is not a schedule."""
    config.write_text(config.read_text().replace('schedule = "@hourly"', f'{key} = "every day"', 1))
    errors = bag().import_errors
    assert {Path(file).name for file in errors} == {path.name for path in (PROJECT / "dags").glob("*.py")}
    assert all(f"pipelines.orders.{key}: 'every day' is neither" in error for error in errors.values())


def test_missing_configuration_is_named_import_error(config):
    """Name the missing configuration file in each import error."""
    config.unlink()
    errors = bag().import_errors
    assert errors and all(str(config) in error for error in errors.values())


def test_parsing_a_dag_file_loads_no_store(config):
    code = """
import runpy, sys
stores = ("cassandra", "clickhouse_connect", "confluent_kafka", "pyspark", "pyarrow", "great_expectations")
for file in sys.argv[1:]:
    runpy.run_path(file)
    print("loaded by", file, *[name for name in stores if name in sys.modules])
"""
    files = sorted(map(str, (PROJECT / "dags").glob("*.py")))
    assert len(files) >= 6
    shown = subprocess.run(
        [sys.executable, "-c", code, *files],
        check=True,
        capture_output=True,
        text=True,
        env=dict(os.environ),
    )
    said = [line for line in shown.stdout.splitlines() if line.startswith("loaded by")]
    assert said == [f"loaded by {file}" for file in files]


class Run:
    """Part of a DagRun that the range to read again is taken from."""

    run_id = "r"

    def __init__(self, run_type, logical_date=None, start=None, end=None):
        self.run_type, self.logical_date, self.data_interval_start, self.data_interval_end = (
            run_type,
            logical_date,
            start,
            end,
        )


NO_RANGE = {"reread_from": None, "reread_until": None}
SEVEN, EIGHT = datetime(2026, 11, 21, 7, tzinfo=UTC), datetime(2026, 11, 21, 8, tzinfo=UTC)
SEVEN_TO_EIGHT = ("2026-11-21T07:00:00+00:00", "2026-11-21T08:00:00+00:00")


@pytest.mark.parametrize(
    "run", [Run("manual"), Run("scheduled", EIGHT, EIGHT, EIGHT), Run("scheduled", SEVEN, SEVEN, EIGHT)]
)
def test_reread_range_of_ordinary_run_is_none(run):
    """Manual and scheduled runs read no range again, whatever their interval is."""
    from tagmill.airflow.reread import reread_range

    assert reread_range(NO_RANGE, run, "@hourly") is None


@pytest.mark.parametrize(
    "run",
    [
        Run("backfill", SEVEN, SEVEN, EIGHT),
        Run("backfill", EIGHT, EIGHT, EIGHT),
        Run("backfill", EIGHT, None, None),
        Run("backfill", None, EIGHT, EIGHT),
    ],
)
def test_reread_range_of_backfill_is_interval(run):
    """Backfills read their interval again, or the schedule's last period if the interval is missing or
    empty.
    """
    from tagmill.airflow.reread import reread_range

    assert reread_range(NO_RANGE, run, "@hourly") == SEVEN_TO_EIGHT


def test_reread_range_of_preset_is_its_period():
    """Airflow has presets that croniter does not know."""
    from tagmill.airflow.reread import reread_range

    october = datetime(2026, 10, 1, tzinfo=UTC)
    assert reread_range(NO_RANGE, Run("backfill", october, None, None), "@quarterly") == (
        "2026-07-01T00:00:00+00:00",
        "2026-10-01T00:00:00+00:00",
    )


def test_presets_mean_what_airflow_says():
    from airflow.utils.dates import cron_presets

    from tagmill.domain.schedules import PRESETS

    assert dict(cron_presets) == PRESETS


def test_params_name_the_range_in_any_zone():
    from tagmill.airflow.reread import reread_range

    params = {"reread_from": "2026-11-21T07:00:00Z", "reread_until": "2026-11-21T09:00:00+01:00"}
    assert reread_range(params, Run("manual"), None) == SEVEN_TO_EIGHT


@pytest.mark.parametrize(
    ("params", "run", "named"),
    [
        (
            {"reread_from": "2026-11-21T07:00:00Z", "reread_until": None},
            Run("manual"),
            "reread_until is missing",
        ),
        (
            {"reread_from": "2026-11-21T07:00:00", "reread_until": "2026-11-21T08:00:00Z"},
            Run("manual"),
            "no time zone",
        ),
        (
            {"reread_from": "2026-11-21T08:00:00Z", "reread_until": "2026-11-21T08:00:00Z"},
            Run("manual"),
            "is empty",
        ),
        (
            {"reread_from": "0001-01-01T00:00:00+14:00", "reread_until": "2026-11-21T08:00:00Z"},
            Run("manual"),
            "years 1 to 9999",
        ),
        (NO_RANGE, Run("backfill"), "reread_from and reread_until instead"),
    ],
)
def test_reread_range_senseless_params_are_refused(params, run, named):
    """Refuse ranges with a missing end, without a time zone, empty or outside of the calendar, and backfills
    without a date.
    """
    from tagmill.airflow.reread import reread_range
    from tagmill.errors import ConfigurationError

    with pytest.raises(ConfigurationError, match=named):
        reread_range(params, run, "@hourly")
