"""A rebuild turns a damaged view into the one that the plugin would write, every row and column, and leaves
right rows alone.
"""

import json
import time
from collections import Counter
from datetime import timedelta
from functools import cache

import pytest

from local.fixtures import Case
from tagmill.errors import (
    ApplicationAtWork,
    ConfigurationError,
    DataQualityStop,
    GuardRefused,
    LeaseTaken,
    PersistenceIdsUnknown,
)
from tagmill.ledger import schema
from tagmill.runs import checkpoints
from tagmill.spark import bulk_load
from tagmill.views.delete import delete, truncate
from tagmill.views.rebuild import rebuild
from tagmill.views.selection import Selection
from tests.support import damage
from tests.support.auditing import load_together
from tests.support.building import VIEWS, built, in_order, load_messages, recorded, records, rows
from tests.support.delivery import OWNER, clickhouse_rows, deliver, only, tagmill
from tests.support.errors import raises
from tests.support.events import events, offset, this_hour
from tests.support.few_builds import compared
from tests.support.leases import free_lease
from tests.support.stack import own_keyspaces

HEALTHY = ["deleted-events", "odd-names", "partition-boundary"]
HOUR = {"bucket_size": "Hour", "first_time_bucket": "20261121T06:00"}
BEGIN = this_hour() - timedelta(hours=5)


def prepared(settings, spark):
    """Apply the schema, and return the settings."""
    schema.apply(settings)
    return settings


def done(operation, settings, spark, chosen=None, **options):
    """Prepare the pipeline, run an operation on the chosen rows, and return its report."""
    prepared(settings, spark)
    return operation(settings, only(settings), chosen or Selection(), owner=OWNER, spark=spark, **options)


def changes(report):
    """Return how many rows an operation added, changed, removed or left, by kind."""
    kinds = Counter()
    for line in report.tags:
        kinds.update({kind: count for kind, count in line.model_dump().items() if kind != "tag"})
    return {kind: count for kind, count in kinds.items() if count}


def plain(found):
    """Return rows of fixtures in the form of the tables' rows."""
    return in_order([{**row, "timestamp": str(row["timestamp"])} for row in found])


def of_cases(cases, table):
    """Return the recorded rows of several cases, each persistence_id prefixed by its case."""
    return in_order(
        [
            {**row, "persistence_id": f"{case}/{row['persistence_id']}"}
            for case in cases
            for row in recorded(case, table)
        ]
    )


@cache
def events_of(case):
    """Return (persistence_id, sequence_nr) of each event of a case's journal."""
    return {
        (event["persistence_id"], event["sequence_nr"]) for event in Case(case).table("messages").to_pylist()
    }


def has_event(row):
    """Return whether the journal of a case still has the event of a row of its view."""
    case, persistence_id = row["persistence_id"].split("/", 1)
    return (persistence_id, row["sequence_nr"]) in events_of(case)


@pytest.fixture
def together(stack):
    """Return load(cases), which loads several cases into one journal and returns its keyspace."""
    with own_keyspaces(stack.session) as create:
        yield lambda cases: load_together(stack.session, create(), cases)


def test_rebuild_plugins_view_keeps_its_numbers(stack, together, settings, spark):
    """Rebuild the plugin's own view: nothing changes.

    Truncate it: the rebuild adds the same rows with the same numbers.
    """
    journal = together(HEALTHY)
    configured = settings(journal, tags=["tag-0"], **HOUR)
    views, progress = of_cases(HEALTHY, "tag_views"), of_cases(HEALTHY, "tag_write_progress")
    gone = [row for row in views if not has_event(row)]
    assert gone

    assert changes(done(rebuild, configured, spark)) == {"same": len(views) - len(gone), "unknown": len(gone)}
    stack.session.execute(f"TRUNCATE {journal}.tag_views")
    looked = done(rebuild, configured, spark, dry_run=True)
    assert rows(stack, journal, "tag_views") == [] and changes(looked) == {"added": len(views) - len(gone)}
    report = done(rebuild, configured, spark)
    assert changes(report) == changes(looked) and (report.progress, report.left, report.unknown_ids) == (
        0,
        0,
        0,
    )
    assert rows(stack, journal, "tag_views") == [row for row in views if row not in gone]
    assert rows(stack, journal, "tag_write_progress") == progress


