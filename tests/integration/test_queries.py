"""Queries as DataFrames return, row for row and in order, what the plugin read, and refuse where its stream
fails.
"""

import json
import runpy
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from local.fixtures import Case
from local.layout import ROOT
from tagmill.domain.timeuuid import from_datetime, ticks, to_datetime
from tagmill.errors import ConfigurationError, EventsMissing, TerminalError, ViewNotBuilt
from tagmill.queries import ReadJournal, by_persistence_id, by_tag, in_order
from tagmill.spark import session
from tests.support.delivery import only, tagmill
from tests.support.errors import raises
from tests.support.events import SECOND, event, events, offset_at

BEGIN = datetime(2026, 6, 1, 10, tzinfo=UTC)
HOUR = {"bucket_size": "Hour", "first_time_bucket": BEGIN.isoformat(), "tags": ["t"]}
# The tests below compare orders and minute-buckets as well.
OTHERS = [
    pytest.param(case, marks=pytest.mark.long) for case in ("orders", "partition-boundary", "minute-buckets")
]
HEALTHY = ["odd-names", "deleted-events", *OTHERS]


@pytest.fixture
def read_journal(settings, spark):
    """Return read_journal(keyspace, **keys), which makes a ReadJournal; keys are `case=…` or those of the
    pipeline.
    """

    def make(name, **keys):
        configured = settings(name, **keys)
        return ReadJournal(spark, configured, only(configured))

    return make


def delivered(frame):
    """Return (persistence_id, sequence_nr, offset) of each row, as Case.delivered has them."""
    return [tuple(row) for row in frame.select("persistence_id", "sequence_nr", "offset").collect()]


def view_rows(case, tag):
    """Return a case's rows of tag_views with a tag, in order of offset; no case has two of one persistence_id
    at one time.
    """
    rows = [row for row in Case(case).table("tag_views").to_pylist() if row["tag_name"] == tag]
    return sorted(
        rows, key=lambda row: (row["timebucket"], UUID(row["timestamp"]).time, row["persistence_id"])
    )


# -- by tag


@pytest.mark.parametrize("case", HEALTHY)
def test_events_by_tag_equal_plugins_in_order(case, keyspace, read_journal):
    journal = read_journal(keyspace(case, ("tag_views",)), case=case)
    for tag in Case(case).tags:
        found = journal.current_events_by_tag(tag)
        assert delivered(found) == Case(case).delivered(tag), tag
        assert delivered(in_order(found.repartition(5))) == Case(case).delivered(tag), tag


def test_each_column_is_that_of_the_view(keyspace, read_journal):
    found = (
        read_journal(keyspace("orders", ("tag_views",)), case="orders")
        .current_events_by_tag("billing")
        .collect()
    )
    expected = view_rows("orders", "billing")
    assert len(found) == len(expected) == 7200
    for row, right in zip(found, expected, strict=True):
        assert row["tag"] == "billing" and row["offset"] == right["timestamp"]
        assert row["event_time"].astimezone(UTC) == to_datetime(ticks(UUID(right["timestamp"])))
        same = [name for name in by_tag.COLUMNS if name in right]
        assert {name: row[name] for name in same} == {name: right[name] for name in same}


def test_events_by_tag_bounds_limit_the_result(keyspace, read_journal):
    """Query with bounds: an offset is exclusive, a moment is inclusive, and `until` is the last moment."""
    journal = read_journal(keyspace("minute-buckets", ("tag_views",)), case="minute-buckets")
    tag = Case("minute-buckets").tags[0]
    all_of_it = Case("minute-buckets").delivered(tag)
    for at in (0, 500, len(all_of_it) - 1):
        offset = all_of_it[at][2]
        moment = to_datetime(ticks(UUID(offset)))
        assert delivered(journal.current_events_by_tag(tag, offset)) == all_of_it[at + 1 :]
        assert delivered(journal.current_events_by_tag(tag, UUID(offset))) == all_of_it[at + 1 :]
        from_there = [line for line in all_of_it if ticks(UUID(line[2])) >= from_datetime(moment)]
        assert delivered(journal.current_events_by_tag(tag, moment)) == from_there
        up_to = [line for line in all_of_it if ticks(UUID(line[2])) <= from_datetime(moment)]
        assert delivered(journal.current_events_by_tag(tag, until=moment)) == up_to
    end = to_datetime(ticks(UUID(all_of_it[700][2])))
    up_to = [line for line in all_of_it if ticks(UUID(line[2])) <= from_datetime(end)]
    assert delivered(journal.current_events_by_tag(tag, all_of_it[200][2], end)) == up_to[201:]
    assert delivered(journal.current_events_by_tag(tag, "2015-11-20T00:00:00Z")) == all_of_it
    assert delivered(journal.current_events_by_tag(tag, datetime.now(UTC) + timedelta(days=1))) == []
    assert delivered(journal.current_events_by_tag("no such tag")) == []


