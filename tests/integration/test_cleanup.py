"""View cleanup: what it deletes, what it refuses, and that nothing is delivered twice or reported missing
afterwards.
"""

import json
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from tagmill.config.tag_views import OtherReader
from tagmill.domain.batches.states import RunState
from tagmill.domain.continuity.model import Gap
from tagmill.domain.timeuuid import from_datetime
from tagmill.errors import GuardRefused, LeaseTaken, WorkUnfinished
from tagmill.ledger.audits import Audits
from tagmill.ledger.cleanups import Cleaning, CleanupLog
from tagmill.ledger.lease import Lease
from tagmill.ledger.progress import HoldRow
from tagmill.ledger.runs import Ledger
from tagmill.maintenance.view_cleanup.clean import clean
from tagmill.runs import checkpoints
from tests.support import auditing
from tests.support.cleaning import audited, cleaned, never_audited, partitions, reasons, records, with_keys
from tests.support.commands import Command
from tests.support.delivery import OWNER, clickhouse_rows, deliver, delivered_first, only, tagmill, verdicts
from tests.support.erasing import erased
from tests.support.errors import raises
from tests.support.events import event, offset, this_hour
from tests.support.leases import free_lease
from tests.support.topics import Crashed, crashing

HOUR = timedelta(hours=1)
BEGIN = this_hour() - timedelta(days=3)
HOURS = 6
CLEANUP = {"enabled": True, "older_than_days": 1, "other_readers": [], "deletes_per_second": 1000}
TAGS = ("t", "u")


def bucket(hour):
    """Return the timebucket (in ms) that begins `hour` hours after BEGIN."""
    return int((BEGIN + hour * HOUR).timestamp()) * 1000


def spread(persistence_id, tag, hours=HOURS):
    """Return two events of a persistence id in each of the first `hours` hours."""
    return [
        event(persistence_id, 2 * hour + n, BEGIN + hour * HOUR + n * timedelta(minutes=1), tag)
        for hour in range(hours)
        for n in (1, 2)
    ]


class View:
    """A journal whose tags t and u are delivered: each of six hours has four rows of t and two of u."""

    def __init__(self, journal, settings, spark, **cleanup):
        self.journal, self.spark = journal, spark
        self.records = [*spread("a", "t"), *spread("b", "t"), *spread("c", "u")]
        journal.both(self.records)
        self.settings = settings(
            journal.keyspace,
            tags=list(TAGS),
            bucket_size="Hour",
            first_time_bucket=BEGIN.isoformat(),
            cleanup=CLEANUP | cleanup,
        )
        self.name = only(self.settings)
        self.file = settings.file(self.name)
        delivered_first(self.settings, spark)
        free_lease(self.journal.session, self.name)

    @property
    def all(self):
        """Rows by (tag, timebucket) before anything is deleted."""
        return {(tag, bucket(hour)): rows for hour in range(HOURS) for tag, rows in (("t", 4), ("u", 2))}

    def dry(self, **keys):
        """Run a dry cleanup with the given cleanup keys and return its report."""
        return cleaned(with_keys(self.settings, self.name, **keys), delete=False)

    def mirrored(self, name="mirror", **keys):
        """Return the settings with a second pipeline on tag t."""
        chosen = self.settings.pipeline(self.name)
        other = chosen.model_copy(update={"tags": ["t"], "destination": name, **keys})
        return self.settings.model_copy(update={"pipelines": {self.name: chosen, name: other}})


@pytest.fixture(scope="module")
def view(module_journal, module_settings, spark):
    """Return a delivered view that the tests of refusals share; each leaves it unchanged."""
    return View(module_journal(), module_settings, spark)


@pytest.fixture
def whole(view):
    """Yield the shared view to be cleaned; afterwards restore its rows and forget the cleanup."""
    yield view
    for tag in TAGS:
        view.journal.session.execute(
            "DELETE FROM tagmill_test.cleaned_buckets WHERE journal = %s AND tag = %s",
            (view.journal.keyspace, tag),
        )
    for key in partitions(view.settings, view.name):
        view.journal.session.execute(
            f"DELETE FROM {view.journal.keyspace}.tag_views WHERE tag_name = %s AND timebucket = %s", key
        )
    view.journal.view(view.records)


@pytest.fixture
def own(journal, settings, spark):
    """Return a delivered view with a journal of its own, to be cleaned and delivered again."""
    return View(journal(), settings, spark)


