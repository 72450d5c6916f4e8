"""Every operation works with tables of any configured names, and with an event's tags in columns of two
ages.
"""

from datetime import UTC, datetime, timedelta

import pytest

from tagmill.audit.audit import audit
from tagmill.audit.repair import repair
from tagmill.config.settings import Settings
from tagmill.domain.journal_tables import JournalTables
from tagmill.errors import ConfigurationError
from tagmill.ledger import schema
from tagmill.queries import ReadJournal
from tagmill.views.migrate import migrate
from tagmill.views.migration_plan import Plan
from tagmill.views.persistence_ids import rebuild_ids
from tagmill.views.rebuild import rebuild
from tagmill.views.selection import Selection
from tests.support.auditing import audited
from tests.support.delivery import OWNER, clickhouse_rows, deliver, ids, only
from tests.support.erasing import erased
from tests.support.events import Journal, events, this_hour
from tests.support.journal_cleaning import cleaned

BEGIN = this_hour() - timedelta(hours=3)
NAMES = {"view": "by_tag", "messages": "happened", "metadata": "about", "all_persistence_ids": "pids"}
SETTINGS = {
    "view_table": "by_tag", "messages_table": "happened", "metadata_table": "about", "all_persistence_ids_table": "pids",
    "bucket_size": "Hour", "first_time_bucket": BEGIN.isoformat(), "tags": ["t"], "cleanup": {"other_readers": []},
}  # fmt: skip
LEDGER = ("progress", "view_progress", "audited_buckets", "cleaned_buckets", "deleted_ids")


@pytest.fixture
def renamed(stack, place):
    """Return the tables of an empty journal, under names that differ from the plugin's where they can be
    configured.
    """
    tables = JournalTables(place, **NAMES)
    for statement in schema.journal_tables(tables).values():
        stack.session.execute(statement)
    return tables


@pytest.mark.long
def test_operations_work_on_renamed_tables(renamed, stack, settings, spark):
    """Rebuild, deliver, audit, repair, clean, query, migrate and erase on renamed tables."""
    journal = Journal(stack.session, renamed.keyspace, renamed.view, renamed.messages)
    configured = settings(renamed.keyspace, **SETTINGS)
    name = only(configured)
    schema.apply(configured)
    records = [row for pid in ("a", "b", "c") for row in events(pid, range(1, 8), BEGIN)]
    journal.messages(records)
    assert rebuild_ids(configured, name, spark=spark).message.startswith(
        f"{renamed.keyspace}.pids: 3 added; 0 were listed"
    )
    rebuild(configured, name, Selection(), owner=OWNER, spark=spark)
    assert journal.rows() == records

    # A delivery fills a gap of the view from the journal; a repair restores a second one.
    journal.remove(records[2])
    deliver(configured, name, spark)
    delivered = [("t", row["persistence_id"], row["tag_pid_sequence_nr"]) for row in records]
    assert ids(clickhouse_rows(configured, name)) == delivered
    journal.remove(records[10])
    found = audit(configured, name, owner=OWNER, spark=spark)
    assert found.findings["missing_in_view"] == 1
    repair(configured, name, found.audit, spark=spark, owner=OWNER, who="tester", why="a test")
    assert journal.rows() == records

    assert cleaned(configured, ["b"], "to", to=3)["events"] == 3
    assert stack.session.execute(
        f"SELECT persistence_id, deleted_to FROM {renamed.keyspace}.about"
    ).all() == [("b", 3)]
    read = ReadJournal(spark, configured, name)
    assert sorted(row.persistence_id for row in read.current_persistence_ids().collect()) == ["a", "b", "c"]
    assert [row.sequence_nr for row in read.current_events_by_persistence_id("b").collect()] == [4, 5, 6, 7]
    assert read.current_events_by_tag("t").count() == len(records)

    planned = migrate(
        configured, name, Plan.of(offline=True, dry_run=True), owner=OWNER, spark=spark, dry_run=True
    )
    assert planned.schema_changes == [] and planned.pids.added == 0
    stack.session.execute(f"DROP TABLE {renamed.keyspace}.about")
    made = migrate(configured, name, Plan.of(["tables"]), owner=OWNER)
    assert [change.what for change in made.schema_changes] == ["table about"]

    assert erased(configured, ["a"])["counts"]["events"] == 7
    assert {row["persistence_id"] for row in journal.rows()} == {"b", "c"}
    assert sorted(
        row.persistence_id for row in stack.session.execute(f"SELECT * FROM {renamed.keyspace}.pids")
    ) == ["b", "c"]
    there = stack.session.execute(
        "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s", (renamed.keyspace,)
    )
    assert {row.table_name for row in there} == {*NAMES.values(), "tag_write_progress", "tag_scanning"}


