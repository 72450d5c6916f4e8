"""The plugin's events in the layout before 0.80, migrated by Tagmill: the tables equal those of the plugin's
migration.

The plugin then reads all events and writes more.
"""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from tagmill.ledger import schema
from tagmill.views.migrate import migrate
from tagmill.views.migration_plan import Plan
from tests.support.delivery import OWNER, clickhouse_rows, deliver, only

FIRST = f"{datetime.now(UTC) - timedelta(minutes=3):%Y%m%dT%H:%M}"
TABLES = ("tag_views", "tag_write_progress", "tag_scanning", "metadata", "all_persistence_ids")
SMALL = ("--set", "pekko.persistence.cassandra.journal.target-partition-size=10", "--batch", "7")
WRITE = (
    "--pids",
    "6",
    "--events",
    "25",
    "--tags",
    "3",
    "--untagged-every",
    "5",
    "--bucket",
    "Minute",
    "--linger",
    "3",
    *SMALL,
)


def migrated(settings, spark, **options):
    """Apply the schema, migrate with the application offline, and return the report."""
    schema.apply(settings)
    return migrate(settings, only(settings), Plan.of(offline=True, **options), owner=OWNER, spark=spark)


@pytest.mark.timeout(900)
def test_migrate_equals_plugins_and_plugin_continues(stack, peer, settings, spark):
    """Migrate an old journal by Tagmill and by the plugin and compare the tables.

    Then drop the old columns and let the plugin write more.
    """
    plugin = peer()
    configured = settings(
        plugin.keyspace, tags=["tag-0", "tag-1", "tag-2"], bucket_size="Minute", first_time_bucket=FIRST
    )

    def tables():
        return {
            table: sorted(map(repr, stack.session.execute(f"SELECT * FROM {plugin.keyspace}.{table}")))
            for table in TABLES
        }

    plugin.write(*WRITE)
    plugin("oldtags")
    plugin("delete", "--pid", "pid-000003", "--to", "12")
    stack.session.execute(f"ALTER TABLE {plugin.keyspace}.messages DROP tags")
    for table in ("tag_views", "tag_write_progress", "tag_scanning"):
        stack.session.execute(f"DROP TABLE IF EXISTS {plugin.keyspace}.{table}")
    migrated(configured, spark)
    ours = tables()
    assert len(ours["tag_views"]) == 3 * (6 * 20 - 10)
    for table in ("tag_views", "tag_write_progress"):
        stack.session.execute(f"TRUNCATE {plugin.keyspace}.{table}")
    plugin("migrate", "--bucket", "Minute")
    theirs = tables()
    # The plugin's tag_write_progress may stop at a row before the last, because it writes several rows at
    # once.
    assert {**theirs, "tag_write_progress": ours["tag_write_progress"]} == ours
    assert len(theirs["tag_write_progress"]) == 3 * 6

    migrated(configured, spark, drop_old=True, snapshot_keyspace=f"{plugin.keyspace}_snap")
    assert tables() == ours
    assert len(plugin.read("tag-0", "Minute", FIRST)) == 6 * 20 - 10
    # The persistent actors recover without the old columns and write more.
    plugin.write(*WRITE, tagging=True)
    deliver(configured, only(configured), spark)
    found = Counter(
        (row.tag, row.persistence_id, row.tag_pid_sequence_nr)
        for row in clickhouse_rows(configured, only(configured))
    )
    assert found == Counter(
        (f"tag-{tag}", f"pid-{pid:06d}", number)
        for tag in range(3)
        for pid in range(6)
        for number in range(1, 31 if pid == 3 else 41)
    )
    before = tables()["tag_views"]
    report = migrated(configured, spark).tags
    assert tables()["tag_views"] == before and (report.total("unknown"), report.total("same")) == (
        3 * (6 * 20 - 10),
        3 * 6 * 20,
    )
    assert len(plugin.read("tag-2", "Minute", FIRST)) == 2 * 6 * 20 - 10
