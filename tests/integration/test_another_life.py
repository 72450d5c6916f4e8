"""Journals that were created again.

Their numbers look delivered but belong to another life: Tagmill neither drops nor delivers them silently.
"""

from datetime import UTC, datetime, timedelta
from unittest.mock import patch

import pytest

from tagmill.delivery.tag_views import lives, steps
from tagmill.errors import JournalRecreated
from tagmill.views.delete import truncate
from tagmill.views.rebuild import rebuild
from tagmill.views.selection import Selection
from tests.support.building import VIEWS, built, records, rows
from tests.support.cleaning import cleaned
from tests.support.delivery import (
    OWNER,
    as_row,
    clickhouse_rows,
    deliver,
    delivered_first,
    finish,
    holds,
    manifests,
    only,
    shown_first,
    tagmill,
    verdicts,
)
from tests.support.errors import raises
from tests.support.events import event
from tests.support.journal_cleaning import cleaned as journal_cleaned
from tests.support.journal_cleaning import in_journal
from tests.support.rebucketing import rebucketed
from tests.support.restoring import create_again

pytestmark = pytest.mark.usefixtures("both_seals")


SECOND_LIFE = "0a1b2c3d-0000-4000-8000-000000000002"
MILLISECOND = timedelta(milliseconds=1)
OPTIONS = ("--tag", "t", "--why", "x", "--yes")


def restarted(file, name, persistence_id):
    """Let a persistence id begin again by `progress restart`."""
    status, _, err = shown_first(
        file, "progress", "restart", *OPTIONS, "-p", name, "--persistence-id", persistence_id
    )
    assert status == 0, err


def of_now(persistence_id, numbers, **columns):
    """Return events timestamped within the last 100 ms, in the order of their numbers."""
    begin = datetime.now(UTC) - 100 * MILLISECOND
    return [event(persistence_id, number, begin + number * MILLISECOND, **columns) for number in numbers]


@pytest.fixture
def started(journal, settings, spark):
    """Deliver three events of each of two persistence ids; return the journal, the settings, their file and
    the events.
    """
    made = journal()
    first = [*of_now("again", (1, 2, 3)), *of_now("sound", (1, 2, 3))]
    made.both(first)
    start = datetime.now(UTC) - timedelta(days=1)
    configured = settings(
        made.keyspace,
        tags=["t"],
        bucket_size="Hour",
        first_time_bucket=f"{start:%Y-%m-%d}",
        quality={"max_held_share_percent": 100.0},
    )
    delivered_first(configured, spark)
    return made, configured, settings.file(only(configured)), first


def test_persistence_id_begun_again_is_held(started, spark):
    """Delete a persistence id and begin it again at number 1: it is held, others flow, and `progress restart`
    releases it.
    """
    made, configured, file, first = started
    name = only(configured)
    for record in first[:3]:
        made.remove(record)
    new = of_now("again", (1, 2, 3, 4), writer_uuid=SECOND_LIFE)
    sound = of_now("sound", (4,))
    made.both([*new, *sound])
    deliver(configured, name, spark)
    assert clickhouse_rows(configured, name) == sorted(as_row(one) for one in [*first, *sound])
    assert {key: hold.reason for key, hold in holds(configured, name).items()} == {
        ("t", "again"): "another_life"
    }
    for way in (("holds", "close"), ("progress", "rebase")):
        status, _, err = shown_first(file, *way, *OPTIONS, "-p", name, "--persistence-id", "again")
        assert status == 2 and "progress restart" in err
    restarted(file, name, "again")
    deliver(configured, name, spark)
    assert clickhouse_rows(configured, name) == sorted(as_row(one) for one in [*first, *new, *sound])
    assert not holds(configured, name)
    assert not deliver(configured, name, spark)


def test_new_life_is_delivered_and_withdrawn(started, spark):
    """Begin persistence ids again whose rows are in the view, one of them under numbers that go on: `progress
    restart` delivers each new event once, and again after its batch was withdrawn.
    """
    made, configured, file, first = started
    name = only(configured)
    new = of_now("again", (1, 2, 3, 4), writer_uuid=SECOND_LIFE)
    new += [
        one | {"tag_pid_sequence_nr": 3 + one["sequence_nr"]}
        for one in of_now("sound", (1, 2, 3, 4), writer_uuid=SECOND_LIFE)
    ]
    made.both(new)
    with patch.object(lives, "ROWS_AT_ONCE", 2):
        deliver(configured, name, spark)
    assert clickhouse_rows(configured, name) == sorted(map(as_row, first))
    assert {key[1]: hold.reason for key, hold in holds(configured, name).items()} == {
        "again": "another_life",
        "sound": "renumbered",
    }
    status, _, err = shown_first(
        file, "progress", "rebase", *OPTIONS, "-p", name, "--persistence-id", "sound"
    )
    assert status == 2 and "progress restart" in err
    for persistence_id in ("again", "sound"):
        restarted(file, name, persistence_id)
    deliver(configured, name, spark)
    hour = {"reread": (f"{datetime.now(UTC) - timedelta(hours=1):%FT%TZ}", f"{datetime.now(UTC):%FT%TZ}")}
    deliver(configured, name, spark, **hour)
    wanted = sorted(map(as_row, [*first, *new]))
    assert clickhouse_rows(configured, name) == wanted and not holds(configured, name)
    sealed = next(one for one in reversed(manifests(configured, name)) if one.batches)
    for batch in sealed.batches:
        withdraw = ("batches", "withdraw", batch.batch_id, "--run", str(sealed.run), "-p", name)
        status, _, err = shown_first(file, *withdraw, "--why", "x", "--yes")
        assert status == 0, err
    assert clickhouse_rows(configured, name) == sorted(map(as_row, first))
    deliver(configured, name, spark, **hour)
    again = [row._replace(late=0) for row in clickhouse_rows(configured, name)]
    assert sorted(again) == wanted and not holds(configured, name)


