"""`tagmill doctor`: nothing is wrong with a healthy stack, and each thing that breaks is found with its cure."""

import json
import stat
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from local.fixtures import Case, load_case
from tagmill.cassandra.client import Cassandra
from tagmill.config.settings import Settings
from tagmill.delivery.topics import destination_table
from tagmill.doctor import executors, machine
from tagmill.domain import clock
from tagmill.ledger import schema
from tagmill.spark import session as sparksession
from tests.conftest import FEW_ROWS, toml_value
from tests.support import breaking
from tests.support.delivery import tagmill
from tests.support.kafka import create

CASE = "partition-boundary"
CONFIG = """
[cassandra]
port = {cassandra}
ledger_keyspace = "{name}_ledger"
[clickhouse]
port = {clickhouse}
[kafka]
bootstrap_servers = ["127.0.0.1:{kafka}"]
[spark]
conf = {conf}
[storage]
root = "data"
[pipelines.orders]
keyspace = "{name}"
bucket_size = "{bucket}"
tags = {tags}
first_time_bucket = "{first}"
destination = "{name}"
[pipelines.products]
kind = "topic"
topics = ["{name}"]
format = "json"
destination = "{name}_products"
"""
# Checks that are not made here: for executors there is a switch, and Airflow is in another environment.
ELSEWHERE = {*executors.CHECKS, "airflow pools", "airflow connections"}


class Patient:
    """A configuration on healthy servers, and what the doctor says of its variations."""

    def __init__(self, stack: Any, kafka: Any, folder: Path) -> None:
        self.stack, self.folder, self.name = stack, folder, f"t_{uuid.uuid4().hex[:12]}"
        self.kafka = kafka.port
        expected = Case(CASE).expected
        self.text = CONFIG.format(
            name=self.name,
            cassandra=stack.cassandra.port,
            clickhouse=stack.clickhouse.port,
            kafka=kafka.port,
            conf=toml_value(FEW_ROWS),
            bucket=expected["bucket"],
            tags=toml_value(list(expected["tags"])),
            first=expected["first_time_bucket"],
        )
        self.file = folder / "tagmill.toml"
        self.file.write_text(self.text)
        self.settings = Settings.load(self.file)

    def examined(self, *arguments: str, change: dict[str, str] | None = None) -> dict[str, dict[str, str]]:
        """Run the command with texts of the configuration replaced; return its findings by their checks."""
        text = self.text
        for old, new in (change or {}).items():
            assert old in text, old
            text = text.replace(old, new, 1)
        self.file.write_text(text)
        code, out, said = tagmill(self.file, "doctor", "--json", *arguments)
        found = {finding["check"]: finding for finding in json.loads(out)}
        assert code == (2 if any(one["level"] == "wrong" for one in found.values()) else 0), said
        assert all(one["cure"] for one in found.values() if one["level"] == "wrong"), found
        return found


