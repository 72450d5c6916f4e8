"""Rows that come late, without a later number of their id, are delivered by ordinary runs, each within about
its lateness.
"""

from datetime import UTC, datetime, timedelta

import pytest

from tagmill.delivery.tag_views import steps
from tagmill.delivery.tag_views.give_up import GiveUp
from tagmill.delivery.tag_views.verification import tag_table
from tagmill.domain.time_buckets import BucketSize
from tagmill.domain.timeuuid import from_datetime
from tagmill.journal.tag_view_reader import Views
from tagmill.ledger import schema
from tagmill.ledger.hour_counts import hour_counts
from tagmill.ledger.runs import Ledger
from tests.support.delivery import (
    OWNER,
    as_row,
    clickhouse_rows,
    deliver,
    finish,
    holds,
    manifests,
    only,
    tagmill,
)
from tests.support.events import SECOND, event, events, this_hour

pytestmark = pytest.mark.usefixtures("both_seals")


HOUR, DAY = timedelta(hours=1), timedelta(days=1)
# Maps the lateness of a row to the time that may pass at most until a run finds it.
LATE = {90 * 60 * SECOND: 5 * HOUR, 10 * HOUR: 15 * HOUR, 3 * DAY: 4 * DAY + HOUR, 14 * DAY: 16 * DAY + HOUR}


