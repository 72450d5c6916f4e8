"""Kafka Journal tables delivered to ClickHouse: what their readers see, each event once, whatever the
replicator has gone through.
"""

import json
import re
import tracemalloc
import uuid
from datetime import UTC, datetime
from unittest.mock import patch

import pytest

from tagmill.cassandra.client import Cassandra
from tagmill.delivery.topics import kafka_journal_source as source
from tagmill.delivery.topics import steps
from tagmill.delivery.topics.model import TopicPlan
from tagmill.delivery.topics.status import topic_line
from tagmill.errors import ConfigurationError, JournalRecreated
from tagmill.kafka.offset_ranges import Range
from tagmill.kafka.partitioner import partition_of
from tagmill.kafka_journal.fold import entry_segments
from tagmill.kafka_journal.head import heads
from tagmill.kafka_journal.replicate import replicate
from tagmill.kafka_journal.tables import ADDED, KafkaJournalTables
from tagmill.ledger import schema
from tests.conftest import FEW_ROWS
from tests.support.delivery import shown_first, tagmill
from tests.support.errors import raises
from tests.support.few_records import compared
from tests.support.kafka import create, delete, lose
from tests.support.leases import free_lease
from tests.support.restoring import create_again
from tests.support.topics import OWNER, Crashed, Shop, checked_verdict, crashing


@pytest.fixture(scope="module", autouse=True)
def both_ways(spark):
    """Find the touched entries of each small run with Spark, too, and compare."""
    alike, by_this_process = [], source.staged_here

    def both(cassandra, pipeline, plan):
        here = by_this_process(cassandra, pipeline, plan)
        if here is not None:
            entries = (row for stream in here.rows for batch in stream for row in batch.to_pylist())
            found = sorted((tuple(row[name] for name in source.TOUCHED) for row in entries), key=repr)
            tables = KafkaJournalTables(cassandra, pipeline.keyspace)
            assert found == sorted(map(tuple, source._touched(spark, tables, plan).collect()), key=repr)
            alike.extend(found)
        return here

    with patch.object(source, "staged_here", both):
        yield
    assert alike


@pytest.fixture
def replicated_both_ways(spark):
    """Replicate each piece of a test with Spark, too, and compare."""
    with compared(spark):
        yield


class JournalShop(Shop):
    """A journal, its replicator, and a pipeline that delivers what is replicated."""

    def __init__(self, stack, kafka, spark, folder, of):
        super().__init__(stack, kafka, spark, folder)
        self.journal = of
        self.keys = {"kind": "kafka_journal_events", "keyspace": of.name}

    def replicate(self, **keys):
        settings = self.journal.settings(FEW_ROWS, **keys)
        schema.apply(settings)
        replicate(settings, self.journal.name, owner=f"o/{uuid.uuid4()}", spark=lambda: self.spark)

    def both(self, **keys):
        """Flush the topic, replicate and deliver; return the runs of the delivery."""
        self.topic.flush()
        self.replicate(**keys)
        return self.deliver()

    def events(self, columns="id, seq_nr"):
        """Return the delivered rows in the order of tag, id and seq_nr."""
        found = self.stack.rows(f"SELECT {columns} FROM {self.name} ORDER BY tag, id, seq_nr, offset")
        return [tuple(row) for row in found]


@pytest.fixture
def shop(stack, kafka, spark, tmp_path, kafka_journal):
    """Return a function that makes a journal with one topic, replicated once, and applies the schema of its
    pipeline.
    """

    def make(partitions=1, **keys):
        of = kafka_journal()
        one = JournalShop(stack, kafka, spark, tmp_path, of)
        one.topic = of.topic(partitions=partitions)
        one.replicate()
        one.configure(**keys)
        return one.applied()

    return make


