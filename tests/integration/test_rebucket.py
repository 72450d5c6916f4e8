"""A view in buckets of another size: the copy, the switch, deliveries before and after it, and what is
refused.
"""

import time
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from tagmill.cassandra.client import Cassandra
from tagmill.clickhouse.client import ClickHouse
from tagmill.delivery.tag_views import steps
from tagmill.delivery.tag_views.interventions import Interventions
from tagmill.delivery.tag_views.verification import tag_table
from tagmill.domain.journal_tables import JournalTables
from tagmill.domain.time_buckets import BucketSize, first_ticks
from tagmill.domain.timeuuid import from_datetime
from tagmill.errors import (
    ApplicationAtWork,
    ConfigurationError,
    DataQualityStop,
    GuardRefused,
    LeaseTaken,
    ViewDiffers,
    WorkUnfinished,
)
from tagmill.journal.tag_view_reader import Views
from tagmill.ledger import schema
from tagmill.ledger.cleanups import Cleaning, CleanupLog
from tagmill.ledger.view_tables import JournalViews
from tagmill.queries import ReadJournal
from tagmill.runs import checkpoints
from tagmill.views.rebucket.rebucket import abandon
from tagmill.views.rebuild import rebuild
from tagmill.views.selection import Selection
from tagmill.views.tags import tags
from tests.support.auditing import audited
from tests.support.building import built, load_messages, recorded, rows
from tests.support.cleaning import cleaned, with_keys
from tests.support.delivery import (
    OWNER,
    clickhouse_rows,
    deliver,
    delivered_first,
    manifests,
    only,
    tagmill,
    verdicts,
)
from tests.support.errors import raises
from tests.support.events import Journal, event, events
from tests.support.leases import free_lease
from tests.support.rebucketing import configured, in_buckets, rebucketed, same_rows, switched, tables

BEGIN = datetime.now(UTC).replace(hour=9, minute=0, second=0, microsecond=0) - timedelta(days=2)
WITHOUT_VIEWS = ("messages", "metadata", "all_persistence_ids")


def identities(settings):
    """Return what identifies each row in ClickHouse, duplicates included, without the bucket that it was
    delivered from.
    """
    return sorted(
        (row.tag, row.persistence_id, row.tag_pid_sequence_nr, row.offset, row.event)
        for row in clickhouse_rows(settings, only(settings))
    )


def assert_counted_by_time(settings, tag):
    """Assert that a cleanup finds each new partition's rows in ClickHouse, whatever timebucket they were
    delivered from.
    """
    pipeline = settings.pipeline(only(settings))
    with Cassandra(settings.cassandra) as cassandra, ClickHouse(settings.clickhouse) as clickhouse:
        views = Views(cassandra, pipeline.journal)
        buckets = views.buckets([tag])[tag]
        counts = [rows for rows, _ in views.written((tag, bucket) for bucket in buckets)]
        found = clickhouse.bucket_rows(
            pipeline.destination, tag, buckets[:100], pipeline.bucket_size.milliseconds
        )
    assert found == dict(zip(buckets[:100], counts[:100], strict=True))


def goes_on(stack, keyspace, settings, case, tag):
    """Write the next event of some persistence ids, as the application would, into the view that the
    configuration names.
    """
    view, now = settings.pipeline(only(settings)).view, datetime.now(UTC) - timedelta(milliseconds=50)
    last = [row for row in recorded(case, "tag_write_progress") if row["tag"] == tag][:5]
    new = [
        event(
            row["persistence_id"],
            row["tag_pid_sequence_nr"] + 1,
            now,
            tag,
            sequence_nr=1000,
            timebucket=view.size.start(from_datetime(now)),
        )
        for row in last
    ]
    Journal(stack.session, keyspace, view.table).view(new)
    return new


