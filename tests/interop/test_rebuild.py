"""A view that the plugin wrote is damaged and rebuilt: it equals the plugin's again, which reads all of it
and writes more.
"""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from tagmill.journal.tag_view_reader import VIEW_COLUMNS
from tagmill.ledger import schema
from tagmill.views.model import VIEW_KEY
from tagmill.views.rebuild import rebuild
from tagmill.views.selection import Selection
from tests.support.building import VIEWS, rows
from tests.support.delivery import OWNER, clickhouse_rows, deliver, only

FIRST = f"{datetime.now(UTC) - timedelta(minutes=3):%Y%m%dT%H:%M}"
ODD = ("Заказ №'/ 1", 'a|b"c\\d %')
SMALL = ("--set", "pekko.persistence.cassandra.journal.target-partition-size=10", "--batch", "7")


# Maps the plugin's settings of table names to Tagmill's setting and the name that the test gives.
NAMES = {
    "journal.table": ("messages_table", "happened"), "journal.metadata-table": ("metadata_table", "about"),
    "journal.all-persistence-ids-table": ("all_persistence_ids_table", "pids"), "events-by-tag.table": ("view_table", "by_tag"),
}  # fmt: skip
OWN_NAMES = [
    part
    for key, (_, name) in NAMES.items()
    for part in ("--set", f"pekko.persistence.cassandra.{key}={name}")
]


def rebuilt(settings, spark):
    """Apply the schema, and rebuild the view."""
    schema.apply(settings)
    return rebuild(settings, only(settings), Selection(), owner=OWNER, spark=spark)


def without(stack, view, gone):
    """Delete these rows of a view."""
    where = " AND ".join(f"{name} = %s" for name in VIEW_KEY)
    for row in stack.session.execute(f"SELECT {', '.join(VIEW_KEY)}, sequence_nr FROM {view}"):
        if gone(row):
            stack.session.execute(f"DELETE FROM {view} WHERE {where}", tuple(row)[: len(VIEW_KEY)])


def reached(stack, keyspace):
    """Return offset, sequence_nr and number of tag_write_progress, by persistence_id and tag."""
    lines = rows(stack, keyspace, "tag_write_progress")
    return {
        (line["persistence_id"], line["tag"]): (
            line["offset"],
            line["sequence_nr"],
            line["tag_pid_sequence_nr"],
        )
        for line in lines
    }


def last(view):
    """Return offset, sequence_nr and number of a view's last rows, by persistence_id and tag."""
    in_order = sorted(view, key=lambda row: row["tag_pid_sequence_nr"])
    return {
        (row["persistence_id"], row["tag_name"]): (
            row["timestamp"],
            row["sequence_nr"],
            row["tag_pid_sequence_nr"],
        )
        for row in in_order
    }


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("bucket", "options", "tables"),
    [
        pytest.param("Day", ("--payload", "string"), {}, marks=pytest.mark.long),
        ("Minute", ("--payload", "json-order", *SMALL), dict(NAMES.values())),
        pytest.param("Hour", ("--payload", "bytes", "--replicated"), {}, marks=pytest.mark.long),
    ],
    ids=["day", "minute, small partitions, tables with other names", "hour, replicated"],
)  # fmt: skip
def test_rebuild_equals_plugins_view_and_plugin_continues(
    bucket, options, tables, stack, peer, settings, spark
):
    """Delete rows of the plugin's view and rebuild it; the plugin reads all events and writes more."""
    plugin = peer(*OWN_NAMES) if tables else peer()
    view = tables.get("view_table", "tag_views")
    ids = [f"r|pid-{n:06d}|A" if "--replicated" in options else f"pid-{n:06d}" for n in range(8)]
    names = [part for tag in ODD for part in ("--tag-name", tag)]
    write = (
        "--pids",
        "8",
        "--events",
        "25",
        "--tags",
        "2",
        "--untagged-every",
        "5",
        "--bucket",
        bucket,
        "--linger",
        "3",
        *names,
        *options,
    )
    configured = settings(
        plugin.keyspace, tags=list(ODD), bucket_size=bucket, first_time_bucket=FIRST, **tables
    )
    plugin.write(*write, tagging=True)
    plugin(
        "delete",
        "--pid",
        ids[3],
        "--to",
        "12",
        "--set",
        "pekko.persistence.cassandra.cleanup.operation-timeout=120s",
    )
    before = rows(stack, plugin.keyspace, view)
    assert len(before) == 2 * 8 * 20 and before[0].keys() == VIEW_COLUMNS.keys()

    # Delete first, middle and last rows, a whole persistence id, and rows behind deleted events.
    without(
        stack,
        f"{plugin.keyspace}.{view}",
        lambda row: (
            row.persistence_id == ids[1]
            or row.sequence_nr in (1, 13, 24)
            and row.persistence_id != ids[3]
            or (row.persistence_id, row.sequence_nr) in ((ids[3], 14), (ids[3], 24))
        ),
    )
    assert len(rows(stack, plugin.keyspace, view)) < len(before) - 2 * 20
    rebuilt(configured, spark)
    assert rows(stack, plugin.keyspace, view) == before
    # The plugin's own line may stop at a row before the last, because it writes several rows at once.
    assert reached(stack, plugin.keyspace) == last(before)
    read = plugin.read(ODD[0], bucket, FIRST)
    assert len(read) == 8 * 20 and Counter(read) == Counter(
        (row["persistence_id"], row["sequence_nr"], row["timestamp"])
        for row in before
        if row["tag_name"] == ODD[0]
    )

    # The persistent actors recover by the rebuilt rows and write more.
    plugin.write(*write, tagging=True)
    deliver(configured, only(configured), spark)
    found = clickhouse_rows(configured, only(configured))
    assert Counter((row.tag, row.persistence_id, row.tag_pid_sequence_nr) for row in found) == Counter(
        (tag, pid, number) for tag in ODD for pid in ids for number in range(1, 41)
    )
    assert len(plugin.read(ODD[1], bucket, FIRST)) == 8 * 40


@pytest.mark.timeout(900)
def test_rebuild_from_nothing_equals_plugins_rebuild(stack, peer, settings, spark):
    """Rebuild an empty view by the plugin and by Tagmill; compare all rows."""
    plugin = peer()
    plugin.write("--pids", "6", "--events", "20", "--tags", "3", "--tag-pool", "4", *SMALL, tagging=True)
    tables = (*VIEWS, "tag_scanning")
    plugin("rebuild", "--truncate")
    wanted = {
        table: stack.session.execute(f"SELECT * FROM {plugin.keyspace}.{table}").all() for table in tables
    }
    theirs = reached(stack, plugin.keyspace)
    assert len(wanted["tag_views"]) == 6 * 20 * 3
    for table in tables:
        stack.session.execute(f"TRUNCATE {plugin.keyspace}.{table}")
    configured = settings(plugin.keyspace, tags=["tag-0"], bucket_size="Hour", first_time_bucket=FIRST)
    rebuilt(configured, spark)
    for table in ("tag_views", "tag_scanning"):
        found = stack.session.execute(f"SELECT * FROM {plugin.keyspace}.{table}")
        assert sorted(found, key=repr) == sorted(wanted[table], key=repr), table
    # As above, the plugin's own line may stop at a row before the last.
    view = rows(stack, plugin.keyspace, "tag_views")
    assert reached(stack, plugin.keyspace) == last(view) and theirs.keys() == last(view).keys()
    assert all(number <= last(view)[key][2] for key, (_, _, number) in theirs.items())
