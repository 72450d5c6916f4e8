"""A plain topic's delivery sends each distinct event once, on a real broker, Cassandra and ClickHouse."""

import json
import re
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from uuid import UUID

import clickhouse_connect
import pytest

from tagmill.clickhouse import client as clickhouse_client
from tagmill.clickhouse.client import ClickHouse
from tagmill.delivery.topics import seal, steps
from tagmill.delivery.topics.event_ids import unique_id
from tagmill.delivery.topics.status import topic_line
from tagmill.errors import (
    ConfigurationError,
    GuardRefused,
    RecordsLost,
    SealedFileDamaged,
    TagmillError,
    TopicRecreated,
)
from tagmill.idle_connections import IdleConnections
from tagmill.kafka.client import NAME_NOT_UTF8
from tagmill.ledger.dead_letters import DeadLetters
from tagmill.ledger.runs import Ledger
from tests.support import odd_headers
from tests.support.delivery import shown_first, tagmill
from tests.support.errors import raises
from tests.support.kafka import create, delete, lose
from tests.support.leases import free_lease
from tests.support.topics import OWNER, Crashed, checked_verdict, crashing, made

# Lowest value, highest value and one just outside by type (None: no value is outside).
EDGES = {
    "String": ("", "ü漢", None),
    "LowCardinality(String)": ("", "ü漢", None),
    "Int8": (-(2**7), 2**7 - 1, 2**7),
    "Int16": (-(2**15), 2**15 - 1, 2**15),
    "Int32": (-(2**31), 2**31 - 1, 2**31),
    "Int64": (-(2**63), 2**63 - 1, 2**63),
    "Float64": (-sys.float_info.max, sys.float_info.max, None),
    "Bool": (False, True, 2),
    "DateTime64(3, 'UTC')": ("1970-01-01T00:00:00Z", 4_102_444_799_999, 4_102_444_800_000),
    "Date": ("1970-01-01", "2149-06-06", "2149-06-07"),
    "Decimal(76, 9)": ("-" + "9" * 67 + "." + "9" * 9, "9" * 67 + "." + "9" * 9, "1e67"),
    "Decimal(18, 18)": ("-0." + "9" * 18, "0." + "9" * 18, 1),
    "UUID": (str(UUID(int=0)), str(UUID(int=2**128 - 1)), "none"),
    "Decimal(38, 10)": (f"-{'9' * 28}.{'9' * 10}", f"{'9' * 28}.{'9' * 10}", f"1{'0' * 28}"),
}
# Values whose text in ClickHouse differs from Python's.
TEXTS = {
    False: "false",
    True: "true",
    "1970-01-01T00:00:00Z": "1970-01-01 00:00:00.000",
    4_102_444_799_999: "2099-12-31 23:59:59.999",
    sys.float_info.max: "1.7976931348623157e308",
    -sys.float_info.max: "-1.7976931348623157e308",
}
COLUMNS = [{"name": "price", "type": "Float64"}, {"name": "who", "path": "customer.name"}]
INSTANTS = (
    "plan.before_commit", "plan.after_commit", "seal.staged", "seal.judged", "seal.before_commit", "seal.after_commit", "seal.after_ids",
    "push.before_insert", "push.after_insert", "push.after_batch", "close.before_progress", "close.before_end",
)  # fmt: skip


@pytest.fixture
def shop(stack, kafka, spark, tmp_path):
    """Yield a factory of topics with products, each delivered by its own pipeline."""
    yield from made(stack, kafka, spark, tmp_path)


@pytest.mark.parametrize("small_run_rows", [20_000, 0], ids=["here", "by Spark"])
def test_deliver_distinct_events_once_with_columns(shop, small_run_rows):
    one = shop(2, columns=COLUMNS, small_run_rows=small_run_rows)
    for product in (1, 2, 1, 3):
        one.send(product, price=product / 2, customer={"name": f"c{product}"})
    one.send(2, partition=1, price=9.0)
    (first,) = one.deliver()
    assert (first["records"], first["rows"], first["twice"], first["known"]) == (5, 3, 2, 0)
    assert one.rows("partition, offset, price, who") == [
        (0, 0, 0.5, "c1"),
        (0, 1, 1.0, "c2"),
        (0, 3, 1.5, "c3"),
    ]
    one.send(3, price=7.0)
    one.send(4, price=2.0)
    (second,) = one.deliver()
    assert (second["rows"], second["known"]) == (1, 1)
    assert one.products() == [1, 2, 3, 4]
    assert one.deliver() == []
    line = topic_line(one.settings, one.name, verify=True)
    assert (line["delivered"], line["waiting"], line["level"]) == (4, 0, "proven")