@pytest.mark.parametrize(
    ("case", "to", "tag"),
    [
        pytest.param("orders", "Day", "order", marks=pytest.mark.long),
        ("odd-names", "Minute", "100%"),
        pytest.param("minute-buckets", "Hour", "tag-0", marks=pytest.mark.long),
    ],
)
def test_deliver_after_rebucket_sends_nothing_twice(case, to, tag, stack, keyspace, settings, spark):
    """Rebucket a delivered view and go on: each row arrives once, also of a withdrawn batch; then drop the
    old table.
    """
    journal = keyspace(case)
    before = settings(journal, case=case)
    delivered_first(before, spark)
    counted = rebucketed(before, spark, to, dry_run=True)
    assert (counted["rows"], counted["dry_run"]) == (len(recorded(case, "tag_views")), True)
    assert f"tag_views_{to.lower()}" not in tables(stack, journal)
    after = switched(before, spark, to)
    expected = in_buckets(recorded(case, "tag_views"), to)
    table = f"tag_views_{to.lower()}"
    same_rows(stack, journal, table, expected)
    same_rows(stack, journal, "tag_views", recorded(case, "tag_views"))
    with raises(ViewDiffers, pipeline=only(before)):
        deliver(before, only(before), spark)
    assert deliver(after, only(after), spark) == []
    first = identities(after)
    assert_counted_by_time(after, tag)
    if case == "minute-buckets":  # a batch delivered from buckets of the old size is found
        batch = manifests(after, only(after))[0].batches[0]
        Interventions(after, only(after), OWNER, "tester", "a test").withdraw(UUID(batch.batch_id), 1)
        assert len(identities(after)) == len(first) - batch.rows
        deliver(after, only(after), spark, reread=("2026-11-21T00:00:00Z", "2026-11-22T00:00:00Z"))
        assert identities(after) == first
    new = goes_on(stack, journal, after, case, tag)
    assert sum(run["rows"] for run in deliver(after, only(after), spark)) == len(new) == 5
    assert len(set(identities(after))) == len(identities(after)) == len(first) + 5
    dropped = rebucketed(after, spark, to, drop_old=True)
    assert "tag_views" not in tables(stack, journal) and {line["verdict"] for line in dropped["tags"]} <= {
        "equal",
        "1 partitions differ",
    }
    assert rebucketed(after, spark, to, drop_old=True)["message"] == dropped["message"]


@pytest.mark.long
def test_rebucket_there_and_back_with_own_views(stack, keyspace, settings, spark):
    """Build and deliver in part, rebucket from Minute to Day, build and deliver more, and rebucket to Minute
    again.
    """
    journal = keyspace("minute-buckets", WITHOUT_VIEWS[1:])
    minute = settings(journal, case="minute-buckets", views="tagmill")
    load_messages(stack.session, "minute-buckets", journal, 0, 20)
    built(minute, spark)
    deliver(minute, only(minute), spark)
    day = switched(minute, spark, "Day")
    load_messages(stack.session, "minute-buckets", journal, 20, 60)
    with raises(ViewDiffers, pipeline=only(minute)):
        built(minute, spark)
    built(day, spark)
    same_rows(stack, journal, "tag_views_day", in_buckets(recorded("minute-buckets", "tag_views"), "Day"))
    assert sum(run["rows"] for run in deliver(day, only(day), spark)) > 1000
    again = switched(day, spark, "Minute")
    same_rows(stack, journal, "tag_views_minute", recorded("minute-buckets", "tag_views"))
    assert built(again, spark)["rows"] == 0 and deliver(again, only(again), spark) == []
    assert len(identities(again)) == len(set(identities(again))) == 2000
    report = audited(again, spark)
    assert (report.findings, report.view, report.clickhouse) == ({}, 2000, 2000)
    assert set(verdicts(again, only(again)).values()) == {"exactly once"}


