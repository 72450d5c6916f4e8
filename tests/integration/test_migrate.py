"""A migration turns an old journal into what the plugin's own would, however far it was migrated, and drops
nothing needed.
"""

import json
from collections import Counter
from contextlib import nullcontext
from datetime import UTC, datetime
from uuid import UUID

import pytest

from local.fixtures import Case
from spark_jobs import operation as job
from tagmill.cassandra.client import Cassandra
from tagmill.domain.time_buckets import BucketSize
from tagmill.domain.timeuuid import from_datetime
from tagmill.errors import GuardRefused, PersistenceIdsUnknown
from tagmill.journal.tag_view_reader import VIEW_COLUMNS
from tagmill.ledger import schema
from tagmill.ledger.view_builds import Builds
from tagmill.runs import checkpoints
from tagmill.views.migrate import migrate
from tagmill.views.migration_plan import Plan
from tagmill.views.rebuild import rebuild
from tests.integration.test_rebuild import changes
from tests.support import legacy
from tests.support.auditing import audited
from tests.support.building import recorded, rows
from tests.support.delivery import OWNER, clickhouse_rows, deliver, only, tagmill
from tests.support.errors import raises
from tests.support.events import SECOND, offset
from tests.support.stack import create_keyspace, own_keyspaces

CASE = legacy.CASE
ROWS = 3 * 410
TABLES = ["tag_views", "tag_write_progress", "tag_scanning", "metadata", "all_persistence_ids"]
GOES_ON, NINE = "o-000003", datetime(2026, 11, 21, 9, tzinfo=UTC)


@pytest.fixture
def old_journal(stack):
    """Return create(**options), which makes the keyspace of an old journal and returns its name."""
    with own_keyspaces(stack.session) as create:
        yield lambda **options: legacy.create(stack.session, create(), **options)


def migrated(settings, spark, *steps, dry_run=False, **options):
    """Apply the schema, migrate with these steps and options, and return the migration's report."""
    schema.apply(settings)
    plan = Plan.of(steps, dry_run=dry_run, **options)
    return migrate(settings, only(settings), plan, owner=OWNER, spark=spark, dry_run=dry_run)


def views(stack, journal):
    """Return the rows of tag_views and tag_write_progress."""
    return rows(stack, journal, "tag_views"), rows(stack, journal, "tag_write_progress")


def expected():
    """Return the rows that tag_views and tag_write_progress should have."""
    return recorded(CASE, "expected_tag_views"), recorded(CASE, "expected_tag_write_progress")


def write(stack, journal, table, **columns):
    """Insert a row into a table of the journal."""
    stack.session.execute(
        f"INSERT INTO {journal}.{table} ({', '.join(columns)}) VALUES ({', '.join(['%s'] * len(columns))})",
        tuple(columns.values()),
    )


def goes_on(stack, journal, moment, sequence_nr, number):
    """Write an event as the application would, with the view row and progress that the plugin adds."""
    at = offset(moment)
    event = {
        "persistence_id": GOES_ON,
        "sequence_nr": sequence_nr,
        "timestamp": at,
        "ser_id": 9001,
        "event": b"{}",
        "ser_manifest": "m",
        "event_manifest": "",
        "writer_uuid": "w",
    }
    bucket = BucketSize.HOUR.start(from_datetime(moment))
    write(stack, journal, "messages", partition_nr=0, timebucket="0", tags={"tag-0"}, **event)
    write(
        stack, journal, "tag_views", tag_name="tag-0", timebucket=bucket, tag_pid_sequence_nr=number, **event
    )
    progress = {"persistence_id": GOES_ON, "tag": "tag-0", "offset": at, "sequence_nr": sequence_nr}
    write(stack, journal, "tag_write_progress", tag_pid_sequence_nr=number, **progress)


def described(stack, journal):
    """Return the journal's schema as text."""
    return legacy.schema(stack.session, journal)


