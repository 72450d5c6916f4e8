"""One journal with one persistence id per kind of damage, over four days: what is held, what is delivered,
what arrives late.

Everything is delivered after each change; the tests look at ClickHouse, the holds and the view of each day.
"""

from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tagmill.delivery.tag_views.interventions import Interventions
from tagmill.errors import GuardRefused
from tagmill.ledger.runs import Ledger
from tests.support.delivery import (
    OWNER,
    as_row,
    assert_in_order,
    clickhouse_rows,
    deliver,
    delivered_first,
    holds,
    only,
    quality,
    shown_first,
    verdicts,
)
from tests.support.errors import raises
from tests.support.events import SECOND, event, events, offset, offset_at, this_hour

pytestmark = pytest.mark.usefixtures("both_seals")


OTHER_WRITER = "0a1b2c3d-0000-4000-8000-000000000002"
IN_2300, IN_1600 = 104_000_000_000_000_000, -116_000_000_000_000_000
BEGIN = this_hour() - timedelta(hours=3)
MILLISECOND = timedelta(milliseconds=1)
META = {"meta_ser_id": 7, "meta_ser_manifest": "Metadata", "meta": b"\x00\xffmeta"}


def sound():
    """Return events on which journal and view agree."""
    return events("sound", range(1, 7), BEGIN)


def damaged() -> dict[str, list[dict[str, Any]]]:
    """Return the view's rows of each persistence id; `write` gives the journal its messages."""
    six = {
        pid: events(pid, range(1, 7), BEGIN)
        for pid in (
            "hole",
            "restored",
            "backfilled",
            "deleted",
            "deleted-then-more",
            "returned",
            "two-events",
            "no-event",
            "future",
            "past",
            "busy",
        )
    }
    view = {pid: [row for row in rows if row["tag_pid_sequence_nr"] != 3] for pid, rows in six.items()}
    second = {**six["two-events"][2], "writer_uuid": OTHER_WRITER, "timestamp": offset(BEGIN + 3 * SECOND, 2)}
    view["two-events"] = [*six["two-events"], second]
    for pid in ("no-event", "returned"):
        view[pid] = [
            {**row, "event": None, "ser_id": None} if row["tag_pid_sequence_nr"] == 3 else row
            for row in six[pid]
        ]
    view["future"] = [
        {**row, "timestamp": offset_at(IN_2300)} if row["tag_pid_sequence_nr"] == 3 else row
        for row in six["future"]
    ]
    view["past"] = [
        {**row, "timestamp": offset_at(IN_1600)} if row["tag_pid_sequence_nr"] == 3 else row
        for row in six["past"]
    ]
    view["backfilled"] = [
        row for row in events("backfilled", range(1, 7), BEGIN, **META) if row["tag_pid_sequence_nr"] != 3
    ]
    # One number is missing, and the journal has two events that could have it.
    view["ambiguous"] = [
        row | {"sequence_nr": n + (n > 2)}
        for n, row in enumerate(events("ambiguous", range(1, 6), BEGIN), 1)
        if n != 3
    ]
    view["wide"] = [
        row for row in events("wide", range(1, 8), BEGIN) if row["tag_pid_sequence_nr"] not in (2, 3, 4, 5)
    ]
    view["twice"] = [*events("twice", range(1, 5), BEGIN), event("twice", 2, BEGIN + 30 * SECOND)]
    view["skewed"] = [event("skewed", n, BEGIN + at * SECOND) for n, at in ((1, 1), (2, 4), (3, 3), (4, 5))]
    # The view is built again before the second delivery; then the event of sequence_nr 1 counts, too.
    view["renumbered"] = [
        {**row, "tag_pid_sequence_nr": row["sequence_nr"] - 1}
        for row in events("renumbered", range(2, 6), BEGIN)
    ]
    return view


def write(journal, view):
    """Load the sound and the damaged ids; the journal can fill the gaps of 'backfilled' and 'wide' only."""
    journal.both(sound())
    for rows in view.values():
        journal.view(rows)
    journal.messages(events("backfilled", range(1, 7), BEGIN, **META))
    journal.messages(events("wide", range(1, 8), BEGIN))
    journal.messages(
        row | {"sequence_nr": n} for n, row in enumerate(events("ambiguous", range(1, 7), BEGIN), 1)
    )
    journal.deleted_to("deleted", 3)
    journal.deleted_to("deleted-then-more", 3)


