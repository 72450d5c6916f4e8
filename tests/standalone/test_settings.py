"""Keys of [airflow] and what is missing around them, in a running Airflow: deadlines in the triggerer, and pools."""

import json
import time

from tests.standalone.test_airflow import in_clickhouse
from tests.support.standalone import DAG

LATE = "deliver_cart_events"


def test_run_beyond_deadline_calls_in_triggerer(airflow) -> None:
    """Call what on_deadline names for a run that is late, by the triggerer, with Airflow's connections in reach."""
    file = airflow.layout.home / "late.json"
    connection = {"connection_id": "of_the_database", "conn_type": "generic", "login": "known"}
    airflow.call("POST", "/connections", connection)
    airflow.api.pause(LATE, False)
    run = airflow.api.trigger(LATE)
    end = time.monotonic() + 120
    while not file.exists():
        assert time.monotonic() < end, airflow.airflow.log.read_text(errors="replace")[-3000:]
        time.sleep(0.5)
    assert json.loads(file.read_text()) == [LATE, "known"]
    airflow.settle(LATE)
    assert airflow.tasks(LATE, run)["plan"] != "upstream_failed"
    airflow.api.pause(LATE, True)


def test_missing_pool_is_warned_of_and_replaced(stack, delivered, append) -> None:
    """Deliver although a pool was deleted, in the default pool; Airflow warns of it until it is there again."""
    new = append("without-a-pool", "order", 20)
    path = f"/dagWarnings?dag_id={DAG}"
    assert delivered.call("GET", path)["dag_warnings"] == []
    delivered.call("DELETE", "/pools/clickhouse")
    try:
        run = delivered.api.trigger(DAG)
        delivered.succeed(DAG, run)
        assert new - in_clickhouse(stack) == new - new
        used = {task["task_id"]: task["pool"] for task in delivered.api.tasks(DAG, run)}
        assert (used["push"], used["seal"]) == ("default_pool", "spark")
        time.sleep(2)
        (warning,) = delivered.call("GET", path)["dag_warnings"]
        assert warning["message"].startswith("no pool clickhouse: runs that begin now use the default pool")
    finally:
        delivered.api.set_pool("clickhouse", 2, "Inserts into ClickHouse")
    time.sleep(2)
    assert delivered.call("GET", path)["dag_warnings"] == []
