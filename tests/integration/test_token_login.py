"""Logins to Kafka by tokens of an identity provider (OAUTHBEARER, OpenID Connect)."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from local.guard import Guard
from local.kafka import Kafka
from tagmill.clickhouse.client import ClickHouse
from tagmill.config.settings import Settings
from tagmill.kafka.client import LATEST_MS
from tests.conftest import SHORT_LIVED, toml_value
from tests.support.certificates import Authority
from tests.support.identity import CLIENT, SCOPE, SECRET, Provider, serving
from tests.support.secured import create_topic, publish, run
from tests.support.stack import KAFKA_JARS, free_port, session_home

NAME = "by_token"
CONFIG = """
[cassandra]
port = {cassandra}
ledger_keyspace = "{name}_ledger"
[clickhouse]
port = {clickhouse}
[kafka]
bootstrap_servers = ["127.0.0.1:{kafka}"]
request_timeout_seconds = 8
sasl_mechanism = "OAUTHBEARER"
oauth_token_url = "{url}"
oauth_scope = "{scope}"
oauth_extensions = {{ logicalCluster = "lkc-1" }}
oauth_ca_file = "{authority}"
properties = {{ "client.id" = "tagmill-here", "socket.keepalive.enable" = true }}
[spark]
driver_memory = "1g"
conf = {conf}
[storage]
root = "data"
[pipelines.products]
kind = "topic"
topics = ["{name}"]
format = "json"
unique_id = ["id"]
batch_min_rows = 1
destination = "{name}"
"""


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    """Yield a provider whose token endpoint answers by HTTPS; its authority is in `ca.pem` beside its keys."""
    made = Provider(tmp_path_factory.mktemp("provider"))
    with serving(made, Authority(made.keys.parent).issue("127.0.0.1")):
        yield made


@pytest.fixture(scope="module")
def broker(provider: Provider) -> Iterator[Kafka]:
    """Start a broker whose clients log in by tokens of the provider."""
    home = session_home() / "kafka-by-token"
    sasl, flags = provider.broker_properties(), provider.broker_flags()
    made = Kafka(home, free_port(beside=10000), KAFKA_JARS, heap="256m", sasl=sasl, flags=flags)
    guard = Guard([made])
    try:
        made.start()
        yield made
    finally:
        made.stop()
        guard.release()
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def file(
    stack: Any, broker: Kafka, provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Write a configuration with a topic behind the login; the secret is in a file that a variable names."""
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    monkeypatch.setenv("TAGMILL_KAFKA__USERNAME", CLIENT)
    monkeypatch.setenv("TAGMILL_KAFKA__PASSWORD_FILE", str(tmp_path / "secret"))
    text = CONFIG.format(
        name=NAME,
        cassandra=stack.cassandra.port,
        clickhouse=stack.clickhouse.port,
        kafka=broker.port,
        url=provider.url,
        scope=SCOPE,
        authority=provider.keys.parent / "ca.pem",
        conf=toml_value(SHORT_LIVED),
    )
    path = tmp_path / "tagmill.toml"
    path.write_text(text)
    return path


def test_topic_behind_token_login_is_delivered(file: Path, provider: Provider) -> None:
    """Librdkafka, Spark's own source and the Python workers each get a token for the scope, and none is shown."""
    settings = Settings.load(file)
    create_topic(settings.kafka, NAME)
    publish(settings.kafka, NAME, {1_790_000_000_000 + n: {"id": n} for n in range(5)})
    shown = []

    def done(*arguments: str) -> str:
        code, out, error = run(file, *arguments)
        shown.extend((out, error))
        assert code == 0, error
        return out

    done("schema", "apply")
    findings = {one["check"]: one for one in json.loads(done("doctor", "--json"))}
    assert findings["kafka login"]["said"].startswith(f"as {CLIENT}")
    done("run", "deliver", "-p", "products")
    publish(settings.kafka, NAME, {1_790_000_000_005: {"id": 5}, LATEST_MS * 1000: {"id": "dead letter"}})
    done("run", "deliver", "-p", "products")
    with ClickHouse(settings.clickhouse) as clickhouse:
        assert clickhouse.rows(f"SELECT JSONExtractInt(payload, 'id') AS id FROM {NAME} ORDER BY id") == [
            (n,) for n in range(6)
        ]
    assert set(provider.scopes) == {SCOPE}
    assert not [text for text in shown if SECRET in text]
    done("config", "show")
    assert SECRET not in shown[-2] and "socket.keepalive.enable" in shown[-2]


@pytest.mark.parametrize(
    ("change", "variables", "code", "words"),
    [
        ({}, {"TAGMILL_KAFKA__PASSWORD": "wrong"}, 2, "invalid_client"),
        ({}, {"TAGMILL_KAFKA__PASSWORD": ""}, 2, "needs the client's id and secret"),
        ({"https://127.0.0.1": "https://no-such-host.invalid"}, {}, 75, "token: Could not resolve host"),
        ({"ca.pem": "none.pem"}, {}, 2, "kafka.oauth_ca_file"),
        ({"oauth_ca_file": "# oauth_ca_file"}, {}, 2, "certificate"),
        ({'"socket.keepalive.enable"': '"no.such.property"'}, {}, 2, "kafka.properties: no.such.property"),
        ({'"socket.keepalive.enable"': '"fetch.min.bytes"'}, {}, 2, "kafka.properties: fetch.min.bytes"),
    ],
    ids=["secret", "no secret", "endpoint", "authorities", "authority", "property", "value"],
)
def test_login_mistake_is_one_line(
    file: Path, change: dict[str, str], variables: dict[str, str], code: int, words: str
) -> None:
    """Name what is wrong with exit status 2; an endpoint that does not answer is tried again (75)."""
    text = file.read_text()
    for old, new in change.items():
        assert old in text
        text = text.replace(old, new, 1)
    file.write_text(text)
    ended, _, error = run(file, "explain", "-p", "products", **variables)
    assert (ended, error.count("\n")) == (code, 1) and words in error, error
    assert SECRET not in error


def test_doctor_names_cure_of_login(file: Path) -> None:
    """A refused secret points to the oauth keys, a wrong property to kafka.properties."""
    for variables, change, cure in (
        ({"TAGMILL_KAFKA__PASSWORD": "wrong"}, ("", ""), "kafka.oauth_token_url"),
        ({}, ('"client.id"', '"no.such"'), "kafka.properties"),
    ):
        file.write_text(file.read_text().replace(*change, 1))
        code, out, _ = run(file, "doctor", "--json", **variables)
        (login,) = (one for one in json.loads(out) if one["check"] == "kafka login")
        assert code == 2 and login["level"] == "wrong" and cure in login["cure"], login
