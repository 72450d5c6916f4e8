"""The first hour with one's own data, as `tagmill init` says it: its next commands are run as they are printed."""

import json
import os
import shlex
import ssl
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import Cluster, NoHostAvailable, Session
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from local.fixtures import WITHOUT_VIEWS, load_case
from tagmill.config.settings import Settings
from tagmill.spark import session as sparksession
from tests.integration.test_init import servers
from tests.integration.test_topic_formats import PRICE, avro_schema, encoded, written
from tests.support.building import recorded
from tests.support.certificates import Authority
from tests.support.delivery import as_row, clickhouse_rows, only, tagmill
from tests.support.kafka import Topic, create
from tests.support.protobuf import descriptors, wide_message
from tests.support.secure_cassandra import SecureCassandra
from tests.support.stack import node

CASE = "partition-boundary"
Run = Callable[..., tuple[int, str, str]]


def walked(file: Path, options: list[str], run: Run) -> list[str]:
    """Run `init`, `doctor`, and then what `init` says to run next, with the file as it is; return those commands.

    Before the tables are there, the doctor finds nothing else wrong.
    """
    code, said, error = run(file, "init", *options, "--output", str(file), "--yes")
    assert code == 0, error
    text = file.read_text()
    _, told, _ = run(file, "doctor", "--json")
    cures = {one["check"]: one["cure"] for one in json.loads(told) if one["level"] == "wrong"}
    assert cures and all("tagmill schema apply" in cure for cure in cures.values()), cures
    begin = f"tagmill --config {file} "
    commands = [line.strip() for line in said.partition("\nnext:\n")[2].splitlines()]
    commands = [line.removeprefix(begin) for line in commands if not line.startswith("export ")]
    for command in commands:
        code, told, error = run(file, *shlex.split(command))
        assert code == 0, (command, told, error)
    assert file.read_text() == text
    return commands