def test_rebucket_misplaced_rows_go_where_they_belong(stack, keyspace, settings, spark):
    """Rebucket a view with rows in a wrong bucket, one of them a second copy: the copy in the right bucket
    stays.
    """
    journal = keyspace("late-previous-bucket")
    hour = settings(journal, case="late-previous-bucket")
    schema.apply(hour)
    healthy = recorded("late-previous-bucket", "tag_views")
    row = next(row for row in healthy if row["tag_name"] == "tag-1" and row["tag_pid_sequence_nr"] == 2)
    Journal(stack.session, journal).view(
        [{**row, "timebucket": row["timebucket"] - 3_600_000, "event": b"another copy"}]
    )
    copied = rebucketed(hour, spark, "Day")
    assert (copied["misplaced"], copied["twice"]) == (2, 1)
    done = rebucketed(hour, spark, "Day", offline=True)
    same_rows(stack, journal, "tag_views_day", in_buckets(healthy, "Day"))
    assert {line["verdict"] for line in done["tags"]} == {"equal"}
    assert any(
        "2 rows lie in a bucket of tag_views that their time isn't in" in warning
        for warning in done["warnings"]
    )


def test_rebucket_keeps_write_times_and_ttls(stack, journal, settings, spark):
    made = journal()
    made.view(events("kept", [1, 2], BEGIN))
    (dying,) = events("dying", [1], BEGIN)
    columns = [name for name, value in dying.items() if value is not None]
    stack.session.execute(
        f"INSERT INTO {made.keyspace}.tag_views ({', '.join(columns)}) VALUES "
        f"({', '.join('%s' for _ in columns)})"
        " USING TIMESTAMP 1234567890123456 AND TTL 90000",
        [dying[name] for name in columns],
    )
    stack.session.execute(
        f"ALTER TABLE {made.keyspace}.tag_views WITH default_time_to_live = 7777777 AND gc_grace_seconds "
        "= 4321"
    )
    hour = settings(made.keyspace, tags=["t"], bucket_size="Hour", first_time_bucket=BEGIN.isoformat())
    schema.apply(hour)
    rebucketed(hour, spark, "Minute")
    times = "persistence_id, writetime(event) AS written, ttl(event) AS left"
    found = {
        table: {
            row.persistence_id: row
            for row in stack.session.execute(f"SELECT {times} FROM {made.keyspace}.{table}")
        }
        for table in ("tag_views", "tag_views_minute")
    }
    for name in ("kept", "dying"):
        assert found["tag_views_minute"][name].written == found["tag_views"][name].written
    assert found["tag_views_minute"]["kept"].left is None and found["tag_views"]["kept"].left is None
    assert 80_000 < found["tag_views_minute"]["dying"].left <= 90_000
    (options,) = stack.session.execute(
        "SELECT default_time_to_live, gc_grace_seconds FROM system_schema.tables WHERE keyspace_name = "
        "%s AND table_name = %s",
        (made.keyspace, "tag_views_minute"),
    )
    assert tuple(options) == (7777777, 4321)


def test_rebucket_rows_expiring_meanwhile_stop_no_switch(stack, journal, settings, spark):
    """Let a row expire between the copy and the comparison: the tables count as equal, and the view is
    switched.
    """
    made = journal()
    made.view(events("kept", range(1, 6), BEGIN))
    (dying,) = events("dying", [1], BEGIN)
    names = [name for name, value in dying.items() if value is not None]
    put = (
        f"INSERT INTO {made.keyspace}.tag_views ({', '.join(names)}) VALUES "
        f"({', '.join('%s' for _ in names)}) USING TTL 4"
    )
    hour = settings(made.keyspace, tags=["t"], bucket_size="Hour", first_time_bucket=BEGIN.isoformat())
    schema.apply(hour)

    def expires(text):
        if text.startswith("reading"):
            stack.session.execute(put, [dying[name] for name in names])
        if text.startswith("comparing"):
            time.sleep(5)

    done = rebucketed(hour, spark, "Minute", offline=True, tell=expires)
    assert (done["step"], done["rows"], done["differing"]) == ("switched", 6, 0)
    assert done["tags"][0]["verdict"] == "equal, but for what expired meanwhile"
    same_rows(
        stack,
        made.keyspace,
        "tag_views_minute",
        in_buckets(rows(stack, made.keyspace, "tag_views"), "Minute"),
    )


