"""A replication that is killed, frozen or cut off from Kafka loses nothing and writes nothing twice."""

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tagmill.kafka_journal.replicate import replicate
from tagmill.ledger import schema
from tests.conftest import SHORT_LIVED
from tests.support.commands import Command
from tests.support.delivery import tagmill
from tests.support.kafka import KafkaJournal, Topic
from tests.support.leases import free_lease
from tests.support.topics import Crashed, crashing

BOTH_WAYS = pytest.mark.parametrize("replicated", [20_000, 0], ids=["here", "by Spark"], indirect=True)
# tests/integration/test_kafka_journal_random.py covers the instants between these by crashes, too.
CRASHED, KILLED = "replicate.after_commit", "replicate.after_events"


@pytest.fixture
def replicated(
    kafka_journal: Callable[[], KafkaJournal], spark: Any, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Any]]:
    """Return replicated(at=instant), which starts the command on a journal with every kind of action.

    Its attributes `.journal` and `.topic` are the journal and the topic; `.here()` replicates in this
    process, with the session that all tests share, and `.crash(instant)` crashes there. Its parameter is
    small_run_rows.
    """
    journal = kafka_journal()
    small_run_rows = getattr(request, "param", 20_000)
    settings = journal.settings(SHORT_LIVED, segment_size=2, small_run_rows=small_run_rows)
    schema.apply(settings)
    commands: list[Command] = []

    class Journal:
        topic: Topic = journal.topic()

        def __call__(self, *options: str, at: str | None = None, what: str = "replicate") -> Command:
            commands.append(
                Command(journal.file, "kafka-journal", what, "--pipeline", journal.name, *options, instant=at)
            )
            return commands[-1].paused() if at else commands[-1]

        def here(self) -> None:
            replicate(settings, journal.name, owner=f"o/{uuid.uuid4()}", spark=lambda: spark)

        def crash(self, at: str) -> None:
            with crashing(at), pytest.raises(Crashed):
                self.here()
            free_lease(journal.stack.session, journal.name)

    Journal.journal = journal  # type: ignore[attr-defined]
    yield Journal()
    for command in commands:
        if command.process.poll() is None:
            command.kill()


def first_poll(topic: Topic) -> None:
    """Append five events to each of four ids."""
    for key in ("stays", "cut", "ends", "begins anew"):
        topic.append(key, [(n, f"{key} {n}") for n in range(1, 6)])
    topic.flush()


def second_poll(topic: Topic) -> None:
    """Append, delete, purge and begin an id again, so that every kind of action follows the first poll."""
    topic.append("stays", [(6, "stays 6")])
    topic.append("new", [(1, "new 1")], expire_after="1 day")
    topic.delete("cut", 3)
    topic.purge("ends")
    topic.purge("begins anew")
    topic.append("begins anew", [(1, "again 1")])
    topic.flush()


def expect_all(journal: KafkaJournal) -> None:
    """Assert that the replicated tables hold what both polls leave."""
    found = {(row["id"], row["seq_nr"]): row["payload_txt"] for row in journal.rows()}
    assert found == {
        **{("stays", n): f'"stays {n}"' for n in range(1, 7)},
        ("cut", 4): '"cut 4"',
        ("cut", 5): '"cut 5"',
        ("new", 1): '"new 1"',
        ("begins anew", 1): '"again 1"',
    }
    entries = {
        key: (row["seq_nr"], row["delete_to"], row["expire_on"] is not None)
        for key, row in journal.entries().items()
    }
    assert entries == {
        "stays": (6, None, False),
        "cut": (5, 3, False),
        "new": (1, None, True),
        "begins anew": (1, None, False),
    }
    assert {row["meta_record_id"] for row in journal.rows() if row["id"] == "begins anew"} == {
        journal.entries()["begins anew"]["record_id"]
    }


@BOTH_WAYS
@pytest.mark.timeout(900)
def test_replicate_killed_while_writing_continues(replicated: Any) -> None:
    """Crash a replication before its writes and kill one in them: `status` says so until the next one has
    finished it.
    """
    journal, topic = replicated.journal, replicated.topic
    first_poll(topic)
    replicated.here()
    second_poll(topic)
    replicated.crash(CRASHED)
    replicated(at=KILLED).kill()
    assert "replicate was begun 2 times since 20" in tagmill(journal.file, "status", "--json")[1]
    replicated.here()
    expect_all(journal)
    assert journal.pointers() == {(topic.name, 0): 9}
    assert "begun" not in tagmill(journal.file, "status", "--json")[1]


