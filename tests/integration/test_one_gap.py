"""One gap holds one persistence_id while the rest is delivered, however many rows a run has; a stop records
what it found.

To let a run read up to an hour of the past, a test makes the pipeline's delay longer by as much.
"""

from datetime import UTC, datetime, timedelta
from unittest.mock import patch

import pytest

from tagmill.clickhouse.client import ClickHouse
from tagmill.delivery.tag_views import holds as hold_looks
from tagmill.delivery.tag_views import steps
from tagmill.delivery.tag_views.verification import tag_table
from tagmill.domain.time_buckets import BucketSize
from tagmill.domain.timeuuid import from_datetime
from tagmill.errors import DataQualityStop, FenceRaised
from tagmill.ledger import schema
from tagmill.ledger.runs import Ledger
from tagmill.runs import checkpoints
from tagmill.runs.storage import RunFiles
from tests.support.delivery import (
    OWNER,
    as_row,
    clickhouse_rows,
    deliver,
    holds,
    only,
    quality,
    shown_first,
    state,
    tagmill,
)
from tests.support.errors import raises
from tests.support.events import event, events, this_hour
from tests.support.leases import free_lease
from tests.support.topics import Crashed, crashing

pytestmark = pytest.mark.usefixtures("both_seals")


BEGIN = this_hour() - timedelta(hours=25)
STRICT = {"min_rows_for_share": 1, "min_ids_for_share": 1}


@pytest.fixture
def pipeline(journal, settings, spark):
    """Return make(**keys), which makes a journal and its pipeline and returns (journal, settings, name)."""

    def make(**keys):
        written = journal()
        configured = settings(
            written.keyspace, tags=["t"], bucket_size="Hour", first_time_bucket=BEGIN.isoformat(), **keys
        )
        schema.apply(configured)
        return written, configured, only(configured)

    return make


def as_of(configured, name, hour):
    """Return the settings under which a run reads up to the end of an hour since BEGIN."""
    delay = (datetime.now(UTC) - BEGIN - timedelta(hours=hour)).total_seconds()
    chosen = configured.pipelines[name].model_copy(update={"eventual_consistency_delay_seconds": delay})
    return configured.model_copy(update={"pipelines": {name: chosen}})


def hourly(hours, ids_of_hour, of_an_id):
    """Return the view's rows, hour by hour: `of_an_id` events of each persistence_id, without one number of
    'id-0'.
    """
    numbers: dict[str, int] = {}
    missing = ("id-0", first_of_fourth(of_an_id))
    for hour in range(hours):
        rows = []
        for at in range(ids_of_hour(hour)):
            persistence_id = f"id-{at}"
            for nth in range(of_an_id):
                number = numbers[persistence_id] = numbers.get(persistence_id, 0) + 1
                if (persistence_id, number) != missing:
                    # A run that starts late also reads some minutes of the next hour.
                    moment = BEGIN + timedelta(
                        hours=hour, seconds=900 + nth * 2600 / of_an_id, milliseconds=at
                    )
                    rows.append(event(persistence_id, number, moment))
        yield rows


def first_of_fourth(of_an_id):
    """Return the number that is in neither view nor journal: the first one of 'id-0' in the fourth hour."""
    return 3 * of_an_id + 1


def same_as_view(written, configured, name, *, but=lambda row: False):
    """Compare ClickHouse with the view, all columns of all rows, without those that `but` names."""
    expected = sorted(as_row(row) for row in written.rows() if not but(row))
    assert clickhouse_rows(configured, name) == expected


def delivered(configured, name):
    """Return how many rows ClickHouse has."""
    with ClickHouse(configured.clickhouse) as clickhouse:
        return int(next(iter(clickhouse.rows(f"SELECT count() FROM `{name}`")))[0])


def tag_line(configured, name):
    """Return the figures of `tagmill status` of the one tag."""
    (line,) = tag_table(configured, name)
    return tuple(line[column] for column in ("in_view", "delivered", "held", "clickhouse_rows"))


