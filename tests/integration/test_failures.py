"""Failures in Spark, in a driver or on the disk end every job with one line and the right exit status, and leave
its data as it was.

A failure of Spark or of a worker has a log of its trace, too.
"""

import importlib
import json
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from local.fixtures import load_case
from tagmill.delivery.tag_views import steps
from tagmill.delivery.topics import steps as topic_steps
from tagmill.kafka_journal.replicate import replicate
from tagmill.ledger import schema
from tagmill.ledger.lease import this_process
from tagmill.maintenance.ledger_restore.restore import Restoring
from tagmill.operations.catalogue import BY_NAME
from tagmill.spark import bulk_load, session
from tests.conftest import FEW_ROWS, SettingsFactory
from tests.support import breaking, restoring
from tests.support.delivery import only, tagmill
from tests.support.sparkfailures import FAILURES, BrokenSpark, SparkFailure
from tests.support.stack import own_keyspaces
from tests.support.topics import Shop, checked_verdict, made

OF_VIEWS = {
    "run deliver": (),
    "views rebuild": ("--offline", "--yes"),
    "views delete": ("--offline", "--yes"),
    "views truncate": ("--offline", "--yes"),
    "views pids": ("--yes",),
    "views migrate": ("--offline", "--yes"),
    "views rebucket": ("--to", "Minute", "--yes"),
    "audit": (),
    "repair": ("--why", "test", "--yes"),
    "events": ("--tag", "tag-0"),
}
OFFLINE = ("--parameters", '{"offline": true}')
SCRIPTS = {
    "seal": (),
    "views rebuild": OFFLINE,
    "views delete": OFFLINE,
    "views truncate": OFFLINE,
    "views pids": (),
    "views migrate": OFFLINE,
    "views rebucket": ("--parameters", '{"bucket_size": "Minute"}'),
    "audit": (),
    "audit repair": ("--repair", "test"),
    "repair": ("--parameters", '{"why": "test"}'),
}
# Words of the error line and exit status by what comes out of a Spark call. Unit tests cover every text.
CLASSES = {
    "right to read": ("no SELECT permission on table", 2),
    "right to write": ("no MODIFY permission on table", 2),
    "cassandra of a worker": ("did not answer Spark", 75),
    "memory": ("raise spark.driver_memory", 75),
    "disk": ("no space left on its disk", 75),
    "start": ("needs Java 17", 75),
    "worker died": ("a Python worker of Spark ended", 75),
    "guard in a worker": ("records went while they were read", 2),
    "guard in a worker, by the JVM": ("two ids were refused", 3),
    "defect": ("unexpected ZeroDivisionError", 1),
    "interrupted": ("stopped; nothing is lost", 130),
    "interrupted, then no memory": ("stopped; nothing is lost", 130),
}


EVERY = pytest.mark.parametrize(
    "every", [False, pytest.param(True, marks=pytest.mark.long)], ids=["some", "all"]
)


def classes(job: str, every: bool) -> Iterator[tuple[str, str, int]]:
    """Yield case, words and exit status of each of CLASSES, or of a quarter of them, by the job's name."""
    for index, (case, (words, status)) in enumerate(CLASSES.items(), start=crc32(job.encode()) % 4):
        if every or index % 4 == 0:
            yield case, words, status


class InterruptedSpark(BrokenSpark):
    """A Spark session that is interrupted at its first use, and fails while the process ends."""

    def __getattr__(self, name: str) -> Any:
        try:
            raise KeyboardInterrupt
        finally:
            raise self.error


