"""Kafka Journal tables with rows that a clock ahead has written.

They are replicated, or refused with a way on, and never silently wrong.
"""

import time
from datetime import UTC, datetime, timedelta

import pytest

from tagmill.errors import GuardRefused
from tagmill.kafka_journal.replicate import replicate, status
from tagmill.ledger import schema
from tests.conftest import FEW_ROWS
from tests.support.errors import raises

HOUR = 3_600_000_000


@pytest.fixture
def replicated(kafka_journal, spark):
    """Return a journal with three ids that was replicated once, its topic, its settings, and a function that
    replicates.
    """
    journal = kafka_journal()
    topic, settings = journal.topic(), journal.settings(FEW_ROWS)
    schema.apply(settings)

    def run(**options):
        topic.flush()
        return replicate(settings, journal.name, owner="cli/test/1/0", spark=lambda: spark, **options)

    for key in ("a", "b", "c"):
        topic.append(key, [(1, 1), (2, 2)])
    run()
    return journal, topic, settings, run


def ahead(microseconds):
    """Return the time in `microseconds` from now, in microseconds since 1970."""
    return time.time_ns() // 1000 + microseconds


def source(topic, *events):
    """Return (topic, id, seq_nr, payload) of events as the application wrote them."""
    return [(topic.name, key, number, str(payload)) for key, number, payload in events]


def rows(journal):
    return [(row["topic"], row["id"], row["seq_nr"], row["payload_txt"]) for row in journal.rows()]


def seq_nrs(journal):
    return {key: (entry["seq_nr"], entry["delete_to"]) for key, entry in journal.entries().items()}


@pytest.mark.parametrize(
    "by",
    [
        pytest.param(HOUR, id="an hour", marks=pytest.mark.long),
        pytest.param(50 * 365 * 24 * HOUR, id="fifty years"),
    ],
)
def test_replicate_pointer_written_ahead_moves_on(replicated, stack, by):
    """Warn of a pointer written ahead and move it on; no record is replicated twice."""
    journal, topic, settings, run = replicated
    stack.session.execute(
        f"INSERT INTO {journal.name}.pointer2 (topic, partition, offset) VALUES (%s, 0, 2) USING "
        "TIMESTAMP %s",
        (topic.name, ahead(by)),
    )
    for n in range(3, 6):
        topic.append("a", [(n, n)])
    report = run()
    assert report.replications == 1 and "pointer2 was written at" in report.warnings[0]
    assert journal.pointers() == {(topic.name, 0): 5}
    topic.append("b", [(3, 3)])
    assert (
        run().replications == 1 and run().replications == 0 and status(settings, journal.name)[0].waiting == 0
    )
    expected = (
        [("a", n, n) for n in range(1, 6)] + [("b", n, n) for n in range(1, 4)] + [("c", 1, 1), ("c", 2, 2)]
    )
    assert rows(journal) == source(topic, *expected)


def test_replicate_pointer_deleted_ahead_names_way_on(replicated, stack):
    """Stop if a pointer's deletion ahead covers new writes, until --write-after is given."""
    journal, topic, settings, run = replicated
    stack.session.execute(
        f"DELETE FROM {journal.name}.pointer2 USING TIMESTAMP %s WHERE topic = %s AND partition = 0",
        (ahead(HOUR), topic.name),
    )
    topic.append("a", [(3, 3)])
    with raises(
        GuardRefused,
        match=r"topic .*, partition 0 in .*pointer2 is not what was written.*--write-after MOMENT",
        pipeline=journal.name,
    ):
        run()
    with raises(GuardRefused, pipeline=journal.name):
        run()  # writes the sealed piece again and begins no further one
    run(write_after=datetime.now(UTC) + timedelta(hours=2))
    assert journal.pointers() == {(topic.name, 0): 3} and status(settings, journal.name)[0].waiting == 0
    assert rows(journal) == source(
        topic, ("a", 1, 1), ("a", 2, 2), ("a", 3, 3), ("b", 1, 1), ("b", 2, 2), ("c", 1, 1), ("c", 2, 2)
    )
    topic.append("b", [(3, 3)])
    assert run().replications == 1 and seq_nrs(journal) == {"a": (3, None), "b": (3, None), "c": (2, None)}