def decide(view, tag, hour, rows):
    """Record the decision that a cleanup leaves if it is killed before it deletes anything."""
    chosen = view.settings.pipeline(view.name)
    with Ledger(view.settings.cassandra) as ledger:
        record = CleanupLog(
            ledger.cassandra, view.settings.cassandra.ledger_keyspace, chosen.keyspace, chosen.view
        )
        record.decide(view.name, Cleaning(tag, bucket(hour), rows, datetime.now(UTC)))


# -- what is refused


def test_cleanup_dry_run_names_partitions_deletes_none(view):
    """List every partition with its rows, oldest first, and delete none."""
    audited(view.settings, view.name)
    code, said, wrong = tagmill(view.file, "cleanup", "--pipeline", view.name, "--json")
    done = json.loads(said)
    assert code == 0 and done["dry_run"] is True and done["refused"] == [], wrong
    assert {(line["tag"], line["timebucket"]): line["rows"] for line in done["partitions"]} == view.all
    assert (done["buckets"], done["rows"], done["more"]) == (12, 36, False)
    assert [line["timebucket"] for line in done["partitions"]] == sorted(
        line["timebucket"] for line in done["partitions"]
    )
    code, said, _ = tagmill(view.file, "cleanup", "--pipeline", view.name)
    assert code == 0 and "12 partitions of the view with 36 rows would be deleted, 0 stay" in said
    assert partitions(view.settings, view.name) == view.all and records(view.settings, view.name) == {}


def test_what_no_audit_has_proven_stays(view):
    audited(view.settings, view.name, agrees=False)
    assert reasons(view.dry()) == {("t", "audit_disagrees"): 6, ("u", "audit_disagrees"): 6}
    never_audited(view.settings, view.name, "t")
    done = view.dry()
    assert reasons(done) == {("t", "not_audited"): 6, ("u", "audit_disagrees"): 6} and done["buckets"] == 0
    assert f"run: tagmill audit --pipeline {view.name}" in done["refused"][0]["text"]


def test_a_young_partition_is_no_candidate(view):
    audited(view.settings, view.name)
    done = view.dry(older_than_days=4)
    assert (done["buckets"], done["refused"]) == (0, [])


def test_cleanup_partition_unread_by_others_stays(view, stack, place):
    """Keep partitions while other readers are not stated, or one has not read them by its fixed time or
    offset store.
    """
    audited(view.settings, view.name)
    done = view.dry(other_readers=None)
    assert reasons(done) == {("t", "readers_not_stated"): 6, ("u", "readers_not_stated"): 6}
    assert "set cleanup.other_readers (to [] if nobody does)" in done["refused"][0]["text"]

    fixed = OtherReader(name="mail", read_to=BEGIN + 4 * HOUR, tags=["t"])
    assert reasons(view.dry(other_readers=[fixed])) == {("t", "reader_behind"): 3}

    # Create the table that a Pekko Projection creates.
    stack.session.execute(
        f"CREATE TABLE {place}.offset_store (projection_name text, partition int, projection_key text, "
        "offset text, manifest text,"
        " last_updated timestamp, PRIMARY KEY ((projection_name, partition), projection_key))"
    )
    reader = OtherReader.model_validate(
        {"name": "search", "offset_store": {"keyspace": place, "projection_name": "Search"}}
    )
    done = view.dry(other_readers=[reader])
    assert reasons(done) == {("t", "reader_behind"): 6, ("u", "reader_behind"): 6}
    assert "it has no offset yet" in done["refused"][0]["text"]
    insert = (
        f"INSERT INTO {place}.offset_store (projection_name, partition, projection_key, offset, "
        "manifest) VALUES (%s, %s, %s, %s, %s)"
    )
    stack.session.execute(insert, ("Search", 1, "t", str(offset(BEGIN + 5 * HOUR)), "TBU"))
    stack.session.execute(insert, ("Search", 2, "u", "17", "SEQ"))
    done = view.dry(other_readers=[reader])
    assert reasons(done) == {("t", "reader_behind"): 2, ("u", "reader_behind"): 6} and done["buckets"] == 4
    assert "is no TimeUUID (manifest 'SEQ')" in done["refused"][1]["text"]


