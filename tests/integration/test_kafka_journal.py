"""Kafka Journal replication: each storage case and action rule on a real broker and a real Cassandra."""

import re
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tagmill.cassandra.client import Cassandra
from tagmill.errors import (
    FenceRaised,
    GuardRefused,
    RecordsLost,
    SealedFileDamaged,
    StoreUnavailable,
    TopicRecreated,
)
from tagmill.kafka.client import NAME_NOT_UTF8, Span
from tagmill.kafka.client import Kafka as KafkaClient
from tagmill.kafka.partitioner import partition_of
from tagmill.kafka_journal.few_records import FewRecords
from tagmill.kafka_journal.replicate import pending, replicate
from tagmill.kafka_journal.staging import LONGEST_ID
from tagmill.ledger import schema
from tagmill.ledger.failures import Failures
from tagmill.ledger.replications import Replications
from tagmill.runs import checkpoints
from tests.conftest import FEW_ROWS
from tests.support import odd_headers
from tests.support.delivery import tagmill
from tests.support.errors import raises
from tests.support.kafka import (
    KafkaJournal,
    Topic,
    append_header,
    binary,
    create,
    delete,
    header,
    lose,
    made,
    moment,
)
from tests.support.leases import free_lease
from tests.support.topics import Crashed, crashing

pytestmark = pytest.mark.usefixtures("both_replications")


def replicator(journal: KafkaJournal, spark: Any, **keys: Any) -> Any:
    """Return a function that replicates the journal and returns its report."""
    settings = journal.settings(FEW_ROWS, **keys)
    schema.apply(settings)

    def run(**options: Any) -> Any:
        return replicate(settings, journal.name, owner="cli/test/1/0", spark=lambda: spark, **options)

    return run


@dataclass
class Told:
    """A journal after two replications, what was sent, and what the tables have."""

    journal: KafkaJournal
    topic: Topic
    sent: dict[str, int]
    reports: list[Any]
    rows: list[dict[str, Any]]
    entries: dict[str, dict[str, Any]]

    def seq_nrs(self, key: str) -> list[int]:
        return [row["seq_nr"] for row in self.rows if row["id"] == key]

    def state(self, key: str) -> tuple[int, int | None] | None:
        entry = self.entries.get(key)
        return (entry["seq_nr"], entry["delete_to"]) if entry else None


def keys(*places: tuple[int, int]) -> list[str]:
    """Return for each place an id with this (partition of two, partition of three)."""
    names = [f"id-{n}" for n in range(100)]
    return [
        next(
            name
            for name in names
            if (partition_of(name.encode(), 2), partition_of(name.encode(), 3)) == place
        )
        for place in places
    ]


FAR = 4_000_000_000_000


@pytest.fixture(scope="module")
def told(stack, kafka, spark, both_replications, tmp_path_factory) -> Iterator[Told]:
    """Yield a journal whose topic was replicated in two polls, each with actions for its ids, in segments of
    two events.
    """
    with_end = made(stack, kafka.port, tmp_path_factory.mktemp("journal"))
    journal = next(with_end)()
    run, topic = replicator(journal, spark, segment_size=2), journal.topic()
    sent = {
        "whole": topic.append(
            "whole", [(1, {"a": 1}), (2, "x"), (3, None)], tags=["t", "ü"], headers=[("h", b"v")]
        )
    }
    topic.delete("delete-none", 3)
    topic.purge("purge-none")
    topic.mark("mark-none")
    topic.append("collapsed", [(n, n) for n in range(1, 6)])
    topic.delete("collapsed", 3)
    topic.append("all-deleted", [(1, 1), (2, 2), (3, 3)])
    topic.delete("all-deleted", 3)
    topic.append("reborn", [(n, "old") for n in range(1, 5)])
    topic.append("purged-at-once", [(1, 1)])
    topic.purge("purged-at-once")
    topic.append("above", [(1, 1), (2, 2)])
    topic.delete("above", 100)
    topic.append("begins-high", [(5, 5), (6, 6)])
    topic.append("skipping", [(1, 1), (FAR, 2)])
    topic.append("gone-far", [(1, 1), (FAR, 2)])
    topic.append("expiring", [(1, 1)], expire_after="36 hours")
    topic.append("for-ever-now", [(1, 1)], expire_after="1 day")
    topic.append("later-deleted", [(n, n) for n in range(1, 10)])
    topic.append("later-purged", [(n, n) for n in range(1, 10)])
    topic.send(
        "binary",
        binary([(1, ["b"], 1, b"\x00\xff"), (2, [], 3, b"text"), (3, [], 2, b"[1.10]"), (4, [], 0, b"")]),
        [append_header(1, 4, "binary")],
    )
    topic.flush()
    reports = [run()]
    stack.session.execute(  # an interrupted purge of an earlier life has left this behind
        f"INSERT INTO {journal.name}.journal (id, topic, segment, seq_nr, timestamp) VALUES ('whole', "
        "%s, 0, 1, 77)",
        (topic.name,),
    )
    sent["second"] = topic.append("whole", [(4, 4), (7, 7)])
    topic.mark("whole")
    topic.delete("collapsed", 4)
    topic.append("reborn", [(5, "old")])
    topic.purge("reborn")
    sent["reborn"] = topic.append("reborn", [(1, "new")])
    topic.append("above", [(3, 3)])
    topic.append("delete-none", [(4, 4)])
    topic.delete("skipping", 5)
    topic.append("skipping", [(FAR + 1, 3)])
    topic.purge("gone-far")
    topic.append("for-ever-now", [(2, 2)])
    topic.delete("later-deleted", 2)
    topic.delete("later-deleted", 7)
    topic.purge("later-purged")
    topic.flush()
    reports.append(run())
    yield Told(journal, topic, sent, reports, journal.rows(), journal.entries())
    next(with_end, None)