def test_rebucket_finds_changes_since_the_copy(stack, journal, settings, spark):
    """Change the old table between copy and switch, and the new one after it; rows written by others are
    never removed.
    """
    made = journal()
    written = [row for pid in ("a", "b", "c") for row in events(pid, range(1, 9), BEGIN)]
    written += [event("e", number, BEGIN - timedelta(hours=number)) for number in range(1, 6)]
    made.view(written, written_at=1_700_000_000_000_000)
    hour = settings(made.keyspace, tags=["t"], bucket_size="Hour", first_time_bucket=BEGIN.isoformat())
    schema.apply(hour)
    copied = rebucketed(hour, spark, "Minute")
    assert (copied["copied_rows"], copied["tags"][0]["partitions_before"]) == (29, 6)
    late = events("a", [9, 10], BEGIN)
    made.view(late)
    made.remove(written[3])
    new_table = Journal(stack.session, made.keyspace, "tag_views_minute")
    (foreign,) = events("d", [1], BEGIN, timebucket=BucketSize.MINUTE.start(from_datetime(BEGIN)))
    # As if it had been copied before its event was deleted.
    (dead,) = events("g", [1], BEGIN, timebucket=BucketSize.MINUTE.start(from_datetime(BEGIN)))
    made.deleted_to("g", 1)
    new_table.view([foreign, dead])
    with raises(
        ApplicationAtWork,
        match="has 1 rows that tag_views has not, written since it was made.*'d', number 1",
        pipeline=only(hour),
    ):
        rebucketed(hour, spark, "Minute", offline=True)
    assert any(row["persistence_id"] == "d" for row in rows(stack, made.keyspace, "tag_views_minute"))
    new_table.remove(foreign)
    done = rebucketed(hour, spark, "Minute", offline=True)
    assert done["removed"] == ["tag 't', 'a', number 4", "tag 't', 'g', number 1"]
    assert (
        done["tags"][0]["checksum"] == done["tags"][0]["checksum_in_target"]
        and done["tags"][0]["rows_in_target"] == 30
    )
    same_rows(
        stack,
        made.keyspace,
        "tag_views_minute",
        in_buckets(rows(stack, made.keyspace, "tag_views"), "Minute"),
    )
    # Changes in the new table since the switch: a row is deleted with its event, another gets its right
    # number. Nothing reads the table that the application no longer writes.
    for look in (tag_table, tags, lambda *of: ReadJournal(spark, *of).current_events_by_tag("t")):
        with raises(ViewDiffers, pipeline=only(hour)):
            look(hour, only(hour))
    made.deleted_to("b", 2)
    (gone, moved) = (in_buckets(events(name, [2], BEGIN), "Minute")[0] for name in ("b", "c"))
    new_table.remove(gone)
    new_table.remove(moved)
    new_table.view([{**moved, "tag_pid_sequence_nr": 22}])
    made.view(events("a", [11], BEGIN))  # as a node with the old settings would
    with raises(
        GuardRefused,
        match=r"tag_views has 1 rows that tag_views_minute has not.*'a', number 11\)\. Nothing was dropped",
        pipeline=only(hour),
    ):
        rebucketed(configured(hour, "tag_views_minute", "Minute"), spark, "Minute", drop_old=True)
    assert "tag_views" in tables(stack, made.keyspace)
    made.remove(events("a", [11], BEGIN)[0])
    dropped = rebucketed(configured(hour, "tag_views_minute", "Minute"), spark, "Minute", drop_old=True)
    assert dropped["warnings"] == [
        "2 rows of tag_views were deleted with their events, or replaced, in tag_views_minute since"
    ]
    assert "tag_views" not in tables(stack, made.keyspace)