@pytest.fixture
def shared(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let commands use the session that all tests share."""
    monkeypatch.setattr(sparksession, "session", lambda *_, **__: spark)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    return spark


@pytest.fixture
def topic(kafka: Any) -> Topic:
    """Return a new topic."""
    made = Topic(kafka.port, f"t_{uuid.uuid4().hex[:10]}")
    create(kafka.port, made.name)
    return made


def of_kafka(topic: Topic) -> list[str]:
    return ["--kafka", f"127.0.0.1:{topic.port}", "--topic", topic.name]


@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_topic_with_schema_walks_to_delivery(stack, kafka, shared, topic, tmp_path, form) -> None:
    """Deliver a topic whose records only a schema can read, framed as a registry's clients frame them."""
    if form == "avro":
        schema = avro_schema(PRICE)
        options = ["--schema-file", f"7={written(tmp_path, 'product.avsc', schema)}"]
        records = [encoded(schema, number, 7, price=number / 2) for number in range(1, 6)]
    else:
        (tmp_path / "wide.desc").write_bytes(descriptors())
        options = ["--schema-file", f"{tmp_path / 'wide.desc'}", "--message-type", "shop.Wide"]
        records = []
        for number in range(1, 6):
            message = wide_message(number)
            message.double, message.text = number / 2, "t"
            records.append(message.SerializeToString())
    for record in records:
        topic.send("k", record)
    topic.flush()
    file = tmp_path / "tagmill.toml"
    commands = walked(
        file,
        [*servers(stack), *of_kafka(topic), *options, "--unique-id", "product_id"],
        tagmill,
    )
    assert commands == ["schema apply", "doctor", f"run deliver -p {topic.name}"]
    price = {"avro": "price", "protobuf": "double"}[form]
    rows = stack.rows(f"SELECT product_id, {price} FROM {topic.name} ORDER BY product_id")
    assert [tuple(row) for row in rows] == [(number, number / 2) for number in range(1, 6)]


def test_kafka_journal_walks_to_delivery(stack, kafka, kafka_journal, shared, tmp_path) -> None:
    """Replicate and deliver a Kafka Journal that has no keyspace yet."""
    journal = kafka_journal()
    topic = journal.topic()
    topic.append("cart-1", [(1, {"a": 1}), (2, {"a": 2})], tags=["t"])
    topic.append("cart-2", [(1, {"a": 3})])
    topic.flush()
    file = tmp_path / "tagmill.toml"
    options = [*servers(stack), *of_kafka(topic), "--keyspace", journal.name]
    commands = walked(file, options, tagmill)
    settings = Settings.load(file)
    (replicated,), (delivered,) = settings.kafka_journals, settings.streams
    assert commands == [
        "schema apply",
        "doctor",
        f"kafka-journal replicate -p {replicated}",
        f"run deliver -p {delivered}",
    ]
    rows = stack.rows(f"SELECT id, seq_nr FROM {settings.stream(delivered).destination} ORDER BY id, seq_nr")
    assert [tuple(row) for row in rows] == [("cart-1", 1), ("cart-1", 2), ("cart-2", 1)]


def test_journal_without_views_walks_to_delivery(stack, keyspace, shared, tmp_path) -> None:
    """Build the views of a journal that has none, then deliver them."""
    journal, file = keyspace(CASE, WITHOUT_VIEWS), tmp_path / "tagmill.toml"
    commands = walked(file, [*servers(stack), "--keyspace", journal], tagmill)
    settings = Settings.load(file)
    assert settings.pipelines[only(settings)].views == "tagmill"
    assert commands == ["schema apply", "doctor", f"views build -p {journal}", f"run deliver -p {journal}"]
    assert clickhouse_rows(settings, journal) == sorted(map(as_row, recorded(CASE, "tag_views")))


@dataclass
class Secured:
    """A Cassandra that asks for a login and offers TLS, and a session of its superuser."""

    server: SecureCassandra
    session: Session
    authority: Authority


@retry(
    retry=retry_if_exception_type(NoHostAvailable),
    stop=stop_after_delay(60),
    wait=wait_fixed(0.5),
    reraise=True,
)
def superuser(port: int, authority: Path) -> Session:
    """Connect as the first user, whom a new node makes some time after it answers."""
    login = PlainTextAuthProvider("cassandra", "cassandra")
    context = ssl.create_default_context(cafile=str(authority))
    options = {"ssl_context": context, "ssl_options": {"server_hostname": "127.0.0.1"}}
    return Cluster(["127.0.0.1"], port=port, auth_provider=login, protocol_version=5, **options).connect()


@pytest.fixture(scope="module")
def secured(stack: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Start a Cassandra with passwords and TLS, with the role `worker`."""
    authority = Authority(tmp_path_factory.mktemp("authority"))
    server = node(stack.home / "cassandra-secured", SecureCassandra, heap="512m", passwords=True)
    server.certificate = authority.issue("127.0.0.1", "localhost")
    with ExitStack() as at_the_end:
        at_the_end.callback(server.stop)
        server.start()
        session = superuser(server.port, authority.file)
        at_the_end.callback(session.cluster.shutdown)
        session.execute("CREATE ROLE worker WITH PASSWORD = 'sesame-4711' AND LOGIN = true")
        session.execute("GRANT CREATE ON ALL KEYSPACES TO worker")
        yield Secured(server, session, authority)


@pytest.mark.parametrize("by_tls", [False, True], ids=["login", "login and TLS"])
def test_secured_cassandra_walks_to_delivery(stack, secured, tmp_path, by_tls) -> None:
    """Deliver from a Cassandra with logins, with TLS and without, each command a process of its own."""
    journal, file = f"t_{uuid.uuid4().hex[:10]}", tmp_path / "tagmill.toml"
    load_case(secured.session, CASE, journal)
    secured.session.execute(f"GRANT SELECT ON KEYSPACE {journal} TO worker")
    secured.session.execute(f"GRANT MODIFY ON KEYSPACE {journal} TO worker")
    password = tmp_path / "password"
    password.write_text("sesame-4711\n")
    variables = {
        "TAGMILL_CASSANDRA__USERNAME": "worker",
        "TAGMILL_CASSANDRA__PASSWORD_FILE": str(password),
        "COLUMNS": "400",
    }
    tls = (
        {
            "TAGMILL_CASSANDRA__TLS": "true",
            "TAGMILL_CASSANDRA__TLS_CA_FILE": str(secured.authority.file),
        }
        if by_tls
        else {}
    )

    def run(file: Path, *arguments: str) -> tuple[int, str, str]:
        # The file has what init was told of TLS; logins come from the environment always.
        environment = {**os.environ, **variables, **(tls if arguments[0] == "init" else {})}
        command = [Path(sys.executable).with_name("tagmill"), "--config", file, *arguments]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=300, cwd=tmp_path
        )
        assert "sesame" not in done.stdout + done.stderr
        return done.returncode, done.stdout, done.stderr

    address = f"127.0.0.1:{secured.server.port}"
    options = [
        "--cassandra",
        address,
        "--clickhouse",
        f"127.0.0.1:{stack.clickhouse.port}",
        "--keyspace",
        journal,
    ]
    commands = walked(file, options, run)
    assert commands == ["schema apply", "doctor", f"run deliver -p {journal}"]
    settings = Settings.load(file)
    assert settings.cassandra.tls is by_tls and "sesame" not in file.read_text()
    assert clickhouse_rows(settings, journal) == sorted(map(as_row, recorded(CASE, "tag_views")))
