"""Older ledgers of topics, Kafka Journals and view builds: nothing is delivered or numbered twice, and one
command goes on.

Each source has one pipeline, whose ledger is in a keyspace of its own; the states follow one another on it.
"""

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest

from tagmill.delivery.topics import steps
from tagmill.delivery.topics.status import topic_line
from tagmill.errors import ForeignWriteTime, GuardRefused, LedgerOutdated, WorkUnfinished
from tagmill.kafka_journal.replicate import replicate
from tagmill.ledger import schema
from tagmill.maintenance.ledger_restore.restore import Restoring
from tests.conftest import FEW_ROWS
from tests.support import restoring
from tests.support.building import built
from tests.support.delivery import as_row, clickhouse_rows, deliver, only, tagmill, verdicts
from tests.support.errors import raises
from tests.support.events import event, this_hour
from tests.support.stack import own_keyspaces
from tests.support.topics import OWNER, Shop, checked_verdict, made


@pytest.fixture
def ledger(stack) -> Iterator[str]:
    """Yield the name of a ledger keyspace, which is dropped after the test."""
    with own_keyspaces(stack.session) as create:
        yield create()


class Source:
    """A delivered source: `add` makes new records, `expected` returns the rows that they have to become."""

    def __init__(
        self,
        one: Shop,
        add: Callable[[], None],
        expected: Callable[[], list[tuple[Any, ...]]],
        columns: str,
    ) -> None:
        self.one, self.add, self.expected, self.columns = one, add, expected, columns

    def deliver(self) -> list[dict[str, Any]]:
        """Add records and deliver them."""
        self.add()
        return self.one.deliver()

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the rows in ClickHouse, sorted."""
        return sorted(self.one.rows(self.columns))

    def restore(self, *, dry_run: bool) -> str:
        """Do what `tagmill ledger restore` does, with the Spark session of all tests; return its sentence."""
        who, spark = (OWNER, "me", "test"), lambda: self.one.spark
        return Restoring(self.one.settings, self.one.name, *who, spark, dry_run=dry_run).run().message

    def assert_refused(self, words: str) -> None:
        """Assert that the command refuses with one line and status 2 before Spark starts."""
        code, _, said = tagmill(self.one.file, "run", "deliver", "--pipeline", self.one.name)
        assert code == 2 and said.count("\n") == 1 and words in said, said
        assert "Nothing was sealed" in said and "tagmill ledger restore" in said, said

    def assert_delivered_once(self) -> None:
        """Assert that ClickHouse has each row once, and that `check` agrees."""
        assert self.rows() == self.expected()
        assert self.one.deliver() == [] and checked_verdict(self.one).startswith("exactly once")


# Words with which runs refuse, by what the ledger was restored with.
WORDS = {"own write times": "ends with run", "inserts": "was written by another program"}


def older_ledger_waits(source: Source, how: str) -> None:
    """Deliver a run that the ledger loses, and assert that runs wait for the restore."""
    one = source.one
    copied = restoring.copy(one.stack.session, one.ledger)
    assert len(source.deliver()) == 1
    before = source.rows()
    restoring.restore(one.stack.session, one.ledger, copied, own_times=how != "inserts")
    source.add()
    source.assert_refused(WORDS[how])
    assert source.rows() == before
    assert topic_line(one.settings, one.name, verify=False)["verdict"].startswith("differs: ")
    told = source.restore(dry_run=True)
    assert "1 runs) that ClickHouse has and the ledger did not know" in told, told
    source.assert_refused(WORDS[how])
    source.restore(dry_run=False)
    one.deliver()
    source.assert_delivered_once()


def older_ledger_with_sealed_run_goes_on(source: Source, how: str) -> None:
    """Copy the ledger while a run is sealed, deliver that run and another, and restore the copy.

    The sealed run is finished, or says what prevents it; then the ledger is brought forward.
    """
    one = source.one
    source.add()
    planned = one.sealed()
    copied = restoring.copy(one.stack.session, one.ledger)
    at = (planned["run"], planned["fence"])
    steps.push(one.settings, one.name, *at, owner=OWNER)
    steps.close(one.settings, one.name, *at, owner=OWNER)
    source.deliver()
    restoring.restore(one.stack.session, one.ledger, copied, own_times=how != "inserts")
    source.add()
    if how == "inserts":
        with raises(ForeignWriteTime, pipeline=one.name):
            one.deliver()
        with raises(WorkUnfinished, pipeline=one.name, run=planned["run"]):
            source.restore(dry_run=False)
    with raises(LedgerOutdated, pipeline=one.name):
        one.deliver()
    source.restore(dry_run=False)
    one.deliver()
    source.assert_delivered_once()


def in_states(source: Source, states: Sequence[tuple[bool, str]]) -> None:
    """Bring the source's ledger into older states, one after another.

    A state says whether a run is sealed while the ledger is copied, and with what it is restored.
    """
    source.deliver()
    for is_sealed, how in states:
        (older_ledger_with_sealed_run_goes_on if is_sealed else older_ledger_waits)(source, how)


IDLE, SEALED, OWN, INSERTS = False, True, "own write times", "inserts"


@pytest.mark.parametrize(
    "states",
    [
        pytest.param([(IDLE, OWN), (SEALED, INSERTS)], id="some"),
        pytest.param([(IDLE, INSERTS), (SEALED, OWN)], id="others", marks=pytest.mark.long),
    ],
)
def test_older_ledger_of_topic_waits_for_restore(stack, kafka, spark, tmp_path, ledger, states):
    """Restore a topic's ledger to older states: products that were delivered before stay known."""
    make = next(made(stack, kafka, spark, tmp_path))
    one: Shop = make(2, ledger=ledger)
    offsets, products, expected = {0: count(), 1: count()}, count(1), []

    def send(product: int, partition: int, *, new: bool) -> None:
        one.send(product, partition=partition)
        offset = next(offsets[partition])
        if new:
            payload = json.dumps({"project": "p", "event_type": "created", "product_id": product})
            expected.append((one.name, partition, offset, payload))

    def add() -> None:
        for partition in (0, 1):
            send(next(products), partition, new=True)
        send(1, 1, new=False)
        one.topic.flush()

    in_states(Source(one, add, lambda: sorted(expected), "topic, partition, offset, payload"), states)


