"""The ways out of a stuck run: abandon, void, resend; and what a range that is read again delivers."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from tagmill.clickhouse.client import ClickHouse
from tagmill.delivery.run_repairs import EVERY_GENERATION
from tagmill.delivery.tag_views import steps
from tagmill.delivery.tag_views.interventions import Interventions
from tagmill.domain.timeuuid import from_datetime
from tagmill.errors import BatchDiffers, FenceRaised, WorkUnfinished
from tagmill.ledger import schema
from tagmill.ledger.runs import Ledger
from tagmill.runs.storage import RunFiles
from tests.support.delivery import (
    OWNER,
    as_row,
    clickhouse_rows,
    deliver,
    finish,
    manifests,
    only,
    shown_first,
    state,
    tagmill,
    verdicts,
)
from tests.support.errors import raises
from tests.support.events import events, this_hour
from tests.support.leases import free_lease
from tests.support.topics import Crashed, crashing

BEGIN = this_hour() - timedelta(hours=2)
WHY = ("--why", "seen in a test", "--yes")


class Delivery:
    """A small pipeline of two tags and its command line."""

    def __init__(self, journal, settings, spark, **keys):
        self.journal, self.spark, self.pages = journal, spark, settings
        self.records = [
            *events("a", range(1, 9), BEGIN, "t"),
            *events("b", range(1, 9), BEGIN, "t"),
            *events("a", range(1, 9), BEGIN, "u"),
        ]
        journal.both(self.records)
        wanted = {"tags": ["t", "u"], "bucket_size": "Hour", "first_time_bucket": BEGIN.isoformat(), **keys}
        self.settings = settings(journal.keyspace, **wanted)
        self.name = only(self.settings)
        schema.apply(self.settings)

    def planned(self):
        """Plan a run and return the plan."""
        return steps.plan(self.settings, self.name, owner=OWNER)

    def sealed(self):
        """Plan and seal a run; return its number and fence."""
        run = self.planned()
        steps.seal(self.settings, self.name, run["run"], run["fence"], owner=OWNER, spark=lambda: self.spark)
        return run

    def deliver(self, **options):
        """Deliver until nothing is new."""
        return deliver(self.settings, self.name, self.spark, **options)

    def expected(self):
        """Return the rows that ClickHouse should have."""
        return sorted(map(as_row, self.records))

    def rows(self):
        """Return the rows that ClickHouse has."""
        return clickhouse_rows(self.settings, self.name)

    def tagmill(self, *command):
        """Run a command for this pipeline; one that changes something is shown first."""
        run = shown_first if "--yes" in command else tagmill
        return run(self.pages.file(self.name), *command, "--pipeline", self.name)

    def killed_attempt(self):
        """Write what a killed sealer of the first run would leave."""
        RunFiles(self.settings.storage.root).write(
            f"{self.name}/run-00000001/attempt-killed/staged/part.parquet", b"rows"
        )

    def attempts(self):
        """Return the folders of the first run."""
        return RunFiles(self.settings.storage.root).folders(f"{self.name}/run-00000001")

    def slip_in(self, number):
        """Insert a batch but leave it NEW, like a pusher that died before it wrote to the ledger; return the
        batch.
        """
        (batch,) = [b for b in manifests(self.settings, self.name)[-1].batches if b.number == number]
        content = RunFiles(self.settings.storage.root).read(batch.file)
        with ClickHouse(self.settings.clickhouse) as clickhouse:
            clickhouse.insert_batch(self.name, UUID(batch.batch_id), 1, content)
        return batch

    def alter(self, change, where):
        """Change stored rows behind Tagmill's back."""
        with ClickHouse(self.settings.clickhouse) as clickhouse:
            clickhouse.client.command(
                f"ALTER TABLE `{self.name}` UPDATE {change} WHERE {where}", settings={"mutations_sync": 2}
            )


@pytest.fixture
def delivery(journal, settings, spark):
    """Return make(**pipeline keys), which makes a small pipeline."""
    return lambda **keys: Delivery(journal(), settings, spark, **keys)