def test_what_runs_may_read_again_stays(view):
    audited(view.settings, view.name)
    with Ledger(view.settings.cassandra) as ledger:
        mark = ledger.delivered.watermarks(view.name)["t"]
        # The long look-back reaches one hour before the watermark.
        ledger.delivered.write_watermark(
            view.name, replace(mark, run=90, ticks=from_datetime(BEGIN + 5 * HOUR))
        )
        try:
            assert reasons(view.dry()) == {("t", "still_read"): 2}
        finally:
            ledger.delivered.write_watermark(view.name, replace(mark, run=91))


def test_the_partitions_of_an_open_hold_stay(view):
    audited(view.settings, view.name)
    hold = HoldRow(
        "u", "c", "hole", Gap(5, 5, 4, 6), from_datetime(BEGIN + 3 * HOUR), 1, 1, datetime.now(UTC), ""
    )
    with Ledger(view.settings.cassandra) as ledger:
        (before,) = ledger.delivered.progress(view.name, [("u", "c")])
        move = (
            'UPDATE tagmill_test.progress USING TIMESTAMP ? SET "offset" = ? WHERE pipeline = ? AND '
            "tag = ? AND persistence_id = ?"
        )
        ledger.cassandra.execute(move, 90, offset(BEGIN + 2 * HOUR), view.name, "u", "c")
        ledger.delivered.write_holds(view.name, 90, [hold])
        try:
            done = view.dry()
        finally:
            ledger.delivered.end_holds(view.name, 91, [("u", "c")])
            ledger.cassandra.execute(move, 91, UUID(before.offset), view.name, "u", "c")
    # The hold keeps the buckets from the one before the last delivered event to the one behind the first held
    # row.
    assert (
        reasons(done) == {("u", "held"): 4}
        and f"pipeline {view.name} holds 'c'" in done["refused"][0]["text"]
    )


def test_a_partition_that_changed_since_the_audit_stays(view):
    audited(view.settings, view.name)
    late = event("late", 1, BEGIN + HOUR + timedelta(minutes=5), "u")
    view.journal.view([late])
    done = view.dry()
    assert reasons(done) == {("u", "changed"): 1} and "it has 3 rows, the audit" in done["refused"][0]["text"]
    # The partition has as many rows as the audit saw, but not the same ones.
    other = spread("c", "u")[2]
    view.journal.remove(other)
    assert "rows were written after the audit" in view.dry()["refused"][0]["text"]
    view.journal.remove(late)
    view.journal.view([other])


def test_cleanup_rows_lost_in_clickhouse_stay(whole, stack):
    """Keep a partition whose rows ClickHouse lost after the audit, even if a killed cleanup had decided to
    delete it.
    """
    view = whole
    audited(view.settings, view.name)
    client = stack.client(settings={"mutations_sync": 2})
    where = f"tag = 't' AND persistence_id = 'a' AND timebucket = {bucket(2)}"
    client.command(f"CREATE TABLE keep_{view.name} AS {view.name}")
    client.command(f"INSERT INTO keep_{view.name} SELECT * FROM {view.name} WHERE {where}")
    client.command(f"ALTER TABLE {view.name} DELETE WHERE {where}")
    try:
        done = view.dry()
        assert (
            reasons(done) == {("t", "not_in_clickhouse"): 1}
            and "has 2 of its 4 rows" in done["refused"][0]["text"]
        )
        decide(view, "t", 2, 4)
        assert cleaned(view.settings)["buckets"] == 11 and partitions(view.settings, view.name) == {
            ("t", bucket(2)): 4
        }
        assert records(view.settings, view.name)["t", bucket(2)] == ("CLEANING", 4)
    finally:
        client.command(f"INSERT INTO {view.name} SELECT * FROM keep_{view.name}")
        client.command(f"DROP TABLE keep_{view.name}")
        client.close()
    # Once its rows are in ClickHouse again, the partition is deleted.
    assert cleaned(view.settings)["buckets"] == 1 and partitions(view.settings, view.name) == {}


def test_cleanup_decided_partition_waits_for_unfinished_run(whole):
    """Delete nothing while a run is unfinished, not even a partition that a killed cleanup had decided to
    delete.
    """
    decide(whole, "u", 0, 2)
    with Ledger(whole.settings.cassandra) as ledger:
        run = ledger.free_number(whole.name)
        ledger.claim(whole.name, run)
        row = ledger.create_run(whole.name, run, kind="withdraw", state=RunState.PLANNED, owner="t")
        try:
            done = cleaned(whole.settings)
            assert done["buckets"] == 0 and set(reasons(done)) == {("t", "still_read"), ("u", "still_read")}
            assert done["refused_buckets"] == 12 and partitions(whole.settings, whole.name) == whole.all
        finally:
            ledger.finish_run(whole.name, run, row.fence, RunState.PLANNED, RunState.ABANDONED, "a test")