@pytest.mark.parametrize("small_run_rows", [20_000, 0], ids=["here", "by Spark"])
def test_journal_events_arrive_once_as_stored(shop, small_run_rows):
    """Deliver the events of the configured tags once per tag, with the values of the journal's rows."""
    one = shop(2, tags=["red", "blue"], small_run_rows=small_run_rows)
    one.topic.append(
        "a", [(1, {"n": 1}), (2, {"n": 2})], tags=["red", "blue", "other"], headers=[("h", b"v")]
    )
    one.topic.append("b", [(1, "x")], partition=1, tags=["blue"])
    one.topic.append("c", [(1, "nobody's")], tags=["other"])
    (run,) = one.both()
    assert run["rows"] == 5
    found = one.events("tag, id, seq_nr, partition, payload_type, payload, origin, headers")
    assert found == [
        ("blue", "a", 1, 0, "json", '{"n": 1}', "app", '{"h": "v"}'),
        ("blue", "a", 2, 0, "json", '{"n": 2}', "app", '{"h": "v"}'),
        ("blue", "b", 1, 1, "json", '"x"', "app", "{}"),
        ("red", "a", 1, 0, "json", '{"n": 1}', "app", '{"h": "v"}'),
        ("red", "a", 2, 0, "json", '{"n": 2}', "app", '{"h": "v"}'),
    ]
    one.topic.append("a", [(3, {"n": 3})], tags=["red"])
    assert [run["rows"] for run in one.both()] == [1]
    assert one.both() == []
    line = topic_line(one.settings, one.name, verify=True)
    assert (line["delivered"], line["waiting"], line["level"]) == (6, 0, "proven")
    assert one.offsets() == {0: 3, 1: 1}


def test_tables_of_earlier_releases_are_delivered_and_replicated(shop, replicated_both_ways):
    """Deliver and show columns that earlier releases lack as null; a replication adds them, and names other
    missing columns.
    """
    one, missing = (
        shop(),
        dict.fromkeys([*(f"{table}.{name}" for table in ADDED for name in ADDED[table]), ""]),
    )
    keyspace, expected = one.journal.name, []

    def drop(columns):
        for column in filter(None, columns):
            table, name = column.split(".")
            one.stack.session.execute(f"ALTER TABLE {keyspace}.{table} DROP {name}")

    for number, column in enumerate(missing):
        one.topic.append("a", [(2 * number + 1, number)], headers=[("h", b"v")])
        one.topic.flush()
        one.replicate(segment_size=3)
        drop([column] if column else missing.keys() - {""})
        assert [run["rows"] for run in one.deliver()] == [1], column
        none = not column or column == "journal.headers"
        expected.append(("a", 2 * number + 1, str(number), "{}" if none else '{"h": "v"}'))
        (head,) = heads(one.journal.settings(FEW_ROWS), keyspace, "a")
        assert [event.seq_nr for event in head.events] == [n for _, n, _, _ in expected]
    one.topic.append("a", [(100, 100)], headers=[("h", b"v")])
    assert [run["rows"] for run in one.both()] == [1]
    assert one.events("id, seq_nr, payload, headers") == [*expected, ("a", 100, "100", '{"h": "v"}')]
    assert checked_verdict(one).startswith("exactly once")
    one.stack.session.execute(f"DROP INDEX {keyspace}.metajournal_expire_on_idx")
    drop(["metajournal.expire_on", "metajournal.record_id"])
    one.topic.append("a", [(101, 101)])
    one.topic.flush()
    with raises(
        ConfigurationError,
        match=f"keyspace {keyspace} has no column metajournal.expire_on. Nothing was written",
        pipeline=one.journal.name,
    ):
        one.replicate()
    drop(["journal.payload_txt"])
    with pytest.raises(ConfigurationError, match=f"{keyspace}.journal has no column payload_txt"):
        one.deliver()


def test_journal_made_anew_stops_before_reading(shop, kafka):
    """Create tables and topic again, or replicate again: nothing is read, and status says so, until a person
    accepts the journal.
    """
    one = shop()
    session, keyspace = one.stack.session, one.journal.name

    def refused(match):
        before = one.events()
        with raises(JournalRecreated, pipeline=one.name):
            one.deliver()
        for command in ("status", "check"):
            code, out, _ = tagmill(one.file, command, "-p", one.name, "--json")
            assert code == 3 and re.search(f"stopped: .*{match}", out), out
        assert one.events() == before

    def accept():
        asked = ("-p", one.name, "--why", "restored", "--yes")
        code, out, err = shown_first(one.file, "ledger", "accept-journal", *asked)
        assert code == 0 and "are accepted" in out, err

    one.topic.append("a", [(n, "first life") for n in (1, 2, 3)])
    assert [run["rows"] for run in one.both()] == [3]
    create_again(session, keyspace, "journal", "metajournal", "pointer2")
    refused("journal and metajournal and pointer2 of journal .* was created again")
    delete(kafka.port, one.topic.name)
    create(kafka.port, one.topic.name)
    for n in (1, 2, 3):
        one.topic.append("b", [(n, "second life")])
    one.topic.flush()
    one.replicate()
    assert one.journal.seq_nrs("b") == [1, 2, 3]
    refused("was created again")
    accept()
    assert [run["rows"] for run in one.deliver()] == [2]
    assert one.events() == [("a", 1), ("a", 2), ("a", 3), ("b", 2), ("b", 3)]

    session.execute(f"TRUNCATE {keyspace}.pointer2")
    one.replicate()
    refused("replicated again from its beginning")
    accept()
    one.topic.append("b", [(4, "planned")])
    one.topic.flush()
    one.replicate()
    planned = steps.plan(one.settings, one.name, owner=OWNER)
    create_again(session, keyspace, "pointer2")
    with raises(JournalRecreated, pipeline=one.name, run=planned["run"]):
        one.finish(planned)
    code, _, err = tagmill(one.file, "run", "abandon", "-p", one.name, "--why", "x", "--yes")
    assert code == 0, err
    one.replicate()
    refused("pointer2 of journal")
    accept()
    assert [run["rows"] for run in one.deliver()] == [1] and one.events()[-1] == ("b", 4)
    assert checked_verdict(one).startswith("exactly once")


