"""Journals that the real plugin wrote, sound and damaged: what reaches ClickHouse, what is held and what is
recorded.

All columns of all rows are compared with the recorded tables; tests/fixtures/README.md says what was damaged.
"""

from collections import Counter

import pytest

from local.fixtures import Case
from tests.support.delivery import (
    as_row,
    assert_in_order,
    clickhouse_rows,
    deliver,
    delivered_first,
    holds,
    in_order,
    only,
    quality,
    verdicts,
)
from tests.support.events import Journal

pytestmark = pytest.mark.usefixtures("both_seals")


PID = "o-000003"


class Delivered:
    """One case, delivered until there was nothing left to do."""

    def __init__(self, case, keyspace, settings, spark, stack):
        self.case, self.keyspace = Case(case), keyspace(case)
        self.settings = settings(self.keyspace, case=case)
        self.name, self.spark = only(self.settings), spark
        self.journal = Journal(stack.session, self.keyspace)
        self.runs = delivered_first(self.settings, spark)

    def deliver(self):
        """Deliver until there is nothing left to do, and return the runs."""
        return deliver(self.settings, self.name, self.spark)

    def rows(self, tag=None):
        """Return the rows in ClickHouse, of one tag if it is given."""
        return [row for row in clickhouse_rows(self.settings, self.name) if tag in (None, row.tag)]

    def view(self, tag=None, number=None):
        """Return the recorded rows of tag_views as ClickHouse must have them; with `number`, only PID's rows
        of that number.
        """
        rows = [as_row(record) for record in self.case.table("tag_views").to_pylist()]
        wanted = (row for row in rows if tag in (None, row.tag))
        return sorted(
            r for r in wanted if number is None or (r.persistence_id, r.tag_pid_sequence_nr) == (PID, number)
        )

    def from_journal(self, number):
        """Return PID's event with this number of tag-0 as ClickHouse must have it, built from the recorded
        messages.
        """
        tagged = [
            record
            for record in self.case.table("messages").to_pylist()
            if record["persistence_id"] == PID and "tag-0" in (record["tags"] or ())
        ]
        record = sorted(tagged, key=lambda record: record["sequence_nr"])[number - 1]
        placed = {"tag_name": "tag-0", "timebucket": int(record["timebucket"]), "tag_pid_sequence_nr": number}
        return as_row({**record, **placed})


@pytest.fixture
def delivered(keyspace, settings, spark, stack):
    """Return a function that loads and delivers a case."""
    return lambda case: Delivered(case, keyspace, settings, spark, stack)


def plugin_order(case, tag):
    """Return (tag, persistence_id, offset) of each event in the order in which the plugin delivered them."""
    return [(tag, persistence_id, offset) for persistence_id, _, offset in case.delivered(tag)]


@pytest.mark.parametrize(
    "case",
    [
        "partition-boundary",
        "odd-names",
        "split-brain",
        *(pytest.param(case, marks=pytest.mark.long) for case in ("minute-buckets", "deleted-events")),
    ],
)
def test_delivery_sound_view_arrives_in_plugin_order(delivered, case):
    """Deliver every row of a sound view in the plugin's order, and leave nothing to do."""
    found = delivered(case)
    assert found.rows() == found.view()
    assert len(found.runs) == 1 and found.runs[0]["findings"] == {}
    assert holds(found.settings, found.name) == {}
    pushed = [
        (tag, persistence_id, offset)
        for tag, persistence_id, _, _, offset in in_order(found.settings, found.name)
    ]
    for tag in found.case.tags:
        assert [row for row in pushed if row[0] == tag] == plugin_order(found.case, tag), tag
    assert set(verdicts(found.settings, found.name).values()) == {"exactly once"}
    assert found.deliver() == []


def test_delivery_unmigrated_tags_are_empty_range(delivered):
    """Find nothing to deliver in a journal whose tags are not migrated yet."""
    found = delivered("legacy-tags")
    assert found.runs == [] and found.rows() == []


@pytest.mark.parametrize(("case", "number"), [("gap-middle", 5), ("gap-first", 1)])
def test_delivery_lost_row_comes_from_journal(delivered, case, number):
    """Deliver a row that the view lost from the journal, and repair the view."""
    found = delivered(case)
    lost = found.from_journal(number)
    assert lost not in found.view()
    assert found.rows() == sorted([*found.view(), lost])
    assert [as_row(record) for record in found.journal.rows(PID) if record["tag_pid_sequence_nr"] == number][
        0
    ] == lost
    assert sorted(map(as_row, found.journal.rows())) == sorted([*found.view(), lost])
    assert found.runs[0]["findings"]["healed_from_journal"] == 1
    assert holds(found.settings, found.name) == {}
    assert_in_order(found.settings, found.name)
    assert found.deliver() == [] and len(found.rows()) == 320
    assert set(verdicts(found.settings, found.name).values()) == {"exactly once"}


