"""A build from messages alone writes, row for row and column for column, what the plugin itself wrote."""

from collections import Counter
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest

from local.fixtures import WITHOUT_VIEWS
from tagmill.cassandra.client import Cassandra
from tagmill.delivery.tag_views import steps
from tagmill.delivery.tag_views.verification import tag_table
from tagmill.domain.time_buckets import BucketSize
from tagmill.domain.timeuuid import from_datetime, ticks
from tagmill.errors import FenceRaised, GuardRefused, ViewDiffers, ViewNotBuilt
from tagmill.ledger import schema
from tagmill.ledger.runs import Ledger
from tagmill.ledger.view_builds import Builds
from tagmill.runs import checkpoints
from tagmill.runs.storage import RunFiles
from tagmill.views import event_reader, few_rows, many_rows, writer
from tagmill.views.build import build
from tagmill.views.delete import truncate
from tagmill.views.few_rows import events as few_events
from tagmill.views.model import Manifest
from tagmill.views.rebuild import rebuild
from tagmill.views.sealed_build import Attempt
from tagmill.views.selection import Selection
from tests.support.building import VIEWS, built, load_messages, recorded, records, rows
from tests.support.delivery import OWNER, as_row, clickhouse_rows, deliver, finish, only, verdicts
from tests.support.errors import raises
from tests.support.events import offset
from tests.support.leases import free_lease
from tests.support.rebucketing import configured as moved
from tests.support.rebucketing import in_buckets, rebucketed
from tests.support.topics import Crashed, crashing

pytestmark = pytest.mark.usefixtures("both_builds")

# Other tests here compare minute-buckets and partition-boundary after several builds, and bin/run compares orders.
HEALTHY = [
    "odd-names",
    *(
        pytest.param(case, marks=pytest.mark.long)
        for case in ("orders", "minute-buckets", "partition-boundary")
    ),
]


@pytest.mark.parametrize("case", HEALTHY)
def test_a_journal_without_views_gets_the_plugins_rows(case, stack, keyspace, settings, spark):
    journal = keyspace(case, WITHOUT_VIEWS)
    configured = settings(journal, case=case, views="tagmill")
    result = built(configured, spark)
    for table in VIEWS:
        assert rows(stack, journal, table) == recorded(case, table), table
    assert (result["rows"], result["waiting"]) == (len(recorded(case, "tag_views")), 0)
    before = {table: rows(stack, journal, table) for table in VIEWS} | {"records": records(stack, journal)}
    again = built(configured, spark)
    assert (again["rows"], again["moved"]) == (0, 0)
    assert before == {table: rows(stack, journal, table) for table in VIEWS} | {
        "records": records(stack, journal)
    }


@pytest.mark.long
def test_build_in_steps_equals_one_build(stack, keyspace, settings, spark):
    """Let the journal grow between builds, with a last step that is mostly untagged; the numbers continue."""
    case = "partition-boundary"
    journal = keyspace(case, ("metadata", "all_persistence_ids"))
    configured = settings(journal, case=case, views="tagmill")
    after, total = 0, 0
    for until in (1, 2, 13, 14, 29, 60):
        load_messages(stack.session, case, journal, after, until)
        total += built(configured, spark)["rows"]
        after = until
    for table in VIEWS:
        assert rows(stack, journal, table) == recorded(case, table), table
    assert total == len(recorded(case, "tag_views"))


def test_deliver_other_pipeline_reads_built_part_only(stack, keyspace, settings, spark):
    case, mirror = "partition-boundary", f"m_{uuid4().hex[:8]}"
    journal = keyspace(case, ("metadata", "all_persistence_ids"))
    configured = settings(journal, case=case, views="tagmill", long_look_back_seconds=0, look_back_seconds=0)
    other = configured.pipeline(only(configured)).model_copy(
        update={"views": "application", "destination": mirror}
    )
    both = configured.model_copy(update={"pipelines": {**configured.pipelines, mirror: other}})
    schema.apply(both)
    with raises(ViewNotBuilt, pipeline=mirror):
        steps.plan(both, mirror, owner=OWNER)
    load_messages(stack.session, case, journal, 0, 30)
    built(configured, spark)
    deliver(both, mirror, spark)
    with Ledger(configured.cassandra) as ledger:
        reached = {mark.ticks for mark in ledger.delivered.watermarks(mirror).values()}
        assert reached == {Builds(ledger.cassandra, "tagmill_test", journal).newest().built_to}
    # Rows that a build which is not done has written wait for nothing.
    tag, now = next(iter(other.tags)), datetime.now(UTC)
    key = (tag, other.bucket_size.start(from_datetime(now)), offset(now), "of-a-build", 1)
    where = "tag_name = %s AND timebucket = %s AND timestamp = %s AND persistence_id = %s AND tag_pid_sequence_nr = %s"
    stack.session.execute(f"UPDATE {journal}.tag_views SET sequence_nr = 1 WHERE {where}", key)
    lines = {line["tag"]: line for line in tag_table(both, mirror, verify=False)}
    assert lines[tag]["in_view"] == lines[tag]["delivered"] and lines[tag]["verdict"] == "counts agree"
    stack.session.execute(f"DELETE FROM {journal}.tag_views WHERE {where}", key)
    load_messages(stack.session, case, journal, 30, 60)
    built(configured, spark)
    deliver(both, mirror, spark)
    assert len(clickhouse_rows(both, mirror)) == len(recorded(case, "tag_views"))