@pytest.mark.parametrize("small_run_rows", [20_000, 0], ids=["here", "by Spark"])
def test_journal_events_of_two_writers_are_delivered(shop, small_run_rows):
    """Deliver what a second writer has appended below events that were delivered before, alone and next to new
    events, in one segment and across segments.
    """
    one = shop(small_run_rows=small_run_rows)
    ids = ("in one", "across")
    for key, size in zip(ids, (10_000, 4), strict=True):
        one.topic.append(key, [(n, "a") for n in range(1, 41)])
        assert [run["rows"] for run in one.both(segment_size=size)] == [40]
    for key in ids:
        one.topic.append(key, [(38, "b"), (39, "b")])
    assert [run["rows"] for run in one.both()] == [4]
    for key in ids:
        one.topic.append(key, [(21, "c")])
        one.topic.append(key, [(41, "a")])
    assert [run["rows"] for run in one.both()] == [4]
    twice = [("across", 21), ("across", 38), ("across", 39), ("in one", 21), ("in one", 38), ("in one", 39)]
    assert one.events() == sorted([*((key, n) for key in ids for n in range(1, 42)), *twice])
    assert {payload for _, payload in one.events("seq_nr, payload") if payload != '"a"'} == {'"b"', '"c"'}
    assert checked_verdict(one).startswith("exactly once")


def test_journal_without_tags_delivers_all_events(shop, replicated_both_ways):
    """Deliver all events across segments and skipped numbers, but not those deleted or purged before."""
    one = shop()
    one.topic.append("long", [(n, n) for n in range(1, 26)])
    one.topic.append("cut", [(n, n) for n in range(1, 8)])
    one.topic.append("gone", [(1, 1)])
    one.topic.append("skips", [(1, 1)])
    one.topic.delete("cut", 5)
    one.topic.purge("gone")
    one.both(segment_size=4)
    assert one.events() == [("cut", 6), ("cut", 7), *(("long", n) for n in range(1, 26)), ("skips", 1)]
    one.topic.append("long", [(n, n) for n in range(26, 41)])
    one.topic.append("skips", [(2 * 10**12, 1), (2 * 10**12 + 1, 1)])
    one.topic.append("gone", [(1, "again"), (2, 2)])
    one.topic.delete("cut", 100)
    (run,) = one.both(segment_size=4)
    assert run["rows"] == 19
    assert [n for key, n in one.events() if key == "long"] == [*range(1, 41)]
    assert [n for key, n in one.events() if key == "skips"] == [1, 2 * 10**12, 2 * 10**12 + 1]
    assert [(n, payload) for key, n, payload in one.events("id, seq_nr, payload") if key == "gone"] == [
        (1, '"again"'),
        (2, "2"),
    ]