class Clocks:
    """The servers' clock as plans see it; a test moves it by `passed`.

    It begins half an hour into an hour, so that no hour ends during a test unless the test moves it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed, self.begin = timedelta(0), this_hour() - HOUR / 2
        behind = datetime.now(UTC) - self.begin
        monkeypatch.setattr(steps, "agreed_now", lambda *_: datetime.now(UTC) - behind + self.passed)


@pytest.fixture
def clocks(monkeypatch) -> Clocks:
    """Return the clocks that this test may move."""
    return Clocks(monkeypatch)


def made_with(settings, written, days: int, size: BucketSize = BucketSize.HOUR, **options):
    """Return the settings of a pipeline over a journal that begins some days ago, with its schema applied."""
    begin = this_hour() - days * DAY
    made = settings(
        written.keyspace, tags=["t"], bucket_size=size.value, first_time_bucket=begin.isoformat(), **options
    )
    schema.apply(made)
    return made


def settled(made) -> None:
    """Let plans count the hours that they have not counted yet; assert that none of them starts a run."""
    for _ in range(3):
        assert steps.plan(made, only(made), owner=OWNER)["run"] is None


def hour_rows(made) -> dict[int, int]:
    """Return the rows of each hour of the tag 't' that the ledger has counted."""
    with Ledger(made.cassandra) as ledger:
        (counts,) = hour_counts(made, ledger.cassandra, only(made)).of({"t": 0})
    return {hour: count.rows for hour, count in counts.items()}


def test_late_rows_are_found_within_their_lateness(journal, settings, spark, clocks):
    """Deliver late rows, each the last of its id and flagged late.

    A run killed between sealing and closing changes nothing.
    """
    written, now = journal(), clocks.begin
    made = made_with(settings, written, 16)
    name = only(made)
    written.view([event(f"late-{late}", 1, now - 15 * DAY + SECOND) for late in LATE])
    written.view(events("busy", range(1, 31), now - 15 * DAY))
    deliver(made, name, spark)
    settled(made)
    expected = [as_row(row) for row in written.rows()]
    late_rows = [event(f"late-{late}", 2, now - late) for late in LATE]
    written.view(late_rows)
    for row, wait in zip(late_rows, LATE.values(), strict=True):
        settled(made)
        clocks.passed = wait
        planned = steps.plan(made, name, owner=OWNER)
        steps.seal(made, name, planned["run"], planned["fence"], owner=OWNER, spark=lambda: spark)
        finish(made, name, spark, steps.plan(made, name, owner=OWNER))
        assert deliver(made, name, spark) == []
        expected.append(as_row(row, late=1))
        assert clickhouse_rows(made, name) == sorted(expected)
    assert [sum(tag.late for tag in manifest.tags.values()) for manifest in manifests(made, name)] == [
        0,
        1,
        1,
        1,
        1,
    ]


def test_first_plan_scans_view_once(journal, settings, monkeypatch):
    """A scan of the view costs the same for one tag as for all."""
    written, now = journal(), this_hour()
    written.view(events("early", range(1, 4), now - 5 * DAY))
    begin = (now - 10 * DAY).isoformat()
    made = settings(written.keyspace, tags=["t", "u", "v"], bucket_size="Hour", first_time_bucket=begin)
    schema.apply(made)
    scans, partitions = [], Views.partitions
    monkeypatch.setattr(Views, "partitions", lambda self: scans.append(self) or partitions(self))
    assert steps.plan(made, only(made), owner=OWNER)["slices"] == 1
    assert len(scans) == 1


def test_absent_buckets_are_not_counted_one_by_one(journal, settings, spark, monkeypatch):
    """Look back on ten days of which two hours have rows, which the run has noted: none is counted, and all are noted."""
    written, now = journal(), this_hour()
    made = made_with(settings, written, 10)
    written.view(events("early", range(1, 4), now - 5 * DAY) + events("late", range(1, 4), now - 2 * HOUR))
    deliver(made, only(made), spark)
    with_rows = {row["timebucket"] for row in written.rows()}
    counted = set[int]()
    whole = Views.count

    def count(self, parts):
        taken = list(parts)
        counted.update(bucket for _, bucket, *_ in taken)
        return whole(self, taken)

    monkeypatch.setattr(Views, "count", count)
    settled(made)
    assert len(with_rows) == 2 and min(counted) > max(with_rows)
    assert len(hour_rows(made)) >= 7 * 24 - 2


@pytest.mark.long
@pytest.mark.parametrize("size", [BucketSize.MINUTE, BucketSize.DAY], ids=lambda size: size.value)
def test_late_rows_in_buckets_of_other_sizes(journal, settings, spark, clocks, size):
    """Write a late row that is the first of its id; a gap behind which rows were held closes as always."""
    written, now = journal(), clocks.begin
    made = made_with(settings, written, 1, size, quality={"max_held_share_percent": 100})

    def sized(*rows):
        return [{**row, "timebucket": size.start(from_datetime(now - 2 * HOUR))} for row in rows]

    at = now - 2 * HOUR
    written.view(sized(*(event("a", number, at) for number in (1, 2, 4))))
    deliver(made, only(made), spark)
    settled(made)
    assert sum(hour_rows(made).values()) == 3, "what is held is accounted for"
    written.view(sized(event("a", 3, at), event("b", 1, at)))
    clocks.passed = 5 * HOUR
    deliver(made, only(made), spark)
    rows = {(row.persistence_id, row.tag_pid_sequence_nr): row for row in clickhouse_rows(made, only(made))}
    assert sorted(rows.values()) == sorted(
        as_row(row, late=int(row["persistence_id"] == "b")) for row in written.rows()
    )


def test_hour_with_fewer_rows_is_not_read(journal, settings, spark, clocks):
    """Remove a row: fewer rows are not late rows, and deliveries of an older release are compared with
    ClickHouse.
    """
    written, now = journal(), clocks.begin
    made = made_with(settings, written, 1)
    name = only(made)
    rows = [*events("a", range(1, 6), now - 5 * HOUR), *events("b", range(1, 6), now - 3 * HOUR)]
    written.view(rows)
    deliver(made, name, spark)
    with Ledger(made.cassandra) as ledger:
        ledger.cassandra.execute(
            f"DELETE FROM {ledger.keyspace}.hour_counts WHERE pipeline = ? AND tag = 't'", name
        )
    settled(made)
    assert sum(hour_rows(made).values()) == len(rows)
    written.remove(rows[0])
    clocks.passed = 6 * HOUR
    settled(made)
    assert sum(hour_rows(made).values()) == len(rows) - 1
    # In total the view has as many rows as at first, one of them new: the counts by hour show it.
    late = event("c", 1, now - 3 * HOUR)
    written.view([late])
    clocks.passed = 24 * HOUR
    deliver(made, name, spark)
    assert clickhouse_rows(made, name) == sorted([*(as_row(row) for row in rows), as_row(late, late=1)])


def test_late_rows_behind_holds_are_counted(journal, settings, spark, clocks):
    """Hold late rows behind a gap and of an id that is set apart; run, `holds`, `status` and the view agree
    on their number.
    """
    written, now = journal(), clocks.begin
    made = made_with(settings, written, 1, quality={"max_held_share_percent": 100})
    name = only(made)
    written.view(event("gap", number, now - 12 * HOUR) for number in (1, 2, 4, 5))
    written.view(events("busy", range(1, 9), now - 12 * HOUR))
    written.view(events("apart", [1, 2], now - 12 * HOUR))
    deliver(made, name, spark)
    assert GiveUp(made, name, OWNER, "tester", "a test").run(["apart"])

    def held(**wanted):
        *_, run = deliver(made, name, spark)
        found = {persistence_id: hold.held_rows for (_, persistence_id), hold in holds(made, name).items()}
        (line,) = tag_table(made, name)
        assert found == wanted and line["held"] == run["held"] == run["tags"][0]["held"] == sum(
            found.values()
        )
        assert line["in_view"] == line["delivered"] + line["held"] == len(written.rows())

    written.view([event("gap", 6, now - 5 * HOUR), event("apart", 3, now - 5 * HOUR)])
    clocks.passed = 2 * HOUR  # within the last hours, which are counted by hour
    held(gap=3, apart=1)
    watermark = now + 2 * HOUR - timedelta(minutes=1)  # within the window of the next run
    written.view([event("gap", 7, watermark), event("apart", 4, watermark), event("busy", 9, watermark)])
    held(gap=4, apart=2)
    settled(made)

    written.view([event("gap", 3, now - 12 * HOUR)])
    release = (
        "holds",
        "release",
        "--tag",
        "t",
        "--persistence-id",
        "apart",
        "--pipeline",
        name,
        "--why",
        "a test",
    )
    assert tagmill(settings.file(name), *release)[0] == 0
    deliver(made, name, spark)
    assert sorted(row._replace(late=0) for row in clickhouse_rows(made, name)) == sorted(
        as_row(row) for row in written.rows()
    )
    assert holds(made, name) == {}
