"""The pipeline's DAG in a real Airflow: scheduled, by REST, twice at once and backfilled; ClickHouse shows
what arrived.
"""

import json
import os
import re
import subprocess
import time
from collections import Counter

import pytest

from local.fixtures import Case
from tests.support.standalone import DAG, PASSWORDS


def in_clickhouse(stack) -> Counter[tuple[str, str, int]]:
    """Return how often ClickHouse has each event."""
    return Counter(tuple(row) for row in stack.rows("SELECT tag, persistence_id, sequence_nr FROM orders"))


def in_view(stack, keyspace: str) -> Counter[tuple[str, str, int]]:
    """Return how often the application's view has each event."""
    found = stack.session.execute(f"SELECT tag_name, persistence_id, sequence_nr FROM {keyspace}.tag_views")
    return Counter(tuple(row) for row in found)


def journal() -> Counter[tuple[str, str, int]]:
    """Return each event that the plugin itself read, once."""
    case = Case("orders")
    return Counter((tag, pid, number) for tag in case.tags for pid, number, _ in case.delivered(tag))


def run_numbers(stack) -> int:
    """Return the number of the pipeline's last run."""
    return stack.session.execute(
        "SELECT last_run FROM tagmill_by_airflow.pipelines WHERE pipeline = 'orders'"
    ).one()[0]


def test_doctor_knows_pools_and_connections(airflow) -> None:
    """Run the doctor in Airflow's Python: the pools are fine, a misspelt key of a connection is wrong."""
    misspelt = {"conn_type": "generic", "password": PASSWORDS["cassandra"], "extra": {"tsl": True}}
    login = {"USERNAME": "default", "PASSWORD": PASSWORDS["clickhouse"]}
    variables = airflow.airflow.environment() | {
        "AIRFLOW_CONN_TAGMILL_KAFKA": json.dumps(misspelt),
        **{f"TAGMILL_CLICKHOUSE__{name}": value for name, value in login.items()},
    }
    program = airflow.layout.airflow_venv / "bin" / "tagmill"
    command = [str(program), "doctor", "--json", "--pipeline", "orders"]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=240)
    found = {finding["check"]: finding for finding in json.loads(done.stdout)}
    assert {check for check, one in found.items() if one["level"] == "wrong"} == {"airflow connections"}, (
        found
    )
    assert found["airflow pools"]["level"] == found["spark-submit"]["level"] == "fine"
    assert "tagmill_kafka: tsl" in found["airflow connections"]["said"]
    assert done.returncode == 2 and not [
        one for one in PASSWORDS.values() if one in done.stdout + done.stderr
    ]


def test_dag_switched_on_delivers_everything_once(stack, delivered):
    assert in_clickhouse(stack) - journal() == Counter()
    assert journal() - in_clickhouse(stack) == Counter()


def test_small_run_starts_no_jvm(stack, delivered, append):
    """Seal a run of few rows in a Python process: its log says so, and no spark-submit is seen."""
    before = in_clickhouse(stack)
    new = append("few-rows", "order", 30)
    with delivered.lookout() as seen:
        run = delivered.api.trigger(DAG)
        delivered.succeed(DAG, run)
    assert in_clickhouse(stack) - before == new
    assert delivered.tasks(DAG, run)["seal"] == "success" and not seen.jvms
    assert any("seal.py" in command for command in seen.commands)
    log = delivered.call("GET", f"/dags/{DAG}/dagRuns/{run}/taskInstances/seal/logs/1")
    assert "starts without spark-submit" in str(log) and "batches sealed" in str(log)


def test_asset_event_names_run_and_rows(delivered):
    first = delivered.call("GET", "/assets/events?order_by=timestamp&limit=1")["asset_events"][0]
    assert first["name"] == "tagmill_orders"
    assert first["extra"]["run"] == 1
    assert first["extra"]["rows"] == sum(journal().values())


def test_passwords_are_in_no_command_or_file(delivered):
    """Search the command lines of all processes, and logs and databases, for each password."""
    for password in PASSWORDS.values():
        assert not [command for command in delivered.first.commands if password in command]
        assert delivered.files_with(password) == []


