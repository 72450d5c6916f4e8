"""DAG `deliver_all`: who is due, what is skipped, and that each pipeline has its own outcome."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from tests.dags.conftest import PROJECT

pytest.importorskip("airflow")

from tagmill.airflow.compat import (  # noqa: E402
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    DownstreamTasksSkipped,
)
from tests.support.airflow_names import DagBag, crons  # noqa: E402

SCHEDULES = {"orders": "@hourly", "payments": "30 2 * * *", "carts": "*/10 * * * *"}
NOTHING = {"deliver": [], "failed": {}}
AT = datetime(2026, 11, 27, 3, tzinfo=UTC)


@pytest.fixture
def dags(config):
    config.write_text(config.read_text() + "\n[airflow]\nshared_session = true\n")
    loaded = DagBag(dag_folder=str(PROJECT / "dags"))
    assert loaded.import_errors == {}
    return loaded.dags


def context(before=None, run_type="scheduled", *, planned=None, delivered=None, states=None):
    """Return a task's context: `planned`, `delivered` and `states` are of the previous run and its pipelines."""
    sent = {}
    tasks = {f"pipeline_{name}": state for name, state in (states or {}).items()}
    ti = SimpleNamespace(
        get_previous_dagrun=lambda: before and SimpleNamespace(run_after=before, run_id="before"),
        xcom_pull=lambda task_ids, run_id: {"plan": planned, "deliver": delivered}[
            {"before": task_ids}[run_id]
        ],
        get_task_states=lambda dag_id, run_ids: {("deliver_all", "before"): {"before": tasks}}[
            dag_id, *run_ids
        ],
        xcom_push=lambda key, value: sent.update({key: value}),
    )
    run = SimpleNamespace(run_type=run_type, run_after=AT, dag_id="deliver_all", run_id="r")
    return {"dag_run": run, "ti": ti, "outlet_events": {"asset": SimpleNamespace(extra=None)}, "sent": sent}


def outcome(pipeline, **facts):
    from tagmill.delivery.together import Delivered

    return Delivered(pipeline, **facts)


def test_shared_session_is_one_dag(dags):
    """Pipelines with a schedule are tasks of deliver_all; their own DAGs wait for a person. The others stay."""
    dag = dags["deliver_all"]
    assert {task.task_id for task in dag.tasks} == {"plan", "deliver"} | {
        f"pipeline_{name}" for name in ("orders", "payments", "products", "cart_events")
    }
    assert dags["deliver_orders"].timetable.can_be_scheduled is False
    assert dags["replicate_carts"].timetable.can_be_scheduled is True
    assert crons(dag.timetable) == {"30 2 * * *", "0 * * * *"}


def test_without_shared_session_there_is_no_such_dag(config):
    assert "deliver_all" not in DagBag(dag_folder=str(PROJECT / "dags")).dags


@pytest.mark.parametrize(
    ("before", "run_type", "due"),
    [
        (None, "scheduled", ["orders", "payments", "carts"]),
        (AT - timedelta(minutes=10), "scheduled", ["orders", "carts"]),
        (AT - timedelta(minutes=1), "scheduled", ["orders", "carts"]),
        (AT - timedelta(hours=1), "scheduled", ["orders", "payments", "carts"]),
        (AT - timedelta(minutes=10), "manual", ["orders", "payments", "carts"]),
    ],
)
def test_due_are_pipelines_with_moment_since(config, before, run_type, due):
    """A moment that passed while an earlier run was at work counts, too."""
    assert planned_to_deliver(context(before, run_type, planned=NOTHING)) == due


@pytest.mark.parametrize(("at", "due"), [(datetime(2026, 9, 30, 23, tzinfo=UTC), ["orders"]), (AT, [])])
def test_due_by_preset_of_airflow(config, at, due):
    """Airflow has presets that croniter does not know."""
    assert planned_to_deliver(context(at, planned=NOTHING), {"orders": "@quarterly"}) == due


@pytest.mark.parametrize(
    ("planned", "states", "due"),
    [
        ({"deliver": ["payments"], "failed": {}}, {"payments": "success"}, []),
        ({"deliver": ["payments"], "failed": {}}, {"payments": "failed"}, ["payments"]),
        ({"deliver": [], "failed": {"payments": {}}}, {"payments": "failed"}, ["payments"]),
        ({"deliver": ["payments"], "failed": {}}, {"payments": "upstream_failed"}, ["payments"]),
        ({"deliver": ["payments"], "failed": {}}, {"payments": "skipped"}, ["payments"]),
        ({"deliver": ["orders"], "failed": {}}, {"orders": "failed", "payments": "skipped"}, []),
        (None, dict.fromkeys(SCHEDULES, "upstream_failed"), ["payments"]),
    ],
    ids=[
        "delivered",
        "failed",
        "plan of it failed",
        "job died",
        "run was ended",
        "another failed",
        "no plan",
    ],
)
def test_due_is_what_previous_run_left(config, planned, states, due):
    """What the previous run failed to deliver is due at once, not at the next moment of its own schedule."""
    given = context(AT - timedelta(minutes=10), planned=planned, states=states)
    assert [name for name in planned_to_deliver(given) if name == "payments"] == due


def test_due_is_what_there_was_no_time_for(config):
    """A backlog that a run has delivered in part is due at once, not at the next moment of its own schedule."""
    given = context(
        AT - timedelta(minutes=10),
        planned={"deliver": ["orders", "payments"], "failed": {}},
        delivered={"outcomes": {"payments": outcome("payments", runs=9, more=True).as_json()}},
        states={"orders": "success", "payments": "success"},
    )
    assert planned_to_deliver(given) == ["payments", "orders", "carts"]
    given["ti"].xcom_pull = lambda task_ids, run_id: {"deliver": ["payments"], "failed": {}, "outcomes": {}}
    assert planned_to_deliver(given) == ["orders", "carts"]