def test_replicate_entries_written_ahead_are_outranked(replicated, stack):
    """Append to, delete from and purge ids whose entries and events another clock has written an hour
    ahead.
    """
    (journal, topic, _, run), later = replicated, ahead(HOUR)
    for table, key in (
        ("metajournal", ("topic", "segment", "id")),
        ("journal", ("id", "topic", "segment", "seq_nr", "timestamp")),
    ):
        for row in list(stack.session.execute(f"SELECT * FROM {journal.name}.{table}")):
            found = {name: value for name, value in row._asdict().items() if value is not None}
            names = ", ".join(found)
            marks = ", ".join("%s" for _ in found)
            assert set(key) <= set(found)
            stack.session.execute(
                f"INSERT INTO {journal.name}.{table} ({names}) VALUES ({marks}) USING TIMESTAMP {later}",
                tuple(found.values()),
            )
    topic.append("a", [(3, 3)])
    topic.delete("b", 1)
    topic.purge("c")
    report = run()
    assert any("metajournal was written at" in warning for warning in report.warnings)
    assert seq_nrs(journal) == {"a": (3, None), "b": (2, 1)}
    assert rows(journal) == source(topic, ("a", 1, 1), ("a", 2, 2), ("a", 3, 3), ("b", 2, 2))
    topic.append("c", [(1, "new")])
    assert not run().warnings
    assert seq_nrs(journal)["c"] == (1, None)
    assert rows(journal)[-1] == (topic.name, "c", 1, '"new"')


def test_replicate_entry_far_ahead_is_refused_before_sealing(replicated, stack):
    """Refuse an entry written ten days ahead before anything is sealed, and name the --write-after that
    replicates it.
    """
    journal, topic, settings, run = replicated
    (entry,) = [
        row
        for row in stack.session.execute(f"SELECT topic, segment, id FROM {journal.name}.metajournal")
        if row.id == "a"
    ]
    far = ahead(10 * 24 * HOUR)
    stack.session.execute(
        f"UPDATE {journal.name}.metajournal USING TIMESTAMP %s SET offset = 0, seq_nr = 2 WHERE topic = "
        "%s AND segment = %s AND id = %s",
        (far, *entry),
    )
    topic.append("a", [(3, 3)])
    with pytest.raises(
        GuardRefused, match="id 'a' in .*metajournal was written at .*Nothing was sealed.*--write-after"
    ) as refused:
        run()
    assert seq_nrs(journal)["a"] == (2, None) and status(settings, journal.name)[0].waiting == 1
    run(write_after=datetime.fromisoformat(str(refused.value).split("--write-after ")[1]))
    assert seq_nrs(journal)["a"] == (3, None) and status(settings, journal.name)[0].waiting == 0


@pytest.mark.parametrize("table", ["metajournal", "journal"])
def test_replicate_rows_outranked_by_unseen_writes_stop(replicated, stack, table):
    """Stop if a purge written ahead covers a new life, or an event written ahead survives its deletion."""
    journal, topic, _, run = replicated
    if table == "metajournal":
        (entry,) = [
            row
            for row in stack.session.execute(f"SELECT topic, segment, id FROM {journal.name}.metajournal")
            if row.id == "a"
        ]
        stack.session.execute(
            f"DELETE FROM {journal.name}.metajournal USING TIMESTAMP %s WHERE topic = %s AND segment = "
            "%s AND id = %s",
            (ahead(HOUR), *entry),
        )
    else:
        event = next(row for row in journal.rows() if row["id"] == "a")
        stack.session.execute(
            f"UPDATE {journal.name}.journal USING TIMESTAMP %s SET offset = 0"
            " WHERE id = 'a' AND topic = %s AND segment = 0 AND seq_nr = 1 AND timestamp = %s",
            (ahead(HOUR), topic.name, event["timestamp"]),
        )
        topic.purge("a")
    topic.append("a", [(1, "new")])
    for _ in range(2):
        with raises(GuardRefused, pipeline=journal.name):
            run()
    assert journal.pointers() == {(topic.name, 0): 2}
    run(write_after=datetime.now(UTC) + timedelta(hours=2))
    assert seq_nrs(journal)["a"] == (1, None)
    assert [row for row in rows(journal) if row[1] == "a" and row[3] == '"new"'] == [
        (topic.name, "a", 1, '"new"')
    ]
    assert journal.pointers() == {(topic.name, 0): 3 + (table == "journal")}
