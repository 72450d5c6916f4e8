"""Rows that the application wrote with a clock ahead: every operation leaves and names them, and does the
others.
"""

import time
from datetime import timedelta

import pytest

from tagmill.audit.model import Kind
from tagmill.audit.repair import repair
from tagmill.errors import GuardRefused
from tagmill.ledger import schema
from tagmill.views.build import build
from tagmill.views.delete import delete
from tagmill.views.persistence_ids import rebuild_ids
from tagmill.views.rebuild import rebuild
from tagmill.views.selection import Selection
from tests.support.auditing import audited
from tests.support.building import built, rows
from tests.support.delivery import (
    OWNER,
    as_row,
    clickhouse_rows,
    deliver,
    delivered_first,
    only,
)
from tests.support.erasing import erased
from tests.support.errors import raises
from tests.support.events import event, events, this_hour
from tests.support.journal_cleaning import cleaned, in_journal, metadata

BEGIN = this_hour() - timedelta(hours=5)
IDS = ("ahead", "right")
CONFIGURED = {"tags": ["t"], "bucket_size": "Hour", "first_time_bucket": BEGIN.isoformat()}
LEDGER = ("view_progress", "cleaned_buckets")
TABLES = ("messages", "tag_views", "tag_write_progress", "tag_scanning", "metadata", "all_persistence_ids")


def an_hour_ahead():
    """Return the write time of one hour from now, in microseconds."""
    return time.time_ns() // 1000 + 3_600_000_000


def progress(journal, persistence_id, number, written_at=None):
    """Write a line of tag_write_progress as the application would, at this write time."""
    row = event(persistence_id, number, BEGIN + timedelta(seconds=number))
    using = f" USING TIMESTAMP {written_at}" if written_at else ""
    journal.session.execute(
        f"INSERT INTO {journal.keyspace}.tag_write_progress (persistence_id, tag, sequence_nr, "
        "tag_pid_sequence_nr, offset)"
        f" VALUES (%s, 't', %s, %s, %s){using}",
        (persistence_id, number, number, row["timestamp"]),
    )


@pytest.fixture
def written(journal, settings, spark):
    """Return a journal, its settings, and a function that runs an operation on it.

    The journal has three events of each of IDS, numbered by the application.
    """
    one = journal()
    configured = settings(
        one.keyspace, cleanup={"other_readers": [], "persistence_ids_per_second": 10_000}, **CONFIGURED
    )
    schema.apply(configured)
    for name in IDS:
        one.messages(events(name, range(1, 4), BEGIN))

    def run(operation, *arguments, **options):
        return operation(configured, only(configured), *arguments, owner=OWNER, spark=spark, **options)

    return one, configured, run


def test_rebuild_and_delete_leave_progress_written_ahead(written, stack):
    """Lose the view of two persistence ids whose progress says too little; that of one, written ahead, can't
    be replaced.
    """
    journal, _, run = written
    progress(journal, "ahead", 1, an_hour_ahead())
    progress(journal, "right", 1)
    report = run(rebuild, Selection())
    assert [(line.persistence_id, line.sequence_nr) for line in report.left_examples] == [("ahead", 0)]
    assert "written by a clock that is ahead" in report.left_examples[0].why
    assert {(row["persistence_id"], row["tag_pid_sequence_nr"]) for row in journal.rows()} == {
        ("right", n) for n in (1, 2, 3)
    }
    reached = {
        row["persistence_id"]: row["tag_pid_sequence_nr"]
        for row in rows(stack, journal.keyspace, "tag_write_progress")
    }
    assert reached == {"ahead": 1, "right": 3}
    journal.view(events("ahead", range(1, 4), BEGIN))
    report = run(delete, Selection())
    assert report.left == 1 and {row["persistence_id"] for row in journal.rows()} == {"ahead"}
    assert {row["persistence_id"] for row in rows(stack, journal.keyspace, "tag_write_progress")} == {"ahead"}


def test_build_leaves_progress_written_ahead(journal, settings, spark, stack):
    """Write again, by another clock, what the last build wrote: the same numbers at a later time."""
    one = journal()
    configured = settings(one.keyspace, views="tagmill", **CONFIGURED)
    one.messages(row for name in IDS for row in events(name, range(1, 4), BEGIN))
    built(configured, spark)
    progress(one, "ahead", 3, an_hour_ahead())
    one.messages(row for name in IDS for row in events(name, range(4, 6), BEGIN))
    for _ in range(2):
        done = build(configured, only(configured), owner=OWNER, spark=lambda: spark)
        assert (done["waiting"], done["reasons"]) == (1, {"written_ahead": 1})
    assert [row["tag_pid_sequence_nr"] for row in one.rows("right")] == [1, 2, 3, 4, 5]
    assert [row["tag_pid_sequence_nr"] for row in one.rows("ahead")] == [1, 2, 3]
    progress(
        one, "ahead", 3, an_hour_ahead() - 7_200_000_000
    )  # changes nothing: the line written ahead outranks it
    deliver(configured, only(configured), spark)
    assert clickhouse_rows(configured, only(configured)) == sorted(as_row(row) for row in one.rows())


