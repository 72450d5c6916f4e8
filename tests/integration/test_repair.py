"""What an audit has found is mended: the view holds what the journal says, ClickHouse each event once, and a second audit agrees."""

from collections import Counter
from datetime import timedelta
from functools import partial
from uuid import UUID

import pytest

from tagmill import checkpoints
from tagmill.audit.model import Kind
from tagmill.audit.repair import repair
from tagmill.errors import GuardRefused
from tagmill.stores import schema
from tagmill.stores.clickhouse import ClickHouse
from tagmill.stores.ledger import Ledger
from tagmill.stores.views import VIEW_COLUMNS
from tests.support import damage
from tests.support.auditing import audited
from tests.support.delivery import (
    OWNER,
    as_row,
    clickhouse_rows,
    deliver,
    holds,
    manifests,
    only,
    tagmill,
    verdicts,
)
from tests.support.events import event, events, offset, this_hour

BEGIN = this_hour() - timedelta(hours=3)
WHY = ("--why", "seen in a test", "--yes")
PID = "o-000003"


class Repaired:
    """A pipeline over a journal that is to be repaired."""

    def __init__(self, journal, settings, spark, **keys):
        self.journal, self.spark, self.pages = journal, spark, settings
        self.settings = settings(journal.keyspace, bucket_size="Hour", **keys)
        self.name = only(self.settings)
        schema.apply(self.settings)

    def deliver(self, **options):
        return deliver(self.settings, self.name, self.spark, **options)

    def audit(self):
        return audited(self.settings, self.spark)

    def repair(self):
        """Audit, repair, audit: the repair's report, and what the second audit finds."""
        first = self.audit()
        report = repair(self.settings, self.name, first.audit, spark=self.spark, owner=OWNER, who="tester", why="a test")
        return report, found(self.audit())

    def rows(self):
        return clickhouse_rows(self.settings, self.name)

    def view(self):
        return sorted(map(as_row, self.journal.rows()))

    def tagmill(self, *command):
        return tagmill(self.pages.file(self.name), *command, "--pipeline", self.name)

    def progress(self, tag, persistence_id):
        with Ledger(self.settings.cassandra) as ledger:
            return next(iter(ledger.delivered.progress(self.name, [(tag, persistence_id)])))

    def sql(self, statement):
        with ClickHouse(self.settings.clickhouse) as clickhouse:
            clickhouse.client.command(statement, settings={"mutations_sync": 2})

    def remove(self, *records):
        for record in records:
            self.journal.remove(record)

    def numbered(self, records, *, less=0):
        """tag_write_progress, as the plugin has it after these rows; `less`: it has not got so far."""
        last = {(row["persistence_id"], row["tag_name"]): row for row in records}
        for (pid, tag), row in last.items():
            self.journal.session.execute(
                f"INSERT INTO {self.journal.keyspace}.tag_write_progress (persistence_id, tag, sequence_nr, tag_pid_sequence_nr, offset)"
                " VALUES (%s, %s, %s, %s, %s)",
                (pid, tag, row["sequence_nr"] - less, row["tag_pid_sequence_nr"] - less, row["timestamp"]),
            )


def found(report):
    return {kind.value: count for kind, count in report.findings.items() if count}


def content(rows):
    """Rows without what says how they came: `late`, and the bucket that the view had them in when they were delivered."""
    return sorted(row._replace(late=0, timebucket=0) for row in rows)


@pytest.fixture
def damaged(damaged_journal, settings, spark):
    """damaged() -> all damaged fixtures in one journal; one last row is missing, too, and one has the number behind its own."""

    def make():
        made = damaged_journal()
        one = Repaired(made, settings, spark, tags=damage.TAGS, first_time_bucket=damage.FIRST)
        (last,) = [
            row for row in made.rows("gap-middle/o-000005") if (row["tag_name"], row["tag_pid_sequence_nr"]) == ("tag-1", 16)
        ]
        one.remove(last)
        (shifted,) = [
            row for row in made.rows("gap-middle/o-000006") if (row["tag_name"], row["tag_pid_sequence_nr"]) == ("tag-0", 16)
        ]
        one.remove(shifted)
        made.view([{**shifted, "tag_pid_sequence_nr": 17}])
        return one

    return make