def test_rebuild_damaged_fixtures_equals_plugins_and_is_delivered(
    stack, damaged_journal, settings, spark, monkeypatch
):
    """Deliver all damaged fixtures, rebuild the view and deliver again: view and ClickHouse have what the
    plugin would write.

    Workers write the rows, as if they were many.
    """
    monkeypatch.setattr(bulk_load, "FEW_ROWS", -1)
    made = damaged_journal()
    configured = settings(
        made.keyspace,
        tags=damage.TAGS,
        bucket_size="Hour",
        first_time_bucket=damage.FIRST,
        repair_view=False,
        look_back_seconds=0,
        long_look_back_seconds=0,
        quality={"max_held_share_percent": 100, "max_wrong_bucket_share_percent": 100},
    )
    prepared(configured, spark)
    deliver(configured, only(configured), spark)
    report = done(rebuild, configured, spark)
    wanted = plain(damage.healthy())
    names = list(rows(stack, made.keyspace, "tag_views")[0])
    assert rows(stack, made.keyspace, "tag_views") == [{name: row[name] for name in names} for row in wanted]
    assert changes(report).keys() == {"same", "added", "changed", "removed"}
    assert {line.persistence_id.split("/")[0] for line in report.changes} <= set(damage.CASES)
    # Rows added at times that are delivered already are read again.
    deliver(configured, only(configured), spark)
    assert Counter(row.tag for row in clickhouse_rows(configured, only(configured))) == Counter(
        row["tag_name"] for row in wanted
    )
    assert changes(done(rebuild, configured, spark)) == {"same": len(wanted)}


def test_rebuild_named_ids_and_tags_only(stack, keyspace, settings, spark):
    journal = keyspace("gap-whole-pid")
    configured = settings(journal, case="gap-whole-pid")
    before = rows(stack, journal, "tag_views")
    stack.session.execute(f"TRUNCATE {journal}.tag_views")
    report = done(rebuild, configured, spark, Selection(("o-000003", "nobody"), ("tag-1", "tag-9")))
    assert (report.persistence_ids, report.unknown_ids, report.unknown_examples) == (2, 1, ["nobody"])
    assert report.unknown_tags == ["tag-9"] and "'nobody'" in report.message and "'tag-9'" in report.message
    wanted = [row for row in before if (row["persistence_id"], row["tag_name"]) == ("o-000003", "tag-1")]
    assert rows(stack, journal, "tag_views") == wanted
    with raises(PersistenceIdsUnknown, match="'nobody'. Nothing was written", pipeline=only(configured)):
        done(rebuild, configured, spark, Selection(("nobody",)))
    with raises(
        ConfigurationError,
        match="has any of the tags 'tag-9'. Nothing was written",
        pipeline=only(configured),
    ):
        done(rebuild, configured, spark, Selection(None, ("tag-9",)))
    listing = ("views", "tags", "--pipeline", only(configured), "--json", "--persistence-id")
    code, listed, _ = tagmill(settings.file(only(configured)), *listing, "o-000003")
    assert code == 0 and [line["tag"] for line in json.loads(listed)] == ["tag-0", "tag-1"]
    code, _, said = tagmill(settings.file(only(configured)), *listing, "nobody")
    assert code == 2 and "neither events of persistence_id 'nobody' nor progress" in said