@dataclass
class Day:
    """The state after a delivery."""

    runs: list[dict[str, Any]]
    rows: list[Any]
    holds: dict[str, Any]
    view: list[dict[str, Any]]

    def of(self, persistence_id: str) -> list[tuple[int, int]]:
        """Return (number, late) of the persistence id's rows in ClickHouse."""
        return sorted(
            (row.tag_pid_sequence_nr, row.late) for row in self.rows if row.persistence_id == persistence_id
        )

    @property
    def findings(self) -> dict[str, int]:
        """Findings of all runs of the day, counted by reason."""
        total: dict[str, int] = {}
        for run in self.runs:
            for reason, count in run["findings"].items():
                total[reason] = total.get(reason, 0) + count
        return total


class Story:
    """The four days and what happens on each."""

    def __init__(self, journal, settings, spark):
        self.journal, self.spark = journal, spark
        self.settings = settings(
            journal.keyspace,
            tags=["t"],
            bucket_size="Hour",
            first_time_bucket=(BEGIN - timedelta(hours=2)).isoformat(),
            gap_timeout_seconds=0,
            max_missing_to_search=3,
            look_back_seconds=4 * 3600,
            long_look_back_seconds=4 * 3600,
            quality={"max_held_share_percent": 100, "named_rows": 100},
        )
        self.name, self.file, self.view = only(self.settings), settings.file(only(self.settings)), damaged()
        self.said: dict[str, tuple[int, str, str]] = {}
        self.refused: dict[str, str] = {}
        write(journal, self.view)
        self._days: list[Day] = []
        self._failure: BaseException | None = None

    def day(self, number: int) -> Day:
        """Return the state after a delivery, 1 to 4; deliver first what was not delivered yet.

        A day that fails also fails the days after it, and none before it.
        """
        deliveries = (self._first, self._second, self._third, self._fourth)
        for delivery in deliveries[len(self._days) : number]:
            if self._failure is not None:
                raise self._failure
            try:
                self._days.append(delivery())
            except BaseException as error:
                self._failure = error
                raise
        return self._days[number - 1]

    def _first(self):
        return self._day(delivered_first(self.settings, self.spark))

    def _second(self):
        """Write missing rows, build a view again, and close holds by hand."""
        self.journal.view(events("hole", [3], BEGIN))
        self.journal.messages(events("restored", [3], BEGIN))
        self.journal.view(events("deleted", [3], BEGIN))
        self.journal.both(events("deleted-then-more", [7, 8], BEGIN))
        self.journal.view(events("returned", [3], BEGIN))
        now = datetime.now(UTC)
        self.journal.view(event("busy", number, now - (10 - number) * MILLISECOND) for number in range(7, 10))
        for row in self.view["renumbered"]:
            self.journal.remove(row)
        self.journal.view(events("renumbered", range(1, 8), BEGIN))
        for pid in ("ambiguous", "two-events", "no-event", "future", "wide"):
            self.said[pid] = self.tagmill("holds", "close", "--tag", "t", "--persistence-id", pid)
        self.refused["sound"] = self._refusal("close_hold", "t", "sound")
        return self._day(deliver(self.settings, self.name, self.spark))

    def _third(self):
        """Write rows that were given up, and rebase the renumbered id so that it continues under its new
        numbers.
        """
        self.journal.view([row | {"sequence_nr": 3} for row in events("ambiguous", [3], BEGIN)])
        self.journal.view(events("wide", [3], BEGIN))
        self.journal.view(events("deleted-then-more", [3], BEGIN))
        self.journal.view(events("no-event", [3], BEGIN))
        self.refused["renumbered"] = self._refusal("close_hold", "t", "renumbered")
        self.said["renumbered"] = self.tagmill(
            "progress", "rebase", "--tag", "t", "--persistence-id", "renumbered"
        )
        return self._day(deliver(self.settings, self.name, self.spark))

    def _fourth(self):
        return self._day(deliver(self.settings, self.name, self.spark))

    def tagmill(self, *command):
        reason = ("--why", "seen in a test", "--yes")
        return shown_first(self.file, *command, "--pipeline", self.name, *reason)

    def _refusal(self, what, *arguments):
        """Return the text with which an intervention is refused."""
        with raises(GuardRefused, pipeline=self.name) as refused:
            getattr(Interventions(self.settings, self.name, OWNER, "tester", "a test"), what)(*arguments)
        return str(refused.value)

    def _day(self, runs):
        held = {pid: deepcopy(row) for (_, pid), row in holds(self.settings, self.name).items()}
        return Day(runs, clickhouse_rows(self.settings, self.name), held, self.journal.rows())