def test_append_without_entry_creates_entry_and_events(told):
    """Write the first append's events with segment, payload, tags, headers and offset, under the new entry's
    record_id.
    """
    rows = [row for row in told.rows if row["id"] == "whole" and row["seq_nr"] <= 3 and row["meta_record_id"]]
    assert [(row["seq_nr"], row["segment"], row["payload_type"], row["payload_txt"]) for row in rows] == [
        (1, 0, "json", '{"a": 1}'),
        (2, 0, "json", '"x"'),
        (3, 1, None, None),
    ]
    of_all = {
        (row["partition"], row["offset"], row["timestamp"], row["origin"], row["version"]) for row in rows
    }
    assert of_all == {(0, 0, moment(told.sent["whole"]), "app", None)}
    assert rows[0]["tags"] == {"t", "ü"} and rows[0]["headers"] == {"h": "v"} and rows[0]["metadata"] is None


def test_append_with_entry_updates_seq_nr(told):
    """Update seq_nr and the time of the entry and keep its record_id; a mark changes nothing."""
    entry = told.entries["whole"]
    assert told.state("whole") == (7, None) and told.seq_nrs("whole") == [1, 1, 2, 3, 4, 7]
    assert entry["created"] == moment(told.sent["whole"]) and entry["updated"] == moment(told.sent["second"])
    assert entry["created_date"].date() == entry["created"].date()
    assert entry["segment_size"] == 2 and entry["origin"] == "app" and entry["expire_on"] is None
    assert {row["meta_record_id"] for row in told.rows if row["id"] == "whole"} == {entry["record_id"], None}


def test_delete_without_entry_creates_it(told):
    """Create the entry of an id that a Delete is the first record of; its next append goes on behind that."""
    assert told.state("delete-none") == (4, 3) and told.seq_nrs("delete-none") == [4]


def test_life_begins_behind_its_delete_to(told):
    """Set delete_to so that Kafka Journal's readers begin in the segment of the first event."""
    assert told.state("begins-high") == (6, 4) and told.seq_nrs("begins-high") == [5, 6]


@pytest.mark.parametrize("key", ["purge-none", "mark-none", "purged-at-once"])
def test_actions_without_entry_do_nothing(told, key):
    """Ignore a purge and a mark of an id without an entry, and an append purged in the same poll."""
    assert told.state(key) is None and told.seq_nrs(key) == []


def test_appends_before_delete_collapse(told):
    """Write only those events of a poll that its later delete leaves."""
    assert told.reports[0].counts.events > len([row for row in told.rows if row["offset"] is not None])
    assert told.state("collapsed") == (5, 4) and told.seq_nrs("collapsed") == [5]
    assert told.state("all-deleted") == (3, 3) and told.seq_nrs("all-deleted") == []


def test_delete_with_entry_deletes_events_up_to(told):
    """Set the entry's delete_to to the highest delete of the poll, and delete the events up to it."""
    assert told.state("later-deleted") == (9, 7) and told.seq_nrs("later-deleted") == [8, 9]


def test_purge_deletes_the_events_and_then_the_entry(told):
    assert told.state("later-purged") is None and told.seq_nrs("later-purged") == []


def test_append_after_purge_begins_new_life(told):
    """Create a new entry for an append behind a purge, and keep no event of the earlier life."""
    entry = told.entries["reborn"]
    assert told.state("reborn") == (1, None) and entry["created"] == moment(told.sent["reborn"])
    (row,) = (row for row in told.rows if row["id"] == "reborn")
    assert (row["payload_txt"], row["meta_record_id"]) == ('"new"', entry["record_id"])


def test_delete_above_seq_nr_ends_there(told):
    """Delete up to seq_nr at most, so that readers see the next event."""
    assert told.state("above") == (3, 2) and told.seq_nrs("above") == [3]


def test_sequence_numbers_may_skip_far(told):
    assert told.state("skipping") == (FAR + 1, 5) and told.seq_nrs("skipping") == [FAR, FAR + 1]
    assert told.state("gone-far") is None and told.seq_nrs("gone-far") == []


def test_expiry_is_decided_by_last_append(told):
    """Count an expiry from its append; a later append without one removes it."""
    entry = told.entries["expiring"]
    assert (
        entry["expire_on"].date() == date(2026, 9, 23)
        and str(entry["expire_after"]) == "0mo1d43200000000000ns"
    )
    assert (
        told.entries["for-ever-now"]["expire_on"] is None
        and told.entries["for-ever-now"]["expire_after"] is None
    )


def test_payloads_have_columns_by_type(told):
    """Store text and JSON payloads in payload_txt and binary ones in payload_bin, each with its
    payload_type.
    """
    rows = [row for row in told.rows if row["id"] == "binary"]
    assert [(row["payload_type"], row["payload_txt"], row["payload_bin"]) for row in rows] == [
        ("binary", None, b"\x00\xff"),
        ("text", "text", None),
        ("json", "[1.10]", None),
        (None, None, None),
    ]
    assert rows[0]["tags"] == {"b"}


def test_pointers_name_the_last_record_that_was_read(told):
    assert told.journal.pointers() == {
        (told.topic.name, 0): sum(report.counts.records for report in told.reports) - 1
    }
    found = told.reports[0].counts
    assert (found.appends, found.deletes, found.purges, found.marks, found.unreadable) == (14, 4, 2, 1, 0)
    assert found.records == 21 and found.ids == 17


def test_replicate_nothing_new_starts_no_spark(kafka_journal):
    """Start no Spark session while nothing is new; `status` counts the records that wait."""
    from tagmill.kafka_journal.replicate import status

    journal = kafka_journal()
    topic = journal.topic("a", 2)
    settings = journal.settings(FEW_ROWS)
    schema.apply(settings)
    assert not pending(settings, journal.name)
    report = replicate(settings, journal.name, owner="o", spark=pytest.fail)
    assert report.replications == 0 and "has everything" in report.message
    assert journal.entries() == {}
    topic.append("id", [(1, 1)], partition=1)
    topic.flush()
    assert pending(settings, journal.name)
    assert [
        (one.partition, one.replicated_to, one.end, one.waiting) for one in status(settings, journal.name)
    ] == [
        (0, None, 0, 0),
        (1, None, 1, 1),
    ]


def every_action(topic: Topic) -> None:
    """Send a second poll with every action, of ids that `first_actions` has sent, and an unreadable record."""
    topic.append("goes on", [(3, 3), (4, 4)], tags=["t"], expire_after="1 day")
    topic.delete("goes on", 1)
    topic.purge("ends")
    topic.purge("begins again")
    topic.append("begins again", [(1, "new")])
    topic.mark("goes on")
    topic.send("goes on", b"cut", [append_header(5, 5)])
    topic.flush()


