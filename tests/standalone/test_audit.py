"""Audit, repair and cleanup as DAGs in a real Airflow: the first schedule, by REST, and what the page in the UI says then."""

import pytest

from tests.standalone.test_airflow import in_clickhouse, in_view
from tests.support.standalone import DAG

AUDIT, CLEANUP = "audit_orders", "ttl_cleanup_orders"


@pytest.mark.long
def test_the_schedule_audits_and_all_agree(delivered):
    delivered.succeed(DAG, delivered.api.trigger(DAG))  # what other tests left
    runs = delivered.scheduled(AUDIT)
    assert set(runs.values()) == {"success"}, {run: delivered.errors(AUDIT, run) for run in runs}
    assert "agrees" in delivered.page("/tagmill/", login=True)[1]


@pytest.mark.long
def test_an_audit_fails_with_the_page_and_a_repair_brings_back_what_was_lost(stack, delivered):
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

    run = delivered.api.trigger(AUDIT, {"repair": True})
    delivered.succeed(AUDIT, run)
    assert in_clickhouse(stack) == before == in_view(stack, delivered.keyspace)
    assert "does not agree" not in delivered.page("/tagmill/", login=True)[1]


def test_a_cleanup_by_hand_says_what_would_go_and_deletes_nothing(stack, delivered):
    before = in_view(stack, delivered.keyspace)
    delivered.api.pause(CLEANUP, False)
    run = delivered.api.trigger(CLEANUP)
    delivered.succeed(CLEANUP, run)
    said = delivered.call("GET", f"/dags/{CLEANUP}/dagRuns/{run}/taskInstances/cleanup/xcomEntries/return_value")["value"]
    assert "0 partitions of the view with 0 rows would be deleted" in said["message"]
    assert in_view(stack, delivered.keyspace) == before
