"""Failures in Spark end every job with one line, the right exit status and a log of the trace."""

import importlib
import json
import re
import stat
import uuid
from pathlib import Path
from typing import Any

import pytest

from local.fixtures import load_case
from tagmill.delivery.tag_views import steps
from tagmill.ledger import schema
from tagmill.ledger.lease import this_process
from tagmill.spark import session
from tests.conftest import SettingsFactory
from tests.support.delivery import only, tagmill
from tests.support.sparkfailures import FAILURES, BrokenSpark, SparkFailure
from tests.support.topics import made

OF_VIEWS = {
    "run deliver": (),
    "views rebuild": ("--offline", "--yes"),
    "views delete": ("--offline", "--yes"),
    "views truncate": ("--offline", "--yes"),
    "views pids": ("--yes",),
    "views migrate": ("--offline", "--yes"),
    "views rebucket": ("--to", "Minute", "--yes"),
    "audit": (),
    "audit --repair": ("--why", "test", "--yes"),
    "events": ("--tag", "tag-0"),
}
SCRIPTS = {
    "seal": (),
    "views rebuild": ("--operation", "rebuild", "--offline"),
    "views delete": ("--operation", "delete", "--offline"),
    "views truncate": ("--operation", "truncate", "--offline"),
    "views pids": ("--operation", "pids"),
    "views migrate": ("--operation", "migrate", "--offline"),
    "rebucket": ("--to", "Minute"),
    "audit": (),
    "audit repair": ("--repair", "test"),
}
# Exit status by failure. Unit tests cover every class of failure; here commands meet these four, all other
# jobs only FEW.
STATUS = {"right to read": 2, "unavailable": 75, "guard in a worker": 2, "defect": 1}
FEW = ("right to read", "defect")


def broken(monkeypatch: pytest.MonkeyPatch, case: str) -> str:
    """Make Spark fail as the case says, and return words that the error line must have."""
    failure = FAILURES.get(case)
    error = SparkFailure(failure.text) if failure else ZeroDivisionError("division by zero")
    monkeypatch.setattr(session, "session", lambda *_, **__: BrokenSpark(error))
    words = {"right to read": "no SELECT permission on table", "unavailable": "(Unavailable)"}
    return words.get(
        case, "unexpected ZeroDivisionError" if failure is None else "records went while they were read"
    )


def told(said: str, words: str, storage: str) -> None:
    """Check that the error is one line that names the failure and a log of the trace, which others can't
    read.
    """
    assert words in said and "\n" not in said.rstrip("\n") and "Traceback" not in said, said
    named = re.search(r"\(trace: (.+?)\)$", said.strip())
    assert named, said
    log = Path(named[1])
    assert log.is_relative_to(storage) and stat.S_IMODE(log.stat().st_mode) == 0o640
    assert "Error" in log.read_text() or "Failure" in log.read_text()


class Fixture:
    """A journal with views, delivered by one pipeline, built by another."""

    def __init__(self, stack: Any, folder: Path) -> None:
        self.keyspace = f"t_{uuid.uuid4().hex[:12]}"
        load_case(stack.session, "gap-middle", self.keyspace)
        self.factory = SettingsFactory(stack, folder)
        self.delivered = self.factory(self.keyspace, case="gap-middle", lease_seconds=5)
        self.built = self.factory(self.keyspace, case="gap-middle", views="tagmill", lease_seconds=5)
        schema.apply(self.delivered)
        schema.apply(self.built)