def test_settings_pipelines_must_agree_on_tables(settings):
    configured = settings("k", **SETTINGS)
    one = configured.model_dump()
    (name,) = one["pipelines"]
    one["pipelines"]["other"] = {**one["pipelines"][name], "destination": "other", "view_table": "another"}
    Settings(**one)
    one["pipelines"]["other"]["messages_table"] = "messages"
    with pytest.raises(ValueError, match=r"must be those of pipeline .* which reads the same keyspace k"):
        Settings(**one)


def test_missing_table_is_named_as_configured(renamed, settings):
    configured = settings(renamed.keyspace, **{**SETTINGS, "messages_table": "events"})
    schema.apply(configured)
    with pytest.raises(ConfigurationError, match=f"keyspace {renamed.keyspace} has no table events"):
        cleaned(configured, ["b"], "to", to=3)


@pytest.mark.long
def test_event_with_old_and_new_tags_has_all(journal, stack, settings, spark):
    """Deliver, repair, query and clean events with tags in `tags` and in tag1 to tag3: every operation sees
    all of them.
    """
    old = journal()
    for name in ("tag1", "tag2", "tag3"):
        stack.session.execute(f"ALTER TABLE {old.keyspace}.messages ADD {name} text")
    configured = settings(
        old.keyspace,
        tags=["t", "u"],
        bucket_size="Hour",
        first_time_bucket=BEGIN.isoformat(),
        cleanup={"other_readers": []},
    )
    name = only(configured)
    schema.apply(configured)
    ours = [row for pid in ("a", "b") for row in events(pid, range(1, 6), BEGIN, "t")]
    theirs = [{**row, "tag_name": "u"} for row in ours]
    for row in ours:
        stack.session.execute(
            f"UPDATE {old.keyspace}.messages SET tag2 = 'u' WHERE persistence_id = %s AND partition_nr = "
            "0 AND sequence_nr = %s"
            " AND timestamp = %s",
            (row["persistence_id"], row["sequence_nr"], row["timestamp"]),
        )
    old.messages(ours)
    old.view([*ours, *theirs])
    # With progress of the plugin a repair may touch these rows.
    for row in (*ours, *theirs):
        stack.session.execute(
            f"INSERT INTO {old.keyspace}.tag_write_progress (persistence_id, tag, sequence_nr, "
            "tag_pid_sequence_nr, offset)"
            " VALUES (%s, %s, %s, %s, %s)",
            (
                row["persistence_id"],
                row["tag_name"],
                row["sequence_nr"],
                row["tag_pid_sequence_nr"],
                row["timestamp"],
            ),
        )
    # The search for the events of a gap finds one by its old tag.
    old.remove(theirs[2])
    deliver(configured, name, spark)
    expected = sorted(
        (row["tag_name"], row["persistence_id"], row["tag_pid_sequence_nr"]) for row in (*ours, *theirs)
    )
    assert ids(clickhouse_rows(configured, name)) == expected
    assert [row for row in old.rows() if row["tag_name"] == "u"] == theirs

    # A repair corrects such a row; it does not remove it from the view.
    old.view([{**theirs[6], "event": b"changed"}])
    found = audited(configured, spark)
    assert found.findings["differs_in_view"] == 1
    repair(configured, name, found.audit, spark=spark, owner=OWNER, who="tester", why="a test")
    assert [row for row in old.rows() if row["tag_name"] == "u"] == theirs
    assert not any(audited(configured, spark).findings.values())

    read = ReadJournal(spark, configured, name).current_events_by_persistence_id("a").collect()
    assert [sorted(row.tags) for row in read] == [["t", "u"]] * 5
    # An event that is delivered for its new tag only is not cleaned.
    late = events("a", [6], datetime.now(UTC) - timedelta(seconds=30), "t")
    old.both(late)
    stack.session.execute(
        f"UPDATE {old.keyspace}.messages SET tag1 = 'u' WHERE persistence_id = 'a' AND partition_nr = 0 "
        "AND sequence_nr = 6"
        " AND timestamp = %s",
        (late[0]["timestamp"],),
    )
    deliver(configured, name, spark)
    assert ("t", "a", 6) in ids(clickhouse_rows(configured, name))
    refused = {
        (line["persistence_id"], line["tag"]) for line in cleaned(configured, ["a"], "to", to=6)["refusals"]
    }
    assert refused == {("a", "u")}