def test_abandon_run_lets_next_replan_its_range(delivery):
    """Abandon a planned run: its late sealer is refused, and the next run delivers the same range."""
    pipeline = delivery()
    run = steps.plan(pipeline.settings, pipeline.name, owner="somebody at work")
    command = ("run", "abandon", "--pipeline", pipeline.name, *WHY)
    code, _, said = tagmill(pipeline.pages.file(pipeline.name), *command)
    assert code == 75 and said.count("\n") == 1 and "somebody at work is at work. Nothing was done" in said
    free_lease(pipeline.journal.session, pipeline.name)
    pipeline.killed_attempt()
    code, said, _ = pipeline.tagmill("run", "abandon", *WHY)
    assert code == 0 and "run 1" in said and "ABANDONED" in said
    assert pipeline.attempts() == []
    with raises(FenceRaised, pipeline=pipeline.name, run=run["run"]):  # as the late sealer would
        finish(pipeline.settings, pipeline.name, pipeline.spark, run)
    assert pipeline.rows() == []
    code, _, said = pipeline.tagmill("run", "abandon", *WHY)
    assert (
        code == 2 and said.count("\n") == 1 and "has no PLANNED run" in said and "Nothing was changed" in said
    )
    (run,) = pipeline.deliver()
    assert run["run"] == 2 and pipeline.rows() == pipeline.expected()
    with Ledger(pipeline.settings.cassandra) as ledger:
        (done,) = ledger.interventions(pipeline.name)
    assert (done.run, done.what, done.why) == (1, "run abandon", "seen in a test") and done.who


def test_void_batches_are_delivered_once_by_next(delivery):
    pipeline = delivery()
    first = pipeline.sealed()
    batch = manifests(pipeline.settings, pipeline.name)[0].batches[0]
    code, said, _ = pipeline.tagmill("run", "void", *WHY)
    assert code == 0 and "2 batches VOIDED" in said
    with raises(FenceRaised, pipeline=pipeline.name, run=first["run"]):
        steps.push(pipeline.settings, pipeline.name, first["run"], first["fence"], owner=OWNER)
    pipeline.killed_attempt()
    runs = pipeline.deliver()
    assert [run["run"] for run in runs] == [1, 2] and pipeline.rows() == pipeline.expected()
    assert state(pipeline.settings, pipeline.name, 1) == "CLOSED"
    assert pipeline.attempts() == [f"attempt-{manifests(pipeline.settings, pipeline.name)[0].attempt}"]
    # A late insert of a voided batch does nothing.
    content = RunFiles(pipeline.settings.storage.root).read(batch.file)
    with ClickHouse(pipeline.settings.clickhouse) as clickhouse:
        clickhouse.insert_batch(pipeline.name, UUID(batch.batch_id), 1, content)
    assert pipeline.rows() == pipeline.expected() and pipeline.deliver() == []
    assert verdicts(pipeline.settings, pipeline.name) == {"t": "exactly once", "u": "exactly once"}


def test_void_batch_in_clickhouse_is_refused(delivery):
    """Refuse to void a batch that is in ClickHouse; the run is delivered, and the batch can be resent."""
    pipeline = delivery()
    pipeline.sealed()
    batch = pipeline.slip_in(1)
    code, _, said = pipeline.tagmill("run", "void", *WHY)
    assert (
        code == 2
        and said.count("\n") == 1
        and batch.batch_id in said
        and "is in ClickHouse. It was not voided" in said
    )
    (run,) = pipeline.deliver()
    assert run["run"] == 1 and pipeline.rows() == pipeline.expected()
    code, said, wrong = pipeline.tagmill("batches", "resend", batch.batch_id, "--run", "1", *WHY)
    assert code == 0 and "generation 2 and verified" in said, wrong
    assert pipeline.rows() == pipeline.expected()
    assert verdicts(pipeline.settings, pipeline.name) == {"t": "exactly once", "u": "exactly once"}


def test_void_killed_leaves_no_mark(delivery):
    """Kill a void behind its first mark, with another one on a batch that ClickHouse has: deliver sends all,
    and a mark on a delivered batch does not stop its resend.
    """
    pipeline = delivery()
    pipeline.sealed()
    first, second = manifests(pipeline.settings, pipeline.name)[0].batches
    pipeline.slip_in(second.number)
    with ClickHouse(pipeline.settings.clickhouse) as clickhouse:
        clickhouse.void_batch(pipeline.name, UUID(second.batch_id))
        with crashing("void.marked"), pytest.raises(Crashed):
            pipeline.tagmill("run", "void", *WHY)
        free_lease(pipeline.journal.session, pipeline.name)
        assert [run["run"] for run in pipeline.deliver()] == [1]
        assert pipeline.rows() == pipeline.expected()
        assert [clickhouse.voided_at(pipeline.name, UUID(b.batch_id)) for b in (first, second)] == [0, 0]
        clickhouse.void_batch(pipeline.name, UUID(second.batch_id))
    resend = ("batches", "resend", second.batch_id, "--run", "1", *WHY)
    code, _, wrong = pipeline.tagmill(*resend)
    assert code == 0 and pipeline.rows() == pipeline.expected(), wrong
    with ClickHouse(
        pipeline.settings.clickhouse
    ) as clickhouse:  # as if withdrawn before the ledger was restored
        clickhouse.void_batch(pipeline.name, UUID(second.batch_id))
        clickhouse.delete_batch(pipeline.name, UUID(second.batch_id), EVERY_GENERATION)
    code, _, wrong = pipeline.tagmill(*resend)
    assert code == 2 and "it was withdrawn" in wrong and len(pipeline.rows()) < len(pipeline.expected())