def test_delivery_lost_id_is_left_to_audit(delivered):
    """Deliver only the view's rows if it lost a whole persistence id; finding that is left to the audit."""
    found = delivered("gap-whole-pid")
    assert found.rows() == found.view()
    assert Counter(row.tag for row in found.rows()) == {"tag-0": 144, "tag-1": 160}
    assert holds(found.settings, found.name) == {} and found.deliver() == []


def test_delivery_row_in_previous_bucket_keeps_order(delivered):
    """Deliver a row from the previous bucket in its place, and report it if its time does not belong to that
    bucket.
    """
    found = delivered("late-previous-bucket")
    assert found.rows() == found.view() and len(found.rows()) == 320
    assert_in_order(found.settings, found.name)
    page = quality(found.settings, found.name, 1)["reports"]
    # The time of tag-0's row lies outside its bucket, that of tag-1's row does not.
    assert {tag["tag"]: tag["wrong_bucket"] for tag in page["tags"]} == {"tag-0": 1, "tag-1": 0}
    (named,) = [row for row in page["offending"] if row["reason"] == "wrong_bucket"]
    assert (named["tag"], named["persistence_id"], named["tag_pid_sequence_nr"]) == ("tag-0", PID, 5)
    assert holds(found.settings, found.name) == {} and found.deliver() == []
    assert set(verdicts(found.settings, found.name).values()) == {"exactly once"}


@pytest.mark.long
def test_delivery_duplicate_dropped_renumbered_event_held(delivered):
    """Deliver a number that occurs twice once, and hold an event with a second number until that row is
    removed.
    """
    found = delivered("duplicate-nr")
    first, _ = found.view("tag-0", 5)
    assert found.rows("tag-0") == sorted(
        [row for row in found.view("tag-0") if row not in found.view("tag-0", 5)] + [first]
    )
    assert found.rows("tag-1") == [row for row in found.view("tag-1") if row not in found.view("tag-1", 17)]
    assert found.runs[0]["findings"]["duplicate_same_event"] == 1
    ((key, hold),) = holds(found.settings, found.name).items()
    assert (key, hold.reason, hold.held_rows) == (("tag-1", PID), "renumbered", 1)
    assert (hold.gap.first, hold.gap.last) == (17, 17)
    assert verdicts(found.settings, found.name)["tag-1"] == "1 held"

    (extra,) = [row for row in found.journal.rows(PID) if row["tag_pid_sequence_nr"] == 17]
    found.journal.remove(extra)
    before = found.rows()
    found.deliver()
    assert holds(found.settings, found.name) == {} and found.rows() == before and found.deliver() == []


def test_delivery_clock_skew_keeps_number_order(delivered):
    """Deliver numbers that contradict the order of time in number order, and record the clock skew."""
    found = delivered("swapped-order")
    assert found.rows() == found.view()
    of_pid = [
        number
        for tag, pid, number, _, _ in in_order(found.settings, found.name)
        if (tag, pid) == ("tag-0", PID)
    ]
    assert of_pid == list(range(1, 17))
    assert_in_order(found.settings, found.name)
    assert found.runs[0]["findings"]["clock_skew"] == 1
    assert holds(found.settings, found.name) == {} and found.deliver() == []


@pytest.mark.long
def test_delivery_null_event_holds_following_rows(delivered):
    """Hold a row without its event and the rows behind it until the event is written."""
    found = delivered("null-event")
    held = [
        row
        for row in found.case.table("tag_views").to_pylist()
        if (row["tag_name"], row["persistence_id"]) == ("tag-0", PID)
    ]
    held = [row for row in held if row["tag_pid_sequence_nr"] >= 5]
    through = sorted(
        as_row(record) for record in found.case.table("tag_views").to_pylist() if record not in held
    )
    assert found.rows() == through and len(through) == 320 - 12
    ((key, hold),) = holds(found.settings, found.name).items()
    assert (key, hold.reason, hold.held_rows, hold.since_run) == (("tag-0", PID), "null_event", 12, 1)
    assert (hold.gap.first, hold.gap.last) == (5, 5)
    offending = [
        row
        for row in quality(found.settings, found.name, 1)["reports"]["offending"]
        if row["reason"] == "null_event"
    ]
    assert {row["tag_pid_sequence_nr"] for row in offending} == set(range(5, 17))
    assert found.deliver() == [] and found.rows() == through

    event = found.from_journal(5)
    found.journal.view([{**held[0], "event": event.event, "ser_id": event.ser_id}])
    (run,) = found.deliver()
    assert run["rows"] == 12 and holds(found.settings, found.name) == {}
    assert found.rows() == sorted([*through, event, *(as_row(record) for record in held[1:])])
    assert_in_order(found.settings, found.name)
    assert found.deliver() == []
