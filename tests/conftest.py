"""Fixtures that all tests share: servers per session, keyspaces and configurations per test.

    def test_x(stack, keyspace, settings):
        # Settings with one pipeline; its file is settings.file(name).
        configured = settings(keyspace("gap-middle"), case="gap-middle", lease_seconds=5)
        name = next(iter(configured.pipelines))

Servers start when a test asks for them; unit tests ask for none.
"""

import json
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import hypothesis
import pytest

from local import class_archive
from tagmill.spark.session import FEW_ROWS, FIRST_COMPILER, JAVA_OPTIONS

# Examples have no deadline, since other work may slow down the machine.
hypothesis.settings.register_profile("tests", deadline=None)
hypothesis.settings.load_profile("tests")

FEW_TASKS = 2  # of a writing or reading of tables, per processor
# For a JVM that lives for seconds, the second compiler and a concurrent collector also cost more time than
# they save.
ARCHIVE = (
    f"-XX:SharedArchiveFile={class_archive.FILE} -Xlog:disable"
    if class_archive.FILE.exists() and " " not in str(class_archive.FILE)
    else ""
)
SHORT_LIVED = {
    **FEW_ROWS,
    JAVA_OPTIONS: f"{FIRST_COMPILER} -XX:+UseSerialGC {ARCHIVE}",
}
# The session that all tests share plans for an hour, so the second compiler, which costs a few seconds, saves a
# quarter of each seal's time from the thirtieth on.
SHARED = {
    **FEW_ROWS,
    JAVA_OPTIONS: f"-XX:+UseSerialGC {ARCHIVE}",
}
PIPELINE_DEFAULTS = {"eventual_consistency_delay_seconds": 0, "lease_seconds": 30}


@pytest.fixture(scope="session")
def stack() -> Iterator[Any]:
    """Start Cassandra (1 GB heap) and ClickHouse (which injects faults on demand) once per session; stop them
    at its end.
    """
    from local.clickhouse import ClickHouse
    from local.cql import session
    from local.guard import Guard
    from tests.support.stack import LEDGER, Stack, create_keyspace, free_port, node, session_home

    home = session_home()
    cassandra = node(home / "cassandra")
    clickhouse = ClickHouse(home / "clickhouse", free_port(), module="tests.support.faulty_clickhouse")
    guard = Guard([cassandra, clickhouse])
    try:
        clickhouse.start()
        cassandra.start()
        with session(cassandra.port) as connected:
            create_keyspace(connected, LEDGER)
            yield Stack(home, cassandra, clickhouse, connected)
    finally:
        clickhouse.stop()
        cassandra.stop()
        guard.release()
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def kafka(stack: Any) -> Iterator[Any]:
    """Start a Kafka broker next to the stack, for the tests that ask for one."""
    from local.guard import Guard
    from local.kafka import Kafka
    from tests.support.stack import KAFKA_JARS, free_port

    broker = Kafka(
        stack.home / "kafka", free_port(beside=10000), KAFKA_JARS, heap="256m", flags=(FIRST_COMPILER,)
    )
    guard = Guard([broker])
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()
        guard.release()


