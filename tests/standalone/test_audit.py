"""Audit, repair and cleanup as DAGs in a real Airflow, by REST and by schedule, and the page in the UI
afterwards.
"""

import time

import pytest

from tests.standalone.test_airflow import in_clickhouse, in_view
from tests.support.standalone import DAG

AUDIT, CLEANUP, MAINTENANCE = "audit_orders", "cleanup_orders", "maintenance_orders"


@pytest.mark.long
def test_audit_triggered_while_paused_runs_once(delivered):
    """Trigger the paused DAG, which its form switches on: the missed interval must not audit a second
    time.
    """
    delivered.succeed(DAG, delivered.api.trigger(DAG))  # delivers what other tests left
    assert list(delivered.first_run(AUDIT).values()) == ["success"]
    assert "agrees" in delivered.page("/tagmill/", login=True)[1]


@pytest.mark.long
def test_audit_lost_batch_fails_until_repair(stack, delivered):
    """Delete a batch: the audit fails with a link to its page, and a repair restores the rows."""
    before = in_clickhouse(stack)
    (batch,) = stack.rows("SELECT argMin(batch_id, event_time) FROM orders WHERE tag = 'order'")[0]
    (lost,) = stack.rows(f"SELECT count() FROM orders WHERE batch_id = '{batch}'")[0]
    stack.rows(f"ALTER TABLE orders DELETE WHERE batch_id = '{batch}' SETTINGS mutations_sync = 2")
    run = delivered.api.trigger(AUDIT, {"tags": ["order"]})
    assert delivered.wait(AUDIT, run) == "failed"
    (error,) = delivered.errors(AUDIT, run)
    assert f"{lost} missing_in_clickhouse" in error
    assert "/tagmill/docs/orders/audit-" in error
    assert "does not agree" in delivered.page("/tagmill/", login=True)[1]

    assert in_clickhouse(stack) != before
    delivered.api.pause(MAINTENANCE, False)
    run = delivered.api.trigger(MAINTENANCE, {"operation": "repair", "why": "a test", "dry_run": False})
    asked = delivered.answer(MAINTENANCE, run, "Approve")
    assert asked["subject"] == "repair of orders"
    assert f"deliver {lost} missing_in_clickhouse" in asked["body"], asked["body"]
    delivered.succeed(MAINTENANCE, run)
    assert in_clickhouse(stack) == before == in_view(stack, delivered.keyspace)
    assert "does not agree" not in delivered.page("/tagmill/", login=True)[1]


def test_cleanup_triggered_while_paused_only_reports(stack, delivered):
    """Trigger the paused cleanup, which may delete on schedule: no missed interval runs next to the dry
    run.
    """
    before, sealed = in_view(stack, delivered.keyspace), in_clickhouse(stack)
    ((run, state),) = delivered.first_run(CLEANUP).items()
    assert state == "success" and not run.startswith("scheduled")
    assert "0 partitions of the view with 0 rows would be deleted" in said(delivered, CLEANUP, run)
    assert in_view(stack, delivered.keyspace) == before and in_clickhouse(stack) == sealed


@pytest.mark.long
def test_cleanup_of_the_schedule_deletes_on_time(delivered):
    """Switch the cleanup on: its first run is the one of the next minute, and it may delete."""
    dag = "cleanup_products"
    delivered.api.pause(dag, False)
    end = time.monotonic() + 100
    while not (runs := {run: state for run, state in delivered.api.runs(dag).items() if state == "success"}):
        assert time.monotonic() < end, delivered.api.runs(dag)
        time.sleep(1)
    delivered.api.pause(dag, True)
    assert all(run.startswith("scheduled__") for run in runs)
    assert not any("would be" in said(delivered, dag, run) for run in runs)


def said(delivered, dag: str, run: str) -> str:
    """Return the message of a cleanup."""
    path = f"/dags/{dag}/dagRuns/{run}/taskInstances/cleanup/xcomEntries/return_value"
    return str(delivered.call("GET", path)["value"]["message"])