def test_rebucket_takes_over_own_changes_of_source(stack, journal, settings, spark):
    """Renumber and clean rows of the source that were written and copied since the target was made, then add a
    column to the new table: the switch and the drop go through.
    """
    made = journal()
    minute = BEGIN.replace(minute=30)
    made.view(events("a", [1, 2], BEGIN))
    hour = settings(made.keyspace, tags=["t"], bucket_size="Hour", first_time_bucket=BEGIN.isoformat())
    schema.apply(hour)
    rebucketed(hour, spark, "Minute")
    renumbered, taken = event("b", 1, minute), event("c", 1, BEGIN - timedelta(hours=3))
    made.view([renumbered, taken])
    rebucketed(hour, spark, "Minute")
    made.remove(renumbered)
    made.view([{**renumbered, "tag_pid_sequence_nr": 7}])
    with Cassandra(hour.cassandra) as cassandra:
        log = CleanupLog(cassandra, "tagmill_test", made.keyspace, hour.pipeline(only(hour)).view)
        cleaning = Cleaning("t", taken["timebucket"], 1, datetime.now(UTC))
        log.decide(only(hour), cleaning)
        made.remove(taken)
        log.done(only(hour), cleaning)
    done = rebucketed(hour, spark, "Minute", offline=True)
    assert done["removed"] == ["tag 't', 'b', number 1", "tag 't', 'c', number 1"]
    expected = in_buckets(rows(stack, made.keyspace, "tag_views"), "Minute")
    same_rows(stack, made.keyspace, "tag_views_minute", expected)
    stack.session.execute(f"ALTER TABLE {made.keyspace}.tag_views_minute ADD other text")
    now = configured(hour, "tag_views_minute", "Minute")
    rebucketed(now, spark, "Minute", drop_old=True)
    assert "tag_views" not in tables(stack, made.keyspace)


def test_rebucket_application_at_work_stops_switch(stack, keyspace, settings, spark):
    journal = keyspace("partition-boundary")
    hour = settings(journal, case="partition-boundary")
    schema.apply(hour)
    (row, *_) = recorded("partition-boundary", "tag_write_progress")

    def writes(text):
        if text.startswith("comparing"):
            stack.session.execute(
                f"UPDATE {journal}.tag_write_progress SET tag_pid_sequence_nr = 99 WHERE persistence_id "
                "= %s AND tag = %s",
                (row["persistence_id"], row["tag"]),
            )

    with raises(
        ApplicationAtWork,
        match=f"{row['persistence_id']}' moved meanwhile.*now 99.*Nothing was switched",
        pipeline=only(hour),
    ):
        rebucketed(hour, spark, "Day", offline=True, tell=writes)
    assert deliver(hour, only(hour), spark)  # the old view is in force, and deliveries continue
    assert switched(hour, spark, "Day").pipeline(only(hour)).view_table == "tag_views_day"