def test_deliver_in_bulk_reads_events_as_alone(shop):
    """Deliver 4,000 events read in bulk, with unreadable records and tombstones among them: each has its own
    values and id.
    """
    one, prices, notes = (
        shop(2, columns=[*COLUMNS, {"name": "note"}], small_run_rows=0),
        (0.5, 2, None, -0.0, 10**20),
        ("ü", None, {"a": [1]}, 7),
    )
    expected = {}
    for number in range(4000):
        # Each partition has a range of its own, so that the first of equal events is the one that is sent
        # first.
        product, price, note = (
            number - number % 11 // 10,
            prices[number % 5],
            notes[number % 4 if number % 97 == 0 else 0],
        )
        if number % 1301 == 1300:
            one.topic.send("poison", b'{"project": "p"', partition=1)
        if number % 1999 == 1998:
            one.topic.send("gone", None, partition=1)
        one.send(product, partition=number // 2000, price=price, note=note)
        text = note if isinstance(note, str | None) else json.dumps(note, separators=(",", ":"))
        expected.setdefault(
            product,
            (
                unique_id(["p", "created", product], 1024).unique_id,
                None if price is None else float(price),
                text,
            ),
        )
    (run,) = one.deliver()
    assert (run["rows"], run["unreadable"], run["tombstones"]) == (len(expected), 3, 2)
    found = one.rows("JSONExtractInt(payload, 'product_id'), unique_id, price, note")
    assert {product: tuple(row) for product, *row in found} == expected and len(found) == len(expected)
    assert checked_verdict(one).startswith("exactly once")


def test_deliver_crashed_at_each_instant_delivers_once(shop):
    """Crash a delivery at each instant in turn, with new and old events before each; the last one delivers
    the rest.
    """
    one = shop(2, batch_rows=4)
    sent = 0
    for instant in INSTANTS:
        for _ in range(5):
            one.send(sent, partition=sent % 2)
            one.send(sent // 2, partition=1)  # an event that was sent before
            sent += 1
        one.topic.flush()
        with crashing(instant), pytest.raises(Crashed):
            one.deliver()
        free_lease(one.stack.session, one.name)
    one.deliver()
    assert Counter(one.products()) == Counter(range(sent))
    assert checked_verdict(one).startswith("exactly once")
    assert len(one.ids()) == sent


def test_batches_are_bounded_and_of_one_month(shop):
    one = shop(batch_rows=3, created_at="at")
    for product in range(10):
        one.send(product, at=f"2026-{11 if product < 7 else 12}-05T10:00:00Z")
    planned = one.sealed()
    with Ledger(one.settings.cassandra) as ledger:
        before = ledger.batches(one.name, planned["run"])
    assert [batch.rows for batch in before] == [3, 3, 3, 1]
    one.send(11, at="2026-11-05T10:00:00Z")
    one.finish(planned)
    with Ledger(one.settings.cassandra) as ledger:
        after = ledger.batches(one.name, planned["run"])
    assert [(batch.batch_id, batch.rows, batch.bytes) for batch in after] == [
        (batch.batch_id, batch.rows, batch.bytes) for batch in before
    ]
    assert (
        one.stack.rows(f"SELECT uniqExact(toYYYYMM(created_at)) FROM {one.name} GROUP BY batch_id")
        == [(1,)] * 4
    )
    one.deliver()
    assert sorted(one.products()) == [*range(10), 11]


def test_batches_of_large_events_stay_bounded(shop):
    """Seal large events and events of many months: there are more batches, and none is larger than
    `batch_bytes`.
    """
    one = shop(batch_bytes=5_000_000, created_at="at")
    for product in range(20):
        one.send(product, at="2026-11-05T10:00:00Z", note="x" * 900_000)
    for product in range(20, 40):
        one.send(product, at=f"20{product}-01-01T00:00:00Z", note="y" * 500_000)
    planned = one.sealed()
    with Ledger(one.settings.cassandra) as ledger:
        rows = [batch.rows for batch in ledger.batches(one.name, planned["run"])]
    assert sum(rows) == 40 and max(rows) <= 5 and len(rows) >= 24
    one.finish(planned)
    assert sorted(one.products()) == [*range(40)]
    assert checked_verdict(one).startswith("exactly once")


def test_deliver_few_records_waits_for_limited_time(shop):
    one = shop(batch_min_rows=3, max_wait_seconds=3600)
    one.send(1)
    assert len(one.deliver()) == 1, "the first run has waited for nobody"
    one.send(2)
    assert one.deliver() == []
    one.configure(max_wait_seconds=0)
    assert len(one.deliver()) == 1 and one.products() == [1, 2]


def test_push_keeps_seconds_between_inserts(shop):
    one = shop(batch_rows=1, seconds_between_inserts=1)
    for product in range(3):
        one.send(product)
    planned = one.sealed()
    begun = time.monotonic()
    one.finish(planned)
    assert time.monotonic() - begun >= 2 and len(one.products()) == 3


def test_deliver_event_past_window_counts_as_new(shop, monkeypatch):
    """Compare with the known ids in this process, then in Spark, as for many ids."""
    one = shop(window_days=1)
    one.send(1)
    one.deliver()
    one.send(1)
    one.deliver()
    assert one.products() == [1]
    ((unique_id, (shard, run)),) = one.ids().items()
    one.stack.session.execute(
        "UPDATE tagmill_test.deduplication USING TIMESTAMP %s SET seen_at = %s WHERE pipeline = %s AND "
        "rule = %s AND shard = %s "
        "AND unique_id = %s",
        (
            run + 1,
            datetime.now(UTC) - timedelta(days=2),
            one.name,
            one.settings.topic(one.name).rule,
            shard,
            unique_id,
        ),
    )
    one.send(1)
    one.deliver()
    assert one.products() == [1, 1]
    monkeypatch.setattr(seal, "LOOKED_UP_AT_ONCE", -1)
    one.send(1)
    one.send(2)
    one.deliver()
    assert one.products() == [1, 1, 2]


def test_close_without_its_dead_letters_moves_nothing(shop):
    """Lose the sealed file of dead letters: the close refuses, and goes on once the file is back."""
    one = shop()
    one.send(1)
    one.topic.send("2", b"{")
    planned = one.sealed()
    at = (planned["run"], planned["fence"])
    steps.push(one.settings, one.name, *at, owner=OWNER)
    (letters,) = Path(one.settings.storage.root).glob("**/letters/*.parquet")
    content = letters.read_bytes()
    letters.unlink()
    with raises(SealedFileDamaged):
        steps.close(one.settings, one.name, *at, owner=OWNER)
    assert one.offsets() == {}
    letters.write_bytes(content)
    assert steps.close(one.settings, one.name, *at, owner=OWNER)["unreadable"] == 1
    assert one.products() == [1] and one.offsets() == {0: 2}
    code, out, _ = tagmill(one.file, "deadletters", "list", "--pipeline", one.name, "--json")
    assert code == 0 and len(json.loads(out)) == 1


def test_deliver_unreadable_records_become_dead_letters(shop):
    one = shop(columns=[{"name": "price", "type": "Float64", "nullable": False}])
    one.send(1, price=1)
    one.topic.send("k", b"{no json", [("h", b"\xff")])
    one.topic.send("t", None)
    one.send(None, price=1)
    one.send(2, price="much")
    one.send(3)
    one.send(4, price=4)
    one.topic.flush()
    event = b'{"project": "p", "event_type": "created", "product_id": 5, "price": 5}'
    for value in (event, b"{no json"):  # an event needs no header
        odd_headers.send(one.topic.port, one.name, b"k", value, [(b"\xff", b"")])
    (run,) = one.deliver()
    assert (run["rows"], run["unreadable"], run["tombstones"], run["records"]) == (3, 5, 1, 9)
    assert one.products() == [1, 4, 5]
    with Ledger(one.settings.cassandra) as ledger:
        letters = list(DeadLetters(ledger.cassandra, "tagmill_test", one.name).listed())
    assert [(letter.record.offset, letter.record.key) for letter in letters] == [
        (1, b"k"),
        (3, b"None"),
        (4, b"2"),
        (5, b"3"),
        (8, b"k"),
    ]
    assert letters[4].record.headers == NAME_NOT_UTF8
    assert letters[0].record.value == b"{no json" and letters[0].record.headers == [("h", b"\xff")]
    reasons = ("no JSON object", "product_id", "price", "price", "no JSON object")
    for letter, said in zip(letters, reasons, strict=True):
        assert said in letter.reason
    code, out, _ = tagmill(one.file, "deadletters", "list", "--pipeline", one.name)
    assert code == 0 and "product_id" in out


@pytest.mark.parametrize(
    "factor",
    [
        pytest.param(1000, id="microseconds", marks=pytest.mark.long),
        pytest.param(1_000_000, id="nanoseconds"),
    ],
)
@pytest.mark.parametrize("small_run_rows", [20_000, 0], ids=["here", "by Spark"])
def test_deliver_odd_producer_clock_stops_nothing(shop, factor, small_run_rows):
    """Send records whose timestamps count micro- or nanoseconds, or are below 0: only one past 2100 becomes a
    dead letter.
    """
    always = {"message.timestamp.after.max.ms": str(2**63 - 1)}
    one = shop(2, config=always, max_records_per_run=5, small_run_rows=small_run_rows)
    one.send(1)
    one.topic.clock *= factor
    one.send(2, much="x" * 900_000)
    one.topic.clock = -one.topic.clock
    one.send(3)
    one.topic.clock //= -factor
    for product in (4, 5, 6):
        one.send(product)
    one.send(7, partition=1)
    first, second = one.deliver()
    assert (first["rows"] + second["rows"], first["unreadable"] + second["unreadable"]) == (6, 1)
    assert one.products() == [1, 3, 4, 5, 6, 7] and one.offsets() == {0: 6, 1: 1}
    # A record without a timestamp has one below 0 in Kafka.
    assert [at.year for (at,) in one.rows("created_at")] == [2026, 1970, 2026, 2026, 2026, 2026]
    code, out, _ = tagmill(one.file, "deadletters", "list", "--pipeline", one.name, "--json")
    (letter,) = json.loads(out)
    assert (
        code == 0 and letter["timestamp"].startswith("9999") and "between 1970 and 2100" in letter["reason"]
    )
    (again,) = one.deliver(letters=True)
    assert (again["rows"], again["unreadable"]) == (0, 1)


def test_deliver_letters_reads_repaired_dead_letters(shop):
    """Change the columns so that dead letters can be read, and replay them.

    Rows that were delivered with the removed column are still checked.
    """
    one = shop(columns=[{"name": "price", "type": "Float64"}], created_at="price")
    one.send(1, price=1)
    one.send(2, price="much")
    one.send(1, price="twice")
    one.topic.send("k", b"{no json")
    one.deliver()
    assert one.products() == [1]
    del one.keys["created_at"]
    one.configure(columns=[{"name": "cost", "path": "price"}])
    one.applied()
    (run,) = one.deliver(letters=True)
    assert (run["rows"], run["known"], run["unreadable"]) == (1, 1, 1)
    assert one.products() == [1, 2] and one.rows("cost") == [(None,), ("much",)]
    with Ledger(one.settings.cassandra) as ledger:
        assert [
            letter.record.value for letter in DeadLetters(ledger.cassandra, "tagmill_test", one.name).listed()
        ] == [b"{no json"]
    assert one.offsets() == {0: 4}
    # The column that is no longer configured still belongs to the rows that were delivered with it.
    assert tagmill(one.file, "check", "--pipeline", one.name)[0] == 0
    with ClickHouse(one.settings.clickhouse) as clickhouse:
        table = one.settings.topic(one.name).destination
        clickhouse.command(f"ALTER TABLE `{table}` ADD COLUMN `theirs` Nullable(String) DEFAULT 'x'")
        assert tagmill(one.file, "check", "--pipeline", one.name)[0] == 0
        clickhouse.command(
            f"ALTER TABLE `{table}` UPDATE `price` = 2 WHERE `price` = 1 SETTINGS mutations_sync = 2"
        )
    code, out, err = tagmill(one.file, "check", "--pipeline", one.name)
    assert code == 3 and "other values" in out + err


def test_deliver_moved_required_columns_is_refused(shop):
    price, size = ({"name": name, "type": "Float64", "nullable": False} for name in ("price", "size"))
    one = shop(columns=[price, size])
    one.send(1, price=1, size=2)
    one.deliver()
    for columns in ([size, price], [price]):
        one.configure(columns=columns)
        with raises(
            ConfigurationError,
            match="run 1 has delivered the columns .*, price, size, none of them nullable",
            pipeline=one.name,
        ):
            one.deliver()
        code, _, err = tagmill(one.file, "check", "--pipeline", one.name)
        assert code == 2 and "put them back in that order" in err
    one.configure(columns=[price, {"name": "note"}, size])
    one.applied()
    assert one.deliver() == []


def test_deliver_lost_records_needs_accept_lost(shop):
    """Lose unread records: the delivery refuses with their number, and delivers the rest with
    --accept-lost.
    """
    one = shop(2)
    for product in range(6):
        one.send(product)
    one.send(100, partition=1)
    one.deliver()
    for product in range(6, 12):
        one.send(product)
    one.topic.flush()
    lose(one.kafka.port, one.name, 0, 9)
    with raises(RecordsLost, match="3 records .offsets 6 to 8. were gone.*--accept-lost", pipeline=one.name):
        one.deliver()
    (run,) = one.deliver(accept_lost=True)
    assert sorted(one.products()) == [0, 1, 2, 3, 4, 5, 9, 10, 11, 100] and "3 records" in run["warnings"][0]
    # Lost records also count if no others are left to read.
    one.send(12)
    one.topic.flush()
    lose(one.kafka.port, one.name, 0, 13)
    (run,) = one.deliver(accept_lost=True)
    assert "1 records" in run["warnings"][0] and one.offsets() == {0: 13, 1: 1} and one.deliver() == []


def test_deliver_lost_records_of_empty_partitions_refused(shop):
    """Lose records of partitions that were empty, or came, since the first run: the delivery refuses with their
    number. What was gone before the first run is no error.
    """
    one = shop(2)
    for partition in (0, 1):
        one.send(-1, partition=partition)
        one.topic.flush()
        lose(one.kafka.port, one.name, partition, 1)
    one.send(0)
    one.deliver()
    assert one.products() == [0] and one.offsets() == {0: 2, 1: 1}
    for partition in (1, 2):
        if partition == 2:
            one.topic.grow(3)
        for product in (1, 2, 3):
            one.send(10 * partition + product, partition=partition)
        one.topic.flush()
        lose(one.kafka.port, one.name, partition, 3 if partition == 1 else 2)
        with raises(RecordsLost, match=f"partition {partition}: 2 records", pipeline=one.name):
            one.deliver()
        one.deliver(accept_lost=True)
    assert one.products() == [0, 13, 23]


def test_deliver_recreated_longer_topic_is_refused(shop, kafka):
    """Recreate a topic with more records than before: the delivery refuses.

    With --accept-lost it continues at its old offset.
    """
    one = shop()
    for product in (1, 2):
        one.send(product)
    one.deliver()
    delete(kafka.port, one.topic.name)
    create(kafka.port, one.topic.name)
    for product in (3, 4, 5):
        one.send(product)
    with raises(TopicRecreated, pipeline=one.name):
        one.deliver()
    assert one.products() == [1, 2]
    (run,) = one.deliver(accept_lost=True)
    assert one.products() == [1, 2, 5] and "made anew" in run["warnings"][0]
    one.send(6)
    one.deliver()
    assert one.products() == [1, 2, 5, 6]


@pytest.mark.parametrize(
    "length", [pytest.param(1, id="shorter", marks=pytest.mark.long), pytest.param(4, id="longer")]
)
def test_recreated_topic_is_read_from_first_record(shop, kafka, length):
    """Recreate a topic, shorter or longer than before, and deliver it with --recreated, also after a
    crash.
    """
    one = shop()
    for product in (1, 2, 3):
        one.send(product)
    one.deliver()
    delete(kafka.port, one.topic.name)
    create(kafka.port, one.topic.name)
    for product in range(3, 3 + length):
        one.send(product)
    with raises(TopicRecreated, match="run deliver --pipeline .* --recreated", pipeline=one.name):
        one.deliver()
    for _ in range(2):
        with crashing("plan.before_commit"), pytest.raises(Crashed):
            one.deliver(recreated=True)
        free_lease(one.stack.session, one.name)
    assert "plan was begun 2 times since 20" in checked_verdict(one)
    one.deliver(recreated=True)
    one.send(9)
    one.deliver()
    assert sorted(one.products()) == [1, 2, 3, *range(4, 3 + length), 9] and one.offsets() == {0: length + 1}


def test_recreated_topic_needs_dead_letters_discarded(shop, kafka):
    """Recreate a topic that has a dead letter and a record set apart: no record of the new one takes their place."""
    one = shop()
    one.send(1)
    one.topic.send("k", b"{no json")
    one.deliver()
    of_pipeline = ("--pipeline", one.name, "--why", "x", "--yes")
    apart = f"{one.name}/0/2"
    assert tagmill(one.file, "run", "give-up", "--set-apart", apart, *of_pipeline)[0] == 0
    delete(kafka.port, one.name)
    create(kafka.port, one.name)
    for product in (2, 3, 4):
        one.send(product)
    said = "1 dead letters, and 1 records are set apart.*Nothing was read.*deadletters discard"
    with raises(GuardRefused, match=said, pipeline=one.name):
        one.deliver(recreated=True)
    discard = ("deadletters", "discard", "--topic", one.name, *of_pipeline)
    code, out, err = shown_first(one.file, *discard)
    assert code == 0 and "1 dead letters" in out, err
    assert shown_first(one.file, *discard)[0] == 2
    (run,) = one.deliver(recreated=True)
    assert (run["unreadable"], sorted(one.products())) == (0, [1, 2, 3, 4])


def test_recreated_topic_grows_and_all_is_read(shop, kafka):
    """Recreate topics with a partition less, deliver them, and let them grow: all records of the partition arrive,
    fewer than it had in the old topic, or more.
    """
    ones, old, sent = [shop(2), shop(2)], [1, 2, 3], {0: [11], 1: [21, 22, 23, 24]}
    for number, one in enumerate(ones):
        for product in old:
            one.send(product, partition=1)
        one.deliver()
        delete(kafka.port, one.name)
        create(kafka.port, one.name)
        one.send(4)
        one.deliver(recreated=True)
        one.topic.grow(2)
        for product in sent[number]:
            one.send(product, partition=1)
        one.deliver()
        assert sorted(one.products()) == [*old, 4, *sent[number]]


@pytest.mark.parametrize("small_run_rows", [20_000, 0], ids=["here", "by Spark"])
def test_seal_lost_records_names_way_out(shop, small_run_rows):
    """Lose records of a planned run: its seal names them and the commands that abandon it and deliver the
    rest.
    """
    one = shop(2, small_run_rows=small_run_rows)
    one.send(0)
    one.send(10, partition=1)
    one.deliver()
    for product in range(1, 5):
        one.send(product)
    one.send(11, partition=1)
    one.topic.flush()
    planned = steps.plan(one.settings, one.name, owner=OWNER)
    lose(one.kafka.port, one.name, 0, 3)
    said = "partition 0: 2 records .of offsets 1 to 4; there are 3 to 4.. Nothing"
    for _ in range(2):
        with raises(RecordsLost, match=said, pipeline=one.name, run=planned["run"]) as refused:
            steps.seal(
                one.settings, one.name, planned["run"], planned["fence"], owner=OWNER, spark=lambda: one.spark
            )
    abandon, deliver = str(refused.value).split("tagmill ")[1:]
    assert deliver == f"run deliver --pipeline {one.name} --accept-lost"
    code, out, err = tagmill(one.file, *abandon.partition(" …")[0].split(), "gone", "--yes")
    assert code == 0, err
    with raises(RecordsLost, pipeline=one.name):
        one.deliver()
    (run,) = one.deliver(accept_lost=True)
    assert (
        sorted(one.products()) == [0, 3, 4, 10, 11]
        and "2 records" in run["warnings"][0]
        and one.offsets() == {0: 5, 1: 2}
    )


def test_deliver_added_partitions_topics_and_transactions(shop):
    from tests.support.kafka import Topic, create

    one = shop(1)
    one.send(1)
    one.deliver()
    one.topic.grow(2)
    one.send(2, partition=1)
    one.send(1, partition=1)
    one.deliver()
    assert one.products() == [1, 2] and one.offsets() == {0: 1, 1: 2}
    # A transaction's markers occupy offsets, so that offsets of records are missing as after a compaction.
    one.configure(topics=[], topic_prefixes=[one.name])
    create(one.kafka.port, f"{one.name}-more")
    more = Topic(one.kafka.port, f"{one.name}-more")
    with more.transaction():
        for product in (3, 4):
            more.send(
                "k", json.dumps({"project": "p", "event_type": "created", "product_id": product}).encode()
            )
    with more.transaction():
        more.send("k", json.dumps({"project": "p", "event_type": "created", "product_id": 5}).encode())
    with more.transaction(abort=True):
        more.send("k", json.dumps({"project": "p", "event_type": "created", "product_id": 6}).encode())
    one.deliver()
    assert sorted(one.products()) == [1, 2, 3, 4, 5]
    assert one.deliver() == []


@pytest.mark.parametrize("small_run_rows", [20_000, 0], ids=["here", "by Spark"])
def test_deliver_compacted_topic_with_missing_offsets(shop, small_run_rows):
    from tagmill.kafka.client import Kafka, Span
    from tests.support.kafka import Topic, create

    one = shop(small_run_rows=small_run_rows)
    name = f"{one.name}-compacted"
    at_once = {
        "segment.ms": "1",
        "min.cleanable.dirty.ratio": "0.001",
        "delete.retention.ms": "0",
        "max.compaction.lag.ms": "1",
    }
    create(one.kafka.port, name, **{"cleanup.policy": "compact", **at_once})
    topic, end = Topic(one.kafka.port, name), 40
    for number in range(end):
        topic.send(
            f"k{number % 4}", json.dumps({"project": "p", "event_type": "e", "product_id": number}).encode()
        )
        topic.flush()
    with Kafka(one.settings.kafka) as kafka:
        limit = time.monotonic() + 90
        while len(left := [record.offset for record in kafka.read(name, 0, Span(0, end))]) > end // 2:
            assert time.monotonic() < limit, "nothing was compacted"
            time.sleep(1)
    one.configure(topics=[name])
    (run,) = one.deliver()
    there = one.products()
    assert {*range(end - 4, end)} <= {*there} <= {*left} and run["rows"] == run["records"] == len(there)
    assert one.offsets() == {0: end}
    assert one.deliver() == [] and topic_line(one.settings, one.name, verify=True)["waiting"] == 0


def test_void_partly_pushed_run_repeats_voided_batches(shop):
    one = shop(batch_rows=2)
    for product in range(4):
        one.send(product)
    one.topic.flush()
    with crashing("push.after_batch"), pytest.raises(Crashed):
        one.deliver()
    free_lease(one.stack.session, one.name)
    code, out, err = tagmill(one.file, "run", "void", "--pipeline", one.name, "--why", "a test", "--yes")
    assert code == 0 and "1 batches VOIDED, 1 stay" in out, err
    runs = one.deliver()
    assert [run["rows"] for run in runs] == [4, 2] and [run["known"] for run in runs] == [0, 2]
    assert Counter(one.products()) == Counter(range(4)) and one.offsets() == {0: 4}
    assert checked_verdict(one).startswith("exactly once")


def test_check_change_in_clickhouse_is_resent(shop):
    one = shop(columns=COLUMNS)
    for product in range(3):
        one.send(product, price=1.0)
    one.deliver()
    client = one.stack.client(settings={"mutations_sync": 2})
    client.command(f"ALTER TABLE {one.name} UPDATE price = 2 WHERE offset = 1")
    client.close()
    code, out, _ = tagmill(one.file, "check", "--pipeline", one.name)
    assert code == 3 and "has other values in ClickHouse" in out.replace("\n", " ")
    with Ledger(one.settings.cassandra) as ledger:
        (batch,) = ledger.batches(one.name, 1)
    code, out, err = tagmill(
        one.file,
        "batches",
        "resend",
        str(batch.batch_id),
        "-p",
        one.name,
        "--run",
        "1",
        "--why",
        "a test",
        "--yes",
    )
    assert code == 0, err
    code, _, _ = tagmill(one.file, "check", "--pipeline", one.name)
    assert code == 0 and one.rows("price") == [(1.0,)] * 3


def test_record_too_large_for_cassandra_is_named(shop):
    """Send records that one write of Cassandra can't hold: each is named with place and length.

    The rest is delivered, the largest record that fits included.
    """
    one = shop(config={"max.message.bytes": str(64 * 1024**2)})
    with Ledger(one.settings.cassandra) as ledger:
        largest = ledger.cassandra.largest_row

    def event(product, size):
        begin = json.dumps({"project": "p", "event_type": "created", "product_id": product, "much": ""})[:-2]
        return (begin + "x" * (size - len(begin) - 2) + '"}').encode()

    one.send(0)
    one.topic.send("fits", event(1, largest))
    one.topic.send("too large", event(2, largest + 1))
    one.topic.send("header", b"{no json", [("h", bytes(largest))])
    one.topic.send("kept", b"{no json" + bytes(largest - 1000))
    one.topic.send("k" * largest, event(3, 1000))
    one.send(4)
    (run,) = one.deliver()
    assert (run["rows"], run["unreadable"]) == (4, 3) and one.products() == [0, 1, 3, 4]
    with Ledger(one.settings.cassandra) as ledger:
        value, header, kept = DeadLetters(ledger.cassandra, "tagmill_test", one.name).listed()
    for letter, offset, size, said in (
        (value, 2, largest + 1, "a value of"),
        (header, 3, largest + 8, "no JSON object"),
    ):
        told, reason = int(re.search(r"not kept: (\d+) bytes", letter.reason)[1]), letter.reason
        assert size <= told < size + 500 and f"in Kafka at {one.name}/0/{offset}" in reason and said in reason
        assert (letter.record.key, letter.record.value, letter.record.headers) == (None, None, [])
    assert len(kept.record.value) == largest - 992 and kept.record.key == b"kept"
    code, out, _ = tagmill(one.file, "deadletters", "list", "--pipeline", one.name)
    assert code == 0 and "not kept" in out
    assert tagmill(one.file, "check", "--pipeline", one.name)[0] == 0
    (again,) = one.deliver(letters=True)
    assert (again["records"], again["unreadable"]) == (1, 1), "nothing is read of what was not kept"


def test_run_sealed_with_too_large_record_is_voided(shop, monkeypatch):
    """Seal a run under a higher limit: its delivery names the row, and after a void the next run delivers the
    rest.
    """
    one = shop(config={"max.message.bytes": str(64 * 1024**2)})
    one.send(1)
    one.send(2, much="x" * 17 * 1024**2)
    monkeypatch.setenv("TAGMILL_CASSANDRA__MAX_WRITE_BYTES", str(64 * 1024**2))
    one.configure()
    with pytest.raises(TagmillError):
        one.deliver()
    free_lease(one.stack.session, one.name)
    monkeypatch.delenv("TAGMILL_CASSANDRA__MAX_WRITE_BYTES")
    one.configure()
    with pytest.raises(
        ConfigurationError,
        match=r"deduplication \(unique_id \w+\) has \d+ bytes, and Cassandra takes 16777216 in one",
    ):
        one.deliver()
    free_lease(one.stack.session, one.name)
    code, _, err = tagmill(one.file, "run", "void", "--pipeline", one.name, "--why", "a test", "--yes")
    assert code == 0, err
    _, run = one.deliver()
    assert (run["rows"], run["unreadable"]) == (1, 1) and one.products() == [1]
    assert checked_verdict(one).startswith("exactly once")


def test_every_type_takes_null_and_its_edges(shop, monkeypatch):
    """Deliver, prove and resend null, absent, lowest and highest values of all types.

    ClickHouse evaluates every branch of if() here.
    """
    monkeypatch.setattr(
        clickhouse_connect,
        "get_client",
        partial(clickhouse_connect.get_client, settings={"short_circuit_function_evaluation": "disable"}),
    )
    monkeypatch.setattr(clickhouse_client, "idle", IdleConnections())
    required = [{"name": f"r{at}", "type": kind, "nullable": False} for at, kind in enumerate(EDGES)]
    optional = [{"name": f"n{at}", "type": kind} for at, kind in enumerate(EDGES)]
    lowest, highest, outside = (list(values) for values in zip(*EDGES.values(), strict=True))

    def fields(prefix, values):
        return {f"{prefix}{at}": value for at, value in enumerate(values)}

    one = shop(columns=required)
    one.send(0, **fields("r", lowest))
    one.deliver()
    one.configure(columns=[*required, *optional])
    one.applied()
    one.send(1, **fields("r", lowest), **fields("n", lowest))
    one.send(2, **fields("r", highest), **fields("n", highest))
    one.send(3, **fields("r", lowest), **fields("n", [None] * len(EDGES)))
    one.send(4, **fields("r", highest))
    beyond = [at for at, value in enumerate(outside) if value is not None]
    for at in beyond:
        one.send(10 + at, **{**fields("r", lowest), f"r{at}": outside[at]})
    planned = one.sealed()
    # As an older installation has it: its projection casts to types that are not nullable.
    client = one.stack.client(settings={"mutations_sync": 2})
    (created,) = one.stack.rows(f"SELECT create_table_query FROM system.tables WHERE name = '{one.name}'")
    total = re.search(r"PROJECTION batch_totals (\(.*?generation\))\)", created[0])[1]
    client.command(f"ALTER TABLE {one.name} DROP PROJECTION batch_totals")
    before = re.sub(r"Nullable\((UInt8|UInt16)\)", r"\1", total)
    client.command(f"ALTER TABLE {one.name} ADD PROJECTION batch_totals {before}")
    client.close()
    free_lease(one.stack.session, one.name)
    with raises(ConfigurationError, pipeline=one.name, run=planned["run"]):
        one.finish(planned)
    one.applied()
    free_lease(one.stack.session, one.name)
    run = one.finish(planned)
    assert (run["rows"], run["unreadable"]) == (4, len(beyond))
    shown = ", ".join(f"toString({prefix}{at})" for prefix in "rn" for at in range(len(EDGES)))
    rows = one.rows(shown)
    low, high, null = rows[1][: len(EDGES)], rows[2][: len(EDGES)], (None,) * len(EDGES)
    assert (low, high) == (
        tuple(TEXTS.get(value, str(value)) for value in lowest),
        tuple(TEXTS.get(value, str(value)) for value in highest),
    )
    assert rows == [low + null, low + low, high + high, low + null, high + null]
    assert tagmill(one.file, "check", "--pipeline", one.name)[0] == 0
    with Ledger(one.settings.cassandra) as ledger:
        (batch,) = ledger.batches(one.name, 2)
    client = one.stack.client(settings={"mutations_sync": 2})
    client.command(f"ALTER TABLE {one.name} UPDATE n7 = NULL WHERE n7 = true")
    client.close()
    assert tagmill(one.file, "check", "--pipeline", one.name)[0] == 3
    again = (
        "batches",
        "resend",
        str(batch.batch_id),
        "-p",
        one.name,
        "--run",
        "2",
        "--why",
        "a test",
        "--yes",
    )
    code, _, err = tagmill(one.file, *again)
    assert code == 0, err
    assert tagmill(one.file, "check", "--pipeline", one.name)[0] == 0 and one.rows(shown) == rows


def test_cleanup_old_runs_keeps_rows_proven(shop):
    one = shop()
    for product in range(3):
        one.send(product)
        one.deliver()
    one.stack.session.execute(
        "UPDATE tagmill_test.runs SET closed_at = %s WHERE pipeline = %s AND run = 1",
        (datetime(2026, 1, 1), one.name),
    )
    code, out, err = tagmill(one.file, "cleanup", "--pipeline", one.name)
    assert code == 0 and "1 runs" in out, err
    code, out, err = tagmill(one.file, "cleanup", "--pipeline", one.name, "--yes")
    assert code == 0 and "1 runs" in out, err
    with Ledger(one.settings.cassandra) as ledger:
        assert [number for number in (1, 2, 3) if ledger.run(one.name, number)] == [2, 3]
    assert [folder.name for folder in (one.file.parent / "data" / one.name).glob("run-*1")] == []
    assert checked_verdict(one).startswith("exactly once")
    one.send(0)
    assert [run["known"] for run in one.deliver()] == [1] and one.products() == [0, 1, 2]


def test_deliver_other_id_rule_needs_rekey(shop):
    one = shop()
    one.send(1)
    one.deliver()
    one.configure(unique_id=["product_id"])
    with raises(ConfigurationError, match="tagmill dedup rekey", pipeline=one.name):
        one.deliver()


def test_seal_other_rule_than_planned_is_refused(shop):
    """Change what makes ids, or the columns, of a planned run: nothing is sealed until it is put back."""
    price = {"name": "price", "type": "Float64", "nullable": False}
    one = shop(columns=[price])
    one.send(1, price=1)
    one.deliver()
    one.send(1, price=1)
    one.topic.flush()
    planned = steps.plan(one.settings, one.name, owner=OWNER)
    of_rule, began = f"run {planned['run']} of .* was planned with ids made by", dict(one.keys)
    for keys, said in (
        ({"shards": 64}, of_rule),
        ({"unique_id": ["product_id"]}, of_rule),
        ({"columns": []}, "none of them nullable"),
    ):
        one.configure(**keys)
        with raises(ConfigurationError, match=said, pipeline=one.name):
            one.finish(planned)
        one.keys = dict(began)
    one.configure()
    done = one.finish(planned)
    assert (done["rows"], done["known"]) == (0, 1)