def test_journal_clean_and_erase_refuse_rows_written_ahead(written, spark, stack):
    journal, configured, _ = written
    last = event("events-ahead", 1, BEGIN)
    journal.both([last])
    for name in IDS:
        journal.view(events(name, range(1, 4), BEGIN))
    delivered_first(configured, spark)
    stack.session.execute(
        f"INSERT INTO {journal.keyspace}.metadata (persistence_id, deleted_to) VALUES ('ahead', 1) USING "
        f"TIMESTAMP {an_hour_ahead()}"
    )
    stack.session.execute(
        f"UPDATE {journal.keyspace}.messages USING TIMESTAMP {an_hour_ahead()} SET writer_uuid = 'w'"
        " WHERE persistence_id = 'events-ahead' AND partition_nr = 0 AND sequence_nr = 1 AND timestamp = %s",
        (last["timestamp"],),
    )
    ids = (*IDS, "events-ahead")
    for delete_them in (False, True):
        done = cleaned(configured, ids, "to", to=2, delete=delete_them)
        assert [(line["persistence_id"], line["reason"]) for line in done["refusals"]] == [
            ("ahead", "written_ahead"),
            ("events-ahead", "written_ahead"),
        ]
    assert in_journal(stack.session, journal.keyspace) == {
        "ahead": [1, 2, 3],
        "right": [3],
        "events-ahead": [1],
    }
    assert metadata(stack.session, journal.keyspace) == {"ahead": 1, "right": 2}
    for name, table in (("ahead", "metadata"), ("events-ahead", "messages")):
        with pytest.raises(
            GuardRefused, match=f"{table}.* has rows of persistence id '{name}' .*Nothing of these"
        ):
            erased(configured, [name, "right"])
    erased(configured, ["right"])
    assert in_journal(stack.session, journal.keyspace) == {"ahead": [1, 2, 3], "events-ahead": [1]}
    assert {row.persistence_id for row in clickhouse_rows(configured, only(configured))} == {
        "ahead",
        "events-ahead",
    }


def test_repair_leaves_view_rows_written_ahead(written, spark):
    journal, configured, _ = written
    for name in IDS:
        journal.view(events(name, [1, 3], BEGIN))
        journal.view(
            events(name, [2], BEGIN, event=b"another"),
            written_at=an_hour_ahead() if name == "ahead" else None,
        )
        progress(journal, name, 3)
    first = audited(configured, spark)
    assert first.findings[Kind.DIFFERS_IN_VIEW] == 2
    done = repair(
        configured, only(configured), first.audit, spark=spark, owner=OWNER, who="tester", why="a test"
    )
    (left,) = [line for line in done.left if line.kind == Kind.DIFFERS_IN_VIEW]
    assert left.count == 1 and "'ahead'" in left.example and "written by a clock that is ahead" in left.why
    expected = {name: [row["event"] for row in events(name, range(1, 4), BEGIN)] for name in IDS}
    assert [row["event"] for row in journal.rows("right")] == expected["right"]
    assert [row["event"] for row in journal.rows("ahead")] == [
        expected["ahead"][0],
        b"another",
        expected["ahead"][2],
    ]
    assert clickhouse_rows(configured, only(configured)) == sorted(
        row._replace(late=found.late)
        for row, found in zip(
            sorted(as_row(row) for row in journal.rows()),
            clickhouse_rows(configured, only(configured)),
            strict=True,
        )
    )


def test_rebuilt_ids_covered_by_later_deletion_are_told(written, spark, stack):
    journal, configured, _ = written
    stack.session.execute(
        f"DELETE FROM {journal.keyspace}.all_persistence_ids USING TIMESTAMP {an_hour_ahead()} WHERE "
        "persistence_id = 'ahead'"
    )
    with raises(
        GuardRefused, match="1 of 2 persistence ids are not in all_persistence_ids", pipeline=only(configured)
    ):
        rebuild_ids(configured, only(configured), spark=spark)
    listed = {
        row.persistence_id
        for row in stack.session.execute(f"SELECT persistence_id FROM {journal.keyspace}.all_persistence_ids")
    }
    assert listed == {"right"}
