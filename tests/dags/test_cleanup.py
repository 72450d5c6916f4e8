"""When a cleanup that Airflow starts deletes, and what Airflow shows of it."""

from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("airflow")

from tagmill import errors
from tagmill.airflow import steps
from tagmill.airflow.compat import AirflowFailException, AirflowRescheduleException

REPORT = {
    "pipeline": "orders", "dry_run": True, "buckets": 2, "rows": 32, "refused_buckets": 3, "runs": 1, "batches": 4, "audits": 0,
    "reports": 5, "more": False, "partitions": [{"tag": "t"}, {"tag": "u"}], "warnings": [], "message": "pipeline orders: …",
    "refused": [{"tag": "t", "reason": "held", "buckets": 3, "oldest": "a", "newest": "b", "text": "pipeline orders holds 'p'"}],
}  # fmt: skip


class Run:
    """Part of a DagRun that a cleanup reads; the run began `late` after it was due."""

    def __init__(self, run_type, late=timedelta(seconds=10)):
        self.run_type, self.dag_id, self.run_id = run_type, "d", "r"
        self.run_after = datetime(2026, 11, 21, tzinfo=UTC)
        self.start_date = self.run_after + late


@pytest.fixture
def asked(config, monkeypatch):
    """Patch the library's clean and return what it was asked for. It answers with `asked["answer"]`."""
    from tagmill.maintenance.view_cleanup import clean as module

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
        pytest.param(
            "@daily", Run("scheduled", timedelta(hours=9)), DRY, False, id="scheduled, missed while paused"
        ),
        pytest.param(None, Run("scheduled"), DRY, False, id="scheduled, switched off since"),
        pytest.param("@daily", Run("manual"), DRY, False, id="by hand"),
        pytest.param(None, Run("manual"), {"dry_run": False}, True, id="by hand, dry run off"),
        pytest.param("@daily", Run("backfill"), DRY, False, id="backfill"),
        pytest.param("@daily", Run("manual"), {**DRY, "delete": True}, True, id="by hand, old param"),
        pytest.param(
            "@daily", Run("manual"), {**DRY, "delete": "false"}, False, id="by hand, old param as text"
        ),
    ],
)
def test_cleanup_deletes_by_schedule_or_param(asked, schedule, run, params, deletes):
    """Runs that make up for a missed one only report, because triggering a dry run by the form unpauses the
    DAG.
    """
    steps.cleanup("orders", schedule, {"dag_run": run, "params": params})
    assert asked["delete"] is deletes and asked["owner"] == "airflow/d/r"


def test_cleanup_xcom_has_figures_and_list_lengths(asked):
    """Figures go to XCom as they are, lists as their lengths."""
    shown = steps.cleanup("orders", None, {"dag_run": Run("manual"), "params": DRY})
    assert shown == {**REPORT, "partitions": 2, "refused": 1, "warnings": 0}


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (errors.GuardRefused("pipelines.orders.cleanup.enabled is false"), AirflowFailException),
        (errors.LeaseTaken("at work"), AirflowRescheduleException),
    ],
)
def test_cleanup_error_decides_fail_or_reschedule(asked, raised, told):
    """Cleanups that are switched off fail for good; those that find the lease taken are rescheduled."""
    asked["answer"] = raised
    with pytest.raises(told):
        steps.cleanup("orders", None, {"dag_run": Run("manual"), "params": {"dry_run": False}})