@pytest.fixture(scope="module")
def patient(stack: Any, kafka: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Patient]:
    """Yield a patient whose journal, topic and tables are there."""
    made = Patient(stack, kafka, tmp_path_factory.mktemp("doctor"))
    load_case(stack.session, CASE, made.name)
    create(kafka.port, made.name)
    schema.apply(made.settings)
    destination_table.apply(made.settings)
    yield made
    for keyspace in (made.name, f"{made.name}_ledger"):
        stack.session.execute(f"DROP KEYSPACE {keyspace}", timeout=60)


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Call no disk too full."""
    monkeypatch.setattr(machine, "ROOM_BYTES", 0)


def is_wrong(found: dict[str, dict[str, str]], expected: dict[str, tuple[str, str]]) -> None:
    """Assert that exactly these checks are wrong, with these words of what is said and of the cure."""
    wrong = {check: one for check, one in found.items() if one["level"] == "wrong"}
    assert wrong.keys() == expected.keys(), found
    for check, (said, cure) in expected.items():
        assert said in wrong[check]["said"] and cure in wrong[check]["cure"], wrong[check]


def test_healthy_stack_is_fine(patient: Patient) -> None:
    """Call everything fine that is checked, print a line for each, and leave no file behind."""
    before = sorted(patient.folder.rglob("*"))
    found = patient.examined()
    assert {check for check, one in found.items() if one["level"] != "fine"} == ELSEWHERE, found
    code, out, _ = tagmill(patient.file, "doctor", "--pipeline", "orders")
    lines = out.splitlines()
    assert code == 0 and {line[0] for line in lines} == {"✓", "!"}
    assert any(line.startswith("✓ pipeline orders: rights") for line in lines)
    assert not any("kafka" in line or "products" in line for line in lines if line.startswith("✓ pip"))
    assert sorted(patient.folder.rglob("*")) == before


def test_doctor_asks_for_keyspaces_once(patient: Patient, monkeypatch) -> None:
    """Ask Cassandra once which keyspaces there are, for all checks of the doctor."""
    asked, keyspaces = list[str](), Cassandra.all_keyspaces

    def counted(cassandra: Cassandra) -> Any:
        asked.append(sys._getframe(1).f_globals["__name__"])
        return keyspaces(cassandra)

    monkeypatch.setattr(Cassandra, "all_keyspaces", counted)
    is_wrong(patient.examined(), {})
    assert [name for name in asked if name.startswith("tagmill.doctor")] == ["tagmill.doctor.cassandra"]


def test_unreachable_servers_leave_nothing_fine_behind_them(patient: Patient) -> None:
    found = patient.examined(
        change={
            "[cassandra]": '[cassandra]\nhosts = ["no-such-host.invalid"]',
            f"[clickhouse]\nport = {patient.stack.clickhouse.port}": "[clickhouse]\nport = 1",
            "bootstrap_servers = [": 'bootstrap_servers = ["127.0.0.1:1"] # ',
        }
    )
    is_wrong(
        found,
        {
            "cassandra names": ("no-such-host.invalid", "cassandra.hosts"),
            "clickhouse port": ("127.0.0.1:1 (Connection refused)", "clickhouse.host"),
            "kafka port": ("127.0.0.1:1 (Connection refused)", "kafka.bootstrap_servers"),
        },
    )
    for check in ("ledger schema", "pipeline orders: rights", "pipeline orders: journal", "cassandra login"):
        assert found[check]["said"] == "not checked: no connection to Cassandra"
    for check in ("destination", "destination rights"):
        assert found[f"pipeline orders: {check}"]["said"] == "not checked: no connection to ClickHouse"
    assert found["pipeline products: topics"]["said"] == "not checked: no connection to Kafka"
    assert found["clocks"]["said"] == "not checked: no connection to Cassandra or ClickHouse"


def test_wrong_names_are_found(patient: Patient) -> None:
    """Find another datacenter, database, folder of jars, root and topic than there are."""
    found = patient.examined(
        change={
            "[cassandra]": '[cassandra]\nlocal_datacenter = "nowhere"',
            "[clickhouse]": '[clickhouse]\ndatabase = "nowhere"',
            'topics = ["': 'topics = ["not_',
            'root = "data"': 'root = "/dev/null/data"',
            "[spark]": '[spark]\njars = "nowhere"',
        }
    )
    is_wrong(
        found,
        {
            "cassandra login": ("no datacenter nowhere (there: datacenter1)", "cassandra.local_datacenter"),
            "clickhouse login": ("Database nowhere does not exist", "CREATE DATABASE `nowhere`"),
            "pipeline products: topics": (f"no topic not_{patient.name}", "pipelines.products.topics"),
            "storage root": ("/dev/null/data", "storage.root"),
            "jars": ("nowhere", "spark.jars"),
        },
    )
    assert found["clocks"]["level"] == "warning"


def test_schema_not_applied_is_found(patient: Patient) -> None:
    """Find a ledger, a destination and tables of the journal that don't exist, and too few replicas."""
    found = patient.examined(
        change={
            f'ledger_keyspace = "{patient.name}_ledger"': 'ledger_keyspace = "nowhere"\n'
            'read_consistency = "THREE"\n'
            'replication = { class = "NetworkTopologyStrategy", west = 3 }',
            "[pipelines.products]": f'[pipelines.carts]\nkind = "kafka_journal"\nkeyspace = "no_carts"\n'
            f'topics = ["{patient.name}"]\n[pipelines.carts_sent]\nkind = "kafka_journal_events"\n'
            f'keyspace = "{patient.name}"\ndestination = "{patient.name}_carts"\n[pipelines.products]',
            f'destination = "{patient.name}"': f'destination = "{patient.name}_not"\nmessages_table = "nothing"',
        }
    )
    is_wrong(
        found,
        {
            "keyspace nowhere: replication": (
                "gives datacenter1 no replica, and names west",
                "cassandra.replication",
            ),
            "ledger schema": ("keyspace nowhere does not exist", "tagmill schema apply"),
            "pipeline orders: replication": ("reads at THREE need 3", "LOCAL_QUORUM"),
            "pipeline orders: journal": ("no table nothing", "pipelines.orders.messages_table"),
            "keyspace no_carts: replication": ("names west", "cassandra.replication"),
            f"keyspace {patient.name}: tables": ("tables are missing", "replicate first"),
            "pipeline carts_sent: destination": (f"no table {patient.name}_carts", "tagmill schema apply"),
            "pipeline orders: destination": (f"no table {patient.name}_not", "tagmill schema apply"),
        },
    )
    assert found["keyspace no_carts: tables"]["cure"] == "the first replication creates it"
    found = patient.examined(change={f'keyspace = "{patient.name}"': 'keyspace = "nowhere"'})
    is_wrong(found, {"pipeline orders: journal": ("does not exist", "pipelines.orders.keyspace")})


