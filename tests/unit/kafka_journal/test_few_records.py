"""Few records in this process: the order in which they are folded, and the batches in which rows are written."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise, permutations

import pytest

from tagmill.kafka.partitioner import layout_of
from tagmill.kafka_journal.few_records import EVENTS, in_order, some_at_once
from tagmill.kafka_journal.pieces import in_turn
from tagmill.kafka_journal.staging import in_batches

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def fact(key: str, partition: int, offset: int, second: int) -> dict:
    at = BEGIN + timedelta(seconds=second)
    layout = layout_of(key.encode(), partition, 3)
    return {
        "topic": "t",
        "id": key,
        "partition": partition,
        "offset": offset,
        "timestamp": at,
        "layout": layout,
    }


@pytest.mark.parametrize("key", [f"id-{n}" for n in range(12)])
def test_records_in_order_take_partitions_in_turn(key):
    """Sort an id's partitions as pieces are cut, whatever the clocks say, and its offsets within each."""
    for seconds in permutations((1, 2, 3)):
        facts = [
            fact(key, partition, offset, second + offset)
            for partition, second in enumerate(seconds)
            for offset in (7, 5)
        ]
        first = [
            {"partition": number, "since": BEGIN + timedelta(seconds=seconds[number] + 5)}
            for number in range(3)
        ]
        expected = [stay["partition"] for stay in in_turn(key.encode(), first, 3)]
        found = [(row["partition"], row["offset"]) for row in in_order(facts, {})]
        assert found == [(partition, offset) for partition in expected for offset in (5, 7)]


def test_records_in_order_keep_ids_together():
    facts = [fact(key, 0, offset, 0) for offset, key in enumerate("abcabcab")]
    ids = [row["id"] for row in in_order(facts, {("t", "b"): {"e_seq_nr": 5}})]
    assert ids == sorted(ids)
    assert [
        row["e_seq_nr"] for row in in_order(facts, {("t", "b"): {"e_seq_nr": 5}}) if row["id"] == "b"
    ] == [5, 5, 5]


@pytest.mark.parametrize(
    ("size", "rows", "expected"),
    [(10, 2500, [1000, 1000, 500]), (5 * 1024 * 1024, 3, [1, 1, 1]), (1024 * 1024, 10, [4, 4, 2])],
    ids=["many small", "larger than a batch", "some in a batch"],
)
def test_rows_are_written_in_bounded_batches(size, rows, expected):
    """Make batches of at most a thousand rows and about 4 MiB, so that large payloads are never all in memory."""
    made = 0

    def events():
        nonlocal made
        for number in range(rows):
            made += 1
            yield {
                **dict.fromkeys(EVENTS.names),
                "topic": "t",
                "id": "a",
                "segment": 0,
                "seq_nr": rows - number,
                "payload_txt": "x" * size,
            }

    found = []
    for batch in some_at_once(events(), EVENTS):
        found.append(batch.num_rows)
        assert made == sum(found)
        assert all(one < two for one, two in pairwise(batch["seq_nr"].to_pylist()))
    assert found == expected


def test_batches_have_all_rows_in_order():
    batches = list(in_batches(({"seq_nr": number} for number in range(2001)), EVENTS))
    assert [batch.num_rows for batch in batches] == [1000, 1000, 1]
    assert [row for batch in batches for row in batch["seq_nr"].to_pylist()] == list(range(2001))
