"""`tagmill run give-up` of a topic and of a Kafka Journal ends a run in any state, and later runs deliver the
rest.
"""

import json
import uuid
from pathlib import Path
from unittest.mock import patch
from uuid import UUID

import pytest

from tagmill.clickhouse.client import ClickHouse
from tagmill.delivery.topics import steps
from tagmill.delivery.topics.give_up import TopicGiveUp
from tagmill.delivery.topics.run_files import read_manifest
from tagmill.delivery.topics.table_columns import layout
from tagmill.domain.batches.states import BatchState
from tagmill.errors import SealedFileDamaged
from tagmill.kafka_journal.replicate import replicate
from tagmill.ledger import schema
from tagmill.ledger.runs import Ledger
from tagmill.runs import checkpoints
from tagmill.runs.storage import RunFiles
from tests.conftest import FEW_ROWS
from tests.support.delivery import shown_first, tagmill
from tests.support.errors import raises
from tests.support.leases import free_lease
from tests.support.topics import OWNER, Crashed, Shop, crashing, made

WHY = ("--why", "seen in a test", "--yes")
EVENTS = range(1, 7)


@pytest.fixture
def shop(stack, kafka, spark, tmp_path):
    """Yield a factory of topics with products, each delivered by its own pipeline."""
    yield from made(stack, kafka, spark, tmp_path)


@pytest.fixture
def journal_shop(stack, kafka, spark, tmp_path, kafka_journal):
    """Make the pipeline of a Kafka Journal with six replicated events."""
    of = kafka_journal()
    one = Shop(stack, kafka, spark, tmp_path)
    one.keys = {"kind": "kafka_journal_events", "keyspace": of.name, "batch_rows": 2}
    one.topic = of.topic(partitions=1)
    one.configure()
    for number in EVENTS:
        one.topic.append("a", [(number, {"n": number})], tags=["red"])
    settings = of.settings(FEW_ROWS)
    schema.apply(settings)

    def replicated():
        one.topic.flush()
        replicate(settings, of.name, owner=f"o/{uuid.uuid4()}", spark=lambda: spark)

    one.replicate = replicated
    replicated()
    return one.applied()


def row(one):
    """Return the newest run's row."""
    with Ledger(one.settings.cassandra) as ledger:
        return ledger.run(one.name, ledger.last_run(one.name))


def manifest(one):
    """Return the newest run's manifest."""
    return read_manifest(RunFiles(one.settings.storage.root), row(one))


def lose(one, *files):
    """Delete files of a run."""
    for file in files:
        Path(one.settings.storage.root, file).unlink()


def pushed(one, batches):
    """Seal a run and bring this number of its batches to ClickHouse."""
    run = one.sealed()
    files = RunFiles(one.settings.storage.root)
    with (
        Ledger(one.settings.cassandra) as ledger,
        ClickHouse(one.settings.clickhouse, layout(one.settings.stream(one.name))) as there,
    ):
        rows = ledger.batches(one.name, run["run"])
        assert len(rows) > batches
        for batch, sealed in list(zip(rows, manifest(one).batches, strict=True))[:batches]:
            there.insert_batch(one.name, batch.batch_id, 1, files.read(sealed.file))
            ledger.move_batch(one.name, run["run"], run["fence"], batch, BatchState.IN_CLICKHOUSE)


def planned(one):
    """Plan a run and delete its plan file."""
    one.topic.flush()
    steps.plan(one.settings, one.name, owner=OWNER)
    lose(one, row(one).plan_file)


def all_new(one):
    """Seal a run, push nothing and delete the sealed files: its ids are noted, and no file names their
    events.
    """
    one.sealed()
    lose(one, *(batch.file for batch in manifest(one).batches))


def some_there(one):
    """Deliver one batch of a run and delete the file of the next one."""
    pushed(one, 1)
    lose(one, manifest(one).batches[1].file)