def test_wrong_bucket_size_and_lost_history_are_found(patient: Patient) -> None:
    """Find buckets that are shorter than configured, and a batch of which the ledger does not know."""
    sent = f"`{patient.name}_batches`"
    patient.stack.client().command(
        f"INSERT INTO {sent} (run, number, batch_id, tag) VALUES (7, 1, generateUUIDv4(), 't')"
    )
    size = Case(CASE).expected["bucket"]
    assert size != "Day"
    found = patient.examined("-p", "orders", change={f'bucket_size = "{size}"': 'bucket_size = "Day"'})
    is_wrong(
        found,
        {
            "pipeline orders: bucket size": ("don't begin with a Day", "pipelines.orders.bucket_size"),
            "pipeline orders: history": (
                "has batches of run 7",
                "tagmill ledger restore -p orders --dry-run",
            ),
        },
    )
    patient.stack.client().command(f"TRUNCATE TABLE {sent}")


def test_old_ledger_is_found(patient: Patient) -> None:
    """Find a table and a column that the ledger lacks; the cures bring them back."""
    ledger = f"{patient.name}_ledger"
    patient.stack.session.execute(f"DROP TABLE {ledger}.attempts", timeout=60)
    patient.stack.session.execute(f"ALTER TABLE {ledger}.runs DROP reason", timeout=60)
    found = patient.examined()
    is_wrong(
        found, {"ledger schema": ("no table attempts and no column runs.reason", "tagmill schema apply; ")}
    )
    _, alter = found["ledger schema"]["cure"].split("; ")
    schema.apply(patient.settings)
    patient.stack.session.execute(alter, timeout=60)
    is_wrong(patient.examined(), {})


def test_broken_machine_is_found(patient: Patient, monkeypatch, tmp_path) -> None:
    """Find no Java, another Python for workers, a clock ahead and a full disk, all at once."""
    python = tmp_path / "python3.9"
    python.write_text("#!/bin/sh\necho 3.9\n")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(clock, "local", lambda: datetime.now(UTC) + timedelta(days=2))
    full, _, _ = breaking.DISK["full"]
    with breaking.broken_disk(full, "doctor-") as broken:
        found = patient.examined("--spark")
    assert broken.raised
    is_wrong(
        found,
        {
            "java": (f"{tmp_path}/bin/java does not run", "JAVA_HOME"),
            "python": (f"PYSPARK_PYTHON={python} is Python 3.9", "unset PYSPARK_PYTHON"),
            "clocks": ("172800 s ahead of", "set the clock"),
            "storage root": ("No space left on device", "make room"),
        },
    )
    assert found["executors"]["said"] == "not checked: no Spark job can be started here"


def test_wrong_file_is_found(patient: Patient) -> None:
    """Find an unknown key and a file that is not there; what needs no file is checked."""
    found = patient.examined(change={"[storage]": "[storage]\nrot = 1"})
    is_wrong(found, {"configuration": ("storage.rot: unknown key", "docs/configuration.md")})
    assert found["cassandra"]["said"] == "not checked: the configuration is wrong"
    assert found["java"]["level"] == "fine"
    patient.file.unlink()
    code, out, _ = tagmill(patient.file, "doctor")
    assert code == 2 and out.startswith("✗ configuration") and "there is no such configuration file" in out


def test_executors_are_examined(patient: Patient, spark: Any, monkeypatch) -> None:
    """Call executors fine that run the same Python, and find those that run another one."""
    monkeypatch.setattr(sparksession, "session", lambda *_, **__: spark)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    found = patient.examined("--spark", "--pipeline", "orders")
    assert [found[check] for check in executors.CHECKS if found[check]["level"] != "fine"] == []
    found = patient.examined("--spark", "--pipeline", "products")
    assert "Cassandra and Kafka answered" in found["executors: servers"]["said"]
    nowhere = {f"127.0.0.1:{patient.kafka}": "127.0.0.1:1", "[kafka]": "[kafka]\nrequest_timeout_seconds = 1"}
    servers = patient.examined("--spark", "--pipeline", "products", change=nowhere)["executors: servers"]
    assert servers["level"] == "wrong" and "Kafka at 127.0.0.1:1" in servers["said"]
    assert "open the way from executors" in servers["cure"]
    # Workers compare their own version with the one that the driver tells them.
    monkeypatch.setattr(spark.sparkContext, "pythonVer", "3.9")
    found = patient.examined("--spark", "--pipeline", "orders")
    is_wrong(found, {"executors": ("3.9", "PYSPARK_PYTHON")})
    assert found["executors: storage root"]["said"].startswith("not checked")