def test_rebuild_unnumberable_ids_are_left_and_named(stack, together, settings, spark):
    """Leave persistence ids with two writers or a missing event as they are; deletions leave them, too."""
    journal = together(["split-brain", "gap-middle"])
    stack.session.execute(
        f"DELETE FROM {journal}.messages WHERE persistence_id = 'gap-middle/o-000001' AND partition_nr = "
        "0 AND sequence_nr = 5"
    )
    before = rows(stack, journal, "tag_views")
    configured = settings(journal, tags=["tag-0"], **HOUR)
    report = done(rebuild, configured, spark)
    assert [(line.persistence_id, line.why) for line in report.left_examples] == [
        ("gap-middle/o-000001", "a sequence_nr is missing and was not deleted"),
        ("split-brain/o-000001", "two events claim one sequence_nr (two writers)"),
    ]
    left = {line.persistence_id for line in report.left_examples}
    of_left = [row for row in before if row["persistence_id"] in left]
    assert [row for row in rows(stack, journal, "tag_views") if row["persistence_id"] in left] == of_left
    # Its tag is known, although none of its rows is rebuilt.
    named = done(rebuild, configured, spark, Selection(("gap-middle/o-000001",), ("tag-0", "tag-9")))
    assert (named.left, named.unknown_tags) == (1, ["tag-9"])
    # A deletion leaves rows that a rebuild would not bring back.
    removed = done(delete, configured, spark)
    assert removed.left == 2 and rows(stack, journal, "tag_views") == of_left
    with raises(GuardRefused, pipeline=only(configured)):
        truncate(configured, only(configured), owner=OWNER, spark=spark)


def test_rebuild_application_numbering_meanwhile_writes_nothing(stack, keyspace, settings, spark):
    journal = keyspace("gap-first")
    configured, before = settings(journal, case="gap-first"), rows(stack, journal, "tag_views")

    def moves(text):
        if text == "comparing":
            stack.session.execute(
                f"UPDATE {journal}.tag_write_progress SET sequence_nr = 99 WHERE persistence_id = "
                "'o-000003' AND tag = 'tag-0'"
            )

    with raises(
        ApplicationAtWork, match="'o-000003' moved meanwhile.*Nothing was written", pipeline=only(configured)
    ):
        done(rebuild, configured, spark, tell=moves)
    assert rows(stack, journal, "tag_views") == before


@pytest.mark.long
def test_rebuild_own_view_lets_build_continue(stack, keyspace, settings, spark):
    """Rebuild, delete and truncate a view that Tagmill builds, also by another pipeline; the next build adds
    nothing.
    """
    case = "partition-boundary"
    journal = keyspace(case, ("metadata", "all_persistence_ids"))
    configured = settings(journal, case=case, views="tagmill")
    # Another pipeline on the same journal may delete, too.
    mirror = configured.pipeline(only(configured)).model_copy(update={"views": "application"})
    mirrored = configured.model_copy(update={"pipelines": {**configured.pipelines, "mirror": mirror}})
    load_messages(stack.session, case, journal, 0, 30)
    half = built(configured, spark)["rows"]
    load_messages(stack.session, case, journal, 30, 60)
    before = {table: recorded(case, table) for table in VIEWS}
    assert changes(done(rebuild, configured, spark)) == {
        "same": half,
        "added": len(before["tag_views"]) - half,
    }  # new events are added, too
    assert {table: rows(stack, journal, table) for table in VIEWS} == before
    known = records(stack, journal)
    one = before["tag_views"][0]
    scanned = f"INSERT INTO {journal}.tag_scanning (persistence_id, sequence_nr) VALUES (%s, 1)"
    for persistence_id in (one["persistence_id"], "another"):
        stack.session.execute(scanned, (persistence_id,))
    named = Selection((one["persistence_id"],), (one["tag_name"],))
    removed = delete(mirrored, "mirror", named, owner=OWNER, spark=spark)
    assert [row.persistence_id for row in stack.session.execute(f"SELECT * FROM {journal}.tag_scanning")] == [
        "another"
    ]
    mine = [
        row
        for row in before["tag_views"]
        if (row["persistence_id"], row["tag_name"]) == (one["persistence_id"], one["tag_name"])
    ]
    assert changes(removed) == {"removed": len(mine)} and removed.progress == 1
    assert rows(stack, journal, "tag_views") == [row for row in before["tag_views"] if row not in mine]
    assert built(configured, spark)["rows"] == 0  # neither refused nor numbered again
    assert changes(done(rebuild, configured, spark)) == {
        "added": len(mine),
        "same": len(before["tag_views"]) - len(mine),
    }
    assert {table: rows(stack, journal, table) for table in VIEWS} == before and records(
        stack, journal
    ) == known

    truncate(configured, only(configured), owner=OWNER, spark=spark)
    assert [rows(stack, journal, table) for table in VIEWS] == [[], []]
    assert changes(done(rebuild, configured, spark)) == {"added": len(before["tag_views"])}
    assert {table: rows(stack, journal, table) for table in VIEWS} == before and records(
        stack, journal
    ) == known
    assert built(configured, spark)["rows"] == 0
    # A persistence_id that the application has numbered since is left alone.
    stack.session.execute(
        f"UPDATE {journal}.tag_write_progress SET sequence_nr = 999 WHERE persistence_id = %s AND tag = %s",
        (one["persistence_id"], one["tag_name"]),
    )
    (left,) = done(rebuild, configured, spark).left_examples
    assert left.persistence_id == one["persistence_id"] and "somebody else has numbered it" in left.why


