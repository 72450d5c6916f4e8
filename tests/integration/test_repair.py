"""A repair of what an audit found: view and ClickHouse hold each event of the journal once, and a second
audit agrees.
"""

import json
from collections import Counter
from datetime import timedelta
from functools import partial
from uuid import UUID

import pytest

from tagmill.audit.model import Kind
from tagmill.audit.repair import repair
from tagmill.clickhouse.client import ClickHouse
from tagmill.errors import GuardRefused
from tagmill.journal.tag_view_reader import VIEW_COLUMNS
from tagmill.ledger import schema
from tagmill.ledger.runs import Ledger
from tagmill.runs import checkpoints
from tagmill.runs.storage import RunFiles
from tests.support import damage
from tests.support.auditing import audited
from tests.support.delivery import (
    OWNER,
    Unstoppable,
    as_row,
    clickhouse_rows,
    deliver,
    holds,
    manifests,
    only,
    shown_first,
    tagmill,
    verdicts,
)
from tests.support.errors import raises
from tests.support.events import event, events, offset, this_hour

BEGIN = this_hour() - timedelta(hours=3)
WHY = ("--why", "seen in a test", "--yes")
PID = "o-000003"


class Repaired:
    """A pipeline over a journal that a test repairs."""

    def __init__(self, journal, settings, spark, **keys):
        self.journal, self.spark, self.pages = journal, spark, settings
        self.settings = settings(journal.keyspace, bucket_size="Hour", **keys)
        self.name = only(self.settings)
        schema.apply(self.settings)

    def deliver(self, **options):
        """Deliver until nothing is new."""
        return deliver(self.settings, self.name, self.spark, **options)

    def audit(self):
        """Audit the pipeline and return the report."""
        return audited(self.settings, self.spark)

    def repair(self):
        """Audit, repair and audit again; return the repair's report and the findings of the second audit."""
        first = self.audit()
        report = repair(
            self.settings, self.name, first.audit, spark=self.spark, owner=OWNER, who="tester", why="a test"
        )
        return report, found(self.audit())

    def rows(self):
        """Return all rows of the destination, sorted."""
        return clickhouse_rows(self.settings, self.name)

    def view(self):
        """Return the view's rows in the form of the destination's."""
        return sorted(map(as_row, self.journal.rows()))

    def tagmill(self, *command):
        """Run a command for this pipeline; one that changes something is shown first."""
        run = shown_first if "--yes" in command else tagmill
        return run(self.pages.file(self.name), *command, "--pipeline", self.name)

    def progress(self, tag, persistence_id):
        """Return the progress of a persistence_id."""
        with Ledger(self.settings.cassandra) as ledger:
            return next(iter(ledger.delivered.progress(self.name, [(tag, persistence_id)])))

    def sql(self, statement):
        """Execute a statement in ClickHouse and wait until its mutations are done."""
        with ClickHouse(self.settings.clickhouse) as clickhouse:
            clickhouse.client.command(statement, settings={"mutations_sync": 2})

    def remove(self, *records):
        """Delete rows of the view."""
        for record in records:
            self.journal.remove(record)

    def numbered(self, records, *, less=0):
        """Write tag_write_progress as the plugin has it after these rows, or `less` numbers before them."""
        last = {(row["persistence_id"], row["tag_name"]): row for row in records}
        for (pid, tag), row in last.items():
            self.journal.session.execute(
                f"INSERT INTO {self.journal.keyspace}.tag_write_progress (persistence_id, tag, "
                "sequence_nr, tag_pid_sequence_nr, offset)"
                " VALUES (%s, %s, %s, %s, %s)",
                (pid, tag, row["sequence_nr"] - less, row["tag_pid_sequence_nr"] - less, row["timestamp"]),
            )


def found(report):
    """Return the findings of an audit by kind, without those that are 0."""
    return {kind.value: count for kind, count in report.findings.items() if count}


def content(rows):
    """Return rows without `late` and without the timebucket that they were delivered from."""
    return sorted(row._replace(late=0, timebucket=0) for row in rows)