def test_copy_of_delivered_event_is_dropped(started, spark):
    """Write a second row of a delivered event at a later time: it is no other life, and what follows is delivered."""
    made, configured, _, first = started
    name = only(configured)
    copy, following = of_now("again", (3, 4))
    made.view([copy])
    made.both([following])
    deliver(configured, name, spark)
    assert clickhouse_rows(configured, name) == sorted(map(as_row, [*first, following]))
    assert not holds(configured, name)


def test_journal_created_again_stops_before_planning(started, spark, stack):
    """Drop and create the journal's tables: nothing is delivered until `ledger accept-journal`, then the new
    rows are held.
    """
    made, configured, file, first = started
    name = only(configured)
    before = clickhouse_rows(configured, name)
    made.both(of_now("sound", (4,)))
    planned = steps.plan(configured, name, owner=OWNER)
    create_again(stack.session, made.keyspace, "tag_views", "messages")
    made.both(of_now("again", (1, 2, 3, 4), writer_uuid=SECOND_LIFE))
    with raises(
        JournalRecreated, match="Nothing was sealed. First: .* run abandon", pipeline=name, run=planned["run"]
    ):
        finish(configured, name, spark, planned)
    status, _, err = shown_first(file, "run", "abandon", "-p", name, "--why", "x", "--yes")
    assert status == 0, err
    with raises(JournalRecreated, pipeline=name):
        deliver(configured, name, spark)
    assert clickhouse_rows(configured, name) == before
    status, _, err = shown_first(file, "ledger", "accept-journal", "-p", name, "--why", "restored", "--yes")
    assert status == 0, err
    # No backup was restored: the rows themselves show that they belong to another life.
    deliver(configured, name, spark)
    assert clickhouse_rows(configured, name) == before
    assert {hold.reason for hold in holds(configured, name).values()} == {"another_life"}
    assert verdicts(configured, name)["t"] != "exactly once"


def test_build_into_created_again_journal_stops(journal, settings, spark, stack):
    """Create messages again behind a build: nothing numbers, copies or deletes until the journal is accepted,
    or another name begins a new life.
    """
    made, day = journal(), {"tags": ["t"], "bucket_size": "Hour", "views": "tagmill"}
    day |= {"first_time_bucket": f"{datetime.now(UTC) - timedelta(days=1):%Y-%m-%d}"}
    configured = settings(made.keyspace, **day, cleanup={"enabled": True, "older_than_days": 1})
    name = only(configured)
    by = {"owner": OWNER, "spark": spark}

    def numbered():
        return [rows(stack, made.keyspace, table) for table in VIEWS], records(stack, made.keyspace)

    def numbers():
        return [row["tag_pid_sequence_nr"] for row in made.rows()]

    made.messages(of_now("a", (1, 2, 3)))
    for untagged in ("begun", "later"):
        made.messages(of_now(untagged, (1, 2, 3), tags=set()))
    assert built(configured, spark)["rows"] == 3
    create_again(stack.session, made.keyspace, "messages")
    made.messages(of_now("a", range(1, 6), writer_uuid=SECOND_LIFE))
    before = numbered(), in_journal(stack.session, made.keyspace)
    for stopped in (
        lambda: built(configured, spark),
        lambda: rebuild(configured, name, Selection(), **by),
        lambda: rebuild(configured, name, Selection(), **by, dry_run=True),
        lambda: truncate(configured, name, **by),
        lambda: rebucketed(configured, spark, "Day"),
        lambda: journal_cleaned(configured, ["a"], "all", force_undelivered=True),
        lambda: cleaned(configured),
    ):
        with raises(JournalRecreated, pipeline=name):
            stopped()
    assert (numbered(), in_journal(stack.session, made.keyspace)) == before
    status, out, _ = tagmill(settings.file(name), "status", "-p", name)
    assert status == 3 and "created again" in out
    command = ("ledger", "accept-journal", "-p", name, "--why", "restored", "--yes")
    status, _, err = shown_first(settings.file(name), *command)
    assert status == 0, err
    assert built(configured, spark)["rows"] == 2 and numbers() == [1, 2, 3, 4, 5]

    create_again(stack.session, made.keyspace, "messages", "tag_scanning", *VIEWS)
    third = [one for name in ("a", "begun") for one in of_now(name, (1, 2), writer_uuid=SECOND_LIFE)]
    made.messages(third)
    other = settings(made.keyspace, **day)
    with raises(
        JournalRecreated, match="tag_scanning again as well.*--adopt.*accept-journal", pipeline=only(other)
    ):
        built(other, spark)
    assert built(other, spark, adopt=True)["rows"] == 4 and numbers() == [1, 2, 1, 2]
    # Persistence ids whose events had no tags in the earlier life begin at 1 as well, whenever they come.
    third += (later := of_now("later", (1, 2), writer_uuid=SECOND_LIFE))
    made.messages(later)
    assert built(other, spark)["rows"] == 2 and built(other, spark)["rows"] == 0
    deliver(other, only(other), spark)
    assert clickhouse_rows(other, only(other)) == sorted(as_row(one) for one in third)