def some_there_without_files(one):
    """Deliver one batch of a run and delete the next batch's file, the manifest and the plan."""
    some_there(one)
    lose(one, row(one).plan_file, row(one).manifest_file)


STATES = [
    pytest.param(planned, "ABANDONED", id="planned-plan-gone", marks=pytest.mark.long),
    pytest.param(all_new, "ABANDONED", id="sealed-files-gone"),
    pytest.param(some_there, "CLOSED", id="some-there-file-gone", marks=pytest.mark.long),
    pytest.param(some_there_without_files, None, id="some-there-manifest-gone"),
]
OF_JOURNAL = [
    *(
        pytest.param(make, ends, id=make.__name__, marks=pytest.mark.long)
        for make, ends in (
            (planned, "ABANDONED"),
            (all_new, "ABANDONED"),
            (some_there, "CLOSED"),
        )
    ),
    STATES[-1],
]


def without_lease(one):
    """Free the lease that a step holds for the next one."""
    free_lease(one.stack.session, one.name, one.settings.cassandra.ledger_keyspace)


def given_up(one, *options):
    """Give the newest run up by the command line, without its steps' lease; return what the command
    prints.
    """
    without_lease(one)
    code, said, wrong = shown_first(one.file, "run", "give-up", "--pipeline", one.name, *options, *WHY)
    assert code == 0, wrong
    return said


@pytest.mark.parametrize(("make", "ends"), STATES)
def test_give_up_topic_next_run_delivers(shop, make, ends):
    """Give up a topic's run in each state: the run ends, and every record is delivered once."""
    one = shop(batch_rows=2)
    for product in EVENTS:
        one.send(product)
    make(one)
    run = row(one).run
    assert f"run {run} of pipeline {one.name} is given up" in given_up(one)
    with Ledger(one.settings.cassandra) as ledger:
        assert ledger.run(one.name, run).state == (ends or "CLOSED")
    one.deliver()
    assert one.products() == list(EVENTS) and one.deliver() == []
    assert tagmill(one.file, "check", "--pipeline", one.name)[0] == 0


@pytest.mark.parametrize(("count", "batches"), [(6, 2), (2, 1)], ids=["second batch", "only batch"])
def test_give_up_killed_then_delivered_doubles_nothing(shop, count, batches):
    """Kill a give-up behind the mark of its last batch, deliver that batch, then read everything again."""
    one = shop(batch_rows=4)
    for product in range(count):
        one.send(product)
    one.sealed()
    without_lease(one)
    instants = []

    def reached(instant):
        instants.append(instant)
        if instants.count("giveup.marked") == batches:
            raise Crashed(instant)

    with patch.object(checkpoints, "reached", reached), pytest.raises(Crashed):
        TopicGiveUp(one.settings, one.name, OWNER, "tester", "a test").run([])
    free_lease(one.stack.session, one.name)
    one.deliver()
    for product in range(count):
        one.send(product)  # the producer repeats them
    one.deliver()
    assert one.products() == list(range(count))


@pytest.mark.parametrize(("make", "ends"), OF_JOURNAL)
def test_give_up_journal_next_run_delivers(journal_shop, make, ends):
    """Give up a Kafka Journal's run in each state.

    No ids tell what was delivered: without its files the run is taken back as a whole.
    """
    one = journal_shop
    make(one)
    run = row(one).run
    given_up(one)
    with Ledger(one.settings.cassandra) as ledger:
        assert ledger.run(one.name, run).state == (ends or "ABANDONED")
    one.deliver()
    assert one.rows("id, seq_nr") == [("a", number) for number in EVENTS] and one.deliver() == []
    assert tagmill(one.file, "check", "--pipeline", one.name)[0] == 0


def refused(one):
    """Try to deliver, which lost files of the newest run prevent, and give it up, which writes the files
    again.
    """
    with raises(SealedFileDamaged, pipeline=one.name):
        one.deliver()
    assert "is closed and had lost files: they were written again" in given_up(one)
    code, _, said = shown_first(one.file, "run", "give-up", "--pipeline", one.name, *WHY)
    assert code == 2 and "no open run to give up" in said