@pytest.fixture(scope="module")
def story(module_journal, module_settings, spark):
    """Return the four days, each delivered once for the module when a test first asks for it."""
    return Story(module_journal(), module_settings, spark)


def whole(*numbers):
    return [(number, 0) for number in numbers]


@pytest.mark.long
def test_delivered_rows_equal_view_in_all_columns(story):
    """Deliver only rows of the view, each once and with all its columns."""
    day = story.day(1)
    seen = {as_row(record) for record in day.view}
    assert set(day.rows) <= seen and len(set(day.rows)) == len(day.rows)
    assert [row for row in day.rows if row.persistence_id == "sound"] == sorted(map(as_row, sound()))


@pytest.mark.parametrize(
    ("persistence_id", "reason", "missing", "held_rows"),
    [
        ("hole", "hole", (3, 3), 3),
        ("restored", "hole", (3, 3), 3),
        ("busy", "hole", (3, 3), 3),
        ("ambiguous", "hole", (3, 3), 2),
        ("two-events", "two_events_one_number", (3, 3), 5),
        ("no-event", "null_event", (3, 3), 4),
        ("returned", "null_event", (3, 3), 4),
        ("future", "broken_offset", (3, 3), 4),
        ("past", "broken_offset", (3, 3), 4),
    ],
)
def test_unexplained_damage_holds_following_rows(story, persistence_id, reason, missing, held_rows):
    """Hold what is behind unexplained damage, with reason, missing numbers and first run."""
    day = story.day(1)
    hold = day.holds[persistence_id]
    assert (hold.reason, (hold.gap.first, hold.gap.last), hold.held_rows, hold.since_run) == (
        reason,
        missing,
        held_rows,
        1,
    )
    assert day.of(persistence_id) == whole(1, 2)


def test_too_many_missing_numbers_skip_journal_search(story):
    """Hold a gap of more than max_missing_to_search numbers without a search in the journal."""
    hold = story.day(1).holds["wide"]
    assert (hold.reason, hold.gap.first, hold.gap.last, hold.held_rows) == ("too_many_missing", 2, 5, 2)
    assert story.day(1).of("wide") == whole(1)


def test_gap_filled_from_journal_returns_to_view(story):
    """Deliver an event that only the journal has with its metadata, and write it back into the view."""
    day = story.day(1)
    (expected,) = events("backfilled", [3], BEGIN, **META)
    assert day.of("backfilled") == whole(*range(1, 7))
    assert as_row(expected) in day.rows
    assert expected in [{**row, "timestamp": row["timestamp"]} for row in day.view]


def test_deleted_gap_past_timeout_is_closed(story):
    """Close a gap of deleted events that is older than gap_timeout_seconds, and record it."""
    day = story.day(1)
    assert day.of("deleted") == whole(1, 2, 4, 5, 6) and "deleted" not in day.holds
    assert day.findings["hole_closed"] == 2  # 'deleted-then-more' too


def test_duplicate_and_clock_skew_keep_number_order(story):
    """Deliver an event that occurs twice once and skewed times in number order, and record both."""
    day = story.day(1)
    assert day.of("twice") == whole(1, 2, 3, 4) and day.of("skewed") == whole(1, 2, 3, 4)
    assert as_row(events("twice", [2], BEGIN)[0]) in day.rows
    assert day.findings["duplicate_same_event"] == 1 and day.findings["clock_skew"] == 1


def test_the_quality_page_names_the_held_rows(story):
    story.day(1)
    offending = quality(story.settings, story.name, 1)["reports"]["offending"]
    named = {(row["persistence_id"], row["tag_pid_sequence_nr"], row["reason"]) for row in offending}
    assert {("hole", n, "hole") for n in (4, 5, 6)} | {
        ("no-event", 3, "null_event"),
        ("future", 3, "broken_offset"),
    } <= named


def test_hold_missing_row_appears_releases_held_rows(story):
    """Release exactly the held rows once the missing row appears in the view or in the journal."""
    first, day = story.day(1), story.day(2)
    for persistence_id in ("hole", "restored", "returned"):
        assert day.of(persistence_id) == whole(*range(1, 7)) and persistence_id not in day.holds
    released = [row for row in day.rows if row.persistence_id == "hole" and row not in first.rows]
    assert released == sorted(map(as_row, events("hole", range(3, 7), BEGIN)))
    # The event of 'restored' came from the journal, and its row is back in the view.
    assert events("restored", [3], BEGIN)[0] in day.view