def test_rebucket_wrong_request_is_refused_by_name(stack, journal, settings, spark):
    """Make each wrong request: its message names the fault, and no row is lost."""
    made = journal()
    made.both(events("a", range(1, 41), BEGIN))
    hour = settings(
        made.keyspace,
        tags=["t"],
        bucket_size="Hour",
        first_time_bucket=BEGIN.isoformat(),
        quality={"min_rows_for_share": 40},
    )
    schema.apply(hour)
    file, name = settings.file(only(hour)), only(hour)

    def said(*arguments):
        code, _, err = tagmill(file, "views", "rebucket", "--pipeline", name, *arguments)
        return code, err.strip()

    planned = steps.plan(hour, name, owner=OWNER)
    with raises(WorkUnfinished, pipeline=name, run=1):
        rebucketed(hour, spark, "Minute", offline=True)
    with raises(
        GuardRefused,
        match=r"tag_views \(Hour\), the pipeline now reads others",
        pipeline=name,
        run=planned["run"],
    ):
        other = configured(hour, "others", "Minute")
        steps.seal(other, name, planned["run"], planned["fence"], owner=OWNER, spark=lambda: spark)
    assert tagmill(file, "run", "abandon", "--pipeline", name, "--why", "a test", "--yes")[0] == 0
    code, text = said("--to", "Hour")
    assert code == 2 and text.endswith("its view has buckets of the size Hour already. Nothing was done")
    assert said("--to", "Day", "--table", "Views")[1].endswith("so it has to be in lower case")
    for table, words in (
        ("tag-views-day", "is no identifier"),
        ("tag_views", "in use"),
        ("messages", "in use"),
    ):
        assert words in said("--to", "Day", "--table", table, "--yes")[1]
    assert "no rebucket is under way" in said("--to", "Day", "--abandon")[1]
    stack.session.execute(
        f"CREATE TABLE {made.keyspace}.others (tag_name text, timebucket bigint, x int, PRIMARY KEY "
        "((tag_name, timebucket)))"
    )
    stack.session.execute(f"INSERT INTO {made.keyspace}.others (tag_name, timebucket) VALUES ('theirs', 7)")
    assert (
        "has rows that no rebucket under way has written (tag 'theirs', timebucket 7)"
        in said("--to", "Day", "--table", "others")[1]
    )
    with pytest.raises(
        DataQualityStop,
        match="40 of 40 rows are not in the Day bucket of their time, the pipeline says Day.*set bucket_size",
    ):
        rebucketed(configured(hour, "tag_views", "Day"), spark, "Minute", dry_run=True)
    made.view([event("old", 1, datetime(1969, 6, 1, tzinfo=UTC), timebucket=0)])
    with pytest.raises(
        DataQualityStop, match="the timestamp of 1 rows is no TimeUUID of this age .tag 't', 'old'"
    ):
        rebucketed(hour, spark, "Day")
    made.session.execute(f"DELETE FROM {made.keyspace}.tag_views WHERE tag_name = 't' AND timebucket = 0")
    rebucketed(hour, spark, "Day")
    code, text = said("--to", "Minute", "--yes")
    assert (
        code == 2
        and "a rebucket into tag_views_day (Day) is under way" in text
        and text.endswith("--to Day --abandon")
    )
    with raises(
        ViewDiffers,
        match=r"says tag_views_day \(Day\).*set view_table = \"tag_views\" and bucket_size = \"Hour\"",
        pipeline=name,
    ):
        deliver(configured(hour, "tag_views_day", "Day"), name, spark)
    assert abandon(hour, name, owner=OWNER)["dry_run"] and "tag_views_day" in tables(stack, made.keyspace)
    abandon(hour, name, owner=OWNER, dry_run=False)
    assert "tag_views_day" not in tables(stack, made.keyspace)
    stack.session.execute(f"DROP TABLE {made.keyspace}.tag_write_progress")
    assert "has no table tag_write_progress" in said("--to", "Minute")[1]
    assert len(rows(stack, made.keyspace, "tag_views")) == 40