def first_actions(topic: Topic) -> None:
    for key in ("goes on", "ends", "begins again"):
        topic.append(key, [(1, 1), (2, 2)])
    topic.flush()


def expect_every_action(journal: KafkaJournal) -> None:
    """Assert that the tables hold what both polls leave."""
    found = [(row["id"], row["seq_nr"], row["payload_txt"]) for row in journal.rows()]
    assert found == [("begins again", 1, '"new"'), *(("goes on", n, str(n)) for n in (2, 3, 4))]
    entries = {key: (row["seq_nr"], row["delete_to"]) for key, row in journal.entries().items()}
    assert entries == {"begins again": (1, None), "goes on": (4, 1)}


def no_spark() -> Any:
    pytest.fail("Spark was started")


def test_replicate_few_records_starts_no_spark(kafka_journal):
    """Replicate all actions, dead letters, and a piece of which no record is left, without Spark."""
    journal = kafka_journal()
    settings, topic = journal.settings(FEW_ROWS), journal.topic()
    schema.apply(settings)

    def run(**options: Any) -> Any:
        return replicate(settings, journal.name, owner="o", spark=no_spark, **options)

    first_actions(topic)
    assert run().counts.events == 6
    every_action(topic)
    assert run().counts.unreadable == 1
    expect_every_action(journal)
    topic.append("goes on", [(5, 5)])
    topic.flush()
    lose(journal.port, topic.name, 0, 11)
    assert "1 records" in run(accept_lost=True).warnings[0] and journal.pointers() == {(topic.name, 0): 10}
    expect_every_action(journal)


@pytest.mark.parametrize(
    "instant", ["replicate.after_commit", "replicate.after_events", "replicate.before_end"]
)
@pytest.mark.parametrize("sealed_by", [0, 20_000], ids=["sealed by Spark", "sealed here"])
def test_replicate_finishes_what_other_way_sealed(kafka_journal, spark, sealed_by, instant):
    """Crash behind the commit of one way, and finish the piece the other way: the rows are the same."""
    journal = kafka_journal()
    topic, ways = journal.topic(), {of: journal.settings(FEW_ROWS, small_run_rows=of) for of in (0, 20_000)}
    schema.apply(ways[0])

    def run(small_run_rows: int) -> Any:
        session = no_spark if small_run_rows else lambda: spark
        return replicate(ways[small_run_rows], journal.name, owner="o", spark=session)

    first_actions(topic)
    run(sealed_by)
    every_action(topic)
    with crashing(instant), pytest.raises(Crashed):
        run(sealed_by)
    free_lease(journal.stack.session, journal.name)
    report = run(20_000 - sealed_by)
    assert (report.replications, report.counts.unreadable) == (1, 1)
    expect_every_action(journal)
    assert journal.pointers() == {(topic.name, 0): 9}


@pytest.mark.parametrize("small_run_rows", [20_000, 0], ids=["here", "by Spark"])
@pytest.mark.parametrize("part", ["records", "folds"])
def test_replicate_lost_sealed_files_move_no_pointer(kafka_journal, spark, part, small_run_rows):
    """Lose files of a sealed piece: nothing is written, pointers stay, and the line names a way on."""
    journal = kafka_journal()
    settings, topic = journal.settings(FEW_ROWS, small_run_rows=small_run_rows), journal.topic()
    schema.apply(settings)
    first_actions(topic)

    def run() -> Any:
        return replicate(settings, journal.name, owner="o", spark=lambda: spark)

    with crashing("replicate.after_commit"), pytest.raises(Crashed):
        run()
    free_lease(journal.stack.session, journal.name)
    (folder,) = Path(settings.storage.root, journal.name, "replications").glob(f"attempt-*/{part}")
    for file in folder.glob("*.parquet"):
        file.unlink()
    with pytest.raises(SealedFileDamaged, match=rf"{part} has 0 rows, and 3 were sealed.*run give-up"):
        run()
    assert journal.rows() == [] and journal.entries() == {} and journal.pointers() == {}


def test_replicate_records_that_go_seal_nothing(kafka_journal):
    """Lose records between the plan and the reading: the run seals nothing, and the next one counts them."""
    journal = kafka_journal()
    settings, topic = journal.settings(FEW_ROWS), journal.topic()
    schema.apply(settings)
    first_actions(topic)

    def reached(instant: str) -> None:
        if instant == "replicate.planned":
            lose(journal.port, topic.name, 0, 2)

    with patch.object(checkpoints, "reached", reached):
        with pytest.raises(GuardRefused, match=r"records went while they were read\. Nothing was sealed"):
            replicate(settings, journal.name, owner="o", spark=no_spark)
    assert journal.pointers() == {} and pending(settings, journal.name)
    report = replicate(settings, journal.name, owner="o", spark=no_spark)
    assert report.counts.records == 1 and "begins at offset 2" in report.warnings[0]


def test_replicate_topic_shorter_than_planned_seals_nothing(kafka_journal, kafka):
    """Make the topic anew, with fewer records, between the plan and the reading: nothing is sealed."""
    journal = kafka_journal()
    settings, topic = journal.settings(FEW_ROWS), journal.topic()
    schema.apply(settings)
    first_actions(topic)

    def reached(instant: str) -> None:
        if instant == "replicate.planned":
            delete(kafka.port, topic.name)
            create(kafka.port, topic.name)
            topic.append("another", [(1, 1)])
            topic.flush()

    with patch.object(checkpoints, "reached", reached), pytest.raises(StoreUnavailable, match="did not come"):
        replicate(settings, journal.name, owner="o", spark=no_spark)
    assert journal.rows() == [] and journal.pointers() == {}


