"""The pipeline's DAG in a real Airflow: scheduled, by REST, twice at once, backfilled; ClickHouse says what arrived.

One Airflow standalone and one pipeline for all of these.
"""

import time
import uuid
from collections import Counter
from datetime import UTC, datetime

import pytest

from local.fixtures import Case, load_case
from local.places import Places, Ports
from tests.support.stack import free_port
from tests.support.standalone import PASSWORDS, AirflowWithPasswords, Standalone

DAG = "deliver_orders"
HOUR = 3_600_000
CONFIG = """
[cassandra]
port = {cassandra}
ledger_keyspace = "tagmill_by_airflow"
[clickhouse]
port = {clickhouse}
[spark]
driver_memory = "1g"
jars = "{jars}"
[storage]
root = "data"
[pipelines.orders]
keyspace = "{keyspace}"
bucket_size = "Hour"
tags = ["billing", "order", "shipping"]
first_time_bucket = "20261121T07:00"
destination = "orders"
schedule = "@hourly"
eventual_consistency_delay_seconds = 0
lease_seconds = 10
"""


@pytest.fixture(scope="module")
def airflow(stack):
    """Airflow with the DAG parsed and still paused; the journal is loaded and the schema applied."""
    from tagmill.settings import Settings
    from tagmill.stores import schema

    keyspace = f"t_{uuid.uuid4().hex[:12]}"
    load_case(stack.session, "orders", keyspace)
    ports = Ports(stack.cassandra.port, stack.clickhouse.port, free_port())
    places = Places(stack.home / "standalone", ports)
    places.home.mkdir()
    places.config.write_text(
        CONFIG.format(cassandra=ports.cassandra, clickhouse=ports.clickhouse, jars=places.jars / "spark", keyspace=keyspace)
    )
    schema.apply(Settings.load(places.config))
    server = AirflowWithPasswords(places)
    try:
        server.start()
        running = Standalone(places, server, server.api())
        end = time.monotonic() + 90
        while not running.api.dag_is_there(DAG):
            assert time.monotonic() < end, running.api.import_errors()
            time.sleep(0.5)
        running.keyspace = keyspace
        yield running
    finally:
        server.stop()
        stack.session.execute(f"DROP KEYSPACE IF EXISTS {keyspace}")
        stack.session.execute("DROP KEYSPACE IF EXISTS tagmill_by_airflow")
    assert running.left() == []


@pytest.fixture(scope="module")
def delivered(airflow):
    """The DAG switched on and its first, scheduled run ended; with what was seen of its processes."""
    with airflow.lookout() as seen:
        airflow.api.pause(DAG, False)
        end = time.monotonic() + 60
        while not airflow.api.runs(DAG):
            assert time.monotonic() < end, "no run was scheduled"
            time.sleep(0.5)
        runs = airflow.settle(DAG)
    airflow.first = seen
    assert set(runs.values()) == {"success"}, {run: airflow.errors(DAG, run) for run in runs}
    return airflow


@pytest.fixture
def append(stack, delivered):
    """append(pid, tag, n) writes n new events of a persistence_id into the view, as an application would now."""
    columns = (
        "tag_name, timebucket, timestamp, persistence_id, tag_pid_sequence_nr, sequence_nr, event, event_manifest, ser_id,"
        " ser_manifest, writer_uuid"
    )
    insert = stack.session.prepare(
        f"INSERT INTO {delivered.keyspace}.tag_views ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, '', 9001, 'OrderPlaced', 'w')"
    )

    def write(persistence_id: str, tag: str, n: int) -> Counter[tuple[str, str, int]]:
        bucket = int(datetime.now(tz=UTC).timestamp() * 1000) // HOUR * HOUR
        for number in range(1, n + 1):
            stack.session.execute(insert, (tag, bucket, uuid.uuid1(), persistence_id, number, number, b"{}"))
        return Counter((tag, persistence_id, number) for number in range(1, n + 1))

    return write


def in_clickhouse(stack) -> Counter[tuple[str, str, int]]:
    """How often each event is there."""
    return Counter(tuple(row) for row in stack.rows("SELECT tag, persistence_id, sequence_nr FROM orders"))


def in_view(stack, keyspace: str) -> Counter[tuple[str, str, int]]:
    """How often each event is in the application's view."""
    found = stack.session.execute(f"SELECT tag_name, persistence_id, sequence_nr FROM {keyspace}.tag_views")
    return Counter(tuple(row) for row in found)