def test_migrate_old_journal_equals_plugins_and_is_delivered(stack, old_journal, settings, spark):
    """Migrate an old journal, first dry, then without and with the tags; the views are those of the plugin's
    migration.
    """
    journal = old_journal()
    configured, before = settings(journal, case=CASE), described(stack, journal)
    lost = {
        "persistence_id": "ancient",
        "partition_nr": 0,
        "timebucket": "0",
        "sequence_nr": 1,
        "message": b"\1",
        "tag1": "tag-0",
    }
    write(stack, journal, "messages", timestamp=UUID(expected()[0][0]["timestamp"]), **lost)
    named = migrated(
        configured, spark, "tags", dry_run=True, persistence_ids=["o-000003", "nobody", "nobody"]
    ).tags
    assert (named.unknown_ids, named.unknown_examples, named.persistence_ids) == (1, ["nobody"], 1)
    with raises(PersistenceIdsUnknown, pipeline=only(configured)):
        migrated(configured, spark, "tags", dry_run=True, persistence_ids=["nobody"])
    looked = migrated(configured, spark, dry_run=True, drop_old=True)
    assert [(line.persistence_id, line.sequence_nr) for line in looked.tags.left_examples] == [("ancient", 0)]
    stack.session.execute(
        f"DELETE FROM {journal}.messages WHERE persistence_id = 'ancient' AND partition_nr = 0"
    )
    assert described(stack, journal) == before
    assert [line.what.split()[1] for line in looked.schema_changes if line.step == "tables"] == TABLES
    added = [line.what.removeprefix("column ") for line in looked.schema_changes if line.step != "tables"]
    meta = ["meta_ser_id int", "meta_ser_manifest text", "meta blob"]
    snapshot = ["ser_id int", "ser_manifest text", "snapshot_data blob", *meta]
    assert added == [
        "messages.tags set<text>",
        *(f"messages.{one}" for one in meta),
        *(f"snapshots.{one}" for one in snapshot),
    ]
    assert (looked.pids.added, changes(looked.tags), looked.tags.persistence_ids) == (22, {"added": ROWS}, 20)
    assert len(looked.dropped) == 3 + 1 and "the steps before tags are not done" in looked.kept

    # Without --offline a migration does everything but the tags.
    done = migrated(configured, spark)
    assert (
        done.schema_changes == looked.schema_changes
        and done.tags is None
        and "tag1 to tag3 were not looked at" in done.message
    )
    assert views(stack, journal) == ([], [])
    looked = migrated(configured, spark, dry_run=True)
    assert (looked.schema_changes, looked.pids.added, changes(looked.tags)) == ([], 0, {"added": ROWS})
    done = migrated(configured, spark, offline=True)
    assert changes(done.tags) == {"added": ROWS} and done.tags.progress == 20 and done.tags.left == 0
    assert views(stack, journal) == expected()
    assert [
        row.tags for row in stack.session.execute(f"SELECT tags FROM {journal}.messages") if row.tags
    ] == []
    again = migrated(configured, spark, offline=True)
    assert (again.schema_changes, again.pids.added, changes(again.tags), again.tags.progress) == (
        [],
        0,
        {"same": ROWS},
        0,
    )

    deliver(configured, only(configured), spark)
    delivered = Counter(
        (row.tag, row.persistence_id, row.sequence_nr, row.offset)
        for row in clickhouse_rows(configured, only(configured))
    )
    assert delivered == Counter(
        (tag, *event) for tag in Case(CASE).tags for event in Case(CASE).delivered(tag)
    )


def test_migrate_rows_in_hours_seen_empty_are_delivered(stack, old_journal, settings, spark):
    """Deliver while the view is still empty, then migrate the tags: the next delivery brings all rows."""
    configured = settings(old_journal(views=0), case=CASE)
    migrated(configured, spark, "tables")
    assert deliver(configured, only(configured), spark) == []
    migrated(configured, spark, offline=True)
    deliver(configured, only(configured), spark)
    assert len(clickhouse_rows(configured, only(configured))) == ROWS