@pytest.fixture
def kafka_journal(stack: Any, kafka: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Yield kafka_journal(), which makes a pipeline of kind kafka_journal (tests.support.kafka.KafkaJournal).

    The pipeline has no topics yet; its keyspace is dropped after the test.
    """
    from tests.support.kafka import made

    yield from made(stack, kafka.port, tmp_path)


@pytest.fixture
def keyspace(stack: Any) -> Iterator[Callable[..., str]]:
    """Yield keyspace(case, tables), which loads a fixture case (or some of its tables) under a new name and
    returns the name.

    The keyspace is dropped after the test.
    """
    from local.fixtures import TABLES, load_case
    from tests.support.stack import own_keyspaces

    with own_keyspaces(stack.session) as create:

        def load(case: str, tables: Sequence[str] = TABLES) -> str:
            name = create()
            load_case(stack.session, case, name, tables=tables)
            return name

        yield load


@pytest.fixture
def place(stack: Any) -> Iterator[str]:
    """Create a keyspace without tables and yield its name; drop it after the test."""
    from tests.support.stack import own_keyspaces

    with own_keyspaces(stack.session) as create:
        yield create()


@pytest.fixture
def journal(stack: Any) -> Iterator[Callable[..., Any]]:
    """Yield journal(), which makes an empty journal keyspace and returns tests.support.events.Journal;
    dropped after the test.
    """
    yield from _journals(stack)


@pytest.fixture(scope="module")
def module_journal(stack: Any) -> Iterator[Callable[..., Any]]:
    """Yield journal(), whose keyspaces are dropped after the module's last test."""
    yield from _journals(stack)


@pytest.fixture(scope="module")
def both_seals(spark: Any) -> Iterator[None]:
    """Seal each small run of a module with Spark, too, and compare."""
    from tests.support.few_rows import compared

    with compared(spark) as alike:
        yield
    assert alike


@pytest.fixture(scope="module")
def both_builds() -> Iterator[None]:
    """Number each small build of a module with Spark, too, and compare."""
    from tests.support.few_builds import compared

    with compared() as alike:
        yield
    assert alike


@pytest.fixture(scope="module")
def both_replications(spark: Any) -> Iterator[None]:
    """Replicate each small piece of a module with Spark, too, and compare."""
    from tests.support.few_records import compared

    with compared(spark):
        yield


@pytest.fixture
def damaged_journal(stack: Any) -> Iterator[Callable[..., Any]]:
    """Yield damaged_journal(cases), which makes one journal of damaged fixtures (tests.support.damage);
    dropped after the test.
    """
    from tests.support import damage
    from tests.support.stack import own_keyspaces

    with own_keyspaces(stack.session) as create:

        def load(cases: Sequence[str] = damage.CASES) -> Any:
            return damage.load(stack.session, create(), cases)

        yield load


def _journals(stack: Any) -> Iterator[Callable[..., Any]]:
    from tagmill.cassandra.client import Cassandra
    from tagmill.config.settings import CassandraSettings
    from tests.support.events import Journal
    from tests.support.stack import own_keyspaces

    with own_keyspaces(stack.session) as create:

        def make() -> Journal:
            with Cassandra(CassandraSettings(port=stack.cassandra.port)) as cassandra:
                return Journal(stack.session, create()).create(cassandra)

        yield make


@pytest.fixture(scope="session")
def spark(stack: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Start one Spark session for all tests that deliver on the stack; a test must never
    stop it.
    """
    from tagmill.spark import bulk_load, cassandra_table
    from tagmill.spark.session import session

    configured = SettingsFactory(stack, tmp_path_factory.mktemp("spark"))(
        "none",
        tags=["t"],
        bucket_size="Hour",
        first_time_bucket="2026-01-01",
        sections={"spark": {"conf": SHARED}},
    )
    running = session(configured, name="tagmill-tests")
    with (
        patch.object(bulk_load, "TASKS", FEW_TASKS),
        patch.object(cassandra_table, "TASKS_PER_CORE", FEW_TASKS),
    ):
        yield running
    running.stop()


class SettingsFactory:
    """Writes a configuration file with one pipeline and reads it."""

    def __init__(self, stack: Any, folder: Path) -> None:
        self.stack, self.folder = stack, folder

    def file(self, pipeline: str) -> Path:
        """Return the path of the configuration file of a pipeline made here."""
        return self.folder / f"{pipeline}.toml"

    def __call__(
        self,
        keyspace: str,
        *,
        case: str | None = None,
        sections: dict[str, Any] | None = None,
        **pipeline: Any,
    ) -> Any:
        """Write a configuration with one pipeline, whose name and destination are unique, and return its
        Settings.

        Args:
            keyspace: the journal's keyspace.
            case: fixture case that gives tags, bucket size and first time bucket.
            sections: further keys, e.g. {"clickhouse": {"port": 1}}.
            pipeline: keys of the pipeline; `name` sets its name.
        """
        from local.fixtures import Case
        from tagmill.config.settings import Settings

        name = pipeline.pop("name", None) or f"p_{uuid.uuid4().hex[:8]}"
        wanted: dict[str, Any] = {**PIPELINE_DEFAULTS, "keyspace": keyspace, "destination": name}
        if case:
            expected = Case(case).expected
            wanted |= {"tags": list(expected["tags"]), "bucket_size": expected["bucket"]}
            wanted["first_time_bucket"] = expected["first_time_bucket"]
        content: dict[str, Any] = {
            "cassandra": {"port": self.stack.cassandra.port, "ledger_keyspace": "tagmill_test"},
            "clickhouse": {"port": self.stack.clickhouse.port},
            "spark": {
                "driver_memory": "1g",
                "conf": SHORT_LIVED,
            },
            "storage": {"root": str(self.folder / "data")},
        }
        for section, keys in (sections or {}).items():
            content.setdefault(section, {}).update(keys)
        content["pipelines"] = {name: {**wanted, **pipeline}}
        self.file(name).write_text(_tables(content), encoding="utf-8")
        return Settings.load(self.file(name))


@pytest.fixture
def settings(stack: Any, tmp_path: Path) -> SettingsFactory:
    """Return settings(keyspace, case=…, **pipeline keys), which makes Settings on the test stack; the schema
    isn't applied yet.
    """
    return SettingsFactory(stack, tmp_path)


@pytest.fixture(scope="module")
def module_settings(stack: Any, tmp_path_factory: pytest.TempPathFactory) -> SettingsFactory:
    """Return settings(…) whose files stay for a whole module."""
    return SettingsFactory(stack, tmp_path_factory.mktemp("settings"))


def _tables(tables: dict[str, Any], prefix: str = "") -> str:
    lines = []
    for name, value in tables.items():
        if (
            isinstance(value, dict)
            and any(isinstance(inner, dict) for inner in value.values())
            and name == "pipelines"
        ):
            lines.append(_tables(value, "pipelines."))
        else:
            lines.append(f"[{prefix}{name}]")
            lines += [f"{key} = {toml_value(content)}" for key, content in value.items()]
    return "\n".join(lines) + "\n"


def toml_value(value: Any) -> str:
    """Return a value as TOML writes it in one line."""
    if isinstance(value, dict):
        pairs = (
            f"{json.dumps(key, ensure_ascii=False)} = {toml_value(inner)}" for key, inner in value.items()
        )
        return "{ " + ", ".join(pairs) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
