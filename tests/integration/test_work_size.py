"""Few rows get a session that starts fast: how many there are is looked up before Spark starts, and what is done
stays the same.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from local.fixtures import WITHOUT_VIEWS
from tagmill.kafka_journal.replicate import replicate
from tagmill.ledger import schema
from tagmill.operations import work_size
from tagmill.operations.work_size import (
    built_without_spark,
    few_events,
    few_ids,
    few_replicated_records,
    few_waiting_records,
    replicated_without_spark,
)
from tagmill.spark.session import FEW_ROWS, FIRST_COMPILER, JAVA_OPTIONS
from tests.support.building import VIEWS, recorded, rows
from tests.support.kafka import append_header
from tests.support.topics import made

CASE = "odd-names"


def with_limit(configured, most):
    """Return the configuration with another limit of few rows."""
    return configured.model_copy(
        update={"spark": configured.spark.model_copy(update={"small_job_rows": most})}
    )


def session_of_build(settings, journal, folder, most):
    """Build the view by the command line in a process of its own; return the settings of its session."""
    folder.mkdir()
    conf = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": folder.as_uri()}
    section = {"conf": conf, "small_job_rows": most}
    configured = settings(journal, case=CASE, views="tagmill", small_run_rows=0, sections={"spark": section})
    schema.apply(configured)
    (name,) = configured.pipelines
    command = [str(Path(sys.executable).with_name("tagmill")), "--config", str(settings.file(name))]
    done = subprocess.run(
        [*command, "views", "build", "-p", name, "--json"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    (log,) = folder.glob("local-*")
    events = map(json.loads, log.read_text(encoding="utf-8").splitlines())
    return next(dict(event["Spark Properties"]) for event in events if "Spark Properties" in event)


def test_few_and_many_rows_are_built_alike(keyspace, settings, stack, tmp_path):
    """Build the same journal with either session; flags and settings are those of the decision."""
    journal = keyspace(CASE, WITHOUT_VIEWS)
    few = session_of_build(settings, journal, tmp_path / "few", 50_000)
    assert FEW_ROWS.items() <= few.items() and FIRST_COMPILER in few[JAVA_OPTIONS]
    made = {table: rows(stack, journal, table) for table in VIEWS}
    other = keyspace(CASE, WITHOUT_VIEWS)
    many = session_of_build(settings, other, tmp_path / "many", 1)
    assert many["spark.sql.shuffle.partitions"] == "8" and "spark.sql.adaptive.enabled" not in many
    assert FIRST_COMPILER not in many.get(JAVA_OPTIONS, "")
    assert made == {table: rows(stack, other, table) for table in VIEWS}
    assert made["tag_views"] and made == {table: recorded(CASE, table) for table in VIEWS}


def test_few_events_counts_journal_and_view(keyspace, settings, stack, monkeypatch):
    """Count the rows of both tables, page by page, and stop behind the limit."""
    journal = keyspace(CASE)
    configured = settings(journal, case=CASE)
    (name,) = configured.pipelines
    count = sum(
        stack.session.execute(f"SELECT count(*) FROM {journal}.{table}").one()[0]
        for table in ("messages", "tag_views")
    )
    monkeypatch.setattr(work_size, "PAGE_ROWS", 3)
    assert few_events(with_limit(configured, count), name)
    assert not few_events(with_limit(configured, count - 1), name)
    assert not few_events(with_limit(configured, 0), name)


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "not listed"])
def test_build_without_spark_counts_persistence_ids(listed, keyspace, settings, stack):
    """Count all_persistence_ids, or where that is empty the partitions of messages."""
    journal = keyspace(CASE, WITHOUT_VIEWS if listed else ("messages",))
    keys = (
        "persistence_id FROM {}.all_persistence_ids"
        if listed
        else "persistence_id, partition_nr FROM {}.messages"
    )
    count = len(list(stack.session.execute("SELECT DISTINCT " + keys.format(journal))))
    allowed = {most: settings(journal, case=CASE, small_run_rows=most) for most in (count, count - 1, 0)}
    answers = {most: built_without_spark(one, next(iter(one.pipelines))) for most, one in allowed.items()}
    assert answers == {count: True, count - 1: False, 0: False}


@pytest.mark.parametrize("lost", ["DROP TABLE {}.tag_views", "DROP KEYSPACE {}"], ids=["table", "keyspace"])
def test_few_events_unreadable_journal_says_no(keyspace, settings, stack, lost):
    """What can't be counted counts as many: the operation itself says what is wrong."""
    journal = keyspace(CASE)
    configured = settings(journal, case=CASE)
    stack.session.execute(lost.format(journal))
    assert not few_events(configured, next(iter(configured.pipelines)))


def test_few_events_slow_count_ends_in_time(keyspace, settings, monkeypatch):
    journal = keyspace(CASE)
    configured = settings(journal, case=CASE)
    monkeypatch.setattr(work_size, "SECONDS", 0)
    began = time.monotonic()
    assert not few_events(configured, next(iter(configured.pipelines)))
    assert time.monotonic() - began < 10


@pytest.fixture
def shop(stack, kafka, spark, tmp_path):
    """Yield a factory of topics with products, each delivered by its own pipeline."""
    yield from made(stack, kafka, spark, tmp_path)


def test_few_ids_are_known_by_delivered_offsets(shop):
    """A topic has at most as many ids as the offsets that it was delivered to."""
    one = shop()
    assert few_ids(with_limit(one.settings, 1), one.name)
    for product in range(3):
        one.send(product)
    one.deliver()
    assert few_ids(with_limit(one.settings, 3), one.name)
    assert not few_ids(with_limit(one.settings, 2), one.name)


def test_kafka_journal_counts_waiting_or_replicated(kafka_journal, spark):
    """A replication reads the records that wait; a purge reads entries, at most one a replicated record."""
    journal = kafka_journal()
    topic = journal.topic()
    settings = journal.settings(FEW_ROWS)
    schema.apply(settings)
    for number in range(1, 4):
        topic.send("id", b'{"events":[{"seqNr":%d,"payload":{}}]}' % number, [append_header(number, number)])
    topic.flush()
    ask = [with_limit(settings, most) for most in (2, 3)]
    assert [few_waiting_records(one, journal.name) for one in ask] == [False, True]
    assert [few_replicated_records(one, journal.name) for one in ask] == [True, True]
    without = [journal.settings(FEW_ROWS, small_run_rows=most) for most in (2, 3)]
    assert [replicated_without_spark(one, journal.name) for one in without] == [False, True]
    replicate(settings, journal.name, owner="cli/test/1/0", spark=lambda: spark)
    assert [few_waiting_records(one, journal.name) for one in ask] == [True, True]
    assert [few_replicated_records(one, journal.name) for one in ask] == [False, True]