@BOTH_WAYS
def test_replicate_given_up_keeps_prolonged_life(replicated: Any) -> None:
    """Crash between the entries and the expiry of new ids, and give the replication up: an id whose life was
    prolonged has the later expiry, so nothing purges it.
    """
    journal, topic = replicated.journal, replicated.topic
    topic.append("prolonged", [(1, 1)], expire_after="1 day")
    topic.flush()
    replicated.here()
    topic.append("prolonged", [(2, 2)], expire_after="30000 days")
    topic.append("new", [(1, 1)], expire_after="1 day")
    topic.flush()
    replicated.crash("replicate.before_expiry")
    assert journal.entries()["new"]["seq_nr"] == 1
    asked = ("run", "give-up", "-p", journal.name, "--why", "its files are lost", "--yes")
    code, _, error = tagmill(journal.file, *asked)
    assert code == 0, error
    replicated.here()
    assert {key: row["seq_nr"] for key, row in journal.entries().items()} == {"new": 1, "prolonged": 2}
    shown = replicated("--dry-run", what="purge-expired").end()
    assert shown.code == 0 and "0 ids have expired" in shown.out, shown


@pytest.mark.long
@pytest.mark.timeout(900)
def test_purge_killed_publishes_nothing_twice(replicated: Any, kafka: Any) -> None:
    """Kill a purge before and after it publishes; the topic has three records, so none was published
    twice.
    """
    from confluent_kafka import Consumer, TopicPartition

    journal, topic = replicated.journal, replicated.topic
    topic.append("expired", [(1, "x")], expire_after="1 day")
    topic.append("stays", [(1, "x")])
    topic.flush()
    for instant in ("purge.before_publish", "purge.after_publish"):
        replicated("--yes", what="purge-expired", at=instant).kill()
    ended = replicated("--yes", what="purge-expired").end()
    assert ended.code == 0 and "0 ids have expired" in ended.out
    assert list(journal.entries()) == ["stays"]
    consumer = Consumer({"bootstrap.servers": f"127.0.0.1:{kafka.port}", "group.id": "t", "log_level": 0})
    assert consumer.get_watermark_offsets(TopicPartition(topic.name, 0), 10) == (0, 3)
    consumer.close()


@BOTH_WAYS
@pytest.mark.long
@pytest.mark.parametrize("instant", ["replicate.after_commit", "replicate.after_entries"])
def test_replicate_frozen_during_others_changes_nothing(replicated: Any, instant: str) -> None:
    """Wake a frozen replication after two others have finished it and gone further: it says so, moves no
    pointer back, and `status` knows of no failure.
    """
    journal, topic = replicated.journal, replicated.topic
    first_poll(topic)
    frozen = replicated(at=instant)
    frozen.freeze()
    free_lease(journal.stack.session, journal.name)
    replicated.here()
    second_poll(topic)
    replicated.here()
    before = (journal.rows(), journal.entries(), journal.pointers())
    expect_all(journal)
    woken = frozen.wake()
    assert woken.code == 75 and "was taken over" in woken.error
    assert (journal.rows(), journal.entries(), journal.pointers()) == before
    assert "all that is in Kafka is replicated" in tagmill(journal.file, "status", "--json")[1]


@BOTH_WAYS
@pytest.mark.long
def test_replicate_broker_restarts_is_waited_for(replicated: Any, kafka: Any) -> None:
    """Restart the broker behind the plan; the same command ends well."""
    journal, topic = replicated.journal, replicated.topic
    first_poll(topic)
    replicated.here()
    second_poll(topic)
    # A restart takes some ten seconds, as long as a test's request_timeout_seconds.
    patient = journal.file.read_text().replace("request_timeout_seconds = 10", "request_timeout_seconds = 60")
    journal.file.write_text(patient)
    command = replicated(at="replicate.planned")
    kafka.kill()
    command.pause_file.unlink()
    time.sleep(5)
    kafka.start()
    ended = command.end()
    assert ended.code == 0, ended
    expect_all(journal)


def test_replicate_broker_stopped_is_one_line(replicated: Any, kafka: Any) -> None:
    """Stop the broker: the command ends with 75 and one line that names it."""
    kafka.stop()
    try:
        ended = replicated().end()
        assert ended.code == 75 and "Kafka at 127.0.0.1" in ended.error
    finally:
        kafka.start()