@pytest.fixture
def damaged(damaged_journal, settings, spark):
    """Return make(), which loads all damaged fixtures into one journal.

    In addition one last row is missing, and one row has the number behind its own.
    """

    def make():
        made = damaged_journal()
        one = Repaired(made, settings, spark, tags=damage.TAGS, first_time_bucket=damage.FIRST)
        (last,) = [
            row
            for row in made.rows("gap-middle/o-000005")
            if (row["tag_name"], row["tag_pid_sequence_nr"]) == ("tag-1", 16)
        ]
        one.remove(last)
        (shifted,) = [
            row
            for row in made.rows("gap-middle/o-000006")
            if (row["tag_name"], row["tag_pid_sequence_nr"]) == ("tag-0", 16)
        ]
        one.remove(shifted)
        made.view([{**shifted, "tag_pid_sequence_nr": 17}])
        return one

    return make


@pytest.fixture
def repaired(journal, settings, spark):
    """Return make(records, **keys), which makes a sound small journal of two tags, as the plugin would write
    it.
    """

    def make(records, **keys):
        made = journal()
        made.both(records)
        one = Repaired(
            made, settings, spark, **{"tags": ["t", "u"], "first_time_bucket": BEGIN.isoformat(), **keys}
        )
        one.numbered(records)
        return one

    return make


def small():
    """Return eight events of each of three persistence ids in two tags."""
    return [
        *events("a", range(1, 9), BEGIN, "t"),
        *events("b", range(1, 9), BEGIN, "t"),
        *events("c", range(1, 9), BEGIN, "u"),
    ]


def columns(rows):
    """Return rows reduced to the columns of tag_views."""
    return [{name: row[name] for name in VIEW_COLUMNS} for row in rows]


def in_order(rows):
    """Return rows of tag_views ordered by tag, persistence_id, number and time."""
    keys = ("tag_name", "persistence_id", "tag_pid_sequence_nr")
    return sorted(columns(rows), key=lambda row: (*(row[key] for key in keys), row["timestamp"].time))


@pytest.mark.long
def test_repair_after_delivery_restores_all_damage(damaged):
    """Deliver all damaged fixtures, then repair: view and ClickHouse are those of a sound journal, and all
    holds end.
    """
    pipeline = damaged()
    pipeline.deliver()
    assert {pid for _, pid in holds(pipeline.settings, pipeline.name)} == {
        f"duplicate-nr/{PID}",
        f"null-event/{PID}",
        "gap-middle/o-000006",
    }
    report, second = pipeline.repair()
    assert second == {} and report.left == []
    assert in_order(pipeline.journal.rows()) == in_order(damage.healthy())
    assert content(pipeline.rows()) == content(map(as_row, damage.healthy()))
    assert holds(pipeline.settings, pipeline.name) == {}
    assert set(verdicts(pipeline.settings, pipeline.name).values()) == {"exactly once"}
    # Batches of rows with another time or payload were withdrawn; their rows came again, late.
    late = {(row.persistence_id.partition("/")[0], row.tag) for row in pipeline.rows() if row.late}
    assert {("swapped-order", "tag-0"), ("late-previous-bucket", "tag-1")} <= late
    assert len(report.withdrawn) >= 2 and report.resent == []
    assert pipeline.deliver() == []


def test_repair_shows_before_it_asks(repaired, spark, monkeypatch):
    """Show what a repair would change, in a dry run or before the question, and change it only for a yes."""
    pipeline = repaired(records := small())
    pipeline.deliver()
    monkeypatch.setattr("tagmill.spark.session.session", lambda *_, **__: Unstoppable(spark))
    pipeline.remove(records[3])
    (lost,) = [batch for batch in manifests(pipeline.settings, pipeline.name)[0].batches if batch.tag == "u"]
    pipeline.sql(f"ALTER TABLE `{pipeline.name}` DELETE WHERE batch_id = toUUID('{lost.batch_id}')")
    before, sealed = pipeline.journal.rows(), pipeline.rows()
    would = (
        "would repair in the view 1 missing_in_view, deliver 8 missing_in_clickhouse. It looks at each row"
    )
    file, why = pipeline.pages.file(pipeline.name), ("--why", "seen in a test")

    def run(*command, answer=None):
        return tagmill(file, *command, "--pipeline", pipeline.name, answer=answer)

    code, said, warned = run("audit", "--repair", "--dry-run")
    assert code == 3 and would in said and "write: tagmill repair" in warned
    code, said, _ = run("repair", *why, answer="n")
    assert code == 2 and would in said
    code, said, wrong = run("repair", *why)
    assert code == 2 and said == "" and "give --yes" in wrong
    code, said, wrong = run("repair", "--yes")
    assert code == 2 and said == "" and "why is empty; give --why" in wrong
    assert pipeline.journal.rows() == before and pipeline.rows() == sealed
    audits = len(json.loads(run("audits", "--json")[1]))
    code, said, _ = run("repair", *why, answer="y")
    assert code == 0 and would in said and "1 findings repaired in the view, 1 batches sent again" in said
    assert in_order(pipeline.journal.rows()) == in_order(records)
    assert content(pipeline.rows()) == content(map(as_row, records))
    assert len(json.loads(run("audits", "--json")[1])) == audits + 2  # what is shown is what is repaired
    code, said, _ = run("repair", *why, answer="")
    assert code == 0 and "found nothing to repair" in said


