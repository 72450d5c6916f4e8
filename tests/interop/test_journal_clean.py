"""The plugin's own Cleanup and Tagmill's leave the same tables, row for row; the plugin replays and writes on
after Tagmill's.
"""

import uuid
from datetime import UTC, datetime, timedelta

import pytest

from local.fixtures import TABLES
from tagmill.cassandra.client import Cassandra
from tagmill.config.settings import CassandraSettings
from tagmill.ledger.schema import create_journal
from tests.interop.conftest import Peer
from tests.support.delivery import delivered_first, only
from tests.support.journal_cleaning import add_snapshots, cleaned, snapshots, tables
from tests.support.leases import free_lease

FIRST = f"{datetime.now(UTC) - timedelta(minutes=3):%Y%m%dT%H:%M}"
IDS = [f"pid-00000{n}" for n in range(9)]
SMALL = ("--set", "pekko.persistence.cassandra.journal.target-partition-size=10")
WRITE = (*SMALL, "--tags", "2", "--untagged-every", "5", "--batch", "3")
TAKEN = {
    9: datetime(2026, 1, 1, tzinfo=UTC),
    15: datetime(2026, 2, 1, tzinfo=UTC),
    21: datetime(2026, 3, 1, tzinfo=UTC),
}


@pytest.fixture
def twin(stack, peer, peer_programs):
    """Return make(), which makes the plugin on a journal that it has written, and on a copy of it."""
    copies = []

    def make():
        plugin = peer()
        plugin.write(*WRITE, "--pids", str(len(IDS)), "--events", "26", "--linger", "3", tagging=True)
        copies.append(f"t_{uuid.uuid4().hex[:12]}")
        with Cassandra(CassandraSettings(port=stack.cassandra.port)) as cassandra:
            create_journal(cassandra, copies[-1])
        for table in TABLES:
            rows = list(stack.session.execute(f"SELECT * FROM {plugin.keyspace}.{table}"))
            for row in rows:
                there = {name: value for name, value in row._asdict().items() if value is not None}
                marks = ", ".join(["%s"] * len(there))
                names = ", ".join(f'"{name}"' for name in there)
                stack.session.execute(
                    f"INSERT INTO {copies[-1]}.{table} ({names}) VALUES ({marks})", list(there.values())
                )
        for keyspace in (plugin.keyspace, copies[-1]):
            for name in IDS[5:7]:
                add_snapshots(stack.session, f"{keyspace}_snap", name, TAKEN)
        return plugin, Peer(peer_programs, stack.cassandra.port, copies[-1])

    yield make
    for name in copies:
        stack.session.execute(f"DROP KEYSPACE IF EXISTS {name}")
        stack.session.execute(f"DROP KEYSPACE IF EXISTS {name}_snap")


@pytest.mark.timeout(900)
def test_journal_clean_equals_plugins_and_plugin_continues(stack, twin, settings, spark):
    """Clean one journal by the plugin, its copy by Tagmill; compare all tables, then let the plugin write and
    replay.
    """
    theirs, ours = twin()
    assert tables(stack.session, theirs.keyspace) == tables(stack.session, ours.keyspace)
    configured = settings(
        ours.keyspace,
        tags=["tag-0", "tag-1"],
        bucket_size="Hour",
        first_time_bucket=FIRST,
        snapshot_keyspace=f"{ours.keyspace}_snap",
        cleanup={"other_readers": []},
    )
    delivered_first(configured, spark)
    free_lease(stack.session, only(configured))
    bucket = ("--bucket", "Hour", "--first-bucket", FIRST)

    def both(plugin, what, *ids, **wanted):
        theirs("delete", *SMALL, *bucket, *plugin, *(part for name in ids for part in ("--pid", name)))
        done = cleaned(configured, ids, what, **wanted)
        assert (done["refusals"], done["unknown_ids"]) == ([], []), done["refusals"]

    both(("--to", "5"), "to", IDS[0], to=5)
    both(("--to", "17"), "to", IDS[0], IDS[1], to=17)
    both(("--to", "3"), "to", IDS[1], to=3)
    both(("--all",), "all", IDS[2])
    both(("--all", "--never-again"), "all", IDS[3], never_again=True)
    # The plugin's deleteAll is Tagmill's with the rows of the view, the newest of which runs would still
    # read.
    both(
        ("--everything", "--never-again"),
        "all",
        IDS[4],
        IDS[5],
        never_again=True,
        views=True,
        force_unread=True,
    )
    # cleanupBeforeSnapshot deletes snapshots, then events up to the oldest snapshot that is kept.
    stack.session.execute(
        f"DELETE FROM {theirs.keyspace}_snap.snapshots WHERE persistence_id = '{IDS[6]}' AND sequence_nr < 15"
    )
    both(("--to", "15"), "before_snapshot", IDS[6], keep=2)
    left = tables(stack.session, ours.keyspace)
    for table, rows in tables(stack.session, theirs.keyspace).items():
        assert left[table] == rows, table
    kept = snapshots(stack.session, f"{ours.keyspace}_snap")
    assert kept == snapshots(stack.session, f"{theirs.keyspace}_snap") == {IDS[6]: [15, 21]}
    # The plugin reads what is left and continues behind it.
    living = [IDS[0], IDS[1], IDS[2], IDS[7], IDS[8]]
    names = [part for name in living for part in ("--pid", name)]
    ours.write(*WRITE, *names, "--events", "4", "--linger", "3", tagging=True)
    replayed = [(line[0], int(line[1])) for line in ours("replay", *SMALL, *names)]
    first = {IDS[0]: 18, IDS[1]: 18, IDS[2]: 27, IDS[7]: 1, IDS[8]: 1}
    assert replayed == [(name, number) for name in living for number in range(first[name], 31)]
    recovered = [(line[0], int(line[1])) for line in ours("replay", "--via", "journal", *SMALL, *names)]
    assert recovered == replayed
    read = ours.read("tag-0", "Hour", FIRST)
    gone, tagged = (
        {IDS[4], IDS[5]},
        [number for number in range(1, 31) if number < 27 and number % 5 or number > 26],
    )
    assert sorted(pair[:2] for pair in read) == sorted(
        (name, number)
        for name in IDS
        for number in tagged
        if name not in gone and (number < 27 or name in living)
    )