def test_cleanup_every_pipeline_must_prove_partition(view):
    """Require a proof from every pipeline on the tag, except from one that begins later or reads another
    journal.
    """
    audited(view.settings, view.name)
    both = view.mirrored()

    def dry(settings):
        return clean(settings, view.name, owner="t", delete=False)

    assert reasons(dry(both)) == {("t", "still_read"): 6}  # the mirror has delivered nothing yet
    with Ledger(view.settings.cassandra) as ledger:
        mark = ledger.delivered.watermarks(view.name)["t"]
        ledger.delivered.write_watermark("mirror", mark)
    done = dry(both)
    assert (
        reasons(done) == {("t", "not_audited"): 6}
        and "no audit of pipeline mirror has proven it" in done["refused"][0]["text"]
    )
    # A pipeline that begins later has nothing to prove before its start.
    late = view.mirrored(start_from={"t": BEGIN + 4 * HOUR})
    assert reasons(dry(late)) == {("t", "not_audited"): 2}
    # A pipeline on another journal doesn't count.
    assert reasons(dry(view.mirrored(keyspace="elsewhere"))) == {}


def test_cleanup_disabled_deletes_nothing(view):
    """Delete nothing while cleanup.enabled is false or older_than_days is not set; a dry run still lists
    partitions.
    """
    audited(view.settings, view.name)
    off = with_keys(view.settings, view.name, enabled=False)
    with raises(GuardRefused, pipeline=view.name):
        cleaned(off)
    assert cleaned(off, delete=False)["buckets"] == 12
    unset = cleaned(with_keys(view.settings, view.name, older_than_days=None))
    assert (
        unset["buckets"] == 0
        and "cleanup.older_than_days is not set: rows of the view stay" in unset["warnings"]
    )
    assert partitions(view.settings, view.name) == view.all


@pytest.mark.parametrize("at_work", ["its own", "mirror"])
def test_cleanup_refused_while_pipeline_holds_lease(view, at_work):
    """Refuse while any pipeline that reads the same rows holds its lease, and leave no lease taken."""
    name = view.name if at_work == "its own" else at_work
    with Ledger(view.settings.cassandra) as ledger:
        lease = Lease(ledger.cassandra, "tagmill_test", name, "somebody at work", 30)
        lease.take()
        with raises(LeaseTaken, pipeline=name):
            clean(view.mirrored(), view.name, owner="t", delete=True)
        lease.give_back()
        for each in (view.name, "mirror"):  # no lease stays taken
            assert Lease(ledger.cassandra, "tagmill_test", each, "t", 30).holder() is None


def test_cleanup_warns_of_undelivered_rows_with_ttl(view):
    """Warn of undelivered rows that the application's own TTL will delete."""
    assert view.dry()["warnings"] == []
    soon = event("new", 1, datetime.now(UTC), "u")
    columns = [name for name in soon if soon[name] is not None]
    view.journal.session.execute(
        f"INSERT INTO {view.journal.keyspace}.tag_views ({', '.join(columns)}) VALUES "
        f"({', '.join('%s' for _ in columns)}) USING TTL 600",
        [soon[name] for name in columns],
    )
    (warning,) = view.dry()["warnings"]
    assert (
        warning.startswith("tag 'u': undelivered rows expire in ") and "events-by-tag.time-to-live" in warning
    )
    view.journal.remove(soon)


def test_the_documented_compaction_is_one_that_cassandra_takes(view, stack):
    page = (Path(__file__).resolve().parents[2] / "docs" / "cleanup.md").read_text()
    alter, look = (
        line.strip().replace("KEYSPACE", view.journal.keyspace)
        for line in page.splitlines()
        if "KEYSPACE" in line
    )
    stack.session.execute(alter.rstrip(";"))
    (row,) = stack.session.execute(look.rstrip(";"))
    assert row.compaction["class"].endswith("TimeWindowCompactionStrategy")


# -- what is deleted


