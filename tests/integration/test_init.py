"""From servers to a delivery without editing a file: `tagmill init`, `schema apply`, `run deliver`."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from local.fixtures import Case
from tagmill.config.settings import Settings
from tagmill.delivery.tag_views import steps
from tagmill.onboarding import journal_survey
from tagmill.onboarding.draft import plain_name
from tagmill.spark import session as sparksession
from tests.support.building import recorded
from tests.support.delivery import OWNER, as_row, clickhouse_rows, only, stored, tagmill
from tests.support.kafka import Topic, create
from tests.support.stack import LEDGER

CASE = "minute-buckets"


@pytest.fixture
def shared(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Let commands use the session that all tests share."""
    monkeypatch.setattr(sparksession, "session", lambda *_, **__: spark)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    yield spark


def servers(stack: Any) -> list[str]:
    """Return the options that name the test's servers."""
    address = f"127.0.0.1:{stack.cassandra.port}"
    return [
        "--cassandra", address, "--clickhouse", f"127.0.0.1:{stack.clickhouse.port}", "--ledger-keyspace", LEDGER,
    ]  # fmt: skip


def odd_events(topic: Topic) -> int:
    """Send events with odd fields, a repeated one, a tombstone and an unreadable record; return how many
    different events there are.
    """
    events = [
        {
            "event_id": f"e-{number}",
            "meta": {"created_at": "2026-11-21T10:00:00Z", "source": ["web", "app"][number % 2]},
            "price": number + 0.5,
            "huge": 10**20 + number,
            "mixed": [number, f"text {number}", [number]][number % 3],
            "never": None,
            "payload": "a reserved name",
            "flag\n#": True,
        }
        for number in range(60)
    ]
    for event in (*events, events[7]):
        topic.send(event["event_id"], json.dumps(event).encode())
    topic.send("gone", None)
    topic.send("cut", b'{"event_id": ')
    topic.flush()
    return len(events)


def test_init_then_deliver_without_editing(stack, kafka, keyspace, shared, tmp_path) -> None:
    """Deliver a keyspace that the real plugin wrote, and a topic of odd events, by one file that init wrote."""
    journal, file = keyspace(CASE), tmp_path / "tagmill.toml"
    topic = Topic(kafka.port, f"shop-{journal}.products")
    create(kafka.port, topic.name)
    sent = odd_events(topic)
    of_topic = ["--kafka", f"127.0.0.1:{kafka.port}", "--topic", topic.name]
    code, said, error = tagmill(
        file, "init", *servers(stack), "--keyspace", journal, *of_topic, "--output", str(file), "--yes"
    )
    assert code == 0, error
    assert f"tagmill --config {file} run deliver -p {journal}" in said
    text = file.read_text()
    assert text.startswith("#:schema ./tagmill.schema.json") and (tmp_path / "tagmill.schema.json").exists()
    settings = Settings.load(file)
    pipeline = settings.pipelines[only(settings)]
    assert (pipeline.bucket_size, pipeline.tags) == ("Minute", ["tag-0", "tag-1"])
    assert "serializer 9001" in text and "Warning: buckets are too" not in text

    code, _, error = tagmill(file, "schema", "apply")
    assert code == 0, error
    before = stored(settings, journal)
    code, said, error = tagmill(file, "explain", "-p", journal, "--json")
    assert code == 0, error
    explained = json.loads(said)
    assert (explained["run"], [read["new"] for read in explained["reads"]]) == (1, [1000, 1000])
    code, said, error = tagmill(file, "explain", "-p", plain_name(topic.name))
    assert code == 0 and f"Run 1 reads up to {sent + 3} records" in said, error
    assert stored(settings, journal) == before
    steps.plan(settings, journal, owner=OWNER)
    code, said, error = tagmill(file, "explain", "-p", journal)
    assert code == 0 and "Run 1 is PLANNED and is finished first" in said, error
    code, _, error = tagmill(file, "run", "deliver", "-p", journal)
    assert code == 0, error
    assert clickhouse_rows(settings, journal) == sorted(as_row(row) for row in recorded(CASE, "tag_views"))

    (name,) = settings.topics
    code, said, error = tagmill(file, "run", "deliver", "-p", name)
    assert code == 0, error
    columns = "event_id, meta_created_at, meta_source, price, huge, mixed, never, payload_2, flag"
    rows = stack.rows(f"SELECT {columns} FROM {name} ORDER BY offset")
    assert len(rows) == sent and {name: int(rows[7][4]) for name in ("huge",)} == {"huge": 10**20 + 7}
    assert [str(value) for value in rows[1][5:9]] == ["text 1", "None", "a reserved name", "True"]
    for pipeline in (journal, name):
        code, said, error = tagmill(file, "explain", "-p", pipeline)
        assert code == 0 and "There is nothing to do" in said, error
    other_key = tmp_path / "other.toml"
    other_key.write_text(text.replace('producer_id = "event_id"', 'producer_id = "huge"'))
    code, _, error = tagmill(other_key, "explain", "-p", name)
    assert code == 3 and "would stop: " in error and "tagmill dedup rekey" in error
    (verdict,) = (line["verdict"] for line in json.loads(tagmill(file, "status", "-p", name, "--json")[1]))
    assert "1 dead letter" in verdict