@pytest.fixture(scope="module")
def fixture(stack: Any, spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = Fixture(stack, tmp_path_factory.mktemp("failures"))
    yield made
    stack.session.execute(f"DROP KEYSPACE {made.keyspace}")


def by_command(
    settings: Any, file: Path, name: str, arguments: tuple[str, ...], case: str, words: str
) -> None:
    pipeline = next(iter([*settings.pipelines, *settings.streams, *settings.kafka_journals]))
    code, out, said = tagmill(file, *name.split(), *arguments, "--pipeline", pipeline)
    assert code == STATUS[case], (case, code, out, said)
    assert said.startswith("error: "), said
    told(said, words, settings.storage.root)


@pytest.mark.parametrize("name", [*OF_VIEWS, "views build"])
def test_command_spark_fails_one_line_right_status(fixture, monkeypatch, name) -> None:
    """Run each command while Spark fails in each way of STATUS."""
    settings = fixture.built if name == "views build" else fixture.delivered
    for case in STATUS:
        words = broken(monkeypatch, case)
        by_command(settings, fixture.factory.file(only(settings)), name, OF_VIEWS.get(name, ()), case, words)


def by_script(
    settings: Any, file: Path, name: str, arguments: tuple[str, ...], case: str, words: str, folder: Path
) -> None:
    pipeline, report = (
        next(iter([*settings.pipelines, *settings.streams, *settings.kafka_journals])),
        folder / "report.json",
    )
    main = importlib.import_module(f"spark_jobs.{name.split()[0]}").main
    more = ("--pipeline", pipeline, "--owner", this_process(), "--config", str(file), "--report", str(report))
    code = main([*arguments, *more])
    said = json.loads(report.read_text())
    assert code == said["exit_code"] == STATUS[case], said
    told(said["error"], words, settings.storage.root)


@pytest.mark.parametrize("name", [*SCRIPTS, "build"])
def test_script_spark_fails_report_one_line(fixture, monkeypatch, tmp_path, name) -> None:
    """Run each Spark script while Spark fails in each way of FEW; its report has the line and the exit
    status.
    """
    settings = fixture.built if name == "build" else fixture.delivered
    arguments = SCRIPTS.get(name, ())
    for case in FEW:
        if name == "seal":
            planned = steps.plan(settings, only(settings), owner=this_process())
            arguments = ("--run", str(planned["run"]), "--fence", str(planned["fence"]))
        words = broken(monkeypatch, case)
        by_script(settings, fixture.factory.file(only(settings)), name, arguments, case, words, tmp_path)


@pytest.fixture
def shop(stack, kafka, spark, tmp_path):
    yield from made(stack, kafka, spark, tmp_path)


def test_topic_jobs_spark_fails_one_line(shop, monkeypatch, tmp_path) -> None:
    """Run the jobs of a topic, by command and by script, while Spark fails in each way of FEW."""
    one = shop(shards=3)
    one.send(1)
    one.deliver()
    one.send(2)
    one.topic.flush()
    for case in FEW:
        words = broken(monkeypatch, case)
        by_command(one.settings, one.file, "run deliver", (), case, words)
        planned = steps_of_topics(one)
        by_script(one.settings, one.file, "seal", planned, case, words, tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(session, "session", lambda *_, **__: one.spark)
    monkeypatch.setattr(type(one.spark), "stop", lambda _: None)
    assert tagmill(one.file, "run", "deliver", "--pipeline", one.name)[0] == 0
    settings = one.configure(shards=7)
    for case in FEW:
        words = broken(monkeypatch, case)
        by_command(settings, one.file, "dedup rekey", ("--yes",), case, words)
        by_script(settings, one.file, "dedup rekey", ("--operation", "rekey"), case, words, tmp_path)
        by_command(settings, one.file, "dedup expire", ("--yes",), case, words)
        by_script(settings, one.file, "dedup expire", ("--operation", "expire"), case, words, tmp_path)


def steps_of_topics(one: Any) -> tuple[str, ...]:
    from tagmill.delivery.topics import steps

    planned = steps.plan(one.settings, one.name, owner=this_process())
    return "--run", str(planned["run"]), "--fence", str(planned["fence"])


def test_replication_spark_fails_one_line(kafka_journal, monkeypatch, tmp_path) -> None:
    """Replicate and purge a Kafka Journal, by command and by script, while Spark fails in each way of FEW."""
    journal = kafka_journal()
    settings = journal.settings({})
    schema.apply(settings)
    topic = journal.topic()
    topic.append("cart", [(1, {"a": 1})], expire_after="1 day")
    topic.flush()
    for case in FEW:
        words = broken(monkeypatch, case)
        by_command(settings, journal.file, "kafka-journal replicate", (), case, words)
        code, out, _ = tagmill(journal.file, "status", "--json")
        assert code == 3 and ": replicate: " in out and (case == "defect" or words in out), out
        by_command(settings, journal.file, "kafka-journal purge-expired", ("--yes",), case, words)
        by_script(settings, journal.file, "replicate", ("--operation", "replicate"), case, words, tmp_path)
        by_script(
            settings, journal.file, "replicate", ("--operation", "purge_expired"), case, words, tmp_path
        )