def test_events_by_tag_within_delay_are_omitted(journal, read_journal):
    written, now = journal(), datetime.now(UTC)
    begin = now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)
    old, young = event("a", 1, now - timedelta(seconds=100)), event("a", 2, now - timedelta(seconds=5))
    written.view([old, young])
    slow = read_journal(
        written.keyspace,
        **{**HOUR, "first_time_bucket": begin.isoformat()},
        eventual_consistency_delay_seconds=60,
    )
    assert delivered(slow.current_events_by_tag("t", until=now + timedelta(days=1))) == [
        ("a", 1, str(old["timestamp"]))
    ]


def test_offsets_of_one_time_come_in_cassandras_order(stack, journal, read_journal):
    """Sort offsets of one time by their remaining bytes, each signed, then by persistence_id and number."""
    written = journal()
    at = from_datetime(BEGIN + SECOND)
    nodes = [
        0x000000000001,
        0x00000000007F,
        0x000000000080,
        0x0000000000FF,
        0x7F0000000000,
        0x800000000000,
        0xFF0000000000,
    ]
    records = [event(f"p-{i}", 1, BEGIN, timestamp=offset_at(at, node)) for i, node in enumerate(nodes)]
    records += [
        event(name, 1, BEGIN, timestamp=offset_at(at, 3))
        for name in ("b", "a", "Я", "я", "Z", "z-\U0001f6d2", "z-\uffee")
    ]
    written.view(records)
    stored = stack.session.execute(
        f"SELECT persistence_id, sequence_nr, timestamp FROM {written.keyspace}.tag_views WHERE tag_name "
        "= 't' AND timebucket = %s",
        (records[0]["timebucket"],),
    )
    expected = [(row.persistence_id, row.sequence_nr, str(row.timestamp)) for row in stored]
    found = read_journal(written.keyspace, **HOUR).current_events_by_tag("t")
    assert delivered(found) == expected and len(expected) == len(records)
    assert delivered(in_order(found.repartition(7))) == expected


def test_events_by_tag_over_sparse_buckets(journal, read_journal):
    """Read a hundred thousand possible buckets with events in the first, in the last, and in three
    between.
    """
    written = journal()
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    begin = now - timedelta(minutes=100_000)
    moments = [begin + timedelta(minutes=minutes) for minutes in (0, 1, 44_640, 99_960, 99_999)]
    records = [
        event("p", number, at + SECOND, timebucket=int(at.timestamp()) * 1000)
        for number, at in enumerate(moments, 1)
    ]
    written.view(records)
    minutes = {"tags": ["t"], "bucket_size": "Minute", "first_time_bucket": begin.isoformat()}
    found = read_journal(written.keyspace, **minutes).current_events_by_tag("t")
    assert delivered(found) == [("p", row["sequence_nr"], str(row["timestamp"])) for row in records]


@pytest.mark.parametrize(
    ("case", "tag", "said"),
    [
        ("gap-middle", "tag-0", "tag_pid_sequence_nr of 'o-000003': 5 missing."),
        ("swapped-order", "tag-0", "'o-000003': 5 missing, 'o-000003': 5 comes behind 6."),
        ("duplicate-nr", "tag-1", "'o-000003': 6 to 16 missing"),
        # The plugin drops the numbers behind the early 5 without a word.
        ("late-previous-bucket", "tag-0", "'o-000003': 1 comes behind 5"),
        ("late-previous-bucket", "tag-1", "'o-000003': 1 comes behind 5"),
    ],
)
def test_events_by_tag_gap_refused_or_kept(case, tag, said, keyspace, read_journal):
    """Refuse a tag with a gap, naming its numbers; with gaps="keep" return every row."""
    journal = read_journal(keyspace(case, ("tag_views",)), case=case)
    with pytest.raises(EventsMissing) as error:
        journal.current_events_by_tag(tag)
    assert (
        said in str(error.value) and f"tag {tag!r}" in str(error.value) and 'gaps="keep"' in str(error.value)
    )
    expected = [(row["persistence_id"], row["sequence_nr"], row["timestamp"]) for row in view_rows(case, tag)]
    assert sorted(delivered(journal.current_events_by_tag(tag, gaps="keep"))) == sorted(expected)
    (other,) = set(Case(case).tags) - {tag}
    if Case(case).expected["tags"][other]["count"] == 160:
        assert delivered(journal.current_events_by_tag(other)) == Case(case).delivered(other)


@pytest.mark.parametrize("case", ["gap-first", "gap-whole-pid", "duplicate-nr"])
def test_events_by_tag_damage_unnoticed_by_plugin(case, keyspace, read_journal):
    """Return what the plugin does: a missing first row or persistence_id shows only in the journal; a
    duplicate is dropped.
    """
    journal = read_journal(keyspace(case, ("tag_views",)), case=case)
    assert delivered(journal.current_events_by_tag("tag-0")) == Case(case).delivered("tag-0")