def test_build_without_all_persistence_ids_reads_messages(stack, keyspace, settings, spark):
    journal = keyspace("odd-names", ("messages", "metadata"))
    built(settings(journal, case="odd-names", views="tagmill"), spark)
    for table in VIEWS:
        assert rows(stack, journal, table) == recorded("odd-names", table), table


@pytest.mark.parametrize("size", ["Day", "Minute"])
def test_build_other_bucket_size_changes_timebuckets_only(size, stack, keyspace, settings, spark):
    case = "partition-boundary"
    journal = keyspace(case, WITHOUT_VIEWS)
    built(settings(journal, case=case, views="tagmill", bucket_size=size), spark)
    expected = recorded(case, "tag_views")
    for row in expected:
        row["timebucket"] = BucketSize(size).start(ticks(UUID(row["timestamp"])))
    assert rows(stack, journal, "tag_views") == expected
    assert rows(stack, journal, "tag_write_progress") == recorded(case, "tag_write_progress")


def test_build_after_deletions_numbers_from_one(stack, keyspace, settings, spark):
    """Number what deletions left from 1, as the plugin's own rebuild does."""
    journal = keyspace("deleted-events", WITHOUT_VIEWS)
    result = built(settings(journal, case="deleted-events", views="tagmill"), spark)
    expected, numbers = [], Counter()
    for row in recorded("deleted-events", "tag_views"):
        left = stack.session.execute(
            f"SELECT sequence_nr FROM {journal}.messages WHERE persistence_id = %s AND partition_nr = 0 "
            "AND sequence_nr = %s",
            (row["persistence_id"], row["sequence_nr"]),
        )
        if left.one():
            numbers[row["tag_name"], row["persistence_id"]] += 1
            expected.append({**row, "tag_pid_sequence_nr": numbers[row["tag_name"], row["persistence_id"]]})
    assert rows(stack, journal, "tag_views") == expected
    assert result["waiting"] == 0


def test_build_adopts_and_continues_plugins_view(stack, keyspace, settings, spark):
    """Let the plugin write up to the 20th event of each persistence_id; Tagmill continues where it
    stopped.
    """
    journal = keyspace("minute-buckets", ("metadata", "all_persistence_ids"))
    load_messages(stack.session, "minute-buckets", journal, 0, 20)
    first = settings(journal, case="minute-buckets", views="tagmill")
    built(first, spark)
    stack.session.execute("TRUNCATE tagmill_test.view_progress")
    stack.session.execute("TRUNCATE tagmill_test.view_builds")  # as if the plugin had written it
    load_messages(stack.session, "minute-buckets", journal, 20, 60)
    with pytest.raises(GuardRefused, match="40 persistence ids.*Nothing was written.*--adopt"):
        built(first, spark)
    built(first, spark, adopt=True)
    for table in VIEWS:
        assert rows(stack, journal, table) == recorded("minute-buckets", table), table
    assert built(first, spark)["moved"] == 0


@pytest.mark.parametrize("few_ids", [-1, event_reader.FEW_IDS], ids=["workers", "process"])
def test_each_way_of_asking_finds_the_same(few_ids, monkeypatch, stack, keyspace, settings, spark):
    """Have workers, or this process, ask for the first new event of each persistence_id."""
    monkeypatch.setattr(event_reader, "FEW_IDS", few_ids)
    case = "partition-boundary"
    journal = keyspace(case, ("metadata", "all_persistence_ids"))
    configured = settings(journal, case=case, views="tagmill")
    for after, until in ((0, 15), (15, 60)):
        load_messages(stack.session, case, journal, after, until)
        built(configured, spark)
    for table in VIEWS:
        assert rows(stack, journal, table) == recorded(case, table), table


