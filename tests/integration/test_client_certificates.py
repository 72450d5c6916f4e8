"""Servers that ask for a client certificate: deliveries by it, and what a wrong one ends in."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from local.fixtures import Case, load_case
from tagmill.cassandra.client import Cassandra
from tagmill.clickhouse.client import ClickHouse
from tagmill.config.settings import Settings
from tagmill.kafka.client import LATEST_MS
from tests.conftest import SHORT_LIVED, toml_value
from tests.support.building import recorded
from tests.support.certificates import Authority
from tests.support.delivery import as_row, clickhouse_rows
from tests.support.secured import STORES, Secured, create_topic, publish, run, secured

CASE = "partition-boundary"
PASSWORD = "s3cr3t of the key"
NAME = f"t_{uuid.uuid4().hex[:8]}"
CONFIG = """
[spark]
driver_memory = "1g"
conf = {conf}
[storage]
root = "data"
[pipelines.orders]
keyspace = "{name}"
bucket_size = "{bucket}"
tags = {tags}
first_time_bucket = "{first}"
destination = "{name}"
eventual_consistency_delay_seconds = 0
[pipelines.products]
kind = "topic"
topics = ["{name}"]
format = "json"
unique_id = ["id"]
batch_min_rows = 1
destination = "{name}_products"
"""


@pytest.fixture(scope="module")
def servers() -> Iterator[Secured]:
    with secured() as running:
        yield running


def write(servers: Secured, folder: Path, certificates: dict[str, Any]) -> Path:
    """Write a configuration with a client certificate for each store, and return its file."""
    expected = Case(CASE).expected
    text = CONFIG.format(
        name=NAME,
        conf=toml_value(SHORT_LIVED),
        bucket=expected["bucket"],
        tags=toml_value(list(expected["tags"])),
        first=expected["first_time_bucket"],
    )
    sections = "".join(servers.section(store, certificates[store]) for store in STORES)
    file = folder / "tagmill.toml"
    file.write_text(sections + text)
    return file


def issued(servers: Secured) -> dict[str, tuple[Path, Path]]:
    """Return a client certificate and its encrypted key for each store; ClickHouse's is also the login."""
    tagmill, default = (
        servers.authority.issue(name, password=PASSWORD, days=90) for name in ("tagmill", "default")
    )
    return {"cassandra": tagmill, "clickhouse": default, "kafka": tagmill}


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """Return the variables that name a file with the key's password, for each store, and ClickHouse's user."""
    (tmp_path / "secret").write_text(f"{PASSWORD}\n")
    files = {f"TAGMILL_{store.upper()}__TLS_KEY_PASSWORD_FILE": str(tmp_path / "secret") for store in STORES}
    return {**files, "TAGMILL_CLICKHOUSE__USERNAME": "default"}


def test_deliveries_by_client_certificate_arrive(
    servers: Secured, tmp_path: Path, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deliver tag views and a topic with an encrypted key; this process and workers connect.

    Neither the password nor the key is in any output or file.
    """
    certificates = issued(servers)
    file = write(servers, tmp_path, certificates)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings = Settings.load(file)
    with Cassandra(settings.cassandra) as cassandra:
        load_case(cassandra.session, CASE, NAME)
    create_topic(settings.kafka, NAME)
    publish(settings.kafka, NAME, {1_790_000_000_000 + n: {"id": n} for n in range(5)})
    shown = []

    def done(*arguments: str) -> str:
        code, out, error = run(file, *arguments)
        shown.extend((out, error))
        assert code == 0, error
        return out

    done("schema", "apply")
    findings = {one["check"]: one for one in json.loads(done("doctor", "--json", "--spark"))}
    for store, user in (("cassandra", "tagmill"), ("clickhouse", "default"), ("kafka", "tagmill")):
        shown_there = findings[f"{store} client certificate"]
        assert shown_there["level"] == "fine" and f"CN={user}" in shown_there["said"], shown_there
    done("run", "deliver", "-p", "orders")
    assert clickhouse_rows(settings, NAME) == sorted(map(as_row, recorded(CASE, "tag_views")))
    rebuilt = json.loads(done("views", "rebuild", "-p", "orders", "--offline", "--yes", "--json"))
    assert sum(line["same"] for line in rebuilt["tags"]) == len(recorded(CASE, "tag_views")), rebuilt
    done("run", "deliver", "-p", "products")
    publish(settings.kafka, NAME, {1_790_000_000_005: {"id": 5}, LATEST_MS * 1000: {"id": "dead letter"}})
    done("run", "deliver", "-p", "products")
    with ClickHouse(settings.clickhouse) as clickhouse:
        ids = clickhouse.rows(f"SELECT JSONExtractInt(payload, 'id') AS id FROM {NAME}_products ORDER BY id")
    assert ids == [(n,) for n in range(6)]
    assert "exactly once" in done("check", "-p", "orders")
    files = [path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()]
    for secret in (PASSWORD, "PRIVATE KEY"):
        assert not [text for text in shown if secret in text]
        assert not [content for content in files if secret.encode() in content]


@pytest.mark.parametrize("store", STORES)
def test_command_without_client_certificate_is_one_line(
    servers: Secured, tmp_path: Path, store: str, variables: dict[str, str]
) -> None:
    """Say that the server asks for a certificate, and for one of another authority that it refuses it."""
    own = issued(servers)
    strange = Authority(tmp_path / "strange", "stranger").issue("stranger", password=PASSWORD)
    command = {"cassandra": "status", "clickhouse": "check", "kafka": "explain"}[store]
    for certificate, words in (
        (None, "it asks for a client certificate"),
        (strange, "it refuses the client cert"),
    ):
        file = write(servers, tmp_path, {**own, store: certificate})
        pipeline = "products" if store == "kafka" else "orders"
        code, _, error = run(file, command, "-p", pipeline, **variables)
        assert code == 2 and error.count("\n") == 1, error
        assert words in error and f"{store}.tls_certificate_file" in error, error


def test_certificate_of_another_user_is_refused(
    servers: Secured, tmp_path: Path, variables: dict[str, str]
) -> None:
    """ClickHouse knows the authority of the certificate, and refuses it as the login of another user."""
    own = issued(servers)
    file = write(servers, tmp_path, {**own, "clickhouse": own["kafka"]})
    code, _, error = run(file, "check", "-p", "orders", **variables)
    assert code == 2 and error.count("\n") == 1, error
    assert "refused the user name, or the client certificate as its login" in error, error
