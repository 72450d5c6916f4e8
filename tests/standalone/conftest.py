"""One Airflow standalone and one pipeline for all tests of this folder: by REST and in a browser.

airflow      running, the DAG parsed and still paused, the journal loaded
delivered    the DAG triggered, switched on, and its first run ended
append       append(persistence_id, tag, n, at=now) writes a new persistence_id of n events
"""

import time
import uuid
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from cassandra.util import uuid_from_time

from local.fixtures import load_case
from local.layout import Ports, StackLayout
from tests.conftest import SHORT_LIVED, toml_value
from tests.support.faulty_clickhouse import port_with_login
from tests.support.stack import free_port
from tests.support.standalone import DAG, PASSWORDS, AirflowWithPasswords, Standalone

HOUR = 3_600_000
CONFIG = """
[cassandra]
port = {cassandra}
ledger_keyspace = "tagmill_by_airflow"
[clickhouse]
port = {clickhouse}
[spark]
driver_memory = "1g"
conf = {conf}
[storage]
root = "data"
[pipelines.orders]
keyspace = "{keyspace}"
bucket_size = "Hour"
tags = ["billing", "order", "shipping"]
first_time_bucket = "20261121T07:00"
destination = "orders"
# hourly, on one day of the year: no run of the schedule's own comes between those of the tests
schedule = "0 * 21 11 *"
audit_schedule = "0 * 21 11 *"
eventual_consistency_delay_seconds = 0
lease_seconds = 10
[pipelines.orders.cleanup]
enabled = true
schedule = "0 * 21 11 *"
[airflow]
input_dir = "inputs"
[kafka]
bootstrap_servers = ["127.0.0.1:{kafka}"]
[pipelines.carts]
kind = "kafka_journal"
keyspace = "carts_by_airflow"
topic_prefixes = ["carts-"]
schedule = "@yearly"
purge_schedule = "@yearly"
[pipelines.products]
kind = "topic"
topics = ["products"]
format = "json"
destination = "products"
schedule = "@yearly"
cleanup_schedule = "* * * * *"
expire_schedule = "@yearly"
max_records_per_run = 4
batch_min_rows = 1
[pipelines.cart_events]
kind = "kafka_journal_events"
keyspace = "carts_by_airflow"
destination = "cart_events"
schedule = "@yearly"
cleanup_schedule = "@yearly"
[pipelines.cart_events.airflow]
deadline_seconds = 0.1
on_deadline = ["our_calls:fail", "our_calls:note"]
"""
# Airflow has the folder `config` of its home on the path of Python.
OUR_CALLS = """
import json, pathlib
from airflow.sdk import Connection

def fail(context):
    raise ValueError("no line")

def note(context):
    known = Connection.get("of_the_database").login
    pathlib.Path({file!r}).write_text(json.dumps([context["dag_run"]["dag_id"], known]))
"""


@pytest.fixture(scope="package")
def airflow(stack, kafka):
    """Yield Airflow with the DAG parsed and still paused; the journal is loaded and the schema applied."""
    from tagmill.config.settings import Settings
    from tagmill.delivery.topics import destination_table
    from tagmill.ledger import schema
    from tests.support.kafka import create

    keyspace = f"t_{uuid.uuid4().hex[:12]}"
    load_case(stack.session, "orders", keyspace)
    with_login = port_with_login(stack.clickhouse.port, PASSWORDS["clickhouse"])
    ports = Ports(stack.cassandra.port, with_login, free_port(), kafka.port)
    layout = StackLayout(stack.home / "standalone", ports)
    layout.home.mkdir()
    values = {"conf": toml_value(SHORT_LIVED), "keyspace": keyspace}
    layout.config.write_text(
        CONFIG.format(cassandra=ports.cassandra, clickhouse=stack.clickhouse.port, kafka=kafka.port, **values)
    )
    calls = layout.home / "airflow" / "config" / "our_calls.py"
    calls.parent.mkdir(parents=True)
    calls.write_text(OUR_CALLS.format(file=str(layout.home / "late.json")))
    create(kafka.port, "products")
    schema.apply(Settings.load(layout.config))
    destination_table.apply(Settings.load(layout.config))
    server = AirflowWithPasswords(layout)
    try:
        server.start()
        running = Standalone(layout, server, server.api())
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
        stack.session.execute("DROP KEYSPACE IF EXISTS carts_by_airflow")
    assert running.left() == []


@pytest.fixture(scope="package")
def delivered(airflow):
    """Return Airflow after the DAG was triggered and switched on and its first run has ended, with its
    processes recorded.
    """
    with airflow.lookout() as seen:
        runs = airflow.first_run(DAG)
    airflow.first = seen
    assert list(runs.values()) == ["success"], {run: airflow.errors(DAG, run) for run in runs}
    return airflow


@pytest.fixture
def append(stack, delivered):
    """Return write(pid, tag, n, at=now), which writes a new persistence_id of n events with a tag, as an
    application would.
    """
    payload = {
        "event": b"{}",
        "event_manifest": "",
        "ser_id": 9001,
        "ser_manifest": "OrderPlaced",
        "writer_uuid": "w",
    }
    of_journal = [
        "persistence_id",
        "partition_nr",
        "sequence_nr",
        "timestamp",
        "timebucket",
        "tags",
        *payload,
    ]
    of_view = [
        "tag_name",
        "timebucket",
        "timestamp",
        "persistence_id",
        "tag_pid_sequence_nr",
        "sequence_nr",
        *payload,
    ]

    def insert(table: str, columns: list[str]) -> Any:
        values = ", ".join("?" for _ in columns)
        return stack.session.prepare(
            f"INSERT INTO {delivered.keyspace}.{table} ({', '.join(columns)}) VALUES ({values})"
        )

    messages, view = insert("messages", of_journal), insert("tag_views", of_view)

    def write(
        persistence_id: str, tag: str, n: int, at: datetime | None = None
    ) -> Counter[tuple[str, str, int]]:
        moment = at or datetime.now(tz=UTC)
        bucket = int(moment.timestamp() * 1000) // HOUR * HOUR
        for number in range(1, n + 1):
            offset = uuid_from_time(
                moment.timestamp() + (number - n) / 1000
            )  # the last event has that moment
            stack.session.execute(
                messages, (persistence_id, 0, number, offset, str(bucket), {tag}, *payload.values())
            )
            stack.session.execute(
                view, (tag, bucket, offset, persistence_id, number, number, *payload.values())
            )
        return Counter((tag, persistence_id, number) for number in range(1, n + 1))

    return write