def test_replicate_new_partitions_keep_order_of_moved_id(kafka_journal, spark):
    """Read topics and partitions that appear later, and apply the actions of an id that moves in their
    order.
    """
    journal, (moves, stays) = kafka_journal(), keys((0, 2), (1, 1))
    run, first, second = (
        replicator(journal, spark, max_records_per_run=5),
        journal.topic("a", 2),
        journal.topic("b"),
    )
    for n in range(1, 5):
        first.append(moves, [(n, n)], partition=0)
        first.append(stays, [(n, n)], partition=1)
    second.append(moves, [(1, "another topic")])
    for one in (first, second):
        one.flush()
    report = run()
    assert report.replications == 2 and report.counts.records == 9
    assert journal.pointers() == {(first.name, 0): 3, (first.name, 1): 3, (second.name, 0): 0}
    first.grow(3)
    first.append(moves, [(5, 5)], partition=0)
    first.append(moves, [(6, 6)], partition=2)
    first.delete(moves, 5, partition=2)
    third = journal.topic("c")
    third.append("new", [(1, 1)])
    for one in (first, third):
        one.flush()
    run()
    assert journal.pointers() == {
        (first.name, 0): 4,
        (first.name, 1): 3,
        (first.name, 2): 1,
        (second.name, 0): 0,
        (third.name, 0): 0,
    }
    rows = [(row["topic"], row["id"], row["seq_nr"]) for row in journal.rows() if row["id"] != stays]
    assert sorted(rows) == [(first.name, moves, 6), (second.name, moves, 1), (third.name, "new", 1)]


@pytest.mark.parametrize(
    ("began", "step"),
    [
        pytest.param(False, 1, id="clocks in order", marks=pytest.mark.long),
        pytest.param(False, -1, id="clocks run backwards"),
        pytest.param(True, 0, id="going on without clocks", marks=pytest.mark.long),
    ],
)
def test_id_that_moved_keeps_order_in_small_pieces(kafka_journal, spark, began, step):
    """Keep the order even if clocks run backwards or say nothing: a purge left in the old partition would
    delete the new life.
    """
    journal, (moves, stays, back, new) = kafka_journal(), keys((1, 0), (1, 1), (0, 1), (0, 2))
    run, topic = replicator(journal, spark, max_records_per_run=4), journal.topic("a", 2)
    topic.step = step
    for partition in (
        0,
        1,
    ):  # records that are gone before the first replication are not missed in later pieces
        topic.mark("gone", partition=partition)
        topic.flush()
        lose(topic.port, topic.name, partition, 1)
    topic.append(moves, [(1, "old"), (2, "old"), (3, "old")], partition=1)
    topic.append(back, [(1, "old")], partition=0)
    topic.flush()
    if began:
        run()
    for n in range(1, 12):
        topic.append(stays, [(n, n)], partition=1)
    topic.purge(moves, partition=1)
    topic.purge(back, partition=0)
    topic.grow(3)  # the ids move to existing partitions and to a new one
    for key, partition in ((moves, 0), (back, 1), (new, 2)):
        topic.append(key, [(1, "new"), (2, "new")], partition=partition)
    topic.append(stays, [(12, 12)], partition=1)
    topic.flush()
    report = run()
    assert report.counts.records == 19 - 2 * began and report.replications > 3 - began
    expected = [(key, n, '"new"') for key in (moves, back, new) for n in (1, 2)] + [
        (stays, n, str(n)) for n in range(1, 13)
    ]
    assert sorted((row["id"], row["seq_nr"], row["payload_txt"]) for row in journal.rows()) == sorted(
        expected
    )
    assert {key: entry["seq_nr"] for key, entry in journal.entries().items()} == {
        moves: 2,
        back: 2,
        new: 2,
        stays: 12,
    }
    assert journal.pointers() == {(topic.name, 0): 3, (topic.name, 1): 15, (topic.name, 2): 0}


def test_replicate_entry_without_created_goes_on(kafka_journal, stack, spark):
    """Append to an id whose entry lacks the time of its first event."""
    journal = kafka_journal()
    run, topic = replicator(journal, spark), journal.topic("a")
    topic.append("id", [(1, "first")])
    topic.flush()
    run()
    (entry,) = stack.session.execute(f"SELECT topic, segment, id FROM {journal.name}.metajournal")
    where = "topic = %s AND segment = %s AND id = %s"
    stack.session.execute(
        f"DELETE created, created_date FROM {journal.name}.metajournal WHERE {where}", entry
    )
    topic.append("id", [(2, "second")])
    topic.flush()
    run()
    assert journal.seq_nrs("id") == [1, 2] and journal.pointers() == {(topic.name, 0): 1}


def test_replicate_everything_again_keeps_moved_id(kafka_journal, stack, spark):
    """Read an id's purge in its old partition again, with its new life in the new one: nothing changes."""
    journal, (moves,) = kafka_journal(), keys((0, 1))
    run, topic = replicator(journal, spark), journal.topic("a", 2)
    topic.append(moves, [(1, "old")], partition=0)
    topic.purge(moves, partition=0)
    topic.grow(3)
    topic.append(moves, [(1, "new"), (2, "new")], partition=1)
    topic.flush()
    run()
    before = journal.rows(), journal.entries(), journal.pointers()
    assert journal.seq_nrs(moves) == [1, 2]
    stack.session.execute(f"TRUNCATE {journal.name}.pointer2")
    run()
    assert (journal.rows(), journal.entries(), journal.pointers()) == before


def test_replicate_outranked_after_takeover_notes_no_failure(kafka_journal, spark):
    """Say that another process took over, and note no failure, if rows are not as written because of that
    process.
    """
    journal = kafka_journal()
    run, topic, settings = replicator(journal, spark), journal.topic(), journal.settings(FEW_ROWS)
    topic.append("id", [(1, 1)])
    topic.flush()
    with Cassandra(settings.cassandra) as cassandra:

        def differing(_: Any) -> tuple[str, int]:
            Replications(cassandra, journal.ledger, journal.name).take_over("another")
            return "id", 1

        with (
            patch.object(FewRecords, "differing", differing),
            raises(FenceRaised, pipeline=journal.name),
        ):
            run()
        assert Failures(cassandra, journal.ledger, journal.name).current() is None
    assert run().replications == 1 and journal.seq_nrs("id") == [1]