def test_migrate_job_dry_run_prints_and_reports(
    stack, old_journal, settings, spark, tmp_path, capsys, monkeypatch
):
    configured = settings(old_journal(), case=CASE)
    schema.apply(configured)
    monkeypatch.setattr(job, "session_when_asked", lambda *_, **__: nullcontext(lambda: spark))
    report, name = tmp_path / "report.json", only(configured)
    arguments = [
        "--config",
        str(settings.file(name)),
        "--pipeline",
        name,
        "--owner",
        OWNER,
        "--report",
        str(report),
    ]
    migrate_all = ("--operation", "views migrate", "--parameters", '{"drop_old": true}', "--dry-run")
    assert job.main([*arguments, *migrate_all]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [line["step"] for line in printed if "step" in line].count("tables") == len(TABLES)
    assert f"{ROWS} rows would be added" in json.loads(report.read_text())["result"]["message"]


def test_migrate_finds_snapshot_keyspace(stack, old_journal, settings, spark):
    journal = old_journal()
    configured = settings(journal, case=CASE)
    stack.session.execute(f"DROP TABLE {journal}.snapshots")
    assert "there is no table snapshots" in migrated(configured, spark, "columns", dry_run=True).message
    beside = f"{journal}_snapshot"
    create_keyspace(stack.session, beside)
    try:
        stack.session.execute(legacy.SNAPSHOTS.format(beside))
        done = migrated(configured, spark, "columns")
        assert (
            sum("column snapshots." in line.what for line in done.schema_changes) == 6
            and "no table snapshots" not in done.message
        )
        assert migrated(configured, spark, "columns", dry_run=True).schema_changes == []
    finally:
        stack.session.execute(f"DROP KEYSPACE {beside}")


def test_migrate_partly_migrated_journal_adds_missing_rows(stack, old_journal, settings, spark):
    """Migrate a journal with an incomplete table and a few rows, first for two persistence ids, then for
    all.
    """
    journal = old_journal(meta=True, views=0)
    configured = settings(journal, case=CASE)
    # The journal as an interrupted migration leaves it: a table without its newest columns, the column for
    # tags, a few rows.
    stack.session.execute(f"ALTER TABLE {journal}.messages ADD tags set<text>")
    migrated(configured, spark, "tables")
    for column in ("meta_ser_id", "meta_ser_manifest", "meta"):
        stack.session.execute(f"ALTER TABLE {journal}.tag_views DROP {column}")
    wanted, progress = expected()
    first = [row for row in wanted if row["persistence_id"] == "o-000003" and row["sequence_nr"] <= 9]
    for row in first:
        given = {name: row[name] for name in VIEW_COLUMNS if not name.startswith("meta")}
        write(stack, journal, "tag_views", **given | {"timestamp": UUID(row["timestamp"])})
    done = migrated(
        configured,
        spark,
        "columns",
        "tags",
        persistence_ids=["o-000003", "all-000001"],
    )
    assert [line.what for line in done.schema_changes if "tag_views" in line.what] == [
        "column tag_views.meta_ser_id int",
        "column tag_views.meta_ser_manifest text",
        "column tag_views.meta blob",
    ]
    named = [row for row in wanted if row["persistence_id"] in ("o-000003", "all-000001")]
    assert changes(done.tags) == {"same": len(first), "added": len(named) - len(first)} and done.pids is None
    assert views(stack, journal) == (
        named,
        [row for row in progress if row["persistence_id"] in ("o-000003", "all-000001")],
    )
    done = migrated(configured, spark, "tags", offline=True)
    assert changes(done.tags) == {"same": len(named), "added": ROWS - len(named)}
    assert views(stack, journal) == (wanted, progress)


@pytest.mark.long
def test_migrate_drop_old_needs_complete_migration(stack, old_journal, settings, spark, monkeypatch):
    """Refuse to drop old columns and views while anything needs them.

    Afterwards rebuilds keep the rows that only the view knows.
    """
    journal = old_journal()
    configured = settings(journal, case=CASE)
    with pytest.raises(GuardRefused, match="the steps before tags are not done. Nothing was dropped"):
        migrated(configured, spark, "pids", "tables", offline=True, drop_old=True)
    migrated(configured, spark)
    with pytest.raises(
        GuardRefused,
        match="the view isn't what the tags say: .* 1230 rows would be added.* Nothing was dropped",
    ):
        migrated(configured, spark, "tables", offline=True, drop_old=True)
    # An event that only the application can read stops the drop, with tags and without.
    lost = {"persistence_id": "ancient", "partition_nr": 0, "timebucket": "0", "message": b"\1"}
    moment = UUID(expected()[0][0]["timestamp"])
    write(stack, journal, "messages", sequence_nr=1, timestamp=moment, tag1="tag-0", **lost)
    done = migrated(configured, spark, "tags", offline=True)
    assert [(line.persistence_id, line.sequence_nr) for line in done.tags.left_examples] == [("ancient", 0)]
    assert "column message" in done.tags.left_examples[0].why and views(stack, journal) == expected()
    stack.session.execute(
        f"UPDATE {journal}.messages SET tag1 = null WHERE persistence_id = 'ancient' AND partition_nr = 0"
        f" AND sequence_nr = 1 AND timestamp = {moment} AND timebucket = '0'"
    )
    with pytest.raises(
        GuardRefused, match="1 events are in the column message, which only the application can read"
    ):
        migrated(configured, spark, "tags", offline=True, drop_old=True)
    stack.session.execute(
        f"DELETE FROM {journal}.messages WHERE persistence_id = 'ancient' AND partition_nr = 0"
    )
    stack.session.execute(legacy.VIEW.format(journal, 1).replace("eventsbytag1", "of_somebody"))
    with pytest.raises(GuardRefused, match=r"messages has other materialized views \(of_somebody\)"):
        migrated(configured, spark, "tags", offline=True, drop_old=True)
    stack.session.execute(f"DROP MATERIALIZED VIEW {journal}.of_somebody")

    looked = migrated(configured, spark, "tags", dry_run=True, drop_old=True)
    assert looked.kept is None and "MATERIALIZED" in described(stack, journal)
    reach = checkpoints.reached

    def reached(instant):
        reach(instant)
        if instant == "migrate.before_drop":
            with Cassandra(configured.cassandra) as cassandra:
                Builds(cassandra, "tagmill_test", journal).take_over("cli/other", "Hour")

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "reached", reached)
        with raises(GuardRefused, match="another process has numbered", pipeline=only(configured)):
            migrated(configured, spark, "tags", offline=True, drop_old=True)
    assert "MATERIALIZED" in described(stack, journal)
    done = migrated(configured, spark, "tags", offline=True, drop_old=True)
    assert done.dropped == looked.dropped and [line.what for line in done.dropped] == [
        *(f"materialized view eventsbytag{number}" for number in (1, 2, 3)),
        "columns of messages: tag1, tag2, tag3, message",
    ]
    left = described(stack, journal)
    assert "MATERIALIZED" not in left and "tag1" not in left and "message blob" not in left
    assert migrated(configured, spark, offline=True, drop_old=True).dropped == []

    # The application writes on: the next events of a persistence id get their tag's next numbers.
    known = max(
        row["sequence_nr"]
        for row in Case(CASE).table("messages").to_pylist()
        if row["persistence_id"] == GOES_ON
    )
    (number,) = (
        row["tag_pid_sequence_nr"]
        for row in expected()[1]
        if (row["persistence_id"], row["tag"]) == (GOES_ON, "tag-0")
    )
    for more in (1, 2):
        goes_on(stack, journal, NINE + more * SECOND, known + more, number + more)
    whole = views(stack, journal)
    assert len(whole[0]) == ROWS + 2
    chosen = Plan.of(["tags"], offline=True).selection
    report = rebuild(configured, only(configured), chosen, owner=OWNER, spark=spark)
    assert changes(report) == {"same": 2, "unknown": ROWS} and report.progress == 0
    stack.session.execute(
        f"DELETE FROM {journal}.tag_views WHERE tag_name = 'tag-0' AND timebucket = "
        f"{BucketSize.HOUR.start(from_datetime(NINE))}"
    )
    assert changes(rebuild(configured, only(configured), chosen, owner=OWNER, spark=spark)) == {
        "added": 2,
        "unknown": ROWS,
    }
    assert views(stack, journal) == whole
    # Rebuilds and repairs keep rows of events without tags, and the audit only warns of them.
    report = audited(configured, spark)
    assert not {"extra_in_view", "wrong_number"} & {kind.value for kind in report.findings}, report.findings
    assert any(f"{ROWS} rows of events that have no tags" in line for line in report.warnings)