def test_journal_orphans_and_stale_entries_are_ignored(shop):
    """Ignore rows of an earlier life and a stale entry next to today's; read an entry that only its older
    place has.
    """
    one = shop()
    one.topic.append("a", [(n, n) for n in range(1, 5)])
    one.topic.append("old", [(1, 1)])
    one.topic.flush()
    one.replicate()
    keyspace, session = one.journal.name, one.stack.session
    # An interrupted purge has left rows of another record_id, above and below those of today.
    for number in (2, 9):
        session.execute(
            f"INSERT INTO {keyspace}.journal (id, topic, segment, seq_nr, timestamp, partition, offset, "
            "meta_record_id, payload_type, "
            "payload_txt) VALUES ('a', %s, 0, %s, toTimestamp(now()), 0, 0, uuid(), 'json', '0')",
            (one.topic.name, number),
        )
    # The entry of 'old' lies in both places: where it is kept today, and where older versions kept it.
    (entry,) = [row for row in one.journal.entries().values() if row["id"] == "old"]
    today, older = entry_segments("old")
    assert today != older
    columns = ", ".join(entry)
    session.execute(
        f"INSERT INTO {keyspace}.metajournal ({columns}) VALUES ({', '.join(['%s'] * len(entry))})",
        tuple({**entry, "segment": older}.values()),
    )
    one.deliver()
    assert one.events() == [*(("a", n) for n in range(1, 5)), ("old", 1)]
    session.execute(
        f"DELETE FROM {keyspace}.metajournal WHERE topic = %s AND segment = %s AND id = 'old'",
        (one.topic.name, today),
    )
    session.execute(
        f"UPDATE {keyspace}.metajournal SET offset = 2, seq_nr = 2 WHERE topic = %s AND segment = %s AND "
        "id = 'old'",
        (one.topic.name, older),
    )
    session.execute(
        f"INSERT INTO {keyspace}.journal (id, topic, segment, seq_nr, timestamp, partition, offset, "
        "meta_record_id, payload_type, "
        "payload_txt) VALUES ('old', %s, 0, 2, toTimestamp(now()), 0, 2, %s, 'text', 'late')",
        (one.topic.name, entry["record_id"]),
    )
    session.execute(
        f"UPDATE {keyspace}.pointer2 SET offset = 2 WHERE topic = %s AND partition = 0", (one.topic.name,)
    )
    one.deliver()
    assert (
        one.events("id, seq_nr, payload_type, payload")[-1] == ("old", 2, "text", "late")
        and len(one.events()) == 6
    )


def test_journal_entry_without_record_id_delivers_all(shop):
    """Deliver all rows of an entry that has no record_id, before and after it gets new events."""
    one = shop()
    one.topic.append("old", [(1, 1), (2, 2)])
    one.topic.flush()
    one.replicate()
    (entry,) = one.journal.entries().values()
    one.stack.session.execute(
        f"DELETE record_id FROM {one.journal.name}.metajournal WHERE topic = %s AND segment = %s AND id "
        "= 'old'",
        (one.topic.name, entry["segment"]),
    )
    one.deliver()
    assert one.events() == [("old", 1), ("old", 2)]
    one.topic.append("old", [(3, 3)])
    one.both()
    assert one.events() == [("old", 1), ("old", 2), ("old", 3)]


@pytest.mark.long
def test_journal_backlog_runs_are_bounded_and_complete(shop, monkeypatch):
    """Deliver a backlog in many bounded runs, and find the new events of a long id from its end."""
    monkeypatch.setattr(source, "NEWEST", 3)
    one = shop(2, max_records_per_run=6, batch_rows=4)
    for number in range(1, 11):
        one.topic.append("hot", [(number, number)])
        one.topic.append(f"k{number}", [(1, number)], partition=1)
    runs = one.both(segment_size=3)
    assert len(runs) >= 4 and all(run["rows"] <= 6 for run in runs)
    assert [n for key, n in one.events() if key == "hot"] == [*range(1, 11)] and len(one.events()) == 20
    with_more = one.topic.append("hot", [(11, 11)])
    assert with_more and [run["rows"] for run in one.both(segment_size=3)] == [1]


def test_journal_large_events_use_bounded_memory(shop, stack):
    """Read large events of many ids with at most half of them in memory at a time."""
    one = shop()
    ids, events, size = 80, 20, 50_000
    insert = stack.session.prepare(
        f"INSERT INTO {one.journal.name}.journal (id, topic, segment, seq_nr, timestamp, partition, "
        "offset, payload_type, payload_bin) "
        "VALUES (?, 't', 0, ?, 1, 0, ?, 'binary', ?)"
    )
    for number in range(ids):
        for seq_nr in range(1, events + 1):
            stack.session.execute(insert, (f"k{number}", seq_nr, number * events + seq_nr, b"x" * size))
    entries = [
        {
            "topic": "t",
            "id": f"k{number}",
            "segment": entry_segments(f"k{number}")[0],
            "partition": 0,
            "segment_size": 10_000,
            "seq_nr": events,
            "delete_to": None,
            "record_id": None,
            "segments": None,
        }
        for number in range(ids)
    ]
    new = [Range(topic="t", partition=0, first=5, end=10_000)]
    plan = TopicPlan(
        pipeline="p",
        run=1,
        planned_at=datetime.now(UTC),
        ranges=new,
        known_since=0,
        rule="",
        warnings=[],
        more=False,
    )
    with Cassandra(one.settings.cassandra) as cassandra:
        rows = source.Events(KafkaJournalTables(cassandra, one.journal.name), plan, frozenset()).of(
            iter(entries)
        )
        tracemalloc.start()
        try:
            found = [(row["id"], row["seq_nr"], len(row["payload"])) for row in rows]
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    expected = [(f"k{number}", seq_nr, size) for number in range(ids) for seq_nr in range(1, events + 1)][4:]
    assert sorted(found) == sorted(expected) and peak < ids * events * size // 2, peak
    numbers = [seq_nr for key, seq_nr, _ in found if key == "k7"]
    assert numbers == sorted(numbers)