def test_replicate_two_writers_keeps_and_names_events(kafka_journal, spark):
    """Keep the events of two writers of an id, with a warning; of equal numbers and times only the later record's."""
    journal = kafka_journal()
    run, topic = replicator(journal, spark, segment_size=4), journal.topic()
    topic.append("forked", [(n, "a") for n in range(1, 11)])
    topic.flush()
    assert run().counts.forks == 0
    topic.append("forked", [(9, "b"), (10, "b")])
    topic.append("forked", [(11, "a")])
    topic.append("twice", [(1, "first"), (2, "first")], tags=["t"], headers=[("h", b"v")])
    topic.clock -= topic.step
    topic.append("twice", [(2, None), (3, "later")])
    topic.flush()
    report = run()
    assert report.counts.forks == 2 and "2 appends begin below" in report.message
    told = [
        re.findall(r"id (\w+): .* offset (\d+) begins .* number (\d+),", text)[0] for text in report.warnings
    ]
    assert sorted(told) == [("forked", "1", "9"), ("twice", "4", "2")]
    rows = [(row["id"], row["seq_nr"], row["payload_txt"]) for row in journal.rows()]
    assert rows[8:12] == [
        ("forked", 9, '"a"'),
        ("forked", 9, '"b"'),
        ("forked", 10, '"a"'),
        ("forked", 10, '"b"'),
    ]
    assert rows[12:] == [
        ("forked", 11, '"a"'),
        ("twice", 1, '"first"'),
        ("twice", 2, None),
        ("twice", 3, '"later"'),
    ]
    mixed = journal.rows()[-2]
    assert (mixed["offset"], mixed["payload_type"], mixed["tags"], mixed["headers"]) == (4, None, None, None)


def test_replicate_unreadable_records_become_dead_letters(kafka_journal, stack, spark, capsys):
    """Keep unreadable records unchanged as dead letters, and replicate the rest."""
    from tagmill.cassandra.client import Cassandra
    from tagmill.ledger.dead_letters import DeadLetters

    journal = kafka_journal()
    run, topic = replicator(journal, spark), journal.topic()
    topic.append("good", [(1, 1)], expire_after="soon")
    cut = binary([(2, ["t"], 1, b"payload")])[:-30]
    topic.send("good", cut, [append_header(2, 2, "binary"), ("user", b"\xff")])
    topic.send(None, b"{}", [append_header(1, 1)])
    topic.send(b"\xff\xfe", b'{"events":[{"seqNr":1}]}', [append_header(1, 1)])
    topic.send("good", None, [append_header(3, 3)])
    topic.send("good", b"{}", [header(append={"payloadType": "xml"})])
    topic.send("good", b"whatever", [header(unknown={})])
    topic.send("good", b"no header")
    topic.send("good", None)
    topic.append("good", [(4, 4)])
    longest = "k" * LONGEST_ID
    topic.append(longest, [(1, 1)], expire_after="1 day")
    topic.append(longest + "k", [(1, 1)])
    topic.flush()
    name, action = append_header(5, 5)
    odd_headers.send(topic.port, topic.name, b"good", b"{}", [(name.encode(), action), (b"\xff", b"")])
    topic.append("good", [(6, 6)])
    topic.send("good", b'{"events":[{"seqNr":7}]}', [(name, action[:-1])])
    topic.flush()
    with KafkaClient(journal.settings(FEW_ROWS).kafka) as client:
        *_, odd, last, _ = client.read(topic.name, 0, Span(0, 15))
    assert odd.headers == NAME_NOT_UTF8 and last.headers == [append_header(6, 6, origin="app")]
    report = run()
    assert (report.counts.unreadable, report.counts.skipped, report.counts.appends) == (8, 3, 4)
    assert [text for text in report.warnings if "expireAfter" in text and "soon" in text]
    assert "8 can't be read: tagmill deadletters list" in report.message
    assert journal.seq_nrs("good") == [1, 4, 6] and journal.seq_nrs(longest) == [1]
    with Cassandra(journal.settings(FEW_ROWS).cassandra) as cassandra:
        letters = list(DeadLetters(cassandra, "tagmill_test", journal.name).listed())
    assert [one.record.offset for one in letters] == [1, 2, 3, 4, 5, 11, 12, 14]
    first = letters[0]
    assert first.record.value == cut and first.record.key == b"good" and "cut off" in first.reason
    assert first.record.headers == [append_header(2, 2, "binary"), ("user", b"\xff")]
    assert letters[2].record.key == b"\xff\xfe" and "without a key" in letters[1].reason
    assert letters[6].reason == "the name of a header is not UTF-8" and letters[6].record.value == b"{}"
    assert letters[7].reason.startswith(f"header {name}: ") and letters[7].record.headers == [
        (name, action[:-1])
    ]


def test_record_too_large_for_cassandra_stops_nothing(kafka_journal, spark):
    """Write nothing of a record with a row too large for Cassandra; the largest rows, tags and header names
    still arrive.
    """
    from tagmill.cassandra.client import Cassandra
    from tagmill.ledger.dead_letters import DeadLetters

    journal = kafka_journal()
    run, topic = replicator(journal, spark), journal.topic(**{"max.message.bytes": str(64 * 1024**2)})
    with Cassandra(journal.settings(FEW_ROWS).cassandra) as cassandra:
        largest = cassandra.largest_row
        topic.append("a", [(1, 1), (2, "x" * (largest - 1000))])
        topic.append("a", [(3, 3), (4, "x" * largest)])
        topic.append("a", [(5, 5)], tags=["t" * 65_535], headers=[("h" * 65_535, b"")])
        topic.append("a", [(6, 6)], headers=[("h", bytes(largest))])
        topic.append("a", [(7, 7)], tags=["t" * 65_536])
        topic.append("a", [(8, 8)])
        topic.flush()
        report = run()
        assert (report.counts.unreadable, report.counts.appends, report.counts.events) == (3, 3, 4)
        assert journal.seq_nrs("a") == [1, 2, 5, 8] and journal.entries()["a"]["seq_nr"] == 8
        assert [len(row["payload_txt"]) for row in journal.rows()] == [1, largest - 998, 1, 1]
        event, header, tag = DeadLetters(cassandra, "tagmill_test", journal.name).listed()
    assert (
        "event 4: a row of" in event.reason
        and f"{topic.name}/0/1" in event.reason
        and event.reason.startswith("not kept: ")
    )
    assert [one.record.offset for one in (event, header, tag)] == [1, 3, 4]
    assert event.record.value is None and header.record.value is None and f"{topic.name}/0/3" in header.reason
    assert "a tag of more than 65535 bytes" in tag.reason and b"t" * 65_536 in tag.record.value