def test_migrate_tags_in_both_places_are_merged(stack, keyspace, settings, spark):
    """Migrate an event with tags in tag1 to tag3 and in `tags`; dropping the old columns is refused then."""
    journal = keyspace(CASE)
    event = {
        "ser_id": 4,
        "ser_manifest": "",
        "event": b"e",
        "event_manifest": "",
        "writer_uuid": "w",
        "timestamp": offset(NINE),
    }
    tags = {"tag1": "tag-0", "tag2": "tag-9", "tags": {"tag-0", "tag-1"}}
    write(stack, journal, "messages", persistence_id="o-both", partition_nr=0, sequence_nr=1, **tags, **event)
    done = migrated(
        settings(journal, case=CASE),
        spark,
        "tags",
        offline=True,
    )
    assert changes(done.tags) == {"added": ROWS + 3}
    both = [
        (row["tag_name"], row["tag_pid_sequence_nr"])
        for row in rows(stack, journal, "tag_views")
        if row["persistence_id"] == "o-both"
    ]
    assert both == [("tag-0", 1), ("tag-1", 1), ("tag-9", 1)]
    # Without the old columns the event would seem to have fewer tags, and a rebuild would remove rows.
    with pytest.raises(
        GuardRefused, match="1 events have tags in tag1 to tag3 and others in tags.* Nothing was dropped"
    ):
        migrated(settings(journal, case=CASE), spark, "tables", offline=True, drop_old=True)