def test_hold_open_holds_later_rows_too(story):
    """Hold rows that arrive behind an open hold; the hold keeps its first run."""
    hold = story.day(2).holds["busy"]
    assert story.day(2).of("busy") == whole(1, 2)
    assert (hold.held_rows, hold.since_run) == (6, 1)


def test_hold_closed_releases_following_rows(story):
    """Deliver what is behind a closed hold, without the numbers that were given up."""
    day = story.day(2)
    for persistence_id, numbers in (
        ("ambiguous", (1, 2, 4, 5)),
        ("two-events", (1, 2, 4, 5, 6)),
        ("no-event", (1, 2, 4, 5, 6)),
        ("future", (1, 2, 4, 5, 6)),
        ("wide", (1, 6, 7)),
    ):
        code, said, _ = story.said[persistence_id]
        assert code == 0 and "given up" in said, said
        assert day.of(persistence_id) == whole(*numbers) and persistence_id not in day.holds


def test_closed_gap_lost_number_arrives_late_once(story):
    """Deliver a number of a closed gap that appears afterwards once, flagged late."""
    assert story.day(2).of("deleted") == [(1, 0), (2, 0), (3, 1), (4, 0), (5, 0), (6, 0)]
    day = story.day(3)
    assert day.of("ambiguous") == [(1, 0), (2, 0), (3, 1), (4, 0), (5, 0)]
    assert day.of("wide") == [(1, 0), (3, 1), (6, 0), (7, 0)]
    assert day.of("no-event") == [(1, 0), (2, 0), (3, 1), (4, 0), (5, 0), (6, 0)]
    assert day.of("deleted-then-more") == [(n, int(n == 3)) for n in range(1, 9)]
    assert (
        day.findings["below_first_or_closed"] == 5
    )  # these, and the one that counts only since the view was renumbered
    late = as_row(events("wide", [3], BEGIN)[0], late=1)
    assert late in day.rows


def test_renumbered_view_is_held_until_rebase(story):
    """Hold a renumbered id until `progress rebase`; then each of its events is delivered once."""
    first, second, third = (day.of("renumbered") for day in map(story.day, (1, 2, 3)))
    assert first == second == whole(1, 2, 3, 4)
    assert story.day(2).holds["renumbered"].reason == "renumbered"
    assert "tagmill progress rebase" in story.refused["renumbered"]
    code, said, _ = story.said["renumbered"]
    assert code == 0 and "number 5, sequence_nr 5" in said
    # Each event arrives once: 2 to 5 under their old numbers 1 to 4, 6 and 7 under new ones, and late the one
    # that now counts.
    assert third == sorted([*whole(1, 2, 3, 4, 6, 7), (1, 1)])
    events_of = sorted(row.sequence_nr for row in story.day(3).rows if row.persistence_id == "renumbered")
    assert events_of == [1, 2, 3, 4, 5, 6, 7] and "renumbered" not in story.day(3).holds


def test_what_is_not_held_can_t_be_closed(story):
    story.day(2)
    assert "no hold of 'sound'" in story.refused["sound"] and "Nothing was changed" in story.refused["sound"]


def test_interventions_are_recorded_with_who_and_why(story):
    story.day(3)
    with Ledger(story.settings.cassandra) as ledger:
        done = ledger.interventions(story.name)
    assert {
        row.what.split(" ")[3] if row.what.startswith("holds") else row.what.split(" ")[3] for row in done
    } == set(story.said)
    assert {row.why for row in done} == {"seen in a test"} and all(row.who for row in done)


def test_last_delivery_repeats_and_leaves_nothing(story):
    """Deliver once more: nothing is sent twice or left to do, and only 'busy' and 'past' stay held."""
    fourth = story.day(4)
    assert fourth.runs == [] and fourth.rows == story.day(3).rows
    keys = [(row.persistence_id, row.sequence_nr, row.writer_uuid) for row in fourth.rows]
    assert len(keys) == len(set(keys))
    assert_in_order(story.settings, story.name)
    assert set(fourth.holds) == {"busy", "past"}
    held = sum(hold.held_rows for hold in fourth.holds.values())
    # No run delivers rows that were given up or second rows of an event.
    assert verdicts(story.settings, story.name) == {"t": f"{held} held; 4 in the view not delivered"}