@pytest.mark.parametrize(
    ("hours", "ids_of_hour", "of_an_id", "first"),
    [
        pytest.param(24, lambda _: 5, 1, 1, id="5", marks=pytest.mark.long),
        pytest.param(5, lambda _: 8, 1, 3, id="8-for-5-hours"),
        pytest.param(24, lambda _: 8, 1, 1, id="8", marks=pytest.mark.long),
        pytest.param(24, lambda _: 50, 1, 1, id="50", marks=pytest.mark.long),
        pytest.param(
            24,
            lambda hour: 50 if 8 <= hour < 20 else 8,
            1,
            1,
            id="50-by-day-8-at-night",
            marks=pytest.mark.long,
        ),
        pytest.param(
            24, lambda _: 8, 12_500, 1, id="100000", marks=[pytest.mark.long, pytest.mark.timeout(3600)]
        ),
    ],
)
def test_one_gap_any_size_holds_one_id(pipeline, spark, settings, hours, ids_of_hour, of_an_id, first):
    """Deliver everything but the rows behind the gap, hour by hour from the `first` one on; close the hold, and
    the rest is delivered.
    """
    missing = first_of_fourth(of_an_id)
    written, configured, name = pipeline()
    behind = expected = 0
    for hour, rows in enumerate(hourly(hours, ids_of_hour, of_an_id), start=1):
        written.both(rows)
        held = sum(row["persistence_id"] == "id-0" and row["tag_pid_sequence_nr"] > missing for row in rows)
        behind, expected = behind + held, expected + len(rows) - held
        if hour < first:
            continue
        done = deliver(as_of(configured, name, hour), name, spark)
        assert delivered(configured, name) == expected, (hour, done)
    same_as_view(
        written,
        configured,
        name,
        but=lambda row: row["persistence_id"] == "id-0" and row["tag_pid_sequence_nr"] > missing,
    )
    (hold,) = holds(configured, name).values()
    assert (hold.persistence_id, hold.reason, hold.gap.first, hold.gap.last) == (
        "id-0",
        "hole",
        missing,
        missing,
    )
    assert hold.held_rows == behind > 0
    assert tag_line(configured, name) == (expected + behind, expected, behind, expected)
    closed = (
        "holds",
        "close",
        "--tag",
        "t",
        "--persistence-id",
        "id-0",
        "--pipeline",
        name,
        "--why",
        "lost for good",
        "--yes",
    )
    assert shown_first(settings.file(name), *closed)[0] == 0
    deliver(as_of(configured, name, hours), name, spark)
    same_as_view(written, configured, name)
    assert holds(configured, name) == {}
    assert tag_line(configured, name) == (expected + behind, expected + behind, 0, expected + behind)


def stopped(configured, name, spark, words):
    """Plan and seal a run that the gate stops with these words; return its number."""
    planned = steps.plan(configured, name, owner=OWNER)
    with raises(DataQualityStop, match=words, pipeline=name, run=planned["run"]):
        steps.seal(configured, name, planned["run"], planned["fence"], owner=OWNER, spark=lambda: spark)
    assert state(configured, name, planned["run"]) == "ABANDONED"
    assert RunFiles(configured.storage.root).folders(f"{name}/run-{planned['run']:08d}") == []
    return planned["run"]


def with_gaps(persistence_ids):
    """Return six rows of each persistence_id without number 3, and the rows of one without a gap."""
    broken = [
        row
        for name in persistence_ids
        for row in events(name, range(1, 7), BEGIN)
        if row["tag_pid_sequence_nr"] != 3
    ]
    return [*events("sound", range(1, 7), BEGIN), *broken]


def test_stop_held_share_records_its_holds(pipeline, spark, settings):
    """Stop a run with its key and its holds named; each way out of them works, and the next run continues
    without them.
    """
    written, configured, name = pipeline(quality=STRICT)
    written.both(with_gaps(["a", "b", "c"]))
    assert stopped(configured, name, spark, r"quality\.max_held_share_percent.*3 holds were recorded") == 1
    found = {
        key: (hold.reason, hold.gap.first, hold.held_rows, hold.since_run)
        for key, hold in holds(configured, name).items()
    }
    assert found == {("t", persistence_id): ("hole", 3, 0, 1) for persistence_id in "abc"}
    assert delivered(configured, name) == 0 and tag_line(configured, name)[1:3] == (0, 0)

    close = (
        "holds",
        "close",
        "--tag",
        "t",
        "--persistence-id",
        "a",
        "--pipeline",
        name,
        "--why",
        "lost",
        "--yes",
    )
    code, _, said = shown_first(settings.file(name), *close)
    # Its numbers 1 and 2 are not delivered yet, so the missing number 3 is not the next one.
    assert code == 2 and "numbers before them come first: tagmill run deliver" in said
    deliver(configured, name, spark)
    same_as_view(
        written, configured, name, but=lambda row: row["persistence_id"] != "sound" and row["sequence_nr"] > 3
    )
    assert [hold.held_rows for hold in holds(configured, name).values()] == [3, 3, 3]
    for persistence_id in "abc":
        close = (
            "holds",
            "close",
            "--tag",
            "t",
            "--persistence-id",
            persistence_id,
            "--pipeline",
            name,
            "--why",
            "lost",
            "--yes",
        )
        assert shown_first(settings.file(name), *close)[0] == 0
    deliver(configured, name, spark)
    same_as_view(written, configured, name)