@pytest.mark.parametrize(
    "states",
    [
        pytest.param([(IDLE, INSERTS)], id="some"),
        pytest.param([(IDLE, OWN), (SEALED, OWN), (SEALED, INSERTS)], id="others", marks=pytest.mark.long),
    ],
)
def test_older_ledger_of_journal_waits_for_restore(
    stack, kafka, spark, tmp_path, ledger, kafka_journal, states
):
    """Restore the ledger of a Kafka Journal's replication and delivery to older states: no id tells what was
    delivered.
    """
    of = kafka_journal()
    of.ledger = ledger
    one = Shop(stack, kafka, spark, tmp_path)
    one.ledger, one.topic = ledger, of.topic(partitions=1)
    one.configure(kind="kafka_journal_events", keyspace=of.name)
    replicator, numbers = of.settings(FEW_ROWS), count(1)
    schema.apply(replicator)

    def add() -> None:
        number = next(numbers)
        for key in ("a", "b"):
            one.topic.append(key, [(number, {"n": number})], tags=["red"])
        one.topic.flush()
        replicate(replicator, of.name, owner=f"o/{uuid.uuid4()}", spark=lambda: spark)

    def expected() -> list[tuple[Any, ...]]:
        return sorted(
            (row["id"], row["seq_nr"], row["partition"], row["offset"], row["payload_txt"])
            for row in of.rows()
        )

    add()
    in_states(Source(one.applied(), add, expected, "id, seq_nr, partition, offset, payload"), states)


BUILT = {"tags": ["t"], "bucket_size": "Hour", "views": "tagmill"}


@pytest.mark.parametrize(
    "states",
    [
        pytest.param([INSERTS], id="some"),
        pytest.param([OWN, "lost"], id="others", marks=pytest.mark.long),
    ],
)
def test_older_ledger_of_builds_numbers_nothing_twice(stack, journal, settings, spark, ledger, states):
    """Restore the ledger of view builds to older states: an id that a lost build numbered waits for --adopt,
    the others are built.
    """
    written, numbers = journal(), dict[str, int]()
    configured = settings(
        written.keyspace,
        first_time_bucket=f"{this_hour() - timedelta(days=1):%Y-%m-%d}",
        sections={"cassandra": {"ledger_keyspace": ledger}},
        **BUILT,
    )
    name, file, created = only(configured), settings.file(only(configured)), iter("cd")

    def write(*persistence_ids: str) -> None:
        moment = datetime.now(UTC) - timedelta(milliseconds=2)
        for persistence_id in persistence_ids:
            numbers[persistence_id] = numbers.get(persistence_id, 0) + 2
            last = numbers[persistence_id]
            written.messages(event(persistence_id, number, moment) for number in (last - 1, last))

    def assert_view() -> None:
        found = [(row["persistence_id"], row["tag_pid_sequence_nr"]) for row in written.rows()]
        assert found == [(one, number) for one in sorted(numbers) for number in range(1, numbers[one] + 1)]
        rows = written.rows()
        assert all(row["tag_pid_sequence_nr"] == row["sequence_nr"] for row in rows)

    write("a", "b")
    built(configured, spark)
    deliver(configured, name, spark)
    for how in states:
        copied = restoring.copy(stack.session, ledger)
        write("a", next(created))
        built(configured, spark)
        deliver(configured, name, spark)
        before = written.rows()
        restoring.lose(stack.session, ledger)
        if how != "lost":
            restoring.restore(stack.session, ledger, copied, own_times=how != "inserts")
        write("a", "b")
        if how == "lost":
            with raises(GuardRefused, pipeline=name):
                built(configured, spark)
            assert written.rows() == before
        else:
            result = built(configured, spark)
            assert (result["refused"], result["rows"]) == (2, 2) and "--adopt" in str(result["refusal"])
            assert [row for row in written.rows() if row["persistence_id"] != "b"] == [
                row for row in before if row["persistence_id"] != "b"
            ]
        with raises((ForeignWriteTime, LedgerOutdated), pipeline=name):
            deliver(configured, name, spark)
        assert verdicts(configured, name)["t"].startswith("differs: ")
        code, _, said = tagmill(file, "ledger", "restore", "-p", name, "--why", "test", "--yes")
        assert code == 0, said
        assert built(configured, spark, adopt=True)["refused"] == 0
        assert_view()
        deliver(configured, name, spark)
        assert clickhouse_rows(configured, name) == sorted(as_row(row) for row in written.rows())
        assert verdicts(configured, name) == {"t": "exactly once"}
    write("a", "b", "f")
    assert built(configured, spark)["refused"] == 0
    assert_view()
    deliver(configured, name, spark)
    assert clickhouse_rows(configured, name) == sorted(as_row(row) for row in written.rows())