def test_push_altered_row_stops_until_resend(delivery):
    """Change a row before its batch is verified: the push stops with the command that repairs it."""
    pipeline = delivery()
    run = pipeline.sealed()
    batch = pipeline.slip_in(1)
    pipeline.alter("event = 'forged'", "tag = 't' AND persistence_id = 'b' AND sequence_nr = 4")
    about = {"pipeline": pipeline.name, "run": run["run"], "batch": batch.batch_id}
    with raises(BatchDiffers, **about) as differs:
        steps.push(pipeline.settings, pipeline.name, run["run"], run["fence"], owner=OWNER)
    text = str(differs.value)
    assert "ClickHouse has 16 rows" in text and "sealed are 16 rows" in text
    code, _, wrong = pipeline.tagmill(*repair(text))
    assert code == 0, wrong
    assert [r["run"] for r in pipeline.deliver()] == [1]
    assert pipeline.rows() == pipeline.expected()


def test_resend_before_earlier_batches_is_refused(delivery):
    pipeline = delivery(batch_rows=4)
    pipeline.sealed()
    last = [batch for batch in manifests(pipeline.settings, pipeline.name)[0].batches if batch.tag == "t"][-1]
    code, _, said = pipeline.tagmill("batches", "resend", last.batch_id, "--run", "1", *WHY)
    assert code == 2 and said.count("\n") == 1 and f"comes before batch {last.batch_id}" in said
    assert pipeline.rows() == []
    pipeline.deliver()
    assert pipeline.rows() == pipeline.expected()


def test_resend_before_close_is_refused(delivery):
    """Refuse to send a delivered batch again before its run is closed: the close may have noted its events."""
    pipeline = delivery()
    run = pipeline.sealed()
    steps.push(pipeline.settings, pipeline.name, run["run"], run["fence"], owner=OWNER)
    batch = manifests(pipeline.settings, pipeline.name)[0].batches[0]
    with crashing("close.after_progress"), pytest.raises(Crashed):
        steps.close(pipeline.settings, pipeline.name, run["run"], run["fence"], owner=OWNER)
    free_lease(pipeline.journal.session, pipeline.name)
    command = ("batches", "resend", batch.batch_id, "--run", "1", *WHY)
    code, _, said = pipeline.tagmill(*command)
    assert code == 2 and said.count("\n") == 1 and "finish it first: tagmill run deliver" in said
    assert pipeline.rows() == pipeline.expected()
    assert [run["run"] for run in pipeline.deliver()] == [1]
    assert pipeline.tagmill(*command)[0] == 0 and pipeline.rows() == pipeline.expected()


def repair(message):
    """Return the command that a message names, without what `tagmill` adds."""
    command = message.partition("Repair: tagmill ")[2].split()
    del command[command.index("--pipeline") : command.index("--pipeline") + 2]
    return [word for word in command if word not in ("--why", "…")] + list(WHY)


def test_check_altered_row_is_repaired_by_resend(delivery):
    """Change a delivered row: `check` names its batch, and a resend repairs it; then alter and delete
    more.
    """
    pipeline = delivery()
    pipeline.deliver()
    assert pipeline.tagmill("check")[0] == 0
    pipeline.alter("ser_manifest = 'Forged'", "tag = 'u' AND sequence_nr = 4")
    code, table, said = pipeline.tagmill("check", "--json")
    assert code == 3 and "1 of 2 tags are not delivered exactly once" in said
    (batch,) = [b for b in manifests(pipeline.settings, pipeline.name)[0].batches if b.tag == "u"]
    assert f"batch {batch.batch_id} of run 1 (IN_CLICKHOUSE) has other values in ClickHouse" in table
    code, said, wrong = pipeline.tagmill("batches", "resend", batch.batch_id, "--run", "1", *WHY)
    assert code == 0, wrong
    assert pipeline.rows() == pipeline.expected() and pipeline.tagmill("check")[0] == 0

    pipeline.alter("late = 1", "tag = 't' AND persistence_id = 'a' AND sequence_nr = 1")
    with ClickHouse(pipeline.settings.clickhouse) as clickhouse:
        clickhouse.delete_batch(pipeline.name, UUID(batch.batch_id), 9)
    found = verdicts(pipeline.settings, pipeline.name)
    assert "has other values" in found["t"] and "has 0 rows instead of 8" in found["u"]