@pytest.mark.parametrize(
    ("operation", "chosen"),
    [(truncate, []), pytest.param(delete, [Selection(None, ("t",))], marks=pytest.mark.long)],
    ids=["all", "one tag"],
)
def test_adopted_ids_wait_until_rebuilt(operation, chosen, stack, journal, settings, spark, monkeypatch):
    """Delete a view of adopted persistence ids with rows of tag_scanning: they wait, and are built again after a
    rebuild, with their numbers. For one case, workers write.
    """
    if operation is delete:
        monkeypatch.setattr(bulk_load, "FEW_ROWS", -1)
    written = journal()
    tagged = events("p", range(1, 5), BEGIN, tags={"t", "u"})
    written.messages([*tagged[:3], *events("untagged", [1], BEGIN, tags=set())])
    scanned = f"INSERT INTO {written.keyspace}.tag_scanning (persistence_id, sequence_nr) VALUES (%s, 1)"
    for persistence_id in ("p", "untagged"):
        stack.session.execute(scanned, (persistence_id,))
    configured = settings(written.keyspace, tags=["t"], views="tagmill", **HOUR)
    name = only(configured)
    assert built(configured, spark, adopt=True)["rows"] == 6
    operation(configured, name, *chosen, owner=OWNER, spark=spark)
    assert numbers(written, "p") == {}
    written.messages(tagged[3:])
    with compared():
        result = built(configured, spark)
    assert (result["refused"], result["rows"], result["reasons"]) == (0, 0, {"deleted": 1})
    assert f"tagmill views rebuild --pipeline {name}" in tagmill(settings.file(name), "status")[1]
    done(rebuild, configured, spark, *chosen)
    with compared():
        result = built(configured, spark)
    assert (result["refused"], result["waiting"]) == (0, 0)
    for tag in ("t", "u"):
        assert numbers(written, "p", tag) == {number: number for number in range(1, 5)}


