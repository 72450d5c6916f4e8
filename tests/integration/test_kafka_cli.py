"""`tagmill kafka-journal` and `tagmill deadletters` as a person types them."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tagmill.config.settings import Settings
from tagmill.kafka_journal.replicate import replicate
from tagmill.ledger import schema
from tagmill.ledger.lease import Lease
from tagmill.ledger.runs import Ledger
from tagmill.runs import checkpoints
from tests.conftest import FEW_ROWS
from tests.support.delivery import OWNER, shown_first, tagmill
from tests.support.kafka import append_header
from tests.support.topics import Crashed, crashing


@pytest.fixture
def said(kafka_journal, spark):
    """Yield said(*arguments), which runs a command on its own journal and returns exit code, output and
    error.

    said.journal is that journal.
    """
    from tagmill.spark import session

    journal = kafka_journal()
    settings = journal.settings(FEW_ROWS)
    schema.apply(settings)

    def run(*arguments, pipeline=journal.name, answer=None):
        return tagmill(journal.file, *arguments, "--pipeline", pipeline, answer=answer)

    run.journal = journal
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "session", lambda *_, **__: spark)
        patch.setattr(type(spark), "stop", lambda _: None)
        yield run


def test_cli_replicate_status_head_deadletters_agree(said, monkeypatch):
    """Show waiting records, replicated events and a dead letter in each command as the journal's state
    changes.
    """
    topic = said.journal.topic()
    topic.append("cart-[1]", [(1, {"a": 1}), (2, "b")], tags=["t"])
    topic.send("cart-[1]", b"cut", [append_header(3, 3, "binary")])
    topic.flush()
    assert said("deadletters", "list")[:2] == (0, f"{said.journal.name} has no dead letters\n")
    code, shown, _ = said("kafka-journal", "status", "--json")
    assert code == 0 and [(one["waiting"], one["replicated_to"]) for one in json.loads(shown)] == [(2, None)]
    assert [line["verdict"] for line in json.loads(said("status", "--json")[1])] == ["waiting 2"]
    code, shown, error = said("check", "--json")
    assert (code, [line["verdict"] for line in json.loads(shown)]) == (
        3,
        ["waiting 2"],
    ) and "1 of 1 topics are not replicated" in error
    code, shown, _ = said("kafka-journal", "replicate")
    assert code == 0 and "2 events of 1 ids" in shown and "1 can't be read" in shown
    code, shown, _ = said("status", "--json")
    assert (
        code == 0 and json.loads(shown)[0]["verdict"] == "all that is in Kafka is replicated; 1 dead letters"
    )
    code, shown, _ = said("check", "--json")
    verdict = json.loads(shown)[0]["verdict"]
    assert (
        code == 0
        and verdict.startswith("all that is in Kafka is replicated, offsets compared at 20")
        and verdict.endswith("; 1 dead letters")
    )
    code, shown, _ = said("kafka-journal", "replicate", "--write-after", "2026-11-28T09:00:00Z")
    assert code == 0 and "has everything" in shown
    code, shown, _ = said("deadletters", "list", "--json")
    (letter,) = json.loads(shown)
    assert (letter["offset"], letter["value"], letter["key"]) == (
        1,
        b"cut".hex(),
        "cart-[1]",
    ) and "cut off" in letter["reason"]
    code, shown, _ = said("kafka-journal", "head", "cart-[1]")
    assert code == 0 and '{"a": 1}' in shown and topic.name in shown
    code, shown, _ = said("kafka-journal", "head", "nobody")
    assert code == 1 and "knows no id 'nobody'" in shown
    code, _, error = said("kafka-journal", "head", "\udcff")  # a byte that is not UTF-8
    assert code == 2 and "no text in UTF-8" in error and error.count("\n") == 1
    code, shown, _ = said("kafka-journal", "purge-expired", "--dry-run")
    assert code == 0 and "0 Purge actions would be published" in shown
    assert said("kafka-journal", "purge-expired")[0] == 2  # not confirmed with --yes
    # A person sees what would be done, answers, and sees what was done.
    code, shown, _ = said("kafka-journal", "purge-expired", answer="y\n")
    looked, _, done = shown.partition("Purge all ids of")
    assert code == 0 and "0 Purge actions would be published" in looked and "0 Purge actions" in done, shown
    assert "would" not in done


def test_replication_killed_each_time_is_wrong(said, spark, monkeypatch):
    """Crash a replication before it seals until `status` ends with 3; Ctrl-C is no crash, success clears
    it.
    """
    topic, settings = said.journal.topic(), Settings.load(said.journal.file)
    topic.append("cart", [(1, {"a": 1})])
    topic.flush()

    def verdict():
        code, shown, _ = said("status", "--json")
        return code, json.loads(shown)[0]["verdict"]

    def stop(name):
        if name == "replicate.planned":
            raise KeyboardInterrupt

    today, told = f"{datetime.now(UTC):%Y-}", []
    for _ in range(3):
        with crashing("replicate.planned"), pytest.raises(Crashed):
            said("kafka-journal", "replicate")
        told.append(verdict())
    assert told[0] == (0, "waiting 1")
    for begun, (code, word) in enumerate(told[1:], start=2):
        assert code == 0 and word.startswith(f"replicate was begun {begun} times since {today}"), word
        assert word.endswith("; waiting 1")
    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "reached", stop)
        # by the library: a command would end the JVM that all tests share
        with pytest.raises(KeyboardInterrupt):
            replicate(settings, said.journal.name, owner=OWNER, spark=lambda: spark)
    assert verdict() == told[-1]
    with crashing("replicate.planned"), pytest.raises(Crashed):
        said("kafka-journal", "replicate")
    code, word = verdict()
    assert code == 3 and word.startswith("replicate was begun 4 times since "), word
    assert said("kafka-journal", "replicate")[0] == 0
    assert verdict() == (0, "all that is in Kafka is replicated")


def test_cli_mistake_is_one_line(said, monkeypatch):
    """Report each mistake in one line with exit status 2, do nothing, and never print the password."""
    for arguments, pipeline, text in (
        (("kafka-journal", "replicate"), "nope", "pipeline 'nope' is not in the configuration"),
        (("run", "deliver"), said.journal.name, "this is for tag_views"),
        (("audit",), said.journal.name, "this is for tag_views"),
    ):
        code, _, error = said(*arguments, pipeline=pipeline)
        assert code == 2 and text in error and error.count("\n") == 1, error
    monkeypatch.setenv("TAGMILL_KAFKA__PASSWORD", "hunter2")
    file = said.journal.file
    whole = file.read_text()
    for wrong, text in (
        ('sasl_mechanism = "PLAIN"', "sasl.username and sasl.password must be set"),
        ('tls = true\ntls_ca_file = "none.pem"', "kafka.tls_ca_file: "),
    ):
        file.write_text(whole.replace("[kafka]", f"[kafka]\n{wrong}"))
        code, _, error = said("kafka-journal", "replicate")
        assert code == 2 and text in error and error.count("\n") == 1, error
        assert "hunter2" not in error
    said.journal.settings(FEW_ROWS, topics=["no-such-topic"])
    code, _, error = said("kafka-journal", "replicate")
    assert code == 2 and "has no topic no-such-topic" in error and error.count("\n") == 1


def test_cli_discard_deletes_letters_of_topic(said):
    """Delete the dead letters of one topic of a Kafka Journal, after a dry run, with the person's reason."""
    journal = said.journal
    topics = [journal.topic(suffix) for suffix in "ab"]
    for topic in topics:
        topic.send("id", b"cut", [append_header(1, 1, "binary")])
        topic.flush()
    assert said("kafka-journal", "replicate")[0] == 0
    asked = ("--topic", topics[0].name, "--pipeline", journal.name, "--why", "seen", "--yes")
    code, shown, error = shown_first(journal.file, "deadletters", "discard", *asked)
    assert code == 0 and f"1 dead letters of topic {topics[0].name} are discarded" in shown, error
    assert [one["topic"] for one in json.loads(said("deadletters", "list", "--json")[1])] == [topics[1].name]
    assert tagmill(journal.file, "deadletters", "discard", *asked)[0] == 2
    with Ledger(Settings.load(journal.file).cassandra) as ledger:
        (noted,) = ledger.interventions(journal.name)
    assert (noted.what, noted.why) == (f"deadletters discard {topics[0].name}", "seen")