def test_migrate_unfit_journal_is_one_line(stack, old_journal, settings):
    """Name a column of another type, wrong snapshot keyspaces and a missing table in one line each, and
    change nothing.
    """
    journal = old_journal(views=0)
    stack.session.execute(f"ALTER TABLE {journal}.messages ADD meta text")
    configured, before = settings(journal, case=CASE), described(stack, journal)
    schema.apply(configured)
    file = settings.file(only(configured))
    command = ("views", "migrate", "--pipeline", only(configured))
    code, _, said = tagmill(file, *command, "--step", "tables", "--step", "columns", "--yes")
    assert (
        code == 2
        and "messages has a column meta of the type text, the plugin's has blob. Nothing was changed" in said
    )
    for options, words in (
        (("--snapshot-keyspace", "nowhere"), "keyspace nowhere does not exist"),
        (("--snapshot-keyspace", "tagmill_test"), "keyspace tagmill_test has no table snapshots"),
    ):
        code, _, said = tagmill(file, *command, "--step", "columns", "--dry-run", *options)
        assert code == 2 and words in said and len(said.splitlines()) == 1
    assert described(stack, journal) == before
    stack.session.execute(f"DROP TABLE {journal}.messages")
    code, _, said = tagmill(file, *command, "--dry-run", "--step", "tables")
    assert code == 2 and f"keyspace {journal} has no table messages. Nothing was changed" in said