def test_rebuild_leaves_cleaned_and_deleted_rows_alone(stack, keyspace, settings, spark):
    """Delete and rebuild a view: rows of deleted events stay, and cleaned partitions stay empty."""
    journal = keyspace("deleted-events")
    configured = prepared(settings(journal, case="deleted-events"), spark)
    before = rows(stack, journal, "tag_views")
    kept = [
        row
        for row in before
        if not has_event({**row, "persistence_id": f"deleted-events/{row['persistence_id']}"})
    ]
    with raises(
        GuardRefused,
        match=f"{len(kept)} rows of tag_views are of events that the journal doesn't know",
        pipeline=only(configured),
    ):
        truncate(configured, only(configured), owner=OWNER, spark=spark, dry_run=True)
    assert changes(done(delete, configured, spark)) == {
        "removed": len(before) - len(kept),
        "unknown": len(kept),
    }
    assert rows(stack, journal, "tag_views") == kept
    tag, bucket = next((row["tag_name"], row["timebucket"]) for row in before if row not in kept)
    stack.session.execute(
        "INSERT INTO tagmill_test.cleaned_buckets (journal, tag, timebucket, state, rows, pipeline, "
        "cleaned_at)"
        " VALUES (%s, %s, %s, 'CLEANED', 1, 'p', toTimestamp(now()))",
        (journal, tag, bucket),
    )
    done(rebuild, configured, spark)
    away = [
        row for row in before if row not in kept and (row["tag_name"], row["timebucket"]) == (tag, bucket)
    ]
    assert away and rows(stack, journal, "tag_views") == [row for row in before if row not in away]


def numbered_to(stack, written, persistence_id, number, sequence_nr, tag="t"):
    """Write a line of tag_write_progress."""
    stack.session.execute(
        f"INSERT INTO {written.keyspace}.tag_write_progress (persistence_id, tag, offset, sequence_nr, "
        "tag_pid_sequence_nr)"
        " VALUES (%s, %s, %s, %s, %s)",
        (persistence_id, tag, offset(BEGIN), sequence_nr, number),
    )


def reached(stack, written):
    """Return (number, sequence_nr) of tag_write_progress by persistence_id, for the tag 't'."""
    lines = rows(stack, written.keyspace, "tag_write_progress")
    return {
        line["persistence_id"]: (line["tag_pid_sequence_nr"], line["sequence_nr"])
        for line in lines
        if line["tag"] == "t"
    }


def numbers(written, persistence_id, tag="t"):
    """Return the tag's numbers of a persistence_id by sequence_nr."""
    return {
        row["sequence_nr"]: row["tag_pid_sequence_nr"]
        for row in written.rows(persistence_id)
        if row["tag_name"] == tag
    }


def test_tags_that_were_taken_from_events(stack, journal, settings, spark):
    """Take the tag from some events: the others are numbered without gaps, and rows of events without tags
    stay.
    """
    written = journal()
    session, gone = (
        stack.session,
        {"middle": (3,), "first": (1, 2), "last": (9, 10), "behind deleted ones": (6,), "untagged": (3,)},
    )
    for one, without in gone.items():
        both = {"t", "u"}
        mine = events(one, range(1, 11), BEGIN, tags=both)
        written.view([*mine, *events(one, range(1, 11), BEGIN, tag="u", tags=both)])
        left = None if one == "untagged" else {"u"}
        written.messages([{**row, "tags": left} if row["sequence_nr"] in without else row for row in mine])
        for tag in both:
            numbered_to(stack, written, one, 10, 10, tag)
    written.deleted_to("behind deleted ones", 2)
    session.execute(
        f"DELETE FROM {written.keyspace}.messages WHERE persistence_id = 'behind deleted ones' AND "
        "partition_nr = 0 AND sequence_nr < 3"
    )
    untagged = written.rows("untagged")
    configured = settings(written.keyspace, tags=["t"], **HOUR)
    looked, report = done(rebuild, configured, spark, dry_run=True), done(rebuild, configured, spark)
    assert (looked.tags, looked.left_examples) == (report.tags, report.left_examples)
    kept = {1: 1, 2: 2}  # numbers of deleted events
    for one, begin, without in (
        ("middle", {}, (3,)),
        ("first", {}, (1, 2)),
        ("last", {}, (9, 10)),
        ("behind deleted ones", kept, (1, 2, 6)),
    ):
        living = [number for number in range(1, 11) if number not in without]
        wanted = begin | {sequence_nr: place for place, sequence_nr in enumerate(living, 1 + len(begin))}
        assert numbers(written, one) == wanted and reached(stack, written)[one] == (
            max(wanted.values()),
            living[-1],
        ), one
        assert numbers(written, one, "u") == {number: number for number in range(1, 11)}, one
    # The row of the event that lost all its tags is kept, and so are the numbers of the others.
    assert written.rows("untagged") == untagged and reached(stack, written)["untagged"] == (10, 10)
    assert [(line.persistence_id, line.sequence_nr) for line in report.left_examples] == [("untagged", 2)]
    assert "has a number that another event would get" in report.left_examples[0].why