def test_run_by_rest_delivers_named_tags_only(stack, delivered, append):
    before = in_clickhouse(stack)
    new = append("by-rest", "order", 30)
    append("also-by-rest", "billing", 20)
    run = delivered.api.trigger(DAG, {"tags": ["order"]})
    delivered.succeed(DAG, run)
    assert in_clickhouse(stack) - before == new


def test_trigger_wrong_params_creates_no_run(delivered):
    from tagmill.errors import StoreUnavailable

    known = delivered.api.runs(DAG)
    for conf in ({"tags": ["nope"]}, {"tags": []}, {"reread_from": "yesterday"}):
        with pytest.raises(StoreUnavailable, match="answered 400"):
            delivered.api.trigger(DAG, conf)
    assert delivered.api.runs(DAG) == known


def test_run_half_a_range_fails_at_once(delivered):
    run = delivered.api.trigger(DAG, {"reread_from": "2026-11-21T08:00:00Z"})
    assert delivered.wait(DAG, run, 60) == "failed"
    (plan,) = [task for task in delivered.api.tasks(DAG, run) if task["task_id"] == "plan"]
    assert plan["try_number"] == 1
    assert "reread_until is missing" in str(delivered.errors(DAG, run))


@pytest.mark.long
def test_two_triggers_at_once_deliver_each_event_once(stack, delivered, append):
    new = append("two-at-once", "shipping", 40)
    runs = [delivered.api.trigger(DAG) for _ in range(2)]
    for run in runs:
        delivered.succeed(DAG, run)
    assert new - in_clickhouse(stack) == Counter()
    assert in_clickhouse(stack) == in_view(stack, delivered.keyspace)


def test_backfill_rereads_range_without_duplicates(stack, delivered):
    before, last = in_clickhouse(stack), run_numbers(stack)
    (run,) = delivered.backfill(DAG, "2026-11-21T09:00:00Z")
    delivered.succeed(DAG, run)
    # Behind a DAG's first backfill Airflow starts the newest run that its schedule missed; it may take the
    # planned run over.
    delivered.settle(DAG)
    assert delivered.tasks(DAG, run)["seal"] in ("success", "skipped")
    plan = delivered.call("GET", f"/dags/{DAG}/dagRuns/{run}/taskInstances/plan/xcomEntries/return_value")[
        "value"
    ]
    assert "2026-11-21T08:00:00+00:00" in str(plan) and "2026-11-21T09:00:00+00:00" in str(plan)
    assert run_numbers(stack) > last
    # That missed run also delivers what earlier tests have left.
    assert before - in_clickhouse(stack) == Counter()
    assert in_clickhouse(stack) - in_view(stack, delivered.keyspace) == Counter()


def test_run_without_work_starts_no_jvm(delivered):
    idle = {"plan": "success", "seal": "skipped", "push": "skipped", "close": "skipped", "again": "skipped"}
    for _ in range(3):  # the first run may deliver what other tests left
        with delivered.lookout() as seen:
            began = time.monotonic()
            run = delivered.api.trigger(DAG)
            delivered.succeed(DAG, run)
            seconds = time.monotonic() - began
        if delivered.tasks(DAG, run) == idle:
            break
    assert delivered.tasks(DAG, run) == idle
    assert not seen.jvms
    assert seconds < 60
    print(f"nothing to do: {seconds:.1f} s of wall time")


def test_page_behind_login_shows_pipelines_and_docs(delivered):
    for path in ("/tagmill/", "/tagmill/api/pipelines", "/tagmill/docs/orders/run-00000001/index.html"):
        assert delivered.page(path, login=False)[0] == 401
        assert delivered.page(path, login=True)[0] == 200
    shown = delivered.page("/tagmill/?count_view=true", login=True)[1]
    # Other tests decide whether an audit has run and whether the topic was delivered.
    words = re.findall('<td class="(?:ok|none)">(counts agree|exactly once|nothing delivered yet)', shown)
    assert len(words) == 4 and words.count("nothing delivered yet") <= 1
    assert 'href="docs/orders/run-00000001/index.html"' in shown
    assert all(f"<td>{tag}</td>" in shown for tag in ("billing", "order", "shipping"))
    assert delivered.page("/tagmill/docs/orders/../../tagmill.toml", login=True)[0] == 404