@pytest.mark.parametrize(
    ("most", "by_spark"),
    [(27, 2), (419, 2), (1043, 1), (1464, 0)],
    ids=["ids", "events of the first build", "new events", "none"],
)
def test_build_of_more_is_left_to_spark(most, by_spark, monkeypatch, stack, keyspace, settings, spark):
    """Build 28 persistence ids, at first 420 events, then 1,044; the case names what exceeds the limit."""
    monkeypatch.setattr(few_events, "SAMPLE", 3)
    numbered = []
    number = many_rows.number
    monkeypatch.setattr(many_rows, "number", lambda new: numbered.append(new) or number(new))
    monkeypatch.setattr(few_rows, "number", few_rows.number.__wrapped__)
    case = "partition-boundary"
    journal = keyspace(case, ("metadata", "all_persistence_ids"))
    configured = settings(journal, case=case, views="tagmill", small_run_rows=most)
    for after, until in ((0, 15), (15, 60)):
        load_messages(stack.session, case, journal, after, until)
        built(configured, spark)
    assert len(numbered) == by_spark
    for table in VIEWS:
        assert rows(stack, journal, table) == recorded(case, table), table


def test_build_late_writer_changes_nothing(stack, keyspace, settings, spark, monkeypatch):
    """Write the files of the first build again after the second one, as a frozen builder would."""
    monkeypatch.setattr(Attempt, "sweep", lambda self, folders: None)
    case = "partition-boundary"
    journal = keyspace(case, ("metadata", "all_persistence_ids"))
    configured = settings(journal, case=case, views="tagmill")
    load_messages(stack.session, case, journal, 0, 25)
    built(configured, spark)
    files = RunFiles(configured.storage.root)
    home = f"{only(configured)}/views"
    (first,) = files.folders(home)
    load_messages(stack.session, case, journal, 25, 60)
    built(configured, spark)
    before = {table: rows(stack, journal, table) for table in VIEWS} | {"records": records(stack, journal)}
    manifest = Manifest.model_validate_json(files.read(f"{home}/{first}/manifest.json"))
    with Cassandra(configured.cassandra) as cassandra:
        writer.write(lambda: spark, cassandra, files, manifest, lambda _: None)
    assert before == {table: rows(stack, journal, table) for table in VIEWS} | {
        "records": records(stack, journal)
    }
    assert before["tag_views"] == recorded(case, "tag_views")


def taken(session, journal, persistence_id, sequence_nr):
    """Delete an event from messages; return a function that puts it back."""
    where = f"FROM {journal}.messages WHERE persistence_id = %s AND partition_nr = 0 AND sequence_nr = %s"
    row = session.execute(f"SELECT * {where}", (persistence_id, sequence_nr)).one()._asdict()
    session.execute(f"DELETE {where}", (persistence_id, sequence_nr))
    names = [column for column, value in row.items() if value is not None]
    insert = f"INSERT INTO {journal}.messages ({', '.join(names)}) VALUES ({', '.join('%s' for _ in names)})"
    return lambda: session.execute(insert, [row[column] for column in names])


def test_deliver_events_built_late_exactly_once(stack, keyspace, settings, spark):
    """Let one persistence_id wait behind a gap while the others are delivered; filled, its old events are
    delivered, too.
    """
    case = "partition-boundary"
    journal, expected = keyspace(case, WITHOUT_VIEWS), recorded(case, "tag_views")
    fill = taken(stack.session, journal, "o-000007", 5)
    configured = settings(journal, case=case, views="tagmill", look_back_seconds=0, long_look_back_seconds=0)
    name = only(configured)
    assert built(configured, spark)["waiting"] == 1
    assert sum(run["rows"] for run in deliver(configured, name, spark)) < len(expected)
    fill()
    assert built(configured, spark)["waiting"] == 0
    (run,) = deliver(configured, name, spark)
    assert run["rows"] > 50 and run["held"] == 0
    assert clickhouse_rows(configured, name) == sorted(map(as_row, expected))
    assert set(verdicts(configured, name).values()) == {"exactly once"}


@pytest.mark.long
def test_deliver_events_built_late_in_bounded_runs(stack, keyspace, settings, spark):
    """Fill two gaps one after the other: the events behind them come in runs of at most
    `max_slices_per_run`.
    """
    journal = keyspace("minute-buckets", WITHOUT_VIEWS)
    fill_first, fill_second = (taken(stack.session, journal, one, 2) for one in ("o-000003", "o-000004"))
    configured = settings(
        journal,
        case="minute-buckets",
        views="tagmill",
        look_back_seconds=0,
        long_look_back_seconds=0,
        max_slices_per_run=6,
    )
    name = only(configured)
    built(configured, spark)
    deliver(configured, name, spark)
    fill_first()
    built(configured, spark)
    planned = [steps.plan(configured, name, owner=OWNER)]
    assert planned[0]["more"] and finish(configured, name, spark, planned[0])["rows"] > 0
    # The second gap is filled while the first one's events are delivered in part; its events start at the
    # beginning again.
    fill_second()
    built(configured, spark)
    while (step := steps.plan(configured, name, owner=OWNER))["run"]:
        planned.append(step)
        assert finish(configured, name, spark, step)["held"] == 0
    assert 5 <= len(planned) <= 7 and max(step["slices"] for step in planned) <= 6
    assert clickhouse_rows(configured, name) == sorted(
        as_row(row) for row in recorded("minute-buckets", "tag_views")
    )
    assert set(verdicts(configured, name).values()) == {"exactly once"}