def test_init_recognizes_other_sources(stack, kafka, kafka_journal, keyspace, tmp_path) -> None:
    """Recognize a topic of a Kafka Journal and a journal of an older plugin; name the keyspaces and topics
    that exist where one does not.
    """
    of_journal = kafka_journal().topic()
    of_journal.append("cart-1", [(1, {"a": 1})], tags=["t"])
    of_journal.flush()
    file, of_kafka = tmp_path / "tagmill.toml", ["--kafka", f"127.0.0.1:{kafka.port}"]
    common = [*servers(stack), "--output", str(file), "--yes"]
    code, _, error = tagmill(file, "init", *common, "--keyspace", "nowhere")
    assert code == 2 and "keyspace nowhere does not exist" in error and error.count("\n") == 1
    code, _, error = tagmill(file, "init", *common, "--keyspace", "system")
    assert code == 2 and "keyspace system holds no journal" in error
    code, _, error = tagmill(file, "init", *common, *of_kafka, "--topic", "nowhere")
    assert code == 2 and "has no topic nowhere" in error
    code, _, error = tagmill(file, "init", *common, *of_kafka)
    assert code == 2 and "Give --topic" in error and not file.exists()
    # The first twenty are named; other tests have left theirs.
    there = AdminClient({"bootstrap.servers": f"127.0.0.1:{kafka.port}"}).list_topics(timeout=10).topics
    topics = sorted(name for name in there if not name.startswith("__"))
    assert f"one of {', '.join(topics[:20])})" in error and of_journal.name in topics
    code, _, error = tagmill(
        file, "init", *common, *of_kafka, "--topic", of_journal.name, "--keyspace", "carts_here"
    )
    assert code == 0, error
    kinds = re.findall(r'^kind = "(\w+)"$', file.read_text(), re.MULTILINE)
    assert kinds == ["kafka_journal", "kafka_journal_events"]
    code, _, error = tagmill(file, "schema", "apply")
    assert code == 0, error
    name = plain_name(of_journal.name)
    code, said, error = tagmill(file, "explain", "-p", name)
    assert code == 0 and "It reads 1 records of 1 partitions" in said, error
    code, said, error = tagmill(file, "explain", "-p", f"{name}_events")
    assert code == 2 and "replicate to it first" in error
    file.unlink()
    old = keyspace("legacy-tags")
    code, said, error = tagmill(file, "init", *common, "--keyspace", old)
    assert code == 0, error
    pipeline = Settings.load(file).pipelines[old]
    assert pipeline.views == "tagmill" and pipeline.tags == Case("legacy-tags").tags
    assert "tags in tag1 to tag3" in said and f"views build -p {old}" in said
    assert tagmill(file, "schema", "apply")[0] == 0
    code, _, error = tagmill(file, "explain", "-p", old)
    assert code == 3 and f"tagmill views build --pipeline {old}" in error
    file.unlink()
    other = keyspace("gap-middle")
    code, _, error = tagmill(file, "init", *common)
    assert code == 2 and old in error and other in error and "Give --keyspace" in error


def test_init_asks_and_keeps_existing_file(stack, keyspace, tmp_path, monkeypatch) -> None:
    """Take what is typed; keep an existing file with --yes, and where the answer is no. Say what a list with
    a limit does not tell.
    """
    file = tmp_path / "tagmill.toml"
    one = [
        *servers(stack),
        "--keyspace",
        keyspace("gap-middle"),
        "--output",
        str(file),
        "--storage",
        "s3a://b/t",
    ]
    code, _, error = tagmill(file, "init", *one)
    assert code == 2 and "--yes" in error and not file.exists()
    code, said, error = tagmill(file, "init", *one, answer="Hour\n")
    assert code == 0, error
    assert Settings.load(file).storage.root == "s3a://b/t"
    before = file.read_text()
    code, _, error = tagmill(file, "init", *one, "--yes")
    assert code == 2 and "exists" in error
    code, _, error = tagmill(file, "init", *one, answer="n\n")
    assert code == 2 and file.read_text() == before
    code, _, error = tagmill(file, "init", *one, "--tag", "a", "--tag", "a", answer="y\nHour\n")
    assert code == 2 and f"error: {file}: pipelines." in error and "named twice" in error
    assert file.read_text() == before and sorted(path.suffix for path in tmp_path.iterdir()) == [
        ".json",
        ".toml",
    ]
    monkeypatch.setattr(journal_survey, "MOST_BUCKETS", 1)
    code, said, error = tagmill(file, "init", *one, "--tag", "tag-1", answer="y\nHour\n")
    assert code == 0 and "first_time_bucket: the view has too many partitions" in said, error
    assert Settings.load(Path(file)).pipelines[only(Settings.load(file))].tags == ["tag-1"]