@pytest.mark.long
def test_rebucket_cleaned_rows_stay_cleaned(stack, keyspace, settings, spark):
    """Clean partitions, then rebucket to Day and back: the audit still counts their rows as cleaned."""
    journal = keyspace("minute-buckets")
    minute = settings(journal, case="minute-buckets")
    delivered_first(minute, spark)
    view, name = minute.pipeline(only(minute)).view, only(minute)
    with Cassandra(minute.cassandra) as cassandra:
        views, cleaned = (
            Views(cassandra, JournalTables(journal, view.table)),
            CleanupLog(cassandra, "tagmill_test", journal, view),
        )
        for bucket in views.buckets(["tag-0"])["tag-0"][:3]:
            ((count, _),) = views.written([("tag-0", bucket)])
            cleaned.decide(name, Cleaning("tag-0", bucket, count, datetime.now(UTC)))
            views.delete_partition("tag-0", bucket, first_ticks(2**40))
            cleaned.done(name, Cleaning("tag-0", bucket, count, datetime.now(UTC)))
    gone = 2000 - len(rows(stack, journal, "tag_views"))
    assert gone > 100
    for size in ("Day", "Minute"):
        minute = switched(minute, spark, size)
        report = audited(minute, spark)
        assert (report.findings, report.journal, report.view, report.clickhouse) == (
            {},
            2000,
            2000 - gone,
            2000,
        )
        assert (
            set(verdicts(minute, name).values()) == {"exactly once"}
            and sum(line.cleaned for line in report.tags) == gone
        )
        with Cassandra(minute.cassandra) as cassandra:
            record = CleanupLog(cassandra, "tagmill_test", journal, minute.pipeline(name).view)
            day = BucketSize.DAY.start(from_datetime(datetime(2026, 11, 21, 8, tzinfo=UTC)))
            assert record.rows_before("tag-0", day) == (gone if size == "Day" else 0)
            if size == "Day":
                # Only minutes of this Day partition were cleaned: a row lost from the other minutes is missed
                # and restored.
                of_tag = [row for row in rows(stack, journal, "tag_views_day") if row["tag_name"] == "tag-0"]
                last = max(of_tag, key=lambda row: UUID(row["timestamp"]).time)
                Journal(stack.session, journal, "tag_views_day").remove(last)
                assert dict(audited(minute, spark).findings) == {"missing_in_view": 1}
                report = rebuild(minute, name, Selection(), owner=OWNER, spark=spark)
                assert (report.total("added"), report.total("cleaned")) == (1, gone)
                assert (
                    sum(run["rows"] for run in deliver(minute, name, spark)) == 0
                )  # the row is read, and was delivered before
                # Rebucket into the old name again: the rows cleaned under that name stay known.
                rebucketed(minute, spark, size, drop_old=True)
                with pytest.raises(
                    ConfigurationError,
                    match="had its view in a table of this name with buckets of the size Minute",
                ):
                    rebucketed(minute, spark, "Hour", table="tag_views")
                for again in range(2):
                    rebucketed(minute, spark, "Minute", table="tag_views")
                    assert (
                        CleanupLog(cassandra, "tagmill_test", journal, record.view).total("tag-0", 0) == gone
                    ), again
                    abandon(minute, name, owner=OWNER, dry_run=False)
                    assert (
                        CleanupLog(cassandra, "tagmill_test", journal, record.view).total("tag-0", 0) == gone
                    ), again


@pytest.fixture
def asleep(stack, monkeypatch):
    """Return asleep(settings, instant, work): when this process first reaches the instant, it loses its leases, and
    others do the work before it wakes.
    """

    def sleep(configured, instant, work):
        reach, slept = checkpoints.reached, []

        def reached(checkpoint):
            reach(checkpoint)
            if checkpoint == instant and not slept:
                slept.append(checkpoint)
                name = only(configured)
                for lease in (name, f"{configured.pipeline(name).keyspace}/rebucket"):
                    free_lease(stack.session, lease)
                work()

        monkeypatch.setattr(checkpoints, "reached", reached)
        return slept

    return sleep


def test_rebucket_woken_late_drops_no_view(stack, keyspace, settings, spark, asleep):
    """Freeze an abandon, then a drop of the old table, until the table is the view in force: it stays."""
    journal = keyspace("gap-middle")
    # What is frozen renews no lease: not before the end of the others' work.
    hour = settings(journal, case="gap-middle", lease_seconds=3600)
    schema.apply(hour)
    name, minute, back = only(hour), configured(hour, "tag_views_minute", "Minute"), []
    rebucketed(hour, spark, "Minute")

    def abandoned_and_switched():
        abandon(hour, name, owner="cli/other", dry_run=False)
        switched(hour, spark, "Minute")

    slept = asleep(hour, "rebucket.before_drop", abandoned_and_switched)
    with raises(LeaseTaken):
        abandon(hour, name, owner=OWNER, dry_run=False)
    expected = rows(stack, journal, "tag_views")
    same_rows(stack, journal, "tag_views_minute", in_buckets(expected, "Minute"))

    def dropped_and_back():
        rebucketed(minute, spark, "Minute", drop_old=True)
        rebucketed(minute, spark, "Hour", table="tag_views")
        back.append(rebucketed(minute, spark, "Hour", table="tag_views", offline=True)["step"])

    slept += asleep(minute, "rebucket.before_drop", dropped_and_back)
    with raises(LeaseTaken):
        rebucketed(minute, spark, "Minute", drop_old=True)
    assert back == ["switched"] and slept
    same_rows(stack, journal, "tag_views", expected)
    with Cassandra(hour.cassandra) as cassandra:
        standing = JournalViews(cassandra, "tagmill_test", journal).standing()
    assert (standing.current, standing.tables["tag_views"].dropped_at) == ("tag_views", None)


