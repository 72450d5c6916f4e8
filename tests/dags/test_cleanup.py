"""When a cleanup that Airflow starts deletes, and what is told of it."""

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
    """As much of a DagRun as a cleanup looks at."""

    def __init__(self, run_type):
        self.run_type, self.dag_id, self.run_id = run_type, "d", "r"


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


@pytest.mark.parametrize(
    ("run_type", "delete", "deletes"),
    [("scheduled", False, True), ("manual", False, False), ("manual", True, True), ("backfill", False, False)],
)
def test_only_the_schedule_deletes_by_itself(asked, run_type, delete, deletes):
    steps.cleanup("orders", {"dag_run": Run(run_type), "params": {"delete": delete}})
    assert asked["delete"] is deletes and asked["owner"] == "airflow/d/r"


def test_figures_go_to_xcom_and_lists_become_their_lengths(asked):
    shown = steps.cleanup("orders", {"dag_run": Run("manual"), "params": {"delete": False}})
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
        steps.cleanup("orders", {"dag_run": Run("manual"), "params": {"delete": True}})