def test_check_interrupted_resend_names_finishing_command(delivery):
    pipeline = delivery()
    pipeline.deliver()
    (batch,) = [b for b in manifests(pipeline.settings, pipeline.name)[0].batches if b.tag == "u"]
    with crashing("push.before_insert"), pytest.raises(Crashed):
        Interventions(pipeline.settings, pipeline.name, OWNER, "tester", "a test").resend(
            UUID(batch.batch_id), 1
        )
    with Ledger(pipeline.settings.cassandra) as ledger:
        free_lease(ledger.cassandra.session, pipeline.name, ledger.ledger_keyspace)
    resend = ["batches", "resend", batch.batch_id, "--run", "1"]
    for command in ("status", "check"):
        _, table, _ = pipeline.tagmill(command, "--json")
        assert (
            f"batch {batch.batch_id} of run 1 is not delivered" in table
            and f"tagmill {' '.join(resend)}" in table
        )
    code, _, wrong = pipeline.tagmill(*resend, *WHY)
    assert code == 0, wrong
    assert pipeline.rows() == pipeline.expected() and pipeline.tagmill("check")[0] == 0


def test_reread_delivers_missing_rows_only(delivery):
    pipeline = delivery(look_back_seconds=0, long_look_back_seconds=0)
    pipeline.deliver()
    span = (BEGIN.isoformat(), (BEGIN + timedelta(hours=1)).isoformat())
    before = pipeline.rows()
    (run,) = pipeline.deliver(reread=span)
    assert run["rows"] == 0 and run["batches"] == 0 and pipeline.rows() == before == pipeline.expected()

    # Without look-back only an audit, or a run that reads its range again, finds a row that arrives long
    # after its time.
    late = events("c", [1, 2], BEGIN, "u")
    pipeline.journal.both(late)
    pipeline.records += late
    assert pipeline.deliver() == [] and pipeline.rows() == before
    (run,) = pipeline.deliver(reread=span)
    assert run["rows"] == 2 and pipeline.rows() == pipeline.expected()
    assert pipeline.deliver() == []
    assert verdicts(pipeline.settings, pipeline.name) == {"t": "exactly once", "u": "exactly once"}


def test_close_hold_during_open_run_is_refused(delivery):
    pipeline = delivery()
    pipeline.planned()
    with raises(WorkUnfinished, pipeline=pipeline.name, run=1):
        Interventions(pipeline.settings, pipeline.name, OWNER, "tester", "a test").close_hold("t", "a")


@pytest.mark.long
def test_close_hold_killed_can_be_repeated(delivery):
    pipeline = delivery(quality={"max_held_share_percent": 100})
    held = events("c", [1, 2, 4], BEGIN, "u")
    pipeline.journal.view(held)
    pipeline.deliver()
    by_hand = Interventions(pipeline.settings, pipeline.name, OWNER, "tester", "a test")
    with crashing("intervene.before_progress"), pytest.raises(Crashed):
        by_hand.close_hold("u", "c")
    pipeline.deliver()
    by_hand.close_hold("u", "c")
    pipeline.deliver()
    pipeline.records += held
    assert pipeline.rows() == pipeline.expected()


def test_tag_starting_in_future_keeps_its_start(delivery):
    start = datetime.now(UTC) + timedelta(days=1)
    pipeline = delivery(start_from={"u": start.isoformat()})
    pipeline.deliver()
    assert pipeline.rows() == [row for row in pipeline.expected() if row.tag == "t"]
    with Ledger(pipeline.settings.cassandra) as ledger:
        assert ledger.delivered.watermarks(pipeline.name)["u"].ticks == from_datetime(start) - 1


def test_first_delivery_of_one_tag_leaves_others(delivery):
    pipeline = delivery()
    (run,) = pipeline.deliver(tags=["u"])
    assert [line["tag"] for line in run["tags"]] == ["u"]
    assert pipeline.rows() == [row for row in pipeline.expected() if row.tag == "u"]
    pipeline.deliver()
    assert pipeline.rows() == pipeline.expected()