@pytest.fixture
def repaired(journal, settings, spark):
    """repaired(records, **keys) -> a sound small journal of two tags, as a plugin would have written it."""

    def make(records, **keys):
        made = journal()
        made.both(records)
        one = Repaired(made, settings, spark, **{"tags": ["t", "u"], "first_time_bucket": BEGIN.isoformat(), **keys})
        one.numbered(records)
        return one

    return make


def small():
    return [*events("a", range(1, 9), BEGIN, "t"), *events("b", range(1, 9), BEGIN, "t"), *events("c", range(1, 9), BEGIN, "u")]


def columns(rows):
    return [{name: row[name] for name in VIEW_COLUMNS} for row in rows]


def in_order(rows):
    keys = ("tag_name", "persistence_id", "tag_pid_sequence_nr")
    return sorted(columns(rows), key=lambda row: (*(row[key] for key in keys), row["timestamp"].time))


@pytest.mark.long
def test_every_damage_is_mended_after_delivery_and_a_second_audit_agrees(damaged):
    pipeline = damaged()
    pipeline.deliver()
    assert {pid for _, pid in holds(pipeline.settings, pipeline.name)} == {
        f"duplicate-nr/{PID}", f"null-event/{PID}", "gap-middle/o-000006",
    }  # fmt: skip
    report, second = pipeline.repair()
    assert second == {} and report.left == []
    assert in_order(pipeline.journal.rows()) == in_order(damage.healthy())
    assert content(pipeline.rows()) == content(map(as_row, damage.healthy()))
    assert holds(pipeline.settings, pipeline.name) == {}
    assert set(verdicts(pipeline.settings, pipeline.name).values()) == {"exactly once"}
    # rows whose time or payload was another one: their batches were withdrawn, and came again, late
    late = {(row.persistence_id.partition("/")[0], row.tag) for row in pipeline.rows() if row.late}
    assert {("swapped-order", "tag-0"), ("late-previous-bucket", "tag-1")} <= late
    assert len(report.withdrawn) >= 2 and report.resent == []
    assert pipeline.deliver() == []


@pytest.mark.long
def test_a_repair_that_ends_at_any_instant_is_begun_again(damaged, monkeypatch):
    pipeline = damaged()
    pipeline.deliver()
    first = manifests(pipeline.settings, pipeline.name)[0].batches[0]
    pipeline.sql(f"ALTER TABLE `{pipeline.name}` DELETE WHERE batch_id = toUUID('{first.batch_id}')")
    audit = pipeline.audit().audit

    def repaired():
        return repair(pipeline.settings, pipeline.name, audit, spark=pipeline.spark, owner=OWNER, who="tester", why="a test")

    for instant in (
        "repair.staged", "repair.rows_written", "repair.mended", "repair.resent", "repair.withdrawn", "repair.before_reread",
    ):  # fmt: skip
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt, match=instant):
            patch.setattr(checkpoints, "reached", partial(_end_at, instant))
            repaired()
    assert repaired().left == []
    assert found(pipeline.audit()) == {}
    assert in_order(pipeline.journal.rows()) == in_order(damage.healthy())
    assert content(pipeline.rows()) == content(map(as_row, damage.healthy()))


def _end_at(instant, reached):
    if reached == instant:
        raise KeyboardInterrupt(instant)


def test_a_view_mended_before_its_first_delivery_is_delivered_as_if_it_had_never_been_damaged(damaged):
    pipeline = damaged()
    report, second = pipeline.repair()
    assert second == {} and report.withdrawn == report.resent == report.left == []
    assert in_order(pipeline.journal.rows()) == in_order(damage.healthy())
    assert pipeline.rows() == sorted(map(as_row, damage.healthy()))