def test_an_empty_id_and_strange_ones_are_ids(kafka_journal, spark):
    from tagmill.kafka_journal.head import heads

    journal = kafka_journal()
    run, topic = replicator(journal, spark), journal.topic()
    for key in ("", "\0", " ", "\U0001f600"):
        topic.append(key, [(1, 1), (2, 2)])
        topic.delete(key, 1)
    topic.purge(" ")
    topic.flush()
    report = run()
    assert report.counts.unreadable == 0
    assert sorted(journal.entries()) == ["", "\0", "\U0001f600"] and journal.seq_nrs("") == [2]
    assert heads(journal.settings(FEW_ROWS), journal.name, "")[0].seq_nr == 2


@pytest.mark.parametrize(
    "factor",
    [
        pytest.param(1000, id="microseconds", marks=pytest.mark.long),
        pytest.param(1_000_000, id="nanoseconds"),
    ],
)
def test_replicate_odd_clock_unit_stops_nothing(kafka_journal, spark, factor):
    """Replicate records whose clock does not count milliseconds, with times between 1970 and 9999."""
    from tagmill.kafka_journal.head import heads

    journal = kafka_journal()
    run, topic = (
        replicator(journal, spark),
        journal.topic("a", 1, **{"message.timestamp.after.max.ms": str(2**63 - 1)}),
    )
    topic.append("x", [(1, 1)])
    topic.clock *= factor
    topic.append("x", [(2, 2)], expire_after="1 day")
    topic.send("x", b"cut", [append_header(3, 3)])
    topic.clock = -topic.clock
    topic.append("x", [(3, 3)])
    topic.flush()
    (before,) = heads(journal.settings(FEW_ROWS), journal.name, "x")
    report = run()
    (after,) = heads(journal.settings(FEW_ROWS), journal.name, "x")
    assert (report.counts.unreadable, report.counts.appends, journal.seq_nrs("x")) == (1, 3, [1, 2, 3])
    assert [event.timestamp.year for event in after.events] == [2026, 9999, 1970]
    assert [event.timestamp for event in before.events] == [event.timestamp for event in after.events]


def test_aborted_transactions_and_their_markers_are_no_records(kafka_journal, spark):
    journal = kafka_journal()
    run, topic = replicator(journal, spark), journal.topic()
    for seq_nr, abort in ((1, False), (2, True), (3, False)):
        with topic.transaction(abort=abort):
            topic.append("id", [(seq_nr, seq_nr)])
    report = run()
    assert journal.seq_nrs("id") == [1, 3] and report.counts.records == 2
    assert run().replications == 0


def test_replicate_lost_records_need_accept_lost(kafka_journal, kafka, spark):
    """Count records that Kafka has lost, refuse to go on, and skip them only with --accept-lost."""
    from tagmill.kafka_journal.replicate import status

    journal = kafka_journal()
    run, topic, settings = replicator(journal, spark), journal.topic(partitions=2), journal.settings(FEW_ROWS)
    topic.append("id", [(1, 1)])
    topic.flush()
    run()
    for n in range(2, 8):
        topic.append("id", [(n, n)])
    topic.flush()
    lose(kafka.port, topic.name, 0, 5)
    with raises(RecordsLost, pipeline=journal.name):
        run()
    assert journal.seq_nrs("id") == [1]
    report = run(accept_lost=True)
    assert journal.seq_nrs("id") == [1, 6, 7] and "4 records" in report.warnings[0]
    assert not pending(settings, journal.name)
    # Refuse also if no record is left to read.
    topic.append("id", [(8, 8)])
    topic.flush()
    lose(kafka.port, topic.name, 0, 8)
    line, _ = status(settings, journal.name)
    assert (line.waiting, line.first, line.end) == (
        0,
        8,
        8,
    ) and "1 records (offsets 7 to 7) were gone" in line.problem
    assert pending(settings, journal.name)
    with raises(RecordsLost, pipeline=journal.name):
        run()
    assert "1 records" in run(accept_lost=True).warnings[0]
    assert journal.pointers() == {(topic.name, 0): 7} and not pending(settings, journal.name)
    # Skip lost records also if one partition has no record left and another has.
    topic.append("id", [(9, 9)])
    topic.append("other", [(1, 1)], partition=1)
    topic.flush()
    lose(kafka.port, topic.name, 0, 9)
    run(accept_lost=True)
    assert journal.pointers() == {(topic.name, 0): 8, (topic.name, 1): 0} and journal.seq_nrs("other") == [1]
    topic.append("id", [(10, 10)])
    topic.flush()
    run()
    assert journal.seq_nrs("id") == [1, 6, 7, 10]
    # Records of a partition that came since the first replication count from its first offset.
    topic.grow(3)
    topic.append("third", [(1, 1)], partition=2)
    topic.append("third", [(2, 2)], partition=2)
    topic.flush()
    lose(kafka.port, topic.name, 2, 1)
    assert "1 records (offsets 0 to 0) were gone" in status(settings, journal.name)[2].problem
    with raises(RecordsLost, pipeline=journal.name):
        run()
    run(accept_lost=True)
    assert journal.seq_nrs("third") == [2] and not pending(settings, journal.name)


def test_a_topic_that_was_made_anew_is_refused(kafka_journal, kafka, spark):
    from tagmill.kafka_journal.replicate import status

    journal = kafka_journal()
    run, topic, settings = replicator(journal, spark), journal.topic(), journal.settings(FEW_ROWS)
    for n in (1, 2, 3):
        topic.append("id", [(n, n)])
    topic.flush()
    run()
    delete(kafka.port, topic.name)
    create(kafka.port, topic.name)
    with raises(TopicRecreated, pipeline=journal.name):
        run()
    assert journal.seq_nrs("id") == [1, 2, 3]
    # The topic stays pending, because the DAG skips a journal where nothing is pending.
    for n in (0, 1, 2, 3):
        if n:
            topic.append("id", [(n, n)])
            topic.flush()
        (line,) = status(settings, journal.name)
        assert line.waiting == n and "made anew" in line.problem and pending(settings, journal.name)
    # Refuse also once the new topic has more records than were read of the old one.
    for n in (4, 5):
        topic.append("id", [(n, n)])
    topic.flush()
    with raises(TopicRecreated, pipeline=journal.name):
        run()
    report = run(accept_lost=True)
    assert "made anew" in report.warnings[0] and journal.seq_nrs("id") == [1, 2, 3, 4, 5]
    assert run().replications == 0 and status(settings, journal.name)[0].problem is None


