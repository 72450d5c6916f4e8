"""When a cleanup that Airflow starts deletes, and what is told of it."""

from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("airflow")

from airflow.sdk.exceptions import AirflowFailException, AirflowRescheduleException

from tagmill import errors
from tagmill.airflow import steps

REPORT = {
    "pipeline": "orders", "dry_run": True, "buckets": 2, "rows": 32, "refused_buckets": 3, "runs": 1, "batches": 4, "audits": 0,
    "more": False, "partitions": [{"tag": "t"}, {"tag": "u"}], "warnings": [], "message": "pipeline orders: …",
    "refused": [{"tag": "t", "reason": "held", "buckets": 3, "oldest": "a", "newest": "b", "text": "pipeline orders holds 'p'"}],
}  # fmt: skip


class Run:
    """As much of a DagRun as a cleanup looks at; it began `late` after it was due."""

    def __init__(self, run_type, late=timedelta(seconds=10)):
        self.run_type, self.dag_id, self.run_id = run_type, "d", "r"
        self.run_after = datetime(2026, 11, 21, tzinfo=UTC)
        self.start_date = self.run_after + late


@pytest.fixture
def asked(config, monkeypatch):
    """What the library was asked for; its answer is in `asked["answer"]`."""
    from tagmill.cleanup import clean as module

    found = {"answer": REPORT}

    def clean(settings, pipeline, *, owner, delete, tell):
        found.update(pipeline=pipeline, owner=owner, delete=delete)
        if isinstance(found["answer"], Exception):
            raise found["answer"]
        return found["answer"]

    monkeypatch.setattr(module, "clean", clean)
    monkeypatch.setattr(steps.connections, "load_settings", lambda: None)
    return found


DRY = {"dry_run": True}


@pytest.mark.parametrize(
    ("schedule", "run", "params", "deletes"),
    [
        pytest.param("@daily", Run("scheduled"), DRY, True, id="scheduled"),
        pytest.param("@daily", Run("scheduled", timedelta(hours=9)), DRY, False, id="scheduled, missed while paused"),
        pytest.param(None, Run("scheduled"), DRY, False, id="scheduled, switched off since"),
        pytest.param("@daily", Run("manual"), DRY, False, id="by hand"),
        pytest.param(None, Run("manual"), {"dry_run": False}, True, id="by hand, dry run off"),
        pytest.param("@daily", Run("backfill"), DRY, False, id="backfill"),
        pytest.param("@daily", Run("manual"), {**DRY, "delete": True}, True, id="by hand, old param"),
    ],
)
def test_cleanup_deletes_by_schedule_or_param(asked, schedule, run, params, deletes):
    """A run that makes up for a missed one only reports: triggering a dry run by the form unpauses the DAG."""
    steps.cleanup("orders", schedule, {"dag_run": run, "params": params})
    assert asked["delete"] is deletes and asked["owner"] == "airflow/d/r"


def test_figures_go_to_xcom_and_lists_become_their_lengths(asked):
    shown = steps.cleanup("orders", None, {"dag_run": Run("manual"), "params": DRY})
    assert shown == {**REPORT, "partitions": 2, "refused": 1, "warnings": 0}


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (errors.GuardRefused("pipelines.orders.cleanup.enabled is false"), AirflowFailException),
        (errors.LeaseTaken("at work"), AirflowRescheduleException),
    ],
)
def test_a_cleanup_that_is_off_fails_and_one_that_has_to_wait_comes_back(asked, raised, told):
    asked["answer"] = raised
    with pytest.raises(told):
        steps.cleanup("orders", None, {"dag_run": Run("manual"), "params": {"dry_run": False}})