def test_progress_that_the_journal_does_not_bear_out(stack, journal, settings, spark):
    """Rebuild where tag_write_progress is ahead of the journal, has no number, or proves events behind empty
    partitions.
    """
    written = journal()
    written.messages([*events("ahead", range(1, 11), BEGIN), *events("nulls", range(3, 6), BEGIN)])
    numbered_to(stack, written, "ahead", 15, 15)
    written.deleted_to("nulls", 2)
    written.view(events("nulls", range(5, 6), BEGIN))
    numbered_to(stack, written, "nulls", None, 5)
    # Behind two empty partitions a search by key ends, but a given number proves that there are more events.
    written.messages(
        [*events("gap", range(1, 6), BEGIN), *events("gap", range(6, 11), BEGIN, partition_nr=5)]
    )
    numbered_to(stack, written, "gap", 10, 10)
    done(rebuild, settings(written.keyspace, tags=["t"], **HOUR), spark, Selection(("ahead", "nulls", "gap")))
    assert numbers(written, "ahead") == numbers(written, "gap") == {number: number for number in range(1, 11)}
    assert numbers(written, "nulls") == {3: 3, 4: 4, 5: 5}
    assert reached(stack, written) == {"ahead": (10, 10), "nulls": (5, 5), "gap": (10, 10)}


@pytest.mark.long
def test_rebuild_named_ids_behind_empty_partitions(stack, journal, settings, spark):
    """Find persistence ids whose first partitions are empty, and leave them until their deletions are
    recorded.
    """
    written = journal()
    written.messages(events("high", range(21, 26), BEGIN, partition_nr=9))
    written.messages(events("higher", range(31, 36), BEGIN, partition_nr=700))
    written.deleted_to("higher", 2)
    configured = settings(written.keyspace, tags=["t"], **HOUR)
    with raises(PersistenceIdsUnknown, pipeline=only(configured)):
        done(rebuild, configured, spark, Selection(("nobody",)))
    report = done(rebuild, configured, spark, Selection(("high", "higher", "nobody")))
    assert (report.unknown_ids, report.unknown_examples) == (1, ["nobody"])
    # As far as the journal says, the missing events before them were not deleted.
    left = [(line.persistence_id, line.sequence_nr, line.why) for line in report.left_examples]
    gap = "a sequence_nr is missing and was not deleted"
    assert left == [("high", 0, gap), ("higher", 2, gap)] and written.rows() == []
    written.deleted_to("high", 20)
    written.deleted_to("higher", 30)
    assert changes(done(rebuild, configured, spark, Selection(("high", "higher")))) == {"added": 10}
    assert changes(done(delete, configured, spark, Selection(("high", "higher")))) == {"removed": 10}
    stack.session.execute(
        f"INSERT INTO {written.keyspace}.metadata (persistence_id, deleted_to) VALUES ('high', 0)"
    )
    said = tagmill(
        settings.file(only(configured)),
        "views",
        "tags",
        "-p",
        only(configured),
        "--persistence-id",
        "high",
        "--json",
    )
    assert said[0] == 0, said