def test_cleanup_deletes_exactly_proven_partitions(own):
    """Delete exactly the proven partitions; later deliveries, audits, cleanups and checks miss nothing and
    repeat nothing.
    """
    audited(own.settings, own.name)
    disturbed = event("late", 1, BEGIN + HOUR + timedelta(minutes=5), "t")
    own.journal.both([disturbed])  # arrives after the audit, into its second hour
    code, said, wrong = tagmill(own.file, "cleanup", "--pipeline", own.name, "--yes")
    assert code == 0 and "11 partitions of the view with 32 rows deleted, 1 stay" in said, wrong
    assert partitions(own.settings, own.name) == {("t", bucket(1)): 5}
    expected = {key: ("CLEANED", rows) for key, rows in own.all.items() if key != ("t", bucket(1))}
    assert records(own.settings, own.name) == expected

    # No run reads the late row, but a re-read of its range delivers it, and nothing arrives twice.
    before = clickhouse_rows(own.settings, own.name)
    assert deliver(own.settings, own.name, own.spark) == []
    assert verdicts(own.settings, own.name) == {"t": "1 in the view not delivered", "u": "exactly once"}
    (run,) = deliver(
        own.settings, own.name, own.spark, reread=(BEGIN.isoformat(), (BEGIN + HOURS * HOUR).isoformat())
    )
    assert run["rows"] == 1 and len(clickhouse_rows(own.settings, own.name)) == len(before) + 1 == 37
    assert verdicts(own.settings, own.name) == {"t": "exactly once", "u": "exactly once"}

    # The next audit agrees as well. The record of a partition that came back grows by the rows that it had.
    back = event("late", 2, BEGIN + timedelta(minutes=6), "t")
    own.journal.both([back])
    audited(own.settings, own.name)
    done = cleaned(own.settings)
    assert reasons(done) == {("t", "not_in_clickhouse"): 1} and done["rows"] == 5
    deliver(own.settings, own.name, own.spark, reread=(BEGIN.isoformat(), (BEGIN + HOUR).isoformat()))
    assert cleaned(own.settings)["rows"] == 1
    assert records(own.settings, own.name)["t", bucket(0)] == ("CLEANED", 5)
    assert partitions(own.settings, own.name) == {}
    assert verdicts(own.settings, own.name) == {"t": "exactly once", "u": "exactly once"}

    # Cleanup does not wait for rows that were cleaned and then erased, but keeps rows that are not delivered.
    erased(own.settings, ["late"])
    own.journal.both([event("later", 1, BEGIN + timedelta(minutes=8), "t")])
    audited(own.settings, own.name)
    assert reasons(cleaned(own.settings)) == {("t", "not_in_clickhouse"): 1}
    deliver(own.settings, own.name, own.spark, reread=(BEGIN.isoformat(), (BEGIN + HOUR).isoformat()))
    assert cleaned(own.settings)["rows"] == 1 and partitions(own.settings, own.name) == {}
    assert verdicts(own.settings, own.name) == {"t": "exactly once", "u": "exactly once"}

    # Cleaned rows don't hide new ones from the check.
    now = datetime.now(UTC)
    own.journal.both(
        [event("new", number, now + number * timedelta(milliseconds=1), "t") for number in (1, 2, 3)]
    )
    code, table, _ = tagmill(own.file, "check", "--json")
    assert (
        code == 3
        and {line["tag"]: line["verdict"] for line in json.loads(table)}["t"] == "3 in the view not delivered"
    )
    assert sum(run["rows"] for run in deliver(own.settings, own.name, own.spark)) == 3
    assert tagmill(own.file, "check")[0] == 0


def test_cleanup_killed_and_repeated_deletes_the_same(whole):
    """Kill or crash a cleanup at each instant and run it again: it deletes the same rows and none written
    later.
    """
    audited(whole.settings, whole.name)
    arguments, first = ("cleanup", "--pipeline", whole.name, "--yes"), ("t", bucket(0))

    def left():
        return records(whole.settings, whole.name), partitions(whole.settings, whole.name)

    def killed(instant):
        Command(whole.file, *arguments, instant=instant).paused().kill()
        return left()

    def crashed(instant):
        with crashing(instant), pytest.raises(Crashed):
            tagmill(whole.file, *arguments)
        free_lease(whole.journal.session, whole.name)
        return left()

    assert crashed("cleanup.before_decision") == ({}, whole.all)
    assert crashed("cleanup.before_delete") == ({first: ("CLEANING", 4)}, whole.all)
    whole.journal.view(
        [event("late", 1, BEGIN + timedelta(minutes=7), "t")]
    )  # after the decision, before the deletion
    assert cleaned(whole.settings, delete=False)["buckets"] == 12
    assert killed("cleanup.after_delete") == ({first: ("CLEANING", 4)}, {**whole.all, first: 1})
    code, out, err = tagmill(whole.file, *arguments)
    assert code == 0 and "12 partitions of the view with 36 rows deleted" in out, err
    assert partitions(whole.settings, whole.name) == {first: 1}
    assert records(whole.settings, whole.name) == {key: ("CLEANED", rows) for key, rows in whole.all.items()}