@pytest.mark.long
def test_repair_interrupted_at_each_instant_finishes(damaged, monkeypatch):
    """End a repair at each instant in turn; the last one restores view and ClickHouse."""
    pipeline = damaged()
    pipeline.deliver()
    first = manifests(pipeline.settings, pipeline.name)[0].batches[0]
    pipeline.sql(f"ALTER TABLE `{pipeline.name}` DELETE WHERE batch_id = toUUID('{first.batch_id}')")
    audit = pipeline.audit().audit

    def repaired():
        return repair(
            pipeline.settings,
            pipeline.name,
            audit,
            spark=pipeline.spark,
            owner=OWNER,
            who="tester",
            why="a test",
        )

    for instant in (
        "repair.staged",
        "repair.rows_written",
        "repair.mended",
        "repair.resent",
        "repair.withdrawn",
        "repair.before_reread",
    ):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt, match=instant):
            patch.setattr(checkpoints, "reached", partial(_end_at, instant))
            repaired()
    assert repaired().left == []
    assert found(pipeline.audit()) == {}
    assert in_order(pipeline.journal.rows()) == in_order(damage.healthy())
    assert content(pipeline.rows()) == content(map(as_row, damage.healthy()))


def _end_at(instant, reached):
    """Raise KeyboardInterrupt at one instant."""
    if reached == instant:
        raise KeyboardInterrupt(instant)


def test_repair_before_first_delivery_leaves_no_trace(damaged):
    """Repair a damaged view before its first delivery: ClickHouse has what a sound view would have given,
    none of it late.
    """
    pipeline = damaged()
    report, second = pipeline.repair()
    assert second == {} and report.withdrawn == report.resent == report.left == []
    assert in_order(pipeline.journal.rows()) == in_order(damage.healthy())
    assert pipeline.rows() == sorted(map(as_row, damage.healthy()))


def test_repair_lost_and_doubled_batches_are_resent(repaired):
    pipeline = repaired(small())
    pipeline.deliver()
    batch = {batch.tag: batch.batch_id for batch in manifests(pipeline.settings, pipeline.name)[0].batches}
    columns_ = "* EXCEPT (batch_id, generation), batch_id, generation"
    pipeline.sql(
        f"INSERT INTO `{pipeline.name}` SELECT {columns_} FROM `{pipeline.name}` WHERE tag = 't' AND "
        "sequence_nr < 3"
    )
    pipeline.sql(f"ALTER TABLE `{pipeline.name}` DELETE WHERE tag = 'u'")
    assert len(pipeline.rows()) == 16 + 4
    report, second = pipeline.repair()
    assert second == {} and sorted(report.resent) == sorted(batch.values()) and report.withdrawn == []
    assert pipeline.rows() == sorted(map(as_row, small()))
    assert set(verdicts(pipeline.settings, pipeline.name).values()) == {"exactly once"}


def test_rows_deleted_during_repair_stay_deleted(repaired, monkeypatch):
    """Delete a row, as an erasure would, after a repair has read its event and before it writes the row."""
    pipeline = repaired(records := small())
    pipeline.deliver()
    pipeline.remove(records[3])
    audit, whole = pipeline.audit().audit, checkpoints.reached

    def reached(instant):
        if instant == "repair.before_rows":
            pipeline.remove(records[3])
        whole(instant)

    monkeypatch.setattr(checkpoints, "reached", reached)
    done = {"spark": pipeline.spark, "owner": OWNER, "who": "tester", "why": "a test"}
    repair(pipeline.settings, pipeline.name, audit, **done)
    assert in_order(pipeline.journal.rows()) == in_order(records[:3] + records[4:])