def test_rebuild_wrong_bucket_size_is_refused(stack, journal, settings, spark):
    written = journal()
    # The hour must not be the first of its day, whose Hour and Day buckets are the same.
    written.both(events("p", range(1, 31), BEGIN if BEGIN.hour else BEGIN + timedelta(hours=1)))
    before = written.rows()
    wrong = settings(written.keyspace, tags=["t"], **{**HOUR, "bucket_size": "Day"})
    said = '30 of 30 rows are in Hour buckets, the pipeline says Day. .* bucket_size = "Hour"'
    with raises(DataQualityStop, match=said, pipeline=only(wrong)):
        done(rebuild, wrong, spark)
    with raises(DataQualityStop, pipeline=only(wrong)):
        done(delete, wrong, spark)
    # The refused bucket size was not recorded.
    assert changes(done(rebuild, settings(written.keyspace, tags=["t"], **HOUR), spark)) == {"same": 30}
    assert written.rows() == before


def test_rebuild_rows_written_ahead_are_left(stack, journal, settings, spark):
    """Leave wrong rows that a clock ahead has written, and count them as left, not as removed."""
    written, later = journal(), time.time_ns() // 1000 + 3_600_000_000
    written.messages(
        [row for name in ("extra", "other", "right", "now") for row in events(name, range(1, 4), BEGIN)]
    )
    written.view([row for name in ("extra", "other", "now") for row in events(name, range(1, 3), BEGIN)])
    written.view(events("right", range(1, 4), BEGIN), written_at=later)
    written.view(events("extra", [3], BEGIN, tag_pid_sequence_nr=7), written_at=later)
    written.view(events("other", [3], BEGIN, event=b"another"), written_at=later)
    written.view(events("now", [3], BEGIN, tag_pid_sequence_nr=7))
    before, configured = written.rows(), settings(written.keyspace, tags=["t"], **HOUR)
    for dry_run in (True, False):
        report = done(rebuild, configured, spark, dry_run=dry_run)
        left = [(line.persistence_id, line.sequence_nr) for line in report.left_examples]
        assert (report.left, left) == (2, [("extra", 2), ("other", 2)])
        assert "written by a clock that is ahead" in report.left_examples[0].why
        assert changes(report) == {"same": 5, "added": 1, "removed": 1}
    kept = [row for row in before if row["persistence_id"] != "now"]
    assert [row for row in written.rows() if row["persistence_id"] != "now"] == kept
    report = done(delete, configured, spark)
    assert (report.left, changes(report)) == (3, {"removed": 3}) and written.rows() == kept
    truncate(configured, only(configured), owner=OWNER, spark=spark)
    assert written.rows() == []


@pytest.mark.long
def test_rebuild_dry_run_names_unfinished_build(journal, settings, spark, monkeypatch):
    written = journal()
    written.messages(events("p", range(1, 4), BEGIN))
    configured = settings(written.keyspace, tags=["t"], **HOUR)

    def killed(instant):
        if instant == "build.after_commit":
            raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(checkpoints, "reached", killed)
        done(rebuild, configured, spark)
    written.messages(events("p", [4], BEGIN))
    report = done(rebuild, configured, spark, dry_run=True)
    assert written.rows() == [] and changes(report) == {"added": 4}
    first = "build 1, committed and not finished,"
    assert (
        f"4 rows would be added, 0 rows would be changed, 0 rows would be removed; {first} would be finished"
        in report.message
    )
    assert report.message.endswith("first: this is counted against the view as it stands")
    report = done(rebuild, configured, spark)
    assert report.message.endswith(f"3 right already; {first} was finished first") and changes(report) == {
        "same": 3,
        "added": 1,
    }
    assert done(rebuild, configured, spark).unfinished is None