def test_an_event_that_is_null_comes_as_null(keyspace, read_journal):
    journal = read_journal(keyspace("null-event", ("tag_views",)), case="null-event")
    found = journal.current_events_by_tag("tag-0")
    assert found.count() == 160
    (null,) = found.where("event is null").collect()
    assert (null["persistence_id"], null["tag_pid_sequence_nr"]) == ("o-000003", 5)


# -- by persistence_id


@pytest.mark.parametrize(
    "case",
    [
        *("partition-boundary", "deleted-events", "legacy-tags"),
        *(pytest.param(case, marks=pytest.mark.long) for case in ("orders", "odd-names")),
    ],
)
def test_events_by_persistence_id_equal_journal(case, keyspace, read_journal):
    journal = read_journal(keyspace(case, ("messages", "metadata", "all_persistence_ids")), case=case)
    stored = sorted(
        Case(case).table("messages").to_pylist(), key=lambda row: (row["persistence_id"], row["sequence_nr"])
    )
    known = {row["persistence_id"] for row in Case(case).table("all_persistence_ids").to_pylist()}
    assert sorted(row[0] for row in journal.current_persistence_ids().collect()) == sorted(known)
    found = journal.current_events_by_persistence_id(sorted(known)).collect()
    assert len(found) == len(stored)
    for row, right in zip(found, stored, strict=True):
        old = [right[name] for name in ("tag1", "tag2", "tag3") if right.get(name)]
        assert row["offset"] == right["timestamp"] and sorted(row["tags"]) == sorted(right["tags"] or old)
        same = [name for name in by_persistence_id.COLUMNS if name in right and name != "tags"]
        assert {name: row[name] for name in same} == {name: right[name] for name in same}
    one = stored[len(stored) // 2]["persistence_id"]
    within = journal.current_events_by_persistence_id(one, 12, 23)
    assert [row["sequence_nr"] for row in within.collect()] == [
        row["sequence_nr"]
        for row in stored
        if row["persistence_id"] == one and 12 <= row["sequence_nr"] <= 23
    ]


def test_events_by_persistence_id_of_two_writers(keyspace, read_journal):
    """Return the events of both writers, as the plugin's query does."""
    journal = read_journal(keyspace("split-brain", ("messages",)), case="split-brain")
    text = (Case("split-brain").folder / "expected-replay-query.tsv").read_text(encoding="utf-8")
    expected = [line.split("\t") for line in text.splitlines()]
    found = journal.current_events_by_persistence_id("o-000001").collect()
    assert [
        [row["persistence_id"], str(row["sequence_nr"]), row["event"].decode()] for row in found
    ] == expected


def test_events_by_persistence_id_gap_refused_or_kept(journal, read_journal):
    """Refuse a persistence_id with a missing sequence_nr; with gaps="keep" return the others."""
    written = journal()
    written.messages(
        events("a", [1, 2, 5, 6], BEGIN) + events("b", range(1, 4), BEGIN) + events("c", [2, 3], BEGIN)
    )
    read = read_journal(written.keyspace, **HOUR)
    for name, said in (("a", "3 to 4 missing"), ("c", "1 missing")):
        with pytest.raises(EventsMissing, match=f"sequence_nr of '{name}': {said}"):
            read.current_events_by_persistence_id(["b", name])
    kept = read.current_events_by_persistence_id(["c", "b", "a"], gaps="keep").collect()
    assert [(row["persistence_id"], row["sequence_nr"]) for row in kept] == [
        *[("c", 2), ("c", 3)],
        *[("b", 1), ("b", 2), ("b", 3)],
        *[("a", 1), ("a", 2), ("a", 5), ("a", 6)],
    ]
    assert [row["sequence_nr"] for row in read.current_events_by_persistence_id("a", 5).collect()] == [5, 6]
    assert read.current_events_by_persistence_id(["nobody", "a"], to_sequence_nr=2).count() == 2
    assert read.current_events_by_persistence_id([]).count() == 0


def test_events_by_persistence_id_over_odd_partitions(journal, read_journal):
    """Read persistence ids whose partitions are odd.

    skipped: partition 1 is empty; overlapping: the second writer's 3 to 5 lie in the next partition; deleted:
    up to 40.
    """
    written = journal()
    put = [
        *[
            ("skipped", 0, range(1, 5)),
            ("skipped", 2, range(5, 9)),
            ("overlapping", 0, range(1, 5)),
            ("overlapping", 1, range(3, 7)),
        ],
        *[
            ("deleted", 20, range(39, 43)),
            ("deleted", 21, range(43, 45)),
            ("rest", 0, range(9, 11)),
            ("rest", 1, range(11, 13)),
        ],
    ]
    written.messages(
        record | {"partition_nr": partition, "tags": set()}
        for name, partition, numbers in put
        for record in events(name, numbers, BEGIN)
    )
    for name, number in (("deleted", 40), ("rest", 10)):
        written.deleted_to(name, number)
    read = read_journal(written.keyspace, **HOUR)
    found = read.current_events_by_persistence_id(["skipped", "overlapping", "deleted", "rest"]).collect()
    numbers = {
        "skipped": range(1, 9),
        "overlapping": range(1, 7),
        "deleted": range(41, 45),
        "rest": range(11, 13),
    }
    assert [(row["persistence_id"], row["sequence_nr"]) for row in found] == [
        (name, nr) for name in numbers for nr in numbers[name]
    ]
    assert [row["partition_nr"] for row in found if row["persistence_id"] == "overlapping"] == [
        0,
        0,
        0,
        0,
        1,
        1,
    ]
    assert all(row["tags"] == [] for row in found)
    assert [
        row[0] for row in read.current_events_by_persistence_id("deleted", 43).select("sequence_nr").collect()
    ] == [43, 44]


# -- wrong requests


def test_what_is_wrong_is_said_at_once(keyspace, read_journal, settings, spark, stack, journal):
    read = read_journal(keyspace("gap-middle", ("tag_views",)), case="gap-middle")
    with raises(ConfigurationError, pipeline="nope"):
        ReadJournal(spark, read.settings, "nope")
    nowhere = settings("nowhere", case="gap-middle")
    with pytest.raises(ConfigurationError, match="keyspace nowhere does not exist"):
        ReadJournal(spark, nowhere, only(nowhere))
    for offset in ("yesterday", "00000000-0000-4000-8000-000000000000", 5):
        with pytest.raises(TerminalError, match="is neither a TimeUUID nor a moment. Nothing was read"):
            read.current_events_by_tag("tag-0", offset)
    with pytest.raises(TerminalError, match="until 'tomorrow' is no moment"):
        read.current_events_by_tag("tag-0", until="tomorrow")
    with pytest.raises(TerminalError, match='it is "fail" or "keep"'):
        read.current_events_by_tag("tag-0", gaps="ignore")
    for query in (read.current_events_by_tag, read.current_events_by_persistence_id):
        with pytest.raises(ConfigurationError, match="has 70000 bytes, .* at most 65521. Nothing was done"):
            query(70_000 * "x")
    bare = journal().keyspace
    stack.session.execute(f"DROP TABLE {bare}.tag_views")
    with pytest.raises(ConfigurationError, match=f"keyspace {bare} has no table tag_views"):
        read_journal(bare, **HOUR).current_events_by_tag("t")


def test_events_by_tag_unbuilt_view_is_refused(journal, read_journal):
    from tagmill.ledger import schema

    written = journal()
    read = read_journal(written.keyspace, **HOUR, views="tagmill")
    schema.apply(read.settings)
    with raises(ViewNotBuilt, pipeline=only(read.settings)):
        read.current_events_by_tag("t")


# -- the example and the command


def test_the_example_of_the_documents_runs(keyspace, settings, spark, monkeypatch, capsys):
    settings(keyspace("orders"), case="orders", name="orders")
    monkeypatch.setenv("TAGMILL_CONFIG", str(settings.file("orders")))
    made = runpy.run_path(str(ROOT / "docs" / "examples" / "queries.py"))
    assert made["journal"].current_persistence_ids().count() == 300
    assert delivered(made["orders"]) == Case("orders").delivered("order")
    assert delivered(made["later"]) == Case("orders").delivered("order")[made["read"] :]
    assert sum(row["events"] for row in made["by_type"].collect()) == 7200
    assert [row["sequence_nr"] for row in made["one"].collect()] == list(range(1, 41))
    assert "OrderPlaced" in capsys.readouterr().out


def test_the_command_shows_events(keyspace, settings, spark, monkeypatch):
    configured = settings(keyspace("orders", ("tag_views", "messages")), case="orders")
    file, expected = settings.file(only(configured)), Case("orders").delivered("order")
    monkeypatch.setattr(session, "session", lambda *_, **__: spark)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    asked = ("--tag", "order", "--from", expected[9][2], "--limit", "3", "--json")
    code, out, err = tagmill(file, "events", "-p", only(configured), *asked)
    assert code == 0, err
    rows = [json.loads(line) for line in out.splitlines()]
    assert [(row["persistence_id"], row["sequence_nr"], row["offset"]) for row in rows] == expected[10:13]
    assert json.loads(rows[0]["event"])["order"] == rows[0]["persistence_id"]
    code, _, err = tagmill(file, "events", "-p", only(configured))
    assert (code, err) == (2, "error: give one of --tag and --persistence-id. Nothing was read\n")