def test_topic_behind_old_entries_is_refused(kafka_journal, kafka, stack, spark):
    """Replicate a topic that was made anew, without pointers: refused beside entries of the old one, which
    hide its first records, and replicated into tables that were made anew, too.
    """
    from tagmill.kafka_journal.replicate import status

    journal = kafka_journal()
    run, topic, settings = replicator(journal, spark), journal.topic(), journal.settings(FEW_ROWS)
    topic.append("id", [(n, n) for n in (1, 2, 3)])
    topic.flush()
    run()
    stack.session.execute(f"TRUNCATE {journal.name}.pointer2")
    delete(kafka.port, topic.name)
    create(kafka.port, topic.name)
    topic.append("id", [(1, "new")])
    topic.flush()
    before = journal.rows()
    with raises(TopicRecreated, pipeline=journal.name):
        run()
    (line,) = status(settings, journal.name)
    assert "hide its first records" in line.problem and journal.rows() == before
    for table in ("journal", "metajournal", "pointer2"):
        stack.session.execute(f"DROP TABLE {journal.name}.{table}", timeout=60)
    assert run().replications == 1 and journal.seq_nrs("id") == [1]
    assert status(settings, journal.name)[0].problem is None


def test_replicate_entry_of_older_segment_stays_there(kafka_journal, stack, spark):
    """Update an entry in the segment where older versions put it; after a purge, its new life begins in
    today's segment.
    """
    from tagmill.kafka_journal.fold import entry_segments

    journal = kafka_journal()
    run, topic = replicator(journal, spark, segment_size=3), journal.topic()
    topic.append("other", [(1, 1)])
    topic.flush()
    run()
    today, older = entry_segments("Old-Id")
    assert today != older
    stack.session.execute(
        f"INSERT INTO {journal.name}.metajournal (topic, segment, id, partition, offset, segment_size, "
        "seq_nr, created, updated, record_id)"
        " VALUES (%s, %s, 'Old-Id', 0, 0, 100, 2, 1000, 1000, 00000000-0000-4000-8000-000000000001)",
        (topic.name, older),
    )
    topic.append("Old-Id", [(3, 3), (150, 4)])
    topic.flush()
    run()
    entry = journal.entries()["Old-Id"]
    assert (entry["segment"], entry["seq_nr"], entry["segment_size"]) == (older, 150, 100)
    assert [(row["seq_nr"], row["segment"]) for row in journal.rows() if row["id"] == "Old-Id"] == [
        (3, 0),
        (150, 1),
    ]
    topic.purge("Old-Id")
    topic.append("Old-Id", [(1, 1)])
    topic.flush()
    run()
    entry = journal.entries()["Old-Id"]
    assert (entry["segment"], entry["seq_nr"], entry["segment_size"]) == (today, 1, 3) and journal.seq_nrs(
        "Old-Id"
    ) == [1]


def test_replicate_entry_without_record_id_stays_without(kafka_journal, stack, spark):
    """Update an entry that older releases wrote without record_id; only its new life after a purge gets
    one.
    """
    from tagmill.kafka_journal.head import heads

    journal = kafka_journal()
    run, topic = replicator(journal, spark, segment_size=2), journal.topic()
    topic.append("old", [(n, n) for n in range(1, 4)])
    topic.append("gone", [(1, 1)])
    topic.flush()
    run()
    for entry in journal.entries().values():
        where = (entry["topic"], entry["segment"], entry["id"])
        stack.session.execute(
            f"DELETE record_id FROM {journal.name}.metajournal WHERE topic = %s AND segment = %s AND id = %s",
            where,
        )
    topic.append("old", [(4, 4)])
    topic.delete("old", 1)
    topic.purge("gone")
    topic.flush()
    run()
    (entry,) = journal.entries().values()
    assert (entry["id"], entry["record_id"], entry["seq_nr"], entry["delete_to"]) == ("old", None, 4, 1)
    assert [(row["seq_nr"], row["meta_record_id"] is None) for row in journal.rows()] == [
        (2, False),
        (3, False),
        (4, True),
    ]
    (found,) = heads(journal.settings(FEW_ROWS), journal.name, "old")
    assert (found.delete_to, [event.seq_nr for event in found.events]) == (1, [2, 3, 4])
    topic.purge("old")
    topic.append("old", [(1, "anew")])
    topic.flush()
    run()
    ((row,), (entry,)) = journal.rows(), journal.entries().values()
    assert row["seq_nr"] == 1 and row["meta_record_id"] == entry["record_id"] is not None


def test_tables_are_made_under_a_lock_that_expires(kafka_journal, stack, spark):
    import time

    from tagmill.cassandra.client import Cassandra
    from tagmill.kafka_journal.tables import TABLES, KafkaJournalTables

    journal = kafka_journal()
    settings = journal.settings(FEW_ROWS)
    options = {"class": "SimpleStrategy", "replication_factor": "1"}
    with Cassandra(settings.cassandra) as cassandra:
        tables = KafkaJournalTables(cassandra, journal.name)
        assert not tables.there()
        tables.create(options, owner="first", lock_seconds=5)
        assert tables.there()
        session, keyspace = stack.session, journal.name
        assert list(session.execute(f"SELECT * FROM {keyspace}.locks")) == []
        session.execute(f"DROP TABLE {keyspace}.pointer2")
        session.execute(
            f"INSERT INTO {keyspace}.locks (id, expiry_ms, metadata) VALUES ('tagmill-schema', 4000, 'a "
            "dead one') USING TTL 4"
        )
        begun = time.monotonic()
        tables.create(options, owner="second", lock_seconds=10)
        assert time.monotonic() - begun > 1 and tables.there()
        assert set(TABLES) <= set(cassandra.tables(keyspace))
        assert (
            session.execute(f"SELECT value FROM {keyspace}.setting WHERE key = 'tagmill-schema'").one().value
            == "1"
        )