@pytest.mark.parametrize("leases_lost", [True, False], ids=["leases lost", "cleanup decided meanwhile"])
def test_switch_woken_late_switches_nothing(leases_lost, stack, keyspace, settings, spark, monkeypatch):
    """Freeze a switch behind its verification while others work with the view: the view stays where it is."""
    journal = keyspace("gap-middle")
    hour = settings(journal, case="gap-middle")
    schema.apply(hour)
    name, reach = only(hour), checkpoints.reached

    def reached(instant):
        reach(instant)
        if instant == "rebucket.verified" and leases_lost:
            free_lease(stack.session, name)
        elif instant == "rebucket.verified":
            with Cassandra(hour.cassandra) as cassandra:
                log = CleanupLog(cassandra, "tagmill_test", journal, hour.pipeline(name).view)
                log.decide(name, Cleaning("tag-0", 0, 1, datetime.now(UTC)))

    rebucketed(hour, spark, "Minute")
    with (
        monkeypatch.context() as patched,
        raises(LeaseTaken if leases_lost else WorkUnfinished, pipeline=name),
    ):
        patched.setattr(checkpoints, "reached", reached)
        rebucketed(hour, spark, "Minute", offline=True)
    with Cassandra(hour.cassandra) as cassandra:
        assert JournalViews(cassandra, "tagmill_test", journal).standing().current == "tag_views"


@pytest.mark.long
def test_cleanup_after_rebucket_counts_rows_once(stack, keyspace, settings, spark):
    """Clean minutes, rebucket to Day, clean the day: the verdict stays "exactly once"."""
    journal = keyspace("minute-buckets")
    minute = settings(journal, case="minute-buckets")
    delivered_first(minute, spark)
    name = only(minute)
    with Cassandra(minute.cassandra) as cassandra:
        view = minute.pipeline(name).view
        views, record = (
            Views(cassandra, JournalTables(journal, view.table)),
            CleanupLog(cassandra, "tagmill_test", journal, view),
        )
        for bucket in views.buckets(["tag-0"])["tag-0"][:3]:
            ((count, _),) = views.written([("tag-0", bucket)])
            record.decide(name, Cleaning("tag-0", bucket, count, datetime.now(UTC)))
            views.delete_partition("tag-0", bucket, first_ticks(2**40))
            record.done(name, Cleaning("tag-0", bucket, count, datetime.now(UTC)))
    day = switched(minute, spark, "Day")
    assert audited(day, spark).findings == {}
    day = with_keys(day, name, enabled=True, older_than_days=0, other_readers=[])
    unhurried = day.pipeline(name).model_copy(
        update={"look_back_seconds": 0.0, "long_look_back_seconds": 0.0}
    )
    day = day.model_copy(update={"pipelines": {name: unhurried}})
    done = cleaned(day)
    assert (done["buckets"], done["refused"]) == (2, [])
    lines = tag_table(day, name, count_view=True, verify=True)
    assert [(line["in_view"], line["cleaned"]) for line in lines] == [(0, 1000), (0, 1000)]
    assert {line["verdict"].split(",")[0] for line in lines} == {"exactly once"}