@pytest.mark.long
def test_repair_undelivered_events_are_delivered_late(repaired):
    """Repair events that progress counts as passed but no batch contains."""
    pipeline = repaired(small())
    pipeline.deliver()
    lost = events("d", range(1, 4), BEGIN, "u")
    pipeline.journal.both(lost)
    pipeline.numbered(lost)
    pipeline.journal.session.execute(
        "INSERT INTO tagmill_test.progress (pipeline, tag, persistence_id, tag_pid_sequence_nr, "
        "sequence_nr, missing, run)"
        " VALUES (%s, 'u', 'd', 3, 3, '2-2', 1) USING TIMESTAMP 1",
        (pipeline.name,),
    )
    report, second = pipeline.repair()
    assert second == {} and report.undelivered == 2
    assert pipeline.rows() == sorted([*map(as_row, small()), *(as_row(record, late=1) for record in lost)])
    assert pipeline.progress("u", "d").missing == ()
    with Ledger(pipeline.settings.cassandra) as ledger:
        assert {"repair: progress of what was not delivered"} == {
            row.what for row in ledger.interventions(pipeline.name)
        }


@pytest.mark.long
def test_repair_undecidable_findings_are_left_and_named(repaired):
    """Leave a row that the plugin has not numbered yet, a row without an event, and an event of two
    writers.
    """
    records = small()
    pipeline = repaired(records)
    pipeline.deliver()
    # The plugin has not reached number 8; a row lacks its event in the journal; two writers claim one
    # sequence_nr.
    pipeline.remove(records[7])
    pipeline.numbered(records[:8], less=1)
    ghost = event("c", 9, BEGIN + timedelta(minutes=1), "u")
    pipeline.journal.view([ghost])
    pipeline.journal.messages(
        [event("b", 4, BEGIN + timedelta(minutes=2), "t", writer_uuid="other", timestamp=offset(BEGIN, 7))]
    )
    pipeline.remove(records[8 + 3])
    report, second = pipeline.repair()
    left = {(line.kind, line.why.partition(";")[0]) for line in report.left}
    assert left == {
        (Kind.MISSING_IN_VIEW, "the plugin has not numbered it yet"),
        (Kind.MISSING_IN_VIEW, "two writers wrote this sequence_nr"),
        (Kind.EXTRA_IN_VIEW, "the journal has no such event"),
    }
    assert [row["tag_pid_sequence_nr"] for row in pipeline.journal.rows("c")] == list(range(1, 10))
    assert len(pipeline.journal.rows("a")) == 7
    assert second["extra_in_view"] == 1 and second["missing_in_view"] >= 1 and "two_writers" in second


@pytest.mark.long
def test_repair_again_changes_nothing(repaired):
    """Repair by the same audit twice; an audit that is no longer the last one is refused."""
    pipeline = repaired(small())
    pipeline.deliver()
    pipeline.remove(small()[2])
    first = pipeline.audit()
    for _ in range(2):
        report = repair(
            pipeline.settings, pipeline.name, first.audit, spark=pipeline.spark, owner=OWNER, who="t", why="t"
        )
        assert report.left == [] and pipeline.rows() == sorted(map(as_row, small()))
    second = pipeline.audit()
    assert found(second) == {}
    with raises(GuardRefused, match=f"audit {first.audit} is not the last one", pipeline=pipeline.name):
        repair(
            pipeline.settings, pipeline.name, first.audit, spark=pipeline.spark, owner=OWNER, who="t", why="t"
        )