def test_dry_runs_leave_running_build_alone(stack, keyspace, settings, spark, monkeypatch):
    """Look at the journal for another pipeline while a build is about to commit: the build ends as if alone."""
    case = "partition-boundary"
    journal = keyspace(case, ("metadata", "all_persistence_ids"))
    configured = settings(journal, case=case, views="tagmill")
    mirror = f"m_{uuid4().hex[:8]}"
    other = configured.pipeline(only(configured)).model_copy(update={"views": "application"})
    both = configured.model_copy(update={"pipelines": {**configured.pipelines, mirror: other}})
    schema.apply(configured)
    load_messages(stack.session, case, journal, 0, 60)
    reach, looks = checkpoints.reached, []

    def reached(instant):
        reach(instant)
        if instant == "build.before_commit":
            by = {"owner": "cli/other", "spark": spark, "dry_run": True}
            looks.append(rebuild(both, mirror, Selection(), **by).total("added"))
            looks.append(truncate(both, mirror, **by).total("removed"))

    monkeypatch.setattr(checkpoints, "reached", reached)
    with Cassandra(configured.cassandra) as cassandra:
        assert rebuild(both, mirror, Selection(), owner=OWNER, spark=spark, dry_run=True).total("added")
        assert Builds(cassandra, "tagmill_test", journal).newest() is None
        built(configured, spark)
        newest = Builds(cassandra, "tagmill_test", journal).newest()
    assert (newest.build, newest.fence) == (1, 1)
    assert looks == [len(recorded(case, "tag_views")), 0]
    assert rows(stack, journal, "tag_views") == recorded(case, "tag_views")


@pytest.mark.parametrize("sleeps_at", ["build.begun", "end"])
def test_build_woken_late_leaves_successors_files(sleeps_at, stack, keyspace, settings, spark, monkeypatch):
    """Freeze a build in front of its sweep until another has sealed and died: the next finishes that one."""
    case = "partition-boundary"
    journal = keyspace(case, ("metadata", "all_persistence_ids"))
    configured = settings(journal, case=case, views="tagmill")
    schema.apply(configured)
    load_messages(stack.session, case, journal, 0, 25)
    name, reach, finish_build, slept = only(configured), checkpoints.reached, Builds.finish, []

    def sleep():
        if slept:
            return
        slept.append(sleeps_at)
        free_lease(stack.session, name)
        load_messages(stack.session, case, journal, 25, 60)
        with crashing("build.after_commit"), pytest.raises(Crashed):
            build(configured, name, owner="cli/other", spark=lambda: spark)
        free_lease(stack.session, name)

    def reached(instant):
        reach(instant)
        if instant == sleeps_at:
            sleep()

    def finish_and_sleep(*args):
        finish_build(*args)
        if sleeps_at == "end":
            sleep()

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "reached", reached)
        patched.setattr(Builds, "finish", finish_and_sleep)
        if sleeps_at == "end":
            built(configured, spark)
        else:
            with raises(FenceRaised, pipeline=name):
                built(configured, spark)
    assert slept
    free_lease(stack.session, name)
    built(configured, spark)
    assert rows(stack, journal, "tag_views") == recorded(case, "tag_views")
    assert RunFiles(configured.storage.root).folders(f"{name}/views") == []


def test_build_after_killed_switch_takes_size(stack, keyspace, settings, spark):
    """Kill a switch before it tells the builds the new bucket size: a build with the new configuration goes on."""
    case = "partition-boundary"
    journal = keyspace(case, ("metadata", "all_persistence_ids"))
    configured = settings(journal, case=case, views="tagmill")
    load_messages(stack.session, case, journal, 0, 25)
    built(configured, spark)
    to = "Minute" if configured.pipeline(only(configured)).bucket_size == BucketSize.DAY else "Day"
    rebucketed(configured, spark, to)
    with crashing("rebucket.switched"), pytest.raises(Crashed):
        rebucketed(configured, spark, to, offline=True)
    free_lease(stack.session, only(configured))
    load_messages(stack.session, case, journal, 25, 60)
    with raises(ViewDiffers, pipeline=only(configured)):
        built(configured, spark)
    built(moved(configured, f"tag_views_{to.lower()}", to), spark)
    assert rows(stack, journal, f"tag_views_{to.lower()}") == in_buckets(recorded(case, "tag_views"), to)