def test_rebuild_event_with_sequence_nr_0_is_ignored(stack, journal, settings, spark):
    """Ignore an event with sequence_nr 0, as the plugin does."""
    written = journal()
    written.messages(events("p", range(4), BEGIN))
    written.messages(events("only", [0], BEGIN))
    configured = settings(written.keyspace, tags=["t"], **HOUR)
    report = done(rebuild, configured, spark)
    assert (report.left, changes(report)) == (0, {"added": 3}) and numbers(written, "p") == {1: 1, 2: 2, 3: 3}
    report = done(rebuild, configured, spark, Selection(("p", "only")))
    assert (report.left, report.unknown_examples, changes(report)) == (0, ["only"], {"same": 3})
    other = journal()
    other.messages(events("p", range(4), BEGIN))
    result = built(settings(other.keyspace, tags=["t"], views="tagmill", **HOUR), spark)
    assert (result["rows"], result["waiting"]) == (3, 0)


def test_delete_keeps_numbers_known_nowhere_else(stack, journal, settings, spark):
    """Refuse to truncate progress that can't be counted again; delete and rebuild a view numbered behind
    deleted events.
    """
    written = journal()
    written.messages(events("p", range(1, 6), BEGIN))
    numbered_to(stack, written, "all deleted", 10, 10)
    written.deleted_to("all deleted", 10)
    configured = settings(written.keyspace, tags=["t"], views="tagmill", **HOUR)
    with raises(GuardRefused, pipeline=only(configured)):
        done(lambda *args, **options: truncate(args[0], args[1], owner=OWNER, spark=spark), configured, spark)
    assert reached(stack, written) == {"all deleted": (10, 10)}
    stack.session.execute(f"TRUNCATE {written.keyspace}.tag_write_progress")
    built(configured, spark)
    # As after a truncation that was killed behind the tables, and is run again.
    for table in VIEWS:
        stack.session.execute(f"TRUNCATE {written.keyspace}.{table}")
    truncate(configured, only(configured), owner=OWNER, spark=spark)
    assert built(configured, spark)["rows"] == 0
    assert changes(done(rebuild, configured, spark)) == {"added": 5}
    # The first events are gone, and only a line of progress says that they were deleted.
    other = journal()
    mine = [
        {**row, "tag_pid_sequence_nr": row["sequence_nr"] - 6} for row in events("q", range(7, 10), BEGIN)
    ]
    other.both(mine)
    other.messages(events("q", range(5, 7), BEGIN, tags=None))
    numbered_to(stack, other, "q", 3, 9)
    before, configured = other.rows(), settings(other.keyspace, tags=["t"], **HOUR)
    assert changes(done(delete, configured, spark)) == {"removed": 3} and other.rows() == []
    assert changes(done(rebuild, configured, spark)) == {"added": 3} and other.rows() == before


def test_truncate_woken_late_truncates_nothing_more(stack, keyspace, settings, spark, monkeypatch):
    """Freeze a truncation before its second table, then before its first, while others rebuild: their rows stay,
    and the error names what is gone.
    """
    journal = keyspace("partition-boundary")
    configured = prepared(settings(journal, case="partition-boundary"), spark)
    name, reach = only(configured), checkpoints.reached
    wanted = {table: rows(stack, journal, table) for table in VIEWS}

    def said(sleeps_before):
        reached_tables = []

        def reached(instant):
            reach(instant)
            if instant == "truncate.before_table":
                reached_tables.append(instant)
                if len(reached_tables) == sleeps_before:
                    free_lease(stack.session, name)
                    rebuild(configured, name, Selection(), owner="cli/other", spark=spark)

        with monkeypatch.context() as patched, raises(LeaseTaken, pipeline=name) as caught:
            patched.setattr(checkpoints, "reached", reached)
            truncate(configured, name, owner=OWNER, spark=spark)
        return str(caught.value)

    gone = f"tag_views of journal {journal} were truncated: tagmill views rebuild --pipeline {name} --offline"
    for sleeps_before, is_said in ((2, True), (1, False)):
        assert (gone in said(sleeps_before)) is is_said
        assert {table: rows(stack, journal, table) for table in VIEWS} == wanted
