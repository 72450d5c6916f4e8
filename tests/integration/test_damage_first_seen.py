"""First numbers above 1 under each choice of first_seen, deleted gaps that are still young, and held rows
that leave the view.
"""

from datetime import timedelta

import pytest

from tagmill.delivery.tag_views import gap_evidence
from tagmill.delivery.tag_views.interventions import Interventions
from tests.support.delivery import (
    OWNER,
    as_row,
    clickhouse_rows,
    deliver,
    delivered_first,
    holds,
    only,
    verdicts,
)
from tests.support.events import events, this_hour

pytestmark = pytest.mark.usefixtures("both_seals")


BEGIN = this_hour() - timedelta(hours=2)
BEFORE = BEGIN - timedelta(hours=2)
# The pipelines deliver from BEGIN on; earlier rows are not theirs.
ROWS = [
    *events("from-one", range(1, 4), BEGIN),
    *events("goes-on", range(1, 4), BEFORE),
    *events("goes-on", range(4, 7), BEGIN),
    *events("lost-between", range(1, 3), BEFORE),
    *events("lost-between", range(4, 7), BEGIN),
    *events("nothing-before", range(4, 7), BEGIN),
]
WHOLE, GOES_ON, LOST, NOTHING = (
    ("from-one", 1, 2, 3),
    ("goes-on", 4, 5, 6),
    ("lost-between", 4, 5, 6),
    ("nothing-before", 4, 5, 6),
)


@pytest.fixture
def first_seen(journal, settings, spark):
    """Return first_seen(choice, more, **keys), which writes ROWS and `more`, delivers, and returns the
    journal and the settings.
    """

    def run(choice, more=(), **keys):
        written = journal()
        written.view([*ROWS, *more])
        wanted = {"tags": ["t"], "bucket_size": "Hour", "first_time_bucket": BEGIN.isoformat()}
        wanted |= {
            "long_look_back_seconds": 4 * 3600,
            "look_back_seconds": 4 * 3600,
            "quality": {"max_held_share_percent": 100},
        }
        configured = settings(written.keyspace, first_seen=choice, **{**wanted, **keys})
        delivered_first(configured, spark)
        return written, configured

    return run


def delivered(configured):
    """Return (persistence_id, numbers…) of each persistence id in ClickHouse."""
    found = {}
    for row in clickhouse_rows(configured, only(configured)):
        found.setdefault(row.persistence_id, []).append(row.tag_pid_sequence_nr)
    return {(pid, *numbers) for pid, numbers in found.items()}


def held(configured):
    """Return reason, first and last missing number, and number of held rows by persistence_id."""
    return {
        pid: (hold.reason, hold.gap.first, hold.gap.last, hold.held_rows)
        for (_, pid), hold in holds(configured, only(configured)).items()
    }


def test_first_seen_scan_holds_only_lost_numbers(first_seen):
    """Deliver ids that continue from before the range or have nothing before it; hold the id that lost
    numbers in between.
    """
    _, configured = first_seen("scan")
    assert delivered(configured) == {WHOLE, GOES_ON, NOTHING}
    assert held(configured) == {"lost-between": ("first_seen", 1, 3, 3)}


def test_first_seen_assume_first_takes_all(first_seen, spark):
    """Deliver every id under assume_first; a lower number that appears afterwards is flagged late."""
    written, configured = first_seen("assume_first")
    assert delivered(configured) == {WHOLE, GOES_ON, LOST, NOTHING} and held(configured) == {}
    (lower,) = events("nothing-before", [3], BEGIN)
    written.view([lower])
    (run,) = deliver(configured, only(configured), spark)
    assert run["rows"] == 1 and as_row(lower, late=1) in clickhouse_rows(configured, only(configured))
    assert deliver(configured, only(configured), spark) == []


def test_first_seen_assume_first_single_bucket_takes_all(first_seen, spark):
    """Deliver every id under assume_first, also if a run ends with the bucket that it begins in."""
    later = events("later", range(1, 3), BEGIN + timedelta(hours=1))
    _, configured = first_seen(
        "assume_first", later, max_slices_per_run=1, quality={"max_held_share_percent": 0}
    )
    deliver(configured, only(configured), spark)
    assert (
        delivered(configured) == {WHOLE, GOES_ON, LOST, NOTHING, ("later", 1, 2)} and held(configured) == {}
    )