def test_batches_that_are_gone_or_there_twice_are_sent_again(repaired):
    pipeline = repaired(small())
    pipeline.deliver()
    batch = {batch.tag: batch.batch_id for batch in manifests(pipeline.settings, pipeline.name)[0].batches}
    columns_ = "* EXCEPT (batch_id, generation), batch_id, generation"
    pipeline.sql(f"INSERT INTO `{pipeline.name}` SELECT {columns_} FROM `{pipeline.name}` WHERE tag = 't' AND sequence_nr < 3")
    pipeline.sql(f"ALTER TABLE `{pipeline.name}` DELETE WHERE tag = 'u'")
    assert len(pipeline.rows()) == 16 + 4
    report, second = pipeline.repair()
    assert second == {} and sorted(report.resent) == sorted(batch.values()) and report.withdrawn == []
    assert pipeline.rows() == sorted(map(as_row, small()))
    assert set(verdicts(pipeline.settings, pipeline.name).values()) == {"exactly once"}


@pytest.mark.long
def test_an_event_that_progress_has_passed_and_no_batch_has_is_delivered_late(repaired):
    pipeline = repaired(small())
    pipeline.deliver()
    lost = events("d", range(1, 4), BEGIN, "u")
    pipeline.journal.both(lost)
    pipeline.numbered(lost)
    pipeline.journal.session.execute(
        "INSERT INTO tagmill_test.progress (pipeline, tag, persistence_id, tag_pid_sequence_nr, sequence_nr, missing, run)"
        " VALUES (%s, 'u', 'd', 3, 3, '2-2', 1) USING TIMESTAMP 1", (pipeline.name,),
    )  # fmt: skip
    report, second = pipeline.repair()
    assert second == {} and report.undelivered == 2
    assert pipeline.rows() == sorted([*map(as_row, small()), *(as_row(record, late=1) for record in lost)])
    assert pipeline.progress("u", "d").missing == ()
    with Ledger(pipeline.settings.cassandra) as ledger:
        assert {"audit --repair: progress of what was not delivered"} == {row.what for row in ledger.interventions(pipeline.name)}


@pytest.mark.long
def test_what_can_t_be_told_is_left_and_named(repaired):
    records = small()
    pipeline = repaired(records)
    pipeline.deliver()
    # the plugin has not got to number 8; a row whose event the journal lacks; two writers
    pipeline.remove(records[7])
    pipeline.numbered(records[:8], less=1)
    ghost = event("c", 9, BEGIN + timedelta(minutes=1), "u")
    pipeline.journal.view([ghost])
    pipeline.journal.messages([event("b", 4, BEGIN + timedelta(minutes=2), "t", writer_uuid="other", timestamp=offset(BEGIN, 7))])
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
def test_repairing_again_or_an_older_audit_changes_nothing(repaired):
    pipeline = repaired(small())
    pipeline.deliver()
    pipeline.remove(small()[2])
    first = pipeline.audit()
    for _ in range(2):
        report = repair(pipeline.settings, pipeline.name, first.audit, spark=pipeline.spark, owner=OWNER, who="t", why="t")
        assert report.left == [] and pipeline.rows() == sorted(map(as_row, small()))
    second = pipeline.audit()
    assert found(second) == {}
    with pytest.raises(GuardRefused, match=f"audit {first.audit} is not the last one .* Nothing was changed"):
        repair(pipeline.settings, pipeline.name, first.audit, spark=pipeline.spark, owner=OWNER, who="t", why="t")


def test_a_withdrawn_batch_is_delivered_again_late_by_whoever_reads_its_range(repaired):
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
    # an insert of the withdrawn batch that wakes up now does nothing
    with ClickHouse(pipeline.settings.clickhouse) as clickhouse:
        from tagmill.stores.files import RunFiles

        clickhouse.insert_batch(pipeline.name, UUID(batch.batch_id), 1, RunFiles(pipeline.settings.storage.root).read(batch.file))
    assert len(pipeline.rows()) == len(before)


def test_a_batch_whose_events_the_view_has_lost_is_not_withdrawn(repaired):
    records = small()
    pipeline = repaired(records)
    pipeline.deliver()
    before = pipeline.rows()
    pipeline.remove(records[20])
    (batch,) = [b for b in manifests(pipeline.settings, pipeline.name)[0].batches if b.tag == "u"]
    code, _, said = pipeline.tagmill("batches", "withdraw", batch.batch_id, "--run", "1", *WHY)
    assert code == 2 and "event 5 of 'c', tag 'u', which the view has no longer" in said and "Nothing was withdrawn" in said
    assert pipeline.rows() == before and pipeline.progress("u", "c").missing == ()