def test_cleanup_finishes_decided_without_older_than_days(whole):
    """Take older_than_days away after a kill: the next cleanup finishes what was decided, and judges nothing."""
    audited(whole.settings, whole.name)
    decide(whole, "t", 0, 4)
    settings = with_keys(whole.settings, whole.name, older_than_days=None)
    assert cleaned(settings, delete=False)["buckets"] == 1
    done = cleaned(settings)
    assert (done["buckets"], done["rows"], done["refused"]) == (1, 4, [])
    assert "cleanup.older_than_days is not set: rows of the view stay" in done["warnings"]
    assert records(whole.settings, whole.name) == {("t", bucket(0)): ("CLEANED", 4)}
    assert partitions(whole.settings, whole.name) == {
        key: rows for key, rows in whole.all.items() if key != ("t", bucket(0))
    }


def test_cleanup_finishes_decided_of_removed_tag(whole):
    """Take a tag out of a pipeline after a kill: what was decided is known as unfinished, and is finished by that
    pipeline or by one that has the tag, and not by others.
    """
    decide(whole, "u", 0, 2)
    chosen = whole.settings.pipeline(whole.name)
    without = chosen.model_copy(update={"tags": ["t"]})
    both = {whole.name: without, "mirror": chosen.model_copy(update={"tags": ["u"]})}
    for pipelines, name, first in (
        ({"other": without}, whole.name, "configure it with tag 'u' again, then"),
        (both, "mirror", "finish it first"),
        ({whole.name: without}, whole.name, "finish it first"),
    ):
        settings = whole.settings.model_copy(update={"pipelines": pipelines})
        with Ledger(settings.cassandra) as ledger:
            log = CleanupLog(ledger.cassandra, ledger.ledger_keyspace, chosen.keyspace, chosen.view)
            with raises(WorkUnfinished, match=first, pipeline=name):
                log.require_finished(settings, "Nothing was erased")
        if name == "mirror":
            assert clean(settings, whole.name, owner="cli/o", delete=True)["buckets"] == 0
    assert cleaned(settings)["partitions"][0]["tag"] == "u"
    assert records(whole.settings, whole.name) == {("u", bucket(0)): ("CLEANED", 2)}


@pytest.mark.parametrize(
    ("owner", "asleep"),
    [("airflow/other", "before_delete"), (OWNER, "before_delete"), (OWNER, "before_decision")],
    ids=["another owner", "the next attempt", "undecided"],
)
def test_cleanup_that_lost_its_lease_deletes_nothing_more(whole, monkeypatch, owner, asleep):
    """Let another process be at work while a cleanup sleeps in front of a deletion: the partition stays."""
    audited(whole.settings, whole.name)
    reach = checkpoints.reached

    def reached(instant):
        if instant == f"cleanup.{asleep}":
            whole.journal.session.execute(
                "UPDATE tagmill_test.leases SET owner = %s WHERE pipeline = %s IF EXISTS",
                [f"{owner}#0123456789abcdef", whole.name],
            )
        reach(instant)

    with monkeypatch.context() as patched, raises(LeaseTaken, match=owner, pipeline=whole.name):
        patched.setattr(checkpoints, "reached", reached)
        cleaned(whole.settings)
    free_lease(whole.journal.session, whole.name)
    assert partitions(whole.settings, whole.name) == whole.all
    assert len(records(whole.settings, whole.name)) == (asleep == "before_delete")
    assert cleaned(whole.settings)["buckets"] == 12


def test_cleanup_limit_takes_oldest_and_reports_more(whole):
    """Delete the oldest partitions up to max_buckets_per_run, and report that more are left."""
    audited(whole.settings, whole.name)
    done = cleaned(with_keys(whole.settings, whole.name, max_buckets_per_run=5))
    assert done["more"] and done["buckets"] == 5
    left = partitions(whole.settings, whole.name)
    assert left == {
        key: rows for key, rows in whole.all.items() if key[1] > bucket(2) or key == ("u", bucket(2))
    }
    done = cleaned(whole.settings)
    assert not done["more"] and done["buckets"] == 7 and partitions(whole.settings, whole.name) == {}