def journal() -> Counter[tuple[str, str, int]]:
    """What the plugin itself read."""
    case = Case("orders")
    return Counter((tag, pid, number) for tag in case.tags for pid, number, _ in case.delivered(tag))


def run_numbers(stack) -> int:
    return stack.session.execute("SELECT last_run FROM tagmill_by_airflow.pipelines WHERE pipeline = 'orders'").one()[0]


def test_switched_on_the_schedule_delivers_everything_once(stack, delivered):
    assert in_clickhouse(stack) - journal() == Counter()
    assert journal() - in_clickhouse(stack) == Counter()
    assert delivered.first.jvms


def test_the_asset_tells_which_run_brought_how_many_rows(delivered):
    first = delivered.call("GET", "/assets/events?order_by=timestamp&limit=1")["asset_events"][0]
    assert first["name"] == "tagmill_orders"
    assert first["extra"]["run"] == 1
    assert first["extra"]["rows"] == sum(journal().values())


def test_passwords_are_on_no_command_line_in_no_log_and_in_no_database(delivered):
    for password in PASSWORDS.values():
        assert not [command for command in delivered.first.commands if password in command]
        assert delivered.files_with(password) == []


def test_a_run_triggered_by_rest_delivers_what_is_new_of_the_tags_it_names(stack, delivered, append):
    before = in_clickhouse(stack)
    new = append("by-rest", "order", 30)
    append("by-rest", "billing", 20)
    run = delivered.api.trigger(DAG, {"tags": ["order"]})
    delivered.succeed(DAG, run)
    assert in_clickhouse(stack) - before == new


def test_wrong_params_are_refused_before_there_is_a_run(delivered):
    from tagmill.errors import StoreUnavailable

    known = delivered.api.runs(DAG)
    for conf in ({"tags": ["nope"]}, {"tags": []}, {"reread_from": "yesterday"}):
        with pytest.raises(StoreUnavailable, match="answered 400"):
            delivered.api.trigger(DAG, conf)
    assert delivered.api.runs(DAG) == known


def test_half_a_range_fails_at_once_and_says_what_is_missing(delivered):
    run = delivered.api.trigger(DAG, {"reread_from": "2026-11-21T08:00:00Z"})
    assert delivered.wait(DAG, run, 60) == "failed"
    (plan,) = [task for task in delivered.api.tasks(DAG, run) if task["task_id"] == "plan"]
    assert plan["try_number"] == 1
    assert "reread_until is missing" in str(delivered.errors(DAG, run))


def test_two_triggers_at_once_deliver_each_event_once(stack, delivered, append):
    new = append("two-at-once", "shipping", 40)
    runs = [delivered.api.trigger(DAG) for _ in range(2)]
    for run in runs:
        delivered.succeed(DAG, run)
    assert new - in_clickhouse(stack) == Counter()
    assert in_clickhouse(stack) == in_view(stack, delivered.keyspace)


def test_a_backfill_reads_its_range_again_and_delivers_nothing_twice(stack, delivered):
    before, last = in_clickhouse(stack), run_numbers(stack)
    (run,) = delivered.backfill(DAG, "2026-11-21T09:00:00Z")
    delivered.succeed(DAG, run)
    assert delivered.tasks(DAG, run)["seal"] == "success"
    plan = delivered.call("GET", f"/dags/{DAG}/dagRuns/{run}/taskInstances/plan/xcomEntries/return_value")["value"]
    assert "2026-11-21T08:00:00+00:00" in str(plan) and "2026-11-21T09:00:00+00:00" in str(plan)
    assert run_numbers(stack) == last + 1
    assert in_clickhouse(stack) == before


def test_nothing_to_do_starts_no_jvm_and_is_quick(delivered):
    idle = {"plan": "success", "seal": "skipped", "push": "skipped", "close": "skipped", "again": "skipped"}
    for _ in range(3):  # what other tests left is delivered first
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


def test_the_page_in_the_ui_shows_pipelines_and_data_docs_behind_the_login(delivered):
    for path in ("/tagmill/", "/tagmill/api/pipelines", "/tagmill/docs/orders/run-00000001/index.html"):
        assert delivered.page(path, login=False)[0] == 401
        assert delivered.page(path, login=True)[0] == 200
    shown = delivered.page("/tagmill/?count_view=true", login=True)[1]
    assert shown.count("exactly once") == 3
    assert 'href="docs/orders/run-00000001/index.html"' in shown
    assert all(f"<td>{tag}</td>" in shown for tag in ("billing", "order", "shipping"))
    assert delivered.page("/tagmill/docs/orders/../../tagmill.toml", login=True)[0] == 404