def test_give_up_closed_topic_manifest_lost(shop):
    """Lose the manifest of a closed run: after a give-up the next run delivers."""
    one = shop(batch_rows=2)
    for product in EVENTS:
        one.send(product)
    one.deliver()
    lose(one, row(one).manifest_file)
    one.send(7)
    refused(one)
    one.deliver()
    assert one.products() == [*EVENTS, 7] and one.deliver() == []
    assert tagmill(one.file, "check", "--pipeline", one.name)[0] == 0


def test_give_up_closed_journal_files_lost(journal_shop, spark):
    """Lose the files of closed runs: one delivered in part is delivered again as a whole, a complete one is
    not.
    """
    one = journal_shop
    some_there(one)
    given_up(one)
    closed = row(one)
    assert closed.state == "CLOSED" and len(one.rows("id, seq_nr")) == 2
    lose(one, closed.plan_file, closed.manifest_file)
    with crashing("giveup.taken_out"), pytest.raises(Crashed):
        shown_first(one.file, "run", "give-up", "--pipeline", one.name, *WHY)
    free_lease(one.stack.session, one.name)
    refused(one)
    one.deliver()
    assert one.rows("id, seq_nr") == [("a", number) for number in EVENTS] and one.deliver() == []
    lose(one, row(one).plan_file, row(one).manifest_file)
    one.topic.append("a", [(7, {"n": 7})], tags=["red"])
    one.replicate()
    refused(one)
    (run,) = one.deliver()
    assert (
        run["new"] == 1
        and one.rows("id, seq_nr") == [("a", number) for number in (*EVENTS, 7)]
        and one.deliver() == []
    )
    assert tagmill(one.file, "check", "--pipeline", one.name)[0] == 0


def test_give_up_set_apart_record_becomes_letter(shop):
    """Set a record apart: it becomes a dead letter with its reason, the rest is delivered, and a replay
    delivers it.
    """
    one = shop(batch_rows=2)
    for product in EVENTS:
        one.send(product)
    all_new(one)
    assert "1 records become dead letters" in given_up(one, "--set-apart", f"{one.name}/0/2")
    (run,) = one.deliver()
    assert one.products() == [1, 2, 4, 5, 6] and run["unreadable"] == 1
    letters = json.loads(tagmill(one.file, "deadletters", "list", "--pipeline", one.name, "--json")[1])
    assert [(letter["offset"], letter["reason"]) for letter in letters] == [(2, "set apart: seen in a test")]
    one.deliver(letters=True)
    assert one.products() == list(EVENTS) and one.deliver() == []
    assert json.loads(tagmill(one.file, "deadletters", "list", "--pipeline", one.name, "--json")[1]) == []


def test_give_up_set_apart_id_comes_back(journal_shop):
    """Leave out an id of a Kafka Journal while the rest is delivered; taken back, its undelivered events come
    once.
    """
    one = journal_shop
    some_there(one)
    assert "1 ids are left out until tagmill run take-back" in given_up(one, "--set-apart", "a")

    def append(key, number):
        one.topic.append(key, [(number, {"n": number})], tags=["red"])
        one.replicate()

    append("b", 1)
    runs = one.deliver()
    assert one.rows("id, seq_nr") == [("a", 1), ("a", 2), ("b", 1)]
    assert "1 ids are set apart, not delivered until tagmill run take-back; first: 'a'" in runs[0]["warnings"]
    append("a", 7)
    append("b", 2)
    one.deliver()
    code, said, _ = tagmill(one.file, "status", "--pipeline", one.name, "--json")
    assert code == 0 and json.loads(said)[0]["verdict"] == "1 ids set apart"
    refused = ("run", "take-back", "--pipeline", one.name, "--why", "readable again")
    assert (
        tagmill(one.file, *refused, "--id", "b")[0] == 2
        and tagmill(one.file, *refused, "--column", "a")[0] == 2
    )
    assert shown_first(one.file, *refused, "--id", "a", "--yes")[0] == 0
    append("a", 8)
    one.deliver()
    rows = one.rows("id, seq_nr")
    assert (
        sorted(rows) == [*(("a", number) for number in range(1, 9)), ("b", 1), ("b", 2)]
        and one.deliver() == []
    )
    assert tagmill(one.file, "check", "--pipeline", one.name)[0] == 0