@pytest.mark.long
def test_first_seen_require_one_holds_until_closed(first_seen, spark):
    """Hold ids under require_one until a person gives the lower numbers up, also while the view has lost the
    held rows.
    """
    written, configured = first_seen("require_one")
    name = only(configured)
    assert delivered(configured) == {WHOLE}
    assert held(configured) == {
        pid: ("first_seen", 1, 3, 3) for pid in ("goes-on", "lost-between", "nothing-before")
    }
    by_hand = Interventions(configured, name, OWNER, "tester", "they were before our time")
    assert "numbers 1 to 3 are given up" in by_hand.close_hold("t", "nothing-before")
    deliver(configured, name, spark)
    assert delivered(configured) == {WHOLE, NOTHING}

    # The view loses every row, also the held ones; the holds wait for rows that come back.
    written.session.execute(f"TRUNCATE {written.keyspace}.tag_views")
    deliver(configured, name, spark)
    assert held(configured) == {pid: ("first_seen", 1, 3, 0) for pid in ("goes-on", "lost-between")}
    assert deliver(configured, name, spark) == [] and delivered(configured) == {WHOLE, NOTHING}
    by_hand.close_hold("t", "lost-between")
    assert set(held(configured)) == {"goes-on"} and deliver(configured, name, spark) == []
    written.view([*ROWS, *events("goes-on", range(1, 4), BEGIN)])
    deliver(configured, name, spark)
    assert held(configured) == {}
    assert delivered(configured) == {WHOLE, ("goes-on", 1, 2, 3, 4, 5, 6), LOST, NOTHING}
    keys = [(row.persistence_id, row.sequence_nr) for row in clickhouse_rows(configured, name)]
    assert len(keys) == len(set(keys)) and deliver(configured, name, spark) == []


def test_gap_before_start_is_not_filled(journal, settings, spark):
    """Hold an id whose missing numbers the journal has only from before start_from."""
    written = journal()
    written.both(
        [
            *events("a", range(1, 4), BEFORE),
            *events("a", range(4, 6), BEGIN),
            *events("b", range(1, 20), BEGIN),
        ]
    )
    keys = {
        "tags": ["t"],
        "bucket_size": "Hour",
        "first_time_bucket": BEFORE.isoformat(),
        "start_from": {"t": BEGIN.isoformat()},
    }
    configured = settings(written.keyspace, **keys)
    delivered_first(configured, spark)
    assert delivered(configured) == {("b", *range(1, 20))} and held(configured) == {
        "a": ("first_seen", 1, 3, 2)
    }
    assert deliver(configured, only(configured), spark) == []


@pytest.mark.long
def test_gap_deleted_is_held_until_timeout(journal, settings, spark):
    """Hold an id with a gap of deleted events until gap_timeout_seconds is over, then close the gap."""
    written = journal()
    written.view([*events("sound", range(1, 20), BEGIN), *events("deleted", (1, 2, 4), BEGIN)])
    written.deleted_to("deleted", 3)
    keys = {
        "tags": ["t"],
        "bucket_size": "Hour",
        "first_time_bucket": BEGIN.isoformat(),
        "name": "p_gap_timeout",
    }
    patient = settings(written.keyspace, gap_timeout_seconds=3600, **keys)
    delivered_first(patient, spark)
    assert held(patient) == {"deleted": ("hole", 3, 3, 1)}
    over = settings(written.keyspace, gap_timeout_seconds=0.001, **keys)
    (run,) = deliver(over, only(over), spark)
    assert run["rows"] == 1 and run["findings"]["hole_closed"] == 1 and held(over) == {}
    assert verdicts(over, only(over)) == {"t": "exactly once"}


def test_gap_behind_emptied_partitions_is_filled(journal, settings, spark):
    """Fill a gap from a journal partition that lies behind partitions emptied by deletions."""
    written = journal()
    records = events("a", range(1, 6), BEGIN)
    written.view([row for row in records if row["tag_pid_sequence_nr"] != 3])
    written.messages([{**row, "partition_nr": 2} for row in records])
    written.deleted_to("a", 1)
    keys = {"tags": ["t"], "bucket_size": "Hour", "first_time_bucket": BEGIN.isoformat()}
    configured = settings(written.keyspace, **keys)
    delivered_first(configured, spark)
    assert (
        clickhouse_rows(configured, only(configured)) == sorted(map(as_row, records))
        and held(configured) == {}
    )


def test_gap_filling_is_bounded_per_run(journal, settings, spark, monkeypatch):
    """Stop filling gaps from the journal once a run reaches MAX_BACKFILLED_BYTES; the next run fills the rest."""
    monkeypatch.setattr(gap_evidence, "MAX_BACKFILLED_BYTES", 1)
    written = journal()
    records = [row for pid in ("a", "b") for row in events(pid, range(1, 20), BEGIN)]
    written.messages(records)
    written.view([row for row in records if row["tag_pid_sequence_nr"] != 18])
    configured = settings(
        written.keyspace, tags=["t"], bucket_size="Hour", first_time_bucket=BEGIN.isoformat()
    )
    runs = delivered_first(configured, spark)
    assert [run["findings"].get("healed_from_journal") for run in runs] == [1, 1]
    assert (
        clickhouse_rows(configured, only(configured)) == sorted(map(as_row, records))
        and held(configured) == {}
    )
