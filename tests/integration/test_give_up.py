"""`tagmill run give-up` ends a run of tag views in any state, and later runs deliver all that it did not."""

from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from tagmill.clickhouse.client import ClickHouse
from tagmill.delivery.tag_views import steps, withdraw
from tagmill.delivery.tag_views.give_up import GiveUp
from tagmill.delivery.tag_views.run_files import read_manifest
from tagmill.domain.batches.states import BatchState
from tagmill.errors import FenceRaised
from tagmill.ledger import schema
from tagmill.ledger.runs import Ledger
from tagmill.runs import checkpoints
from tagmill.runs.storage import RunFiles
from tests.support.delivery import (
    OWNER,
    as_row,
    clickhouse_rows,
    deliver,
    finish,
    holds,
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
    """A pipeline of two tags with two batches each, and its newest run."""

    def __init__(self, journal, settings, spark):
        self.journal, self.factory, self.spark = journal, settings, spark
        for persistence_id in ("a", "b"):
            for tag in ("t", "u"):
                journal.both(events(persistence_id, range(1, 9), BEGIN, tag))
        keys = {
            "tags": ["t", "u"],
            "bucket_size": "Hour",
            "first_time_bucket": BEGIN.isoformat(),
            "batch_rows": 8,
        }
        self.settings = settings(journal.keyspace, **keys)
        self.name = only(self.settings)
        schema.apply(self.settings)
        self.files = RunFiles(self.settings.storage.root)

    def planned(self):
        """Plan a run."""
        return steps.plan(self.settings, self.name, owner=OWNER)

    def sealed(self):
        """Plan and seal a run."""
        planned = self.planned()
        steps.seal(
            self.settings, self.name, planned["run"], planned["fence"], owner=OWNER, spark=lambda: self.spark
        )
        return planned

    def pushed(self, batches=4):
        """Plan, seal and push a run, at most its first `batches` batches; return the plan."""
        planned = self.sealed()
        with Ledger(self.settings.cassandra) as ledger, ClickHouse(self.settings.clickhouse) as clickhouse:
            rows = ledger.batches(self.name, planned["run"])
            for row, batch in list(zip(rows, self.manifest().batches, strict=True))[:batches]:
                clickhouse.insert_batch(self.name, row.batch_id, row.generation, self.files.read(batch.file))
                ledger.move_batch(self.name, planned["run"], planned["fence"], row, BatchState.IN_CLICKHOUSE)
        return planned

    def row(self):
        """Return the newest run's row."""
        with Ledger(self.settings.cassandra) as ledger:
            return ledger.run(self.name, ledger.last_run(self.name))

    def manifest(self):
        """Return the newest run's manifest."""
        return read_manifest(self.files, self.row())

    def tagmill(self, *command):
        """Run a command of the pipeline; one that changes something is shown first."""
        run = shown_first if "--yes" in command else tagmill
        return run(self.factory.file(self.name), *command, "--pipeline", self.name)

    def damage(self, file):
        """Overwrite a file of the run."""
        Path(self.settings.storage.root, file).write_bytes(b"damaged")

    def equals_view(self, *, late=False):
        """Deliver, then compare all rows and columns of ClickHouse with the view; with `late`, rows may be
        flagged late.
        """
        deliver(self.settings, self.name, self.spark)
        there = [row._replace(late=0) if late else row for row in clickhouse_rows(self.settings, self.name)]
        assert sorted(there) == sorted(as_row(row) for row in self.journal.rows())
        assert deliver(self.settings, self.name, self.spark) == [] and holds(self.settings, self.name) == {}
        assert all("differs" not in verdict for verdict in verdicts(self.settings, self.name).values())


@pytest.fixture
def delivery(journal, settings, spark):
    """Make the pipeline."""
    return Delivery(journal(), settings, spark)


def planned_without_plan(pipeline):
    """Plan a run and delete the plan's file."""
    pipeline.planned()
    Path(pipeline.settings.storage.root, pipeline.row().plan_file).unlink()


def all_new(pipeline):
    """Seal a run, push nothing, and damage one sealed file."""
    pipeline.sealed()
    pipeline.damage(pipeline.manifest().batches[0].file)


def new_without_manifest(pipeline):
    """Seal a run, push nothing, and delete the manifest."""
    pipeline.sealed()
    Path(pipeline.settings.storage.root, pipeline.row().manifest_file).unlink()


def some_there(pipeline):
    """Deliver three of four batches, and delete the file of the fourth."""
    pipeline.pushed(3)
    Path(pipeline.settings.storage.root, pipeline.manifest().batches[3].file).unlink()


def some_there_without_files(pipeline):
    """Deliver three of four batches, and delete the plan, the manifest and every file that the manifest
    names.
    """
    pipeline.pushed(3)
    row = pipeline.row()
    for file in (row.plan_file, row.manifest_file, *pipeline.manifest().sha256):
        Path(pipeline.settings.storage.root, file).unlink()


def rows_changed(pipeline):
    """Change a batch's rows in ClickHouse before it is recorded as pushed, so that its push always fails."""
    pipeline.pushed(1)
    batch = pipeline.manifest().batches[1]
    with ClickHouse(pipeline.settings.clickhouse) as clickhouse:
        clickhouse.insert_batch(pipeline.name, UUID(batch.batch_id), 1, pipeline.files.read(batch.file))
        change = f"ALTER TABLE `{pipeline.name}` UPDATE event = 'other' WHERE batch_id = '{batch.batch_id}'"
        clickhouse.client.command(change, settings={"mutations_sync": 2})


def first_sent_again(pipeline):
    """Mark the first batch of each tag to be sent again while the one behind it is delivered: `run void`
    refuses.
    """
    run = pipeline.pushed()
    with (
        Ledger(pipeline.settings.cassandra) as ledger,
        ClickHouse(pipeline.settings.clickhouse) as clickhouse,
    ):
        for batch in (ledger.batches(pipeline.name, run["run"])[n] for n in (0, 2)):
            clickhouse.delete_batch(pipeline.name, batch.batch_id, 1)
            ledger.move_batch(pipeline.name, run["run"], run["fence"], batch, BatchState.NEW, 2)
    code, _, said = pipeline.tagmill("run", "void", *WHY)
    assert code == 2 and "belong with those to be voided" in said


def close_killed(pipeline):
    """Push everything, kill the close after it wrote the progress, and damage a file of the progress."""
    run = pipeline.pushed()
    with crashing("close.after_progress"), pytest.raises(Crashed):
        steps.close(pipeline.settings, pipeline.name, run["run"], run["fence"], owner=OWNER)
    free_lease(pipeline.journal.session, pipeline.name)
    pipeline.damage(next(file for file in pipeline.manifest().sha256 if "/progress/" in file))


STATES = [
    pytest.param(planned_without_plan, "ABANDONED", False, id="planned-plan-gone"),
    pytest.param(all_new, "ABANDONED", False, id="sealed-file-damaged", marks=pytest.mark.long),
    pytest.param(new_without_manifest, "ABANDONED", False, id="sealed-manifest-gone", marks=pytest.mark.long),
    pytest.param(some_there, "CLOSED", False, id="some-there-file-gone", marks=pytest.mark.long),
    pytest.param(some_there_without_files, "CLOSED", False, id="some-there-files-gone"),
    pytest.param(rows_changed, "CLOSED", False, id="push-fails", marks=pytest.mark.long),
    pytest.param(first_sent_again, "CLOSED", True, id="resend-begun", marks=pytest.mark.long),
    pytest.param(close_killed, "CLOSED", False, id="close-killed"),
]


@pytest.mark.parametrize(("make", "ends", "late"), STATES)
def test_give_up_any_state_next_run_delivers(delivery, make, ends, late):
    """Give up a run in each state: it ends, and the next one delivers all that it did not, each event
    once.
    """
    make(delivery)
    run = delivery.row().run
    code, said, wrong = delivery.tagmill("run", "give-up", *WHY)
    assert code == 0 and f"run {run} of pipeline {delivery.name} is given up" in said, wrong
    assert state(delivery.settings, delivery.name, run) == ends
    delivery.equals_view(late=late)


@pytest.mark.long
def test_give_up_killed_anywhere_can_be_repeated(delivery):
    """Kill a give-up at each of its instants: when repeated, it comes to the same end."""
    some_there_without_files(delivery)
    for instant in ("giveup.marked", "giveup.voided", "giveup.noted"):
        with crashing(instant), pytest.raises(Crashed):
            delivery.tagmill("run", "give-up", *WHY)
        free_lease(delivery.journal.session, delivery.name)
    assert delivery.tagmill("run", "give-up", *WHY)[0] == 0
    delivery.equals_view()


def test_give_up_taken_over_removes_nothing(delivery, monkeypatch):
    """Raise the run's fence when a give-up is about to remove a batch: it stays, and the run is delivered."""
    delivery.sealed()
    batch = delivery.manifest().batches[0]
    with ClickHouse(delivery.settings.clickhouse) as clickhouse:
        clickhouse.insert_batch(delivery.name, UUID(batch.batch_id), 1, delivery.files.read(batch.file))

    def reached(instant):
        if instant == "giveup.before_delete":
            with Ledger(delivery.settings.cassandra) as ledger:
                ledger.raise_fence(delivery.row(), "another process")

    monkeypatch.setattr(checkpoints, "reached", reached)
    with raises(FenceRaised, pipeline=delivery.name, run=1):
        GiveUp(delivery.settings, delivery.name, OWNER, "tester", "a test").run([])
    assert len(clickhouse_rows(delivery.settings, delivery.name)) == batch.rows
    delivery.equals_view()


def test_give_up_no_open_run_refused(delivery):
    """Refuse without an open run and without ids to set apart, and change nothing."""
    code, _, said = delivery.tagmill("run", "give-up", *WHY)
    assert code == 2 and "no open run to give up. Nothing was changed" in said and said.count("\n") == 1


def test_give_up_lost_withdrawal_is_noted(delivery):
    """Give up a withdrawal that removed its batch and lost its plan: the events are noted, and a re-read
    delivers them.
    """
    finish(delivery.settings, delivery.name, delivery.spark, delivery.planned())
    batch = delivery.manifest().batches[0]
    command = ("batches", "withdraw", batch.batch_id, "--run", "1", *WHY)
    with crashing("withdraw.removed"), pytest.raises(Crashed):
        delivery.tagmill(*command)
    free_lease(delivery.journal.session, delivery.name)
    row = delivery.row()
    assert row.kind == withdraw.KIND and len(clickhouse_rows(delivery.settings, delivery.name)) == 24
    Path(delivery.settings.storage.root, row.plan_file).unlink()
    with crashing("giveup.withdrawal_ended"), pytest.raises(Crashed):
        delivery.tagmill("run", "give-up", *WHY)
    free_lease(delivery.journal.session, delivery.name)
    code, said, wrong = delivery.tagmill("run", "give-up", *WHY)
    assert code == 0 and "noted as not delivered. Deliver it again" in said, wrong
    start, end = said.split("--reread-from ")[1].split()[0], said.split("--reread-until ")[1].split()[0]
    deliver(delivery.settings, delivery.name, delivery.spark, reread=(start, end))
    delivery.equals_view(late=True)


def test_give_up_set_apart_id_is_held(delivery):
    """Hold the persistence_id in each tag while the rest flows; once released, it is delivered and nothing
    arrives twice.
    """
    all_new(delivery)
    code, said, wrong = delivery.tagmill("run", "give-up", "--set-apart", "a", *WHY)
    assert code == 0 and "held until tagmill holds release" in said, wrong
    for tag in ("t", "u"):
        delivery.journal.both(events("a", [9], BEGIN, tag))
        delivery.journal.both(events("b", [9], BEGIN, tag))
    deliver(delivery.settings, delivery.name, delivery.spark)
    there = clickhouse_rows(delivery.settings, delivery.name)
    assert there == sorted(as_row(row) for row in delivery.journal.rows("b"))
    found = {
        key: (hold.reason, hold.held_rows) for key, hold in holds(delivery.settings, delivery.name).items()
    }
    assert found == {("t", "a"): ("set_apart", 9), ("u", "a"): ("set_apart", 9)}
    refused = ("holds", "close", "--tag", "t", "--persistence-id", "a", *WHY)
    assert delivery.tagmill(*refused)[0] == 2
    for tag in ("t", "u"):
        release = ("holds", "release", "--tag", tag, "--persistence-id", "a", *WHY)
        assert delivery.tagmill(*release)[0] == 0
    delivery.equals_view()