def test_journal_moved_id_is_delivered_from_both_partitions(shop):
    """Deliver an id from its old and its new partition, although the old one has a backlog."""
    one = shop(max_records_per_run=6)
    for number in range(1, 14):
        one.topic.append("fills", [(number, number)])
    moves = next(key for key in map(str, range(9)) if partition_of(key.encode(), 2) == 1)
    one.topic.append(moves, [(1, 1)])
    one.topic.grow(2)
    one.topic.append(moves, [(2, 2)], partition=1)
    one.both()
    assert one.events() == [(moves, 1), (moves, 2), *(("fills", number) for number in range(1, 14))]


@pytest.mark.long
def test_journal_crashes_and_voided_batch_lose_nothing(shop):
    """Crash at each instant, void a batch and abandon a run: every event arrives once."""
    one = shop(batch_rows=3)
    sent = 0
    for instant in (
        "plan.after_commit",
        "seal.before_commit",
        "seal.after_commit",
        "push.after_insert",
        "close.before_end",
    ):
        one.topic.append("a", [(sent + n, n) for n in range(1, 5)])
        sent += 4
        one.topic.flush()
        one.replicate()
        with crashing(instant), pytest.raises(Crashed):
            one.deliver()
        free_lease(one.stack.session, one.name)
    one.deliver()
    assert [n for _, n in one.events()] == [*range(1, sent + 1)]
    one.topic.append("a", [(sent + n, n) for n in range(1, 9)])
    one.topic.flush()
    one.replicate()
    with crashing("push.after_batch"), pytest.raises(Crashed):
        one.deliver()
    free_lease(one.stack.session, one.name)
    code, out, err = tagmill(one.file, "run", "void", "--pipeline", one.name, "--why", "a test", "--yes")
    assert code == 0 and "2 batches VOIDED, 1 stay" in out, err
    one.topic.append("a", [(sent + 9, 9)])
    one.topic.flush()
    one.replicate()
    with crashing("close.before_end"), pytest.raises(Crashed):
        one.deliver()
    free_lease(one.stack.session, one.name)
    with crashing("plan.after_commit"), pytest.raises(Crashed):
        one.deliver()
    free_lease(one.stack.session, one.name)
    code, out, err = tagmill(one.file, "run", "abandon", "--pipeline", one.name, "--why", "a test", "--yes")
    assert code == 0, err
    assert [(run["rows"], run["known"]) for run in one.deliver()] == [(5, 3), (1, 0)]
    assert [n for _, n in one.events()] == [*range(1, sent + 10)]
    assert checked_verdict(one).startswith("exactly once")


def test_journal_delivery_without_kafka_names_missing_topic(shop, kafka):
    """Deliver events whose records Kafka has lost, and name a topic or tables that are missing."""
    one = shop()
    one.topic.append("a", [(1, 1)])
    one.topic.flush()
    one.replicate()
    lose(kafka.port, one.topic.name, 0, 1)
    one.deliver()
    assert one.events() == [("a", 1)]
    one.configure(topics=["no-such"])
    with raises(ConfigurationError, match="nothing of no-such is replicated", pipeline=one.name):
        one.deliver()
    one.configure(keyspace="nowhere_at_all")
    with raises(ConfigurationError, match="nowhere_at_all has not the tables", pipeline=one.name):
        one.deliver()
    code, out, _ = tagmill(one.file, "run", "deliver", "--pipeline", one.name, "--json")
    assert code == 2 and out == ""
    one.configure(keyspace=one.journal.name, topics=[one.topic.name])
    assert (
        tagmill(one.file, "status", "--pipeline", one.name)[0] == 3
    )  # the pipeline counts as failed until a delivery succeeds
    assert one.deliver() == []
    code, out, err = tagmill(one.file, "status", "--pipeline", one.name, "--json")
    assert code == 0 and json.loads(out)[0]["level"] == "counted", err