def test_cli_cleanup_removes_old_reports(said):
    """Delete job reports of a Kafka Journal past its retention, under its lease; those that pipelines share stay
    until they are past the longest retention.
    """
    journal, settings = said.journal, Settings.load(said.journal.file)
    root, now = Path(settings.storage.root), datetime.now(UTC)
    shared, own = root / "all" / "reports", root / journal.name / "reports"
    for folder in (shared, own):
        folder.mkdir(parents=True)
        for days in (20, 40, 110):
            (file := folder / f"{days} days").touch()
            os.utime(file, times=((now - timedelta(days=days)).timestamp(),) * 2)

    def left():
        return [sorted(int(file.name.split()[0]) for file in folder.iterdir()) for folder in (own, shared)]

    other = f'[pipelines.other]\nkind = "kafka_journal"\nkeyspace = "{journal.name}_o"\ntopics = ["o"]\n'
    journal.file.write_text(journal.file.read_text() + other + "retention_days = 100\n")
    with Ledger(settings.cassandra) as ledger:
        lease = Lease(ledger.cassandra, journal.ledger, journal.name, "somebody", 30)
        with lease.held(0):
            assert said("cleanup", "--yes")[0] == 75 and left() == [[20, 40, 110]] * 2
    for options, after in (("--dry-run", [[20, 40, 110]] * 2), ("--yes", [[20], [20, 40]])):
        code, shown, error = said("cleanup", options, "--json")
        assert code == 0 and json.loads(shown)["reports"] == 3, error
        assert left() == after
    assert json.loads(said("cleanup", "--yes", "--json")[1])["reports"] == 0