def break_spark(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """Let Spark fail as the case says: when it starts, or at its first use."""
    failure = FAILURES.get(case)
    error: BaseException = SparkFailure(failure.text) if failure else ZeroDivisionError("division by zero")
    broken = BrokenSpark(KeyboardInterrupt() if case == "interrupted" else error)
    if case == "interrupted, then no memory":
        broken = InterruptedSpark(SparkFailure(FAILURES["memory"].text))
    start = breaking.Broken(error) if case == "start" else lambda *_, **__: broken
    monkeypatch.setattr(session, "session", start)
    # An interrupted process ends its JVM, which here is that of all tests.
    monkeypatch.setattr(session, "_end_jvm", lambda: None)


def told(said: str, words: str, storage: str, *, traced: bool) -> None:
    """Check that the error is one line that names the failure and a log of the trace, which others can't
    read.
    """
    assert words in said and "\n" not in said.rstrip("\n") and "Traceback" not in said, said
    if not traced:
        return
    named = re.search(r"\(trace: (.+?)\)$", said.strip())
    assert named, said
    log = Path(named[1])
    assert log.is_relative_to(storage) and stat.S_IMODE(log.stat().st_mode) == 0o640
    assert "Error" in log.read_text() or "Failure" in log.read_text()


def assert_unchanged(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Assert that each table has the rows that it had; new tables may have been made."""
    changed = {name: (rows, after.get(name)) for name, rows in before.items() if after.get(name) != rows}
    assert not changed, changed


def pipeline_of(settings: Any) -> str:
    """Return the name of the only pipeline, of any kind."""
    return next(iter([*settings.pipelines, *settings.streams, *settings.kafka_journals]))


def by_command(
    settings: Any,
    file: Path,
    name: str,
    arguments: tuple[str, ...],
    words: str,
    status: int,
    *,
    traced: bool = True,
) -> None:
    """Run a command, and check how it ends."""
    code, out, said = tagmill(file, *name.split(), *arguments, "--pipeline", pipeline_of(settings))
    assert code == status, (name, words, code, out, said)
    assert said.startswith("error: " if status != 130 else words), said
    told(said, words, settings.storage.root, traced=traced and status != 130)


def by_script(
    settings: Any, file: Path, name: str, arguments: tuple[str, ...], words: str, status: int, folder: Path
) -> None:
    """Run a Spark script, and check what its report says."""
    report = folder / "report.json"
    script = "operation" if name in BY_NAME else name.split()[0]
    main = importlib.import_module(f"spark_jobs.{script}").main
    arguments = (*(("--operation", name) if name in BY_NAME else ()), *arguments)
    owner = ("--owner", this_process(), "--config", str(file), "--report", str(report))
    code = main([*arguments, "--pipeline", pipeline_of(settings), *owner])
    said = json.loads(report.read_text())
    assert code == said["exit_code"] == status, (name, words, said)
    told(said["error"], words, settings.storage.root, traced=status != 130)


class Fixture:
    """A journal with views, delivered by one pipeline with Spark and by another without, built by a third; their
    ledger has its own keyspace.
    """

    def __init__(self, stack: Any, folder: Path, create: Callable[[], str]) -> None:
        self.session = stack.session
        self.keyspace, self.ledger = create(), create()
        load_case(stack.session, "gap-middle", self.keyspace)
        self.factory = SettingsFactory(stack, folder)
        self.delivered, self.built, self.ran = (
            self.settings(kind) for kind in ("application", "tagmill", "")
        )

    def settings(self, views: str) -> Any:
        """Return the settings of a pipeline."""
        more = {"views": views, "small_run_rows": 0} if views else {}
        of_ledger = {"cassandra": {"ledger_keyspace": self.ledger}}
        made = self.factory(self.keyspace, case="gap-middle", lease_seconds=5, sections=of_ledger, **more)
        schema.apply(made)
        return made

    def file(self, settings: Any) -> Path:
        """Return the configuration file of a pipeline."""
        return self.factory.file(only(settings))

    def contents(self, settings: Any) -> dict[str, Any]:
        """Return what a failed job must leave as it is."""
        return breaking.contents(self.session, settings, (self.keyspace,))


@pytest.fixture(scope="module")
def fixture(stack: Any, spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fixture]:
    with own_keyspaces(stack.session) as create:
        yield Fixture(stack, tmp_path_factory.mktemp("failures"), create)


@EVERY
@pytest.mark.parametrize("name", [*OF_VIEWS, "views build"])
def test_command_spark_fails_one_line_right_status(fixture, monkeypatch, name, every) -> None:
    """Run each command while Spark fails."""
    settings = fixture.built if name == "views build" else fixture.delivered
    before = fixture.contents(settings)
    for case, words, status in classes(name, every):
        break_spark(monkeypatch, case)
        by_command(settings, fixture.file(settings), name, OF_VIEWS.get(name, ()), words, status)
    assert_unchanged(before, fixture.contents(settings))


@EVERY
@pytest.mark.parametrize("name", [*SCRIPTS, "views build"])
def test_script_spark_fails_report_one_line(fixture, monkeypatch, tmp_path, name, every) -> None:
    """Run each Spark script while Spark fails; its report has the line and the exit status."""
    settings = fixture.built if name == "views build" else fixture.delivered
    arguments, before = SCRIPTS.get(name, ()), fixture.contents(settings)
    for case, words, status in classes(f"script {name}", every):
        if name == "seal":
            planned = steps.plan(settings, only(settings), owner=this_process())
            arguments = ("--run", str(planned["run"]), "--fence", str(planned["fence"]))
        break_spark(monkeypatch, case)
        by_script(settings, fixture.file(settings), name, arguments, words, status, tmp_path)
    assert_unchanged(before, fixture.contents(settings))


# What a job asks of each store: a pattern of statements, of requests to ClickHouse, or of paths.
STORES = {
    "cassandra": (breaking.broken_cassandra, breaking.CASSANDRA),
    "clickhouse": (breaking.broken_clickhouse, breaking.CLICKHOUSE),
    "kafka": (breaking.broken_kafka, breaking.KAFKA),
    "disk": (breaking.broken_disk, breaking.DISK),
}


def fails_in_drivers(
    settings: Any, file: Path, name: str, arguments: tuple[str, ...], asks: dict[str, str]
) -> None:
    """Run a command while each store that it asks fails in each way."""
    for store, pattern in asks.items():
        break_store, cases = STORES[store]
        for error, words, status in cases.values():
            with break_store(error, pattern) as broken:
                by_command(settings, file, name, arguments, words, status, traced=status == 1)
            assert broken.raised, (name, store, words)


ID = "o-000000"
OF_DRIVERS = {
    "run deliver": ((), {"cassandra": "FROM JOURNAL", "clickhouse": "DESTINATION"}),
    "cleanup": (("--dry-run",), {"cassandra": r"FROM LEDGER\.(runs|watermarks)"}),
    "erase": (
        ("--persistence-id", ID, "--why", "test", "--yes"),
        {"cassandra": "FROM JOURNAL", "clickhouse": "DESTINATION"},
    ),
    "journal clean": (("--persistence-id", ID, "--to", "1", "--yes"), {"cassandra": "FROM JOURNAL"}),
    "ledger restore": (
        ("--why", "test", "--yes"),
        {"cassandra": "FROM LEDGER.runs", "clickhouse": "DESTINATION"},
    ),
}


def test_command_driver_fails_one_line_right_status(fixture, spark, monkeypatch) -> None:
    """Run commands while Cassandra, ClickHouse or the disk fails in each way, before and behind a delivery."""
    settings, file = fixture.ran, fixture.file(fixture.ran)
    name = only(settings)
    monkeypatch.setattr(session, "session", breaking.Broken(AssertionError("Spark is not needed")))
    before = fixture.contents(settings)
    fails_in_drivers(settings, file, "run deliver", (), {"disk": "plan-"})
    sealing = {"cassandra": "SELECT timebucket, timestamp", "disk": "attempt-"}
    fails_in_drivers(settings, file, "run deliver", (), sealing)
    assert_unchanged(before, fixture.contents(settings))
    planned = steps.plan(settings, name, owner=this_process())
    at = (planned["run"], planned["fence"])
    steps.seal(settings, name, *at, owner=this_process(), spark=lambda: spark)
    before = fixture.contents(settings)
    pushing = {"clickhouse": f"raw_insert .*{name}", "disk": "part|batch"}
    fails_in_drivers(settings, file, "run deliver", (), pushing)
    assert_unchanged(before, fixture.contents(settings))
    taken_over = steps.plan(settings, name, owner=this_process())
    at = (taken_over["run"], taken_over["fence"])
    steps.push(settings, name, *at, owner=this_process())
    steps.close(settings, name, *at, owner=this_process())
    before = fixture.contents(settings)
    for command, (arguments, asks) in OF_DRIVERS.items():
        patterns = {
            store: text.replace("JOURNAL", f'"?{fixture.keyspace}"?\\.')
            .replace("LEDGER", f'"?{fixture.ledger}"?')
            .replace("DESTINATION", name)
            for store, text in asks.items()
        }
        fails_in_drivers(settings, file, command, arguments, patterns)
        assert_unchanged(before, fixture.contents(settings))


@pytest.fixture
def shop(stack, kafka, spark, tmp_path):
    yield from made(stack, kafka, spark, tmp_path)


@pytest.fixture
def own_ledger(stack) -> Iterator[str]:
    """Yield the name of a ledger keyspace, which is dropped after the test."""
    with own_keyspaces(stack.session) as create:
        yield create()


def spark_fails(
    one: Shop,
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    every: bool,
    command: tuple[str, ...],
    script: tuple[str, ...],
) -> None:
    """Run a command and its script while Spark fails; a script without arguments takes the planned run."""
    name, *arguments = command
    for case, words, status in classes(name, every):
        break_spark(monkeypatch, case)
        by_command(one.settings, one.file, name, tuple(arguments), words, status)
        of_script = script[1:] or planned_run(one)
        by_script(one.settings, one.file, script[0], of_script, words, status, folder)


def planned_run(one: Shop) -> tuple[str, ...]:
    """Return the arguments that name the run that is planned."""
    planned = topic_steps.plan(one.settings, one.name, owner=this_process())
    return "--run", str(planned["run"]), "--fence", str(planned["fence"])


@EVERY
def test_topic_jobs_spark_fails_one_line(shop, monkeypatch, tmp_path, own_ledger, every) -> None:
    """Run the jobs of a topic, by command and by script, while Spark, Kafka or a driver fails in each way."""
    one = shop(shards=3, ledger=own_ledger, small_run_rows=0)
    owner, session_of_test = this_process(), one.stack.session
    one.send(1)
    one.send(None)
    one.deliver()
    spark_fails(one, monkeypatch, tmp_path, every, ("deadletters replay",), ("seal",))
    assert tagmill(one.file, "run", "abandon", "--pipeline", one.name, "--why", "test", "--yes")[0] == 0
    before = breaking.contents(session_of_test, one.settings)
    one.send(2)
    one.topic.flush()
    fails_in_drivers(one.settings, one.file, "run deliver", (), {"kafka": ""})
    spark_fails(one, monkeypatch, tmp_path, every, ("run deliver",), ("seal",))
    assert_unchanged(before, breaking.contents(session_of_test, one.settings))
    monkeypatch.setattr(session, "session", lambda *_, **__: one.spark)
    monkeypatch.setattr(type(one.spark), "stop", lambda _: None)
    planned = topic_steps.plan(one.settings, one.name, owner=owner)
    at = (planned["run"], planned["fence"])
    topic_steps.seal(one.settings, one.name, *at, owner=owner, spark=lambda: one.spark)
    before = breaking.contents(session_of_test, one.settings)
    fails_in_drivers(
        one.settings,
        one.file,
        "run deliver",
        (),
        {"clickhouse": f"raw_insert .*{one.name}", "disk": "part|batch"},
    )
    assert_unchanged(before, breaking.contents(session_of_test, one.settings))
    taken_over = topic_steps.plan(one.settings, one.name, owner=owner)
    at = (taken_over["run"], taken_over["fence"])
    topic_steps.push(one.settings, one.name, *at, owner=owner)
    topic_steps.close(one.settings, one.name, *at, owner=owner)
    one.configure(shards=7)
    before = breaking.contents(session_of_test, one.settings)
    for operation in ("rekey", "expire"):
        script = (f"dedup {operation}", "--parameters", "{}")
        spark_fails(one, monkeypatch, tmp_path, every, (f"dedup {operation}", "--yes"), script)
    assert_unchanged(before, breaking.contents(session_of_test, one.settings))


@EVERY
def test_topic_restore_spark_fails_then_goes_on(shop, monkeypatch, own_ledger, every) -> None:
    """Fail while a topic's lost ledger is restored: the line says that what was committed stays, and a
    repetition ends it.
    """
    monkeypatch.setattr(bulk_load, "FEW_ROWS", 0)  # few ids are noted without Spark
    one = shop(ledger=own_ledger)
    one.send(1)
    one.deliver()
    restoring.lose(one.stack.session, one.ledger)
    rows = one.rows("topic, partition, offset, payload")
    arguments = ("--why", "test", "--yes")
    for case, words, status in classes("ledger restore", every):
        break_spark(monkeypatch, case)
        by_command(one.settings, one.file, "ledger restore", arguments, words, status)
    assert one.rows("topic, partition, offset, payload") == rows
    Restoring(one.settings, one.name, this_process(), "me", "lost", lambda: one.spark).run()
    assert one.deliver() == [] and checked_verdict(one).startswith("exactly once")


@EVERY
def test_kafka_journal_jobs_spark_fails_one_line(
    stack, kafka, spark, kafka_journal, monkeypatch, tmp_path, own_ledger, every
) -> None:
    """Replicate, purge and deliver a Kafka Journal while Spark or Kafka fails in each way."""
    journal = kafka_journal()
    journal.ledger = own_ledger
    settings = journal.settings(FEW_ROWS, small_run_rows=0)
    schema.apply(settings)
    topic = journal.topic()
    topic.append("cart", [(1, {"a": 1})], tags=["red"], expire_after="1 day")
    topic.flush()
    one = Shop(stack, kafka, spark, tmp_path)
    one.ledger, one.settings, one.file = own_ledger, settings, journal.file

    def contents() -> dict[str, Any]:
        return breaking.contents(stack.session, one.settings, (journal.name,))

    replicate(settings, journal.name, owner=this_process(), spark=lambda: spark)
    topic.append("cart", [(2, {"a": 2})], tags=["red"], expire_after="1 day")
    topic.flush()
    before = contents()
    fails_in_drivers(settings, journal.file, "kafka-journal replicate", (), {"kafka": ""})
    for name, yes in (("kafka-journal replicate", ()), ("kafka-journal purge-expired", ("--yes",))):
        script = (name, "--parameters", "{}")
        spark_fails(one, monkeypatch, tmp_path, every, (name, *yes), script)
        assert_unchanged(before, contents())
    code, out, _ = tagmill(journal.file, "status", "--json")
    assert (code == 3 and ": replicate: " in out) or not every, out
    one.file = tmp_path / f"{one.name}.toml"
    one.configure(kind="kafka_journal_events", keyspace=journal.name, small_run_rows=0)
    one.applied()
    before = contents()
    spark_fails(one, monkeypatch, tmp_path, every, ("run deliver",), ("seal",))
    assert_unchanged(before, contents())


def test_few_records_driver_fails_one_line(kafka_journal, monkeypatch, own_ledger) -> None:
    """Replicate few records while Kafka, Cassandra or the disk fails in each way, before the commit and behind it;
    the same command then ends well.
    """
    monkeypatch.setattr(session, "session", breaking.Broken(AssertionError("Spark is not needed")))
    journal = kafka_journal()
    journal.ledger = own_ledger
    settings, topic = journal.settings(FEW_ROWS), journal.topic()
    schema.apply(settings)
    for key in ("stays", "goes"):
        topic.append(key, [(1, key)])
    topic.flush()
    assert tagmill(journal.file, "kafka-journal", "replicate", "--pipeline", journal.name)[0] == 0
    topic.append("stays", [(2, "again")])
    topic.purge("goes")
    topic.flush()

    def contents() -> dict[str, Any]:
        return breaking.contents(topic_session, settings, (journal.name,))

    topic_session, table = journal.stack.session, rf'"?{journal.name}"?\.'
    before = contents()
    reading = {"kafka": "", "cassandra": rf"FROM {table}metajournal", "disk": "records|folds|manifest"}
    fails_in_drivers(settings, journal.file, "kafka-journal replicate", (), reading)
    assert_unchanged(before, contents())
    writing = rf"DELETE FROM {table}journal|INSERT INTO {table}pointer2"
    fails_in_drivers(settings, journal.file, "kafka-journal replicate", (), {"cassandra": writing})
    fails_in_drivers(settings, journal.file, "kafka-journal replicate", (), {"disk": "records|folds"})
    assert tagmill(journal.file, "kafka-journal", "replicate", "--pipeline", journal.name)[0] == 0
    found = [(row["id"], row["seq_nr"]) for row in journal.rows()]
    assert found == [("stays", 1), ("stays", 2)] and list(journal.entries()) == ["stays"]