def test_cleanup_after_audit_next_audit_agrees(own):
    """Delete what an audit has proven and keep what it has not; the next audits agree without the deleted
    rows.
    """
    missing = spread("b", "t")[2]  # in the second hour
    own.journal.remove(missing)
    first = auditing.audited(own.settings, own.spark)
    assert dict(first.findings) == {"missing_in_view": 1}
    done = cleaned(own.settings)
    assert reasons(done) == {("t", "audit_disagrees"): 1} and (done["buckets"], done["rows"]) == (11, 32)
    assert partitions(own.settings, own.name) == {("t", bucket(1)): 3}
    own.journal.view([missing])
    assert reasons(cleaned(own.settings)) == {("t", "audit_disagrees"): 1}
    second = auditing.audited(own.settings, own.spark)
    assert second.agrees, second.findings
    assert cleaned(own.settings)["rows"] == 4 and partitions(own.settings, own.name) == {}
    third = auditing.audited(own.settings, own.spark)
    assert third.agrees, third.findings
    assert verdicts(own.settings, own.name) == {"t": "exactly once", "u": "exactly once"}


# -- retention


class Runs(View):
    """A View delivered by three runs, all of which ended forty days ago."""

    def __init__(self, journal, settings, spark):
        super().__init__(journal, settings, spark)
        for number in (1, 2):
            journal.both([event("new", number, datetime.now(UTC), "t")])
            assert [run["rows"] for run in deliver(self.settings, self.name, spark)] == [1]
        for run in (1, 2, 3):
            self.ended(run, timedelta(days=40))

    def ended(self, run, ago):
        """Set the time when a run ended, `ago` before now."""
        self.journal.session.execute(
            "UPDATE tagmill_test.runs SET closed_at = %s WHERE pipeline = %s AND run = %s",
            (datetime.now(UTC) - ago, self.name, run),
        )

    def batch_state(self, run, state):
        """Set the state of a run's first batch, such as NEW, which an interrupted resend leaves."""
        self.journal.session.execute(
            "UPDATE tagmill_test.runs SET batch_state = %s WHERE pipeline = %s AND run = %s AND batch_no = 1",
            (state, self.name, run),
        )

    def folders(self):
        """Return the numbers of the runs that have files, and of those that have pages."""
        root = Path(self.settings.storage.root) / self.name
        return tuple(
            sorted(int(folder.name[4:]) for folder in place.glob("run-*")) for place in (root, root / "docs")
        )

    def runs(self):
        """Return the numbers of the runs that the ledger has."""
        with Ledger(self.settings.cassandra) as ledger:
            return [number for number in range(1, 10) if ledger.run(self.name, number)]


@pytest.fixture(scope="module")
def three_runs(module_journal, module_settings, spark):
    """Return three runs that two tests use one after the other."""
    return Runs(module_journal(), module_settings, spark)


def test_retention_keeps_newest_run_and_new_batches(three_runs):
    """Remove runs past retention, also after a kill midway, but keep the newest and those with a batch in
    state NEW.
    """
    pipeline = three_runs
    settled = with_keys(pipeline.settings, pipeline.name, older_than_days=None)
    pipeline.batch_state(2, "NEW")
    assert cleaned(settled, delete=False)["runs"] == 1 and pipeline.runs() == [1, 2, 3]

    # After a kill between the ledger and the files, the next cleanup finds what is left.
    command = ("cleanup", "--pipeline", pipeline.name, "--yes")
    Command(pipeline.file, *command, instant="retention.before_delete").paused().kill()
    assert (pipeline.runs(), pipeline.folders()) == ([1, 2, 3], ([1, 2, 3], [1, 2, 3]))
    Command(pipeline.file, *command, instant="retention.after_delete").paused().kill()
    assert (pipeline.runs(), pipeline.folders()) == ([2, 3], ([1, 2, 3], [1, 2, 3]))
    done = cleaned(settled)
    assert (done["runs"], pipeline.runs(), pipeline.folders()) == (0, [2, 3], ([2, 3], [2, 3]))
    pipeline.batch_state(2, "IN_CLICKHOUSE")
    done = cleaned(settled)
    assert (done["runs"], pipeline.runs(), pipeline.folders()) == (1, [3], ([3], [3]))
    listed = json.loads((Path(settled.storage.root) / pipeline.name / "docs" / "runs.json").read_text())
    assert [line["run"] for line in listed] == ["run-00000003"]
    assert cleaned(settled)["runs"] == 0

    # Deliveries go on, and the check still compares every delivered row with what was sealed.
    assert tagmill(pipeline.file, "check")[0] == 0
    code, table, _ = tagmill(pipeline.file, "batches", "--pipeline", pipeline.name, "--json")
    (line,) = json.loads(table)
    assert code == 0 and (line["run"], line["rows"]) == (3, 1)
    assert len(clickhouse_rows(pipeline.settings, pipeline.name)) == 38
    assert deliver(pipeline.settings, pipeline.name, pipeline.spark) == []
    with Ledger(pipeline.settings.cassandra) as ledger:
        assert ledger.free_number(pipeline.name) == 4