def test_due_first_are_pipelines_without_turn(config):
    """Pipelines that had no turn come before those with a backlog; one that had nothing to do is not left over."""
    left = {"orders": outcome("orders", runs=9, more=True), "payments": outcome("payments", more=True)}
    outcomes = {name: each.as_json() for name, each in {**left, "carts": outcome("carts")}.items()}
    given = context(
        AT - timedelta(minutes=10),
        planned={"deliver": ["orders", "payments", "carts"], "failed": {}},
        delivered={"outcomes": outcomes},
        states={"orders": "success", "payments": "skipped", "carts": "skipped"},
    )
    assert planned_to_deliver(given, dict.fromkeys(outcomes, "30 2 * * *")) == ["payments", "orders"]


def test_pipeline_without_turn_is_skipped_and_told():
    from tagmill.airflow.together import told

    delivered = {"outcomes": {"orders": outcome("orders", more=True).as_json()}}
    with pytest.raises(AirflowSkipException, match="its turn did not come .* The next run of deliver_all"):
        told("orders", {"failed": {}}, delivered, "asset", context())
    delivered = {"outcomes": {"orders": outcome("orders").as_json()}}
    with pytest.raises(AirflowSkipException, match="pipeline orders: nothing to do$"):
        told("orders", {"failed": {}}, delivered, "asset", context())


def test_plan_and_delivery_end_before_their_limits(config, dags):
    """`plan` leaves the rest to `deliver` after half of its time; `deliver` begins no run in the second half of its."""
    from tagmill.airflow import together

    config.write_text(
        config.read_text()
        .replace("shared_session = true", "shared_session = true\nexecution_timeout_seconds = 3600")
        .replace("[pipelines.payments]", "[pipelines.payments]\nlease_wait_seconds = 700.5")
    )
    loaded = DagBag(dag_folder=str(PROJECT / "dags")).dags
    assert loaded["deliver_payments"].get_task("plan").execution_timeout == timedelta(seconds=1300.5)
    assert loaded["deliver_orders"].get_task("plan").execution_timeout == timedelta(seconds=600)
    assert loaded["deliver_products"].get_task("plan").execution_timeout == timedelta(seconds=600)
    dag = loaded["deliver_all"]
    assert dag.get_task("plan").execution_timeout == timedelta(seconds=1300.5)
    with (
        patch("tagmill.delivery.together.plan_together", return_value={}) as planning,
        suppress(DownstreamTasksSkipped),
    ):
        together.planned_runs(SCHEDULES, context())
    assert planning.call_args.kwargs["seconds"] == 300
    deliver = dag.get_task("deliver")
    deliver.planned = {"deliver": ["orders"]}
    assert deliver.job_arguments() == ["--seconds=1800.0", "--deliver=orders"]


def planned_to_deliver(given, schedules=SCHEDULES):
    """Return the pipelines that the task `plan` hands on where each has something to do."""
    from tagmill.airflow import together

    with (
        patch("tagmill.delivery.together.plan_together", lambda settings, names, **_: dict.fromkeys(names)),
        suppress(DownstreamTasksSkipped),
    ):
        given["sent"]["return_value"] = together.planned_runs(schedules, given)
    return given["sent"]["return_value"]["deliver"]


def test_plan_skips_idle_and_keeps_failures(config):
    """Spark does not start where nothing is new; a pipeline whose plan failed still fails by its own task."""
    from tagmill.airflow import together

    found = {
        "orders": outcome("orders"),
        "payments": outcome("payments", error="no table", error_type="ConfigurationError", exit_code=2),
        "carts": outcome("carts"),
    }
    given = context()
    with (
        patch("tagmill.delivery.together.plan_together", lambda settings, names, **_: found),
        pytest.raises(DownstreamTasksSkipped) as skipped,
    ):
        together.planned_runs(SCHEDULES, given)
    assert sorted(skipped.value.tasks) == ["deliver", "pipeline_carts", "pipeline_orders"]
    assert list(given["sent"]["return_value"]["failed"]) == ["payments"]


@pytest.mark.parametrize(
    ("facts", "raised"),
    [
        ({"error": "no table", "error_type": "ConfigurationError", "exit_code": 2}, AirflowFailException),
        ({"error": "away", "error_type": "StoreUnavailable", "exit_code": 75}, AirflowException),
        ({"error": "at work", "error_type": "LeaseTaken", "exit_code": 75}, AirflowFailException),
    ],
)
def test_failure_is_that_of_the_pipeline_alone(facts, raised):
    from tagmill.airflow.together import told

    outcomes = {"orders": outcome("orders", **facts), "carts": outcome("carts", runs=1, run=7, rows=5)}
    delivered = {"outcomes": {name: one.as_json() for name, one in outcomes.items()}}
    with pytest.raises(raised) as failed:
        told("orders", {"failed": {}}, delivered, "asset", context())
    assert str(failed.value).startswith(f"pipeline orders: {facts['error']}")
    given = context()
    assert told("carts", {"failed": {}}, delivered, "asset", given)["rows"] == 5
    assert given["outlet_events"]["asset"].extra == {"pipeline": "carts", "run": 7, "rows": 5, "batches": 0}
    with pytest.raises(AirflowSkipException):
        told("payments", {"failed": {}}, delivered, "asset", context())