def test_withdrawn_batch_returns_late_on_reread(repaired):
    """Withdraw a batch and read its range again with the command that the withdrawal named."""
    pipeline = repaired(small())
    pipeline.deliver()
    before = pipeline.rows()
    (batch,) = [b for b in manifests(pipeline.settings, pipeline.name)[0].batches if b.tag == "t"]
    code, said, wrong = pipeline.tagmill("batches", "withdraw", batch.batch_id, "--run", "1", *WHY)
    assert code == 0 and "is out of ClickHouse and VOIDED" in said, wrong
    assert Counter(row.tag for row in pipeline.rows()) == {"u": 8}
    assert pipeline.progress("t", "a").missing == ((1, 8),) and pipeline.progress("t", "a").number == 8
    assert verdicts(pipeline.settings, pipeline.name)["t"] == "16 in the view not delivered"
    assert pipeline.tagmill("batches", "withdraw", batch.batch_id, "--run", "1", *WHY)[0] == 2
    assert pipeline.tagmill("batches", "resend", batch.batch_id, "--run", "1", *WHY)[0] == 2
    assert Counter(row.tag for row in pipeline.rows()) == {"u": 8}
    command = said.split("tagmill ", 1)[1].split()
    span = (command[command.index("--reread-from") + 1], command[command.index("--reread-until") + 1])
    pipeline.deliver(reread=span)
    assert pipeline.rows() == sorted(row._replace(late=int(row.tag == "t")) for row in before)
    assert set(verdicts(pipeline.settings, pipeline.name).values()) == {"exactly once"}
    assert pipeline.deliver() == [] and pipeline.deliver(reread=span)[0]["rows"] == 0
    # A late insert of the withdrawn batch does nothing.
    with ClickHouse(pipeline.settings.clickhouse) as clickhouse:
        clickhouse.insert_batch(
            pipeline.name, UUID(batch.batch_id), 1, RunFiles(pipeline.settings.storage.root).read(batch.file)
        )
    assert len(pipeline.rows()) == len(before)


@pytest.mark.parametrize("way", [pytest.param("repair", marks=pytest.mark.long), "withdraw"])
def test_voided_batch_of_restore_is_taken_out(repaired, spark, monkeypatch, way):
    """Put ClickHouse back to before a withdrawal: once the batch that came for it is sent again, the VOIDED one
    can be taken out.
    """
    pipeline = repaired(small())
    pipeline.deliver()
    monkeypatch.setattr("tagmill.spark.session.session", lambda *_, **__: Unstoppable(spark))
    (old,) = [b for b in manifests(pipeline.settings, pipeline.name)[0].batches if b.tag == "t"]
    withdraw = ("batches", "withdraw", old.batch_id, "--run", "1", *WHY)
    words = pipeline.tagmill(*withdraw)[1].split()
    span = (words[words.index("--reread-from") + 1], words[words.index("--reread-until") + 1])
    (run,) = pipeline.deliver(reread=span)
    delivered, (new,) = pipeline.rows(), manifests(pipeline.settings, pipeline.name)[-1].batches
    pipeline.sql(f"ALTER TABLE `{pipeline.name}` DELETE WHERE tag = 't'")
    pipeline.sql(f"TRUNCATE TABLE `{pipeline.name}_voided`")
    with ClickHouse(pipeline.settings.clickhouse) as clickhouse:
        content = RunFiles(pipeline.settings.storage.root).read(old.file)
        clickhouse.insert_batch(pipeline.name, UUID(old.batch_id), 9, content)
    code, _, refused = pipeline.tagmill(*withdraw)
    assert code == 2 and "16 of its 16 events in no other batch. Its rows stay" in " ".join(refused.split())
    resend = ("batches", "resend", new.batch_id, "--run", str(run["run"]), *WHY)
    assert pipeline.tagmill(*resend)[0] == 0 and len(pipeline.rows()) == len(delivered) + 16
    if way == "repair":
        code, said, wrong = tagmill(pipeline.pages.file(pipeline.name), "repair", "-p", pipeline.name, *WHY)
        assert code == 0 and "0 batches sent again, 1 withdrawn" in said, (said, wrong)
    else:
        code, said, wrong = pipeline.tagmill(*withdraw)
        assert code == 0 and "its 16 rows are removed" in said, wrong
    assert pipeline.rows() == delivered
    assert set(verdicts(pipeline.settings, pipeline.name).values()) == {"exactly once"}


def test_withdraw_batch_with_lost_rows_is_refused(repaired):
    records = small()
    pipeline = repaired(records)
    pipeline.deliver()
    before = pipeline.rows()
    pipeline.remove(records[20])
    (batch,) = [b for b in manifests(pipeline.settings, pipeline.name)[0].batches if b.tag == "u"]
    code, _, said = pipeline.tagmill("batches", "withdraw", batch.batch_id, "--run", "1", *WHY)
    assert (
        code == 2
        and "event 5 of 'c', tag 'u', which the view has no longer" in said
        and "Nothing was withdrawn" in said
    )
    assert pipeline.rows() == before and pipeline.progress("u", "c").missing == ()