def test_head_shows_cassandra_and_unreplicated_kafka(kafka_journal, spark):
    """Show the events that readers see: those in Cassandra, changed by the records that are not replicated
    yet.
    """
    from tagmill.kafka_journal.head import heads

    journal = kafka_journal()
    run, topic = replicator(journal, spark, segment_size=2), journal.topic()
    settings = journal.settings(FEW_ROWS)
    topic.append("id", [(n, {"n": n}) for n in range(1, 6)], tags=["t"])
    topic.flush()

    def shown(key="id", **options):
        (found,) = heads(settings, journal.name, key, **options)
        return (found.seq_nr, found.delete_to, found.unreplicated, [event.seq_nr for event in found.events])

    assert shown() == (5, None, 1, [1, 2, 3, 4, 5])
    run()
    assert shown() == (5, None, 0, [1, 2, 3, 4, 5])
    assert shown(most=2)[3] == [1, 2]
    topic.delete("id", 3)
    topic.append("id", [(8, 8)])
    topic.send("id", b"cut", [append_header(9, 9, "binary")])
    topic.append("someone-else", [(1, 1)])
    topic.flush()
    assert shown() == (8, 3, 3, [4, 5, 8])
    (found,) = heads(settings, journal.name, "id")
    assert [(event.payload, event.replicated) for event in found.events] == [
        ('{"n": 4}', True),
        ('{"n": 5}', True),
        ("8", False),
    ]
    run()
    assert shown() == (8, 3, 0, [4, 5, 8])
    topic.purge("id")
    topic.flush()
    assert shown() == (None, None, 1, [])
    assert heads(settings, journal.name, "nobody") == []


def test_head_with_skipped_numbers_takes_bounded_time(kafka_journal, spark):
    """Show the head of an id whose numbers skip far within `seconds`, and say how far the search came."""
    from tagmill.kafka_journal.head import heads

    journal = kafka_journal()
    run, topic = replicator(journal, spark, segment_size=2), journal.topic()
    settings = journal.settings(FEW_ROWS)
    for key, numbers in (("skips", (1, 2, 7001, 7002)), ("far", (1, FAR))):
        topic.append(key, [(n, n) for n in numbers])
    topic.flush()
    run()
    topic.append("far", [(FAR + 1, "in Kafka")])
    topic.flush()
    (skips,) = heads(settings, journal.name, "skips")
    assert [event.seq_nr for event in skips.events] == [1, 2, 7001, 7002] and skips.looked_to is None
    begun = time.monotonic()
    (far,) = heads(settings, journal.name, "far", seconds=2)
    assert time.monotonic() - begun < 20
    assert (far.seq_nr, [event.seq_nr for event in far.events]) == (FAR + 1, [1, FAR + 1])
    assert far.more and far.looked_to is not None and 1 < far.looked_to < FAR
    code, shown, _ = tagmill(
        journal.file, "kafka-journal", "head", "--pipeline", journal.name, "--seconds", "1", "far"
    )
    assert code == 0 and "--seconds" in shown and "in Kafka" in shown


def test_expired_ids_are_purged_through_kafka_once(kafka_journal, kafka, spark):
    from tagmill.kafka_journal.purge import purge_expired

    journal = kafka_journal()
    run, topic = replicator(journal, spark), journal.topic("a", 2)
    settings = journal.settings(FEW_ROWS)
    topic.append("expired", [(1, 1)], expire_after="1 day", partition=1)
    topic.append("lives on", [(1, 1)], expire_after="1 day")
    topic.append("lives longer", [(1, 1)], expire_after="30000 days")
    topic.append("for ever", [(1, 1)])
    topic.flush()
    gone = journal.topic("gone")
    gone.append("of a topic that is gone", [(1, 1)], expire_after="1 day")
    gone.flush()
    run()
    delete(kafka.port, gone.name)
    topic.append("lives on", [(2, 2)], expire_after="30000 days")  # not replicated yet
    topic.flush()

    def purge(**options):
        return purge_expired(settings, journal.name, owner="o", spark=lambda: spark, **options)

    assert purge(dry_run=True).purged == 2
    report = purge()
    assert (report.purged, report.examples) == (1, [f"{topic.name}: expired"])
    stay = ["for ever", "lives longer", "lives on", "of a topic that is gone"]
    assert sorted(journal.entries()) == ["expired", *stay]
    assert purge().purged == 0
    assert sorted(journal.entries()) == stay and journal.seq_nrs("expired") == []
    assert journal.pointers()[(topic.name, 1)] == 1


@pytest.mark.parametrize("sleeps_at", ["begin", "end"])
def test_replicate_woken_late_leaves_successors_files(kafka_journal, spark, sleeps_at):
    """Freeze a replication in front of its sweep until another has sealed and died: the next finishes that one."""
    journal = kafka_journal()
    settings, topic, slept = journal.settings(FEW_ROWS), journal.topic(), []
    schema.apply(settings)
    first_actions(topic)
    finish, take_over = Replications.finish, Replications.take_over

    def run(owner: str) -> Any:
        return replicate(settings, journal.name, owner=owner, spark=lambda: spark)

    def sleep() -> None:
        if not slept:
            slept.append(sleeps_at)
            free_lease(journal.stack.session, journal.name)
            topic.append("late", [(1, "x")])
            with crashing("replicate.after_commit"), pytest.raises(Crashed):
                run("cli/other")
            free_lease(journal.stack.session, journal.name)

    def finished(*args: Any) -> Any:
        row = finish(*args)
        if sleeps_at == "end":
            sleep()
        return row

    def taken_over(*args: Any) -> Any:
        row = take_over(*args)
        if sleeps_at == "begin":
            sleep()
        return row

    with patch.object(Replications, "finish", finished), patch.object(Replications, "take_over", taken_over):
        with raises(FenceRaised, pipeline=journal.name) if sleeps_at == "begin" else nullcontext():
            run("cli/test/1/0")
    assert slept
    free_lease(journal.stack.session, journal.name)
    run("cli/test/1/0")
    assert not pending(settings, journal.name) and "late" in journal.entries()
    assert list(Path(settings.storage.root, journal.name, "replications").iterdir()) == []