def test_give_up_set_apart_column_is_null(shop):
    """Set a column apart: it is null with a warning until it is taken back; a column that must have a value
    is refused.
    """
    columns = [{"name": "colour"}, {"name": "event_type", "nullable": False}]
    one = shop(columns=columns)
    one.send(1, colour="red")
    one.sealed()
    code, _, said = shown_first(
        one.file, "run", "give-up", "--pipeline", one.name, "--set-apart", "event_type", *WHY
    )
    assert code == 2 and "neither a record (topic/partition/offset) nor a nullable column (colour)" in said
    given_up(one, "--set-apart", "colour")
    (run,) = one.deliver()
    assert one.rows("colour, event_type") == [(None, "created")]
    assert run["warnings"] == ["colour: set apart, delivered as null until tagmill run take-back"]
    back = ("run", "take-back", "--pipeline", one.name, "--column", "colour", "--why", "repaired")
    assert shown_first(one.file, *back, "--yes")[0] == 0
    one.send(2, colour="blue")
    one.deliver()
    assert one.rows("colour") == [(None,), ("blue",)]


@pytest.mark.long
def test_give_up_topic_killed_can_be_repeated(shop):
    """Crash a give-up behind its voiding and repeat it: it ends the same way."""
    one = shop(batch_rows=2)
    for product in EVENTS:
        one.send(product)
    some_there_without_files(one)
    without_lease(one)
    with crashing("giveup.voided"), pytest.raises(Crashed):
        shown_first(one.file, "run", "give-up", "--pipeline", one.name, *WHY)
    free_lease(one.stack.session, one.name)
    given_up(one)
    one.deliver()
    assert one.products() == list(EVENTS)


@pytest.mark.parametrize("kind", ["topic", "journal"])
def test_voided_batch_of_restore_is_taken_out(request, kind):
    """Put a VOIDED batch back into ClickHouse, as a restore does: once its events are delivered again, it can be taken
    out.
    """
    one = request.getfixturevalue("journal_shop") if kind == "journal" else request.getfixturevalue("shop")()
    if kind == "topic":
        for product in EVENTS:
            one.send(product)
    run = one.sealed()["run"]
    old = manifest(one).batches[0]
    content = RunFiles(one.settings.storage.root).read(old.file)
    given_up(one)
    withdraw = ("batches", "withdraw", old.batch_id, "--run", str(run), "--pipeline", one.name, *WHY)

    def come_back():
        with ClickHouse(one.settings.clickhouse, layout(one.settings.stream(one.name))) as there:
            there.command(f"TRUNCATE TABLE `{one.name}_voided`")
            there.insert_batch(one.name, UUID(old.batch_id), 9, content)

    come_back()
    code, _, refused = tagmill(one.file, *withdraw)
    assert code == 2 and f"{old.rows} of its {old.rows} events in no other batch. Its rows stay" in refused
    one.deliver()
    assert tagmill(one.file, "check", "--pipeline", one.name)[0] == 3
    code, said, refused = shown_first(one.file, *withdraw)
    assert code == 0 and f"its {old.rows} rows are removed from ClickHouse" in said, refused
    ids = one.products() if kind == "topic" else [number for _, number in one.rows("id, seq_nr")]
    assert ids == list(EVENTS) and one.deliver() == []
    assert tagmill(one.file, "check", "--pipeline", one.name)[0] == 0
