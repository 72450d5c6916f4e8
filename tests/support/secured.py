"""Servers that only serve clients with a certificate, and commands that run against them."""

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from local.cassandra import Cassandra
from local.clickhouse import ClickHouse
from local.guard import Guard
from local.kafka import Kafka
from local.tls import ServerTls
from tagmill.config.kafka import KafkaSettings
from tagmill.kafka.client import Kafka as KafkaClient
from tests.support.certificates import Authority
from tests.support.stack import KAFKA_JARS, free_port, node, session_home

STORES = ("cassandra", "clickhouse", "kafka")
TAGMILL = Path(sys.executable).with_name("tagmill")
SECONDS = 300


@dataclass
class Secured:
    """The servers, which only serve clients with a certificate of `authority`.

    ClickHouse takes as a login of user `default` only a certificate for that name.
    """

    home: Path
    authority: Authority
    cassandra: Cassandra
    clickhouse: ClickHouse
    kafka: Kafka

    def section(self, store: str, certificate: tuple[Path, Path] | None) -> str:
        """Return a store's section of the configuration, with this client certificate."""
        address = {
            "cassandra": f"port = {self.cassandra.port}",
            "clickhouse": f"port = {self.clickhouse.port}",
            "kafka": f'bootstrap_servers = ["127.0.0.1:{self.kafka.port}"]\nrequest_timeout_seconds = 10',
        }
        text = f'[{store}]\n{address[store]}\ntls = true\ntls_ca_file = "{self.authority.file}"\n'
        if certificate is None:
            return text
        return f'{text}tls_certificate_file = "{certificate[0]}"\ntls_key_file = "{certificate[1]}"\n'


@contextmanager
def secured() -> Iterator[Secured]:
    """Start Cassandra, ClickHouse and Kafka with TLS that needs client certificates; stop them at the end."""
    home = session_home() / f"secured-{uuid.uuid4().hex[:8]}"
    home.mkdir()
    authority = Authority(home / "authority")
    tls = ServerTls(*authority.issue("127.0.0.1"), authority.file)
    servers = Secured(
        home,
        authority,
        node(home / "cassandra", tls=tls),
        ClickHouse(home / "clickhouse", free_port(), password=uuid.uuid4().hex, tls=tls),
        Kafka(home / "kafka", free_port(beside=10000), KAFKA_JARS, heap="256m", tls=tls),
    )
    parts = (servers.clickhouse, servers.kafka, servers.cassandra)
    guard = Guard(parts)
    try:
        for part in parts:
            part.start()
        yield servers
    finally:
        for part in parts:
            part.stop()
        guard.release()
        shutil.rmtree(home, ignore_errors=True)


def create_topic(settings: KafkaSettings, topic: str) -> None:
    """Create a topic, whose records may have any timestamp, with the login and the certificate of the settings."""
    with KafkaClient(settings) as client:
        admin = client._client(AdminClient)
        wanted = NewTopic(topic, 1, 1, config={"message.timestamp.after.max.ms": str(2**63 - 1)})
        admin.create_topics([wanted])[topic].result(30)


def publish(settings: KafkaSettings, topic: str, events: Mapping[int, Mapping[str, object]]) -> None:
    """Write events, by the milliseconds of their timestamps, with the login and the certificate of the settings."""
    with KafkaClient(settings) as client:
        producer = client._client(Producer)
        for at, event in events.items():
            value = json.dumps(event).encode()
            producer.produce(topic, value, str(at).encode(), 0, timestamp=at, on_delivery=_must)
        assert producer.flush(30) == 0


def _must(error: object, _: object) -> None:
    assert error is None, error


def run(file: Path, *arguments: str, **variables: str) -> tuple[int, str, str]:
    """Run `tagmill` in a process of its own, with variables of the environment; return exit status, output, errors."""
    command = [TAGMILL, "--config", file, *arguments]
    environment = {**os.environ, "COLUMNS": "400", **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
    return done.returncode, done.stdout, done.stderr
