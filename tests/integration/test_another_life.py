"""Journals that were created again.

Their numbers look delivered but belong to another life: Tagmill neither drops nor delivers them silently.
"""

from datetime import UTC, datetime, timedelta

import pytest

from tagmill.errors import GuardRefused
from tests.support.delivery import (
    as_row,
    clickhouse_rows,
    deliver,
    delivered_first,
    holds,
    only,
    tagmill,
    verdicts,
)
from tests.support.events import event

SECOND_LIFE = "0a1b2c3d-0000-4000-8000-000000000002"
MILLISECOND = timedelta(milliseconds=1)


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
    status, _, err = tagmill(
        file, "holds", "close", "-p", name, "--tag", "t", "--persistence-id", "again", "--why", "x", "--yes"
    )
    assert status == 2 and "progress restart" in err
    status, out, err = tagmill(
        file,
        "progress",
        "restart",
        "-p",
        name,
        "--tag",
        "t",
        "--persistence-id",
        "again",
        "--why",
        "x",
        "--yes",
    )
    assert status == 0, err
    deliver(configured, name, spark)
    assert clickhouse_rows(configured, name) == sorted(as_row(one) for one in [*first, *new, *sound])
    assert not holds(configured, name)
    assert not deliver(configured, name, spark)


def test_journal_created_again_stops_before_planning(started, spark, stack):
    """Drop and create the journal's tables: nothing is delivered until `ledger accept-journal`, then the new
    rows are held.
    """
    made, configured, file, first = started
    name = only(configured)
    before = clickhouse_rows(configured, name)
    for table in ("tag_views", "messages"):
        statement = stack.session.cluster.metadata.keyspaces[made.keyspace].tables[table].as_cql_query()
        stack.session.execute(f"DROP TABLE {made.keyspace}.{table}", timeout=60)
        stack.session.execute(statement, timeout=60)
    made.both(of_now("again", (1, 2, 3, 4), writer_uuid=SECOND_LIFE))
    with pytest.raises(GuardRefused, match="created again.*accept-journal"):
        deliver(configured, name, spark)
    assert clickhouse_rows(configured, name) == before
    status, _, err = tagmill(file, "ledger", "accept-journal", "-p", name, "--why", "restored", "--yes")
    assert status == 0, err
    # No backup was restored: the rows themselves show that they belong to another life.
    deliver(configured, name, spark)
    assert clickhouse_rows(configured, name) == before
    assert {hold.reason for hold in holds(configured, name).values()} == {"another_life"}
    assert verdicts(configured, name)["t"] != "exactly once"