def test_retention_keeps_each_tags_newest_done_audit(view):
    """Remove audits past retention, but keep the newest and the newest of each tag that is done; remove old slices
    of rekeyings, and old reports that pipelines share.
    """
    root = Path(view.settings.storage.root) / view.name
    moments = {
        1: 60,
        2: 50,
        3: 45,
        4: 40,
    }  # days ago; audit 3 is the newest of u that is done, audit 2 that of t
    with Ledger(view.settings.cassandra) as ledger:
        for number, days in moments.items():
            at = datetime.now(UTC) - timedelta(days=days)
            ledger.cassandra.execute(
                "INSERT INTO tagmill_test.audits (pipeline, audit, state, started_at, until) VALUES (?, "
                "?, ?, ?, 0) IF NOT EXISTS",
                view.name,
                number,
                "RUNNING" if number == 4 else "DONE",
                at,
            )
            for page in (root / "audit" / f"{number:08d}", root / "docs" / f"audit-{number:08d}"):
                page.mkdir(parents=True)
        ledger.cassandra.execute(
            "INSERT INTO tagmill_test.audit_tags (pipeline, audit, tags) VALUES (?, 3, {'u'})", view.name
        )
        reports = root.parent / "all" / "reports"
        reports.mkdir(parents=True)
        for name, days in (("old", 40), ("young", 20)):
            moment = (datetime.now(UTC) - timedelta(days=days)).timestamp()
            (root / "rekey" / name).mkdir(parents=True)
            for file in (reports / name, root / "rekey" / name / "slice"):
                file.touch()
                os.utime(file, (moment, moment))
        settled = with_keys(view.settings, view.name, older_than_days=None)
        assert cleaned(settled, delete=False)["audits"] == 1
        assert cleaned(settled)["audits"] == 1 and cleaned(settled)["audits"] == 0
        rows = Audits(ledger.cassandra, "tagmill_test", view.name).newest(9)
        assert [(row.audit, row.tags) for row in rows] == [(4, None), (3, {"u"}), (2, None)]
    for place in (reports, root / "rekey"):
        assert [file.name for file in place.iterdir()] == ["young"]
    assert sorted(folder.name for folder in (root / "audit").iterdir()) == [
        "00000002",
        "00000003",
        "00000004",
    ]
    assert sorted(folder.name for folder in (root / "docs").glob("audit-*")) == [
        "audit-00000002",
        "audit-00000003",
        "audit-00000004",
    ]


def test_retention_expired_batch_is_checked_not_resent(three_runs, stack):
    """Check a batch past retention against ClickHouse, but refuse to send it again."""
    pipeline = three_runs
    cleaned(with_keys(pipeline.settings, pipeline.name, older_than_days=None))
    assert pipeline.runs() == [3]
    (found,) = stack.rows(f"SELECT DISTINCT toString(batch_id) FROM {pipeline.name} WHERE tag = 'u'")
    assert verdicts(pipeline.settings, pipeline.name) == {"t": "exactly once", "u": "exactly once"}
    client = stack.client(settings={"mutations_sync": 2})
    client.command(
        f"ALTER TABLE {pipeline.name} UPDATE ser_manifest = 'Forged' WHERE tag = 'u' AND sequence_nr = 4"
    )
    client.close()
    wrong = verdicts(pipeline.settings, pipeline.name)["u"]
    assert f"batch {found[0]} of run 1 (past retention) has other values in ClickHouse" in wrong
    arguments = ("batches", "resend", found[0], "--run", "1", "--why", "a test", "--yes")
    code, _, said = tagmill(pipeline.file, *arguments, "--pipeline", pipeline.name)
    assert (
        code == 2
        and "is past retention_days (30): its sealed file was cleaned up" in said
        and "Nothing was changed" in said
    )