@pytest.mark.parametrize(
    "instant",
    [
        pytest.param("stop.before_commit", marks=pytest.mark.long),
        "stop.after_commit",
        pytest.param("stop.recorded", marks=pytest.mark.long),
    ],
)
def test_stop_killed_anywhere_is_recorded(pipeline, spark, settings, instant):
    """Kill a stop: the next plan finishes it or makes it again, and the run after it continues.

    Until then a dry run of `holds close` reads the hold from the stop's files, and records nothing.
    """
    written, configured, name = pipeline(quality=STRICT)
    written.both(with_gaps(["a"]))
    planned = steps.plan(configured, name, owner=OWNER)
    with crashing(instant), pytest.raises(Crashed):
        steps.seal(configured, name, planned["run"], planned["fence"], owner=OWNER, spark=lambda: spark)
    free_lease(written.session, name)
    if instant == "stop.before_commit":
        stopped(configured, name, spark, "1 holds were recorded")
    if instant == "stop.after_commit":
        close = ("holds", "close", "--pipeline", name, "--tag", "t", "--persistence-id", "a", "--dry-run")
        code, _, said = tagmill(settings.file(name), *close)
        assert code == 2 and "numbers before them come first" in said and holds(configured, name) == {}
    deliver(configured, name, spark)
    assert [(hold.since_run, hold.held_rows) for hold in holds(configured, name).values()] == [(1, 3)]
    assert state(configured, name, 1) == "ABANDONED" and state(configured, name, 2) == "CLOSED"
    same_as_view(
        written, configured, name, but=lambda row: row["persistence_id"] == "a" and row["sequence_nr"] > 3
    )


def test_stop_taken_over_records_nothing(pipeline, spark):
    """Let a sealer sleep before its stop while another one takes the run over; it writes no hold."""
    written, configured, name = pipeline(quality=STRICT)
    written.both(with_gaps(["a"]))
    planned = steps.plan(configured, name, owner=OWNER)

    def reached(instant):
        if instant == "stop.before_commit":
            with Ledger(configured.cassandra) as ledger:
                ledger.raise_fence(ledger.run(name, planned["run"]), "another one")

    with patch.object(checkpoints, "reached", reached), pytest.raises(FenceRaised):
        steps.seal(configured, name, planned["run"], planned["fence"], owner=OWNER, spark=lambda: spark)
    assert holds(configured, name) == {} and state(configured, name, planned["run"]) == "PLANNED"


def test_stray_row_among_few_is_delivered(pipeline, spark):
    """Deliver one row of six in another hour's bucket, and one in a bucket of no size.

    They prove no wrong bucket size, as the view has partitions of the configured size.
    """
    written, configured, name = pipeline()
    rows = events("a", range(1, 7), BEGIN)
    rows[5]["timebucket"] += 3_600_000
    rows[4]["timebucket"] += 1
    written.both(rows)
    deliver(configured, name, spark)
    same_as_view(written, configured, name)
    failing = {check["name"] for check in quality(configured, name, 1)["checks"] if not check["success"]}
    assert failing == {"bucket", "bucket_start"}


def test_few_rows_of_day_buckets_stop(pipeline, spark):
    """Stop a pipeline of Hour buckets at a few rows of Day buckets, before it passes partitions that it never
    reads.
    """
    written, configured, name = pipeline()
    midnight = BEGIN.replace(hour=0) + timedelta(days=BEGIN.hour > 0)
    rows = events("a", range(1, 7), midnight) + events("b", [1], midnight + timedelta(minutes=61))
    for row in rows:
        row["timebucket"] = BucketSize.DAY.start(from_datetime(midnight))
    written.both(rows)
    assert len({row["timebucket"] for row in rows}) == 1
    stopped(configured, name, spark, 'set bucket_size = "Day"')
    assert holds(configured, name) == {}


def test_rows_early_in_wide_gap_end_hold(pipeline, spark, monkeypatch):
    """Write a gap's rows into buckets before those that a fingerprint covers: the hold ends."""
    monkeypatch.setattr(hold_looks, "MAX_BUCKETS", 3)
    journal, configured, name = pipeline(max_missing_to_search=2)
    sent = event("p", 1, BEGIN), event("p", 6, BEGIN + timedelta(hours=20))
    journal.view(sent)
    deliver(configured, name, spark)
    assert [hold.reason for hold in holds(configured, name).values()] == ["too_many_missing"]
    missing = events("p", (2, 3, 4, 5), BEGIN + timedelta(hours=4))
    journal.view(missing)
    # The run reads what look-back reads, once these hours are due.
    hours = (BEGIN, BEGIN + timedelta(hours=6))
    deliver(configured, name, spark, reread=[f"{moment:%FT%TZ}" for moment in hours])
    deliver(configured, name, spark)
    assert clickhouse_rows(configured, name) == sorted(map(as_row, [*sent, *missing]))
    assert not holds(configured, name)


def test_gap_of_large_events_is_held(pipeline, spark):
    """Let a gap's events in the journal be larger than a run takes: no run asks again, until the view has them."""
    journal, configured, name = pipeline()
    numbers = events("p", (1, 2, 3, 4), BEGIN)
    journal.messages(numbers)
    journal.view([numbers[0], numbers[3]])
    with patch.object(hold_looks, "MAX_GAP_BYTES", 40):
        deliver(configured, name, spark)
    assert [hold.reason for hold in holds(configured, name).values()] == ["gap_too_large"]
    assert not deliver(configured, name, spark)
    journal.view(numbers[1:3])
    deliver(configured, name, spark)
    assert clickhouse_rows(configured, name) == sorted(map(as_row, numbers)) and not holds(configured, name)
