"""Sums that find broken journals, and ranks that give the plugin's numbers, compared with counting one by
one.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tagmill.audit import numbers, totals
from tagmill.audit.staging import Scope
from tagmill.domain.time_buckets import BucketSize
from tests.spark.audit.test_row_comparison import BUCKET, JOURNAL, NOW, VIEW

SCOPE = Scope("p", ("t",), BucketSize.HOUR, {"t": 0}, {"t": NOW * 2}, NOW * 2, {"t": NOW * 2})
DELETED = "persistence_id string, deleted_to bigint"


def events(
    id_: str, sequence_nrs: Sequence[int], tagged: Any = lambda _: True, writer: str = "w"
) -> list[tuple[Any, ...]]:
    return [
        (
            id_,
            0,
            nr,
            f"o-{nr:09d}-{writer}",
            NOW + nr,
            BUCKET,
            writer,
            ["t"] if tagged(nr) else [],
            1,
            nr,
            None,
        )
        for nr in sequence_nrs
    ]


def view(id_: str, rows: Sequence[tuple[int, int]]) -> list[tuple[Any, ...]]:
    return [
        ("t", id_, nr, number, f"o-{nr:09d}-w", NOW + nr, BUCKET, BUCKET, "w", 10, nr, nr, False)
        for nr, number in rows
    ]


def ids_of(journal: DataFrame) -> DataFrame:
    return totals.of_ids(journal.withColumn("written", F.lit(0)), SCOPE)


def test_a_journal_is_broken_when_counting_says_so(spark: SparkSession) -> None:
    """Sums call a journal broken exactly if counting its sequence_nrs finds a gap or a double."""
    random = Random(7)
    journals: dict[str, list[int]] = {
        "far": list(range(3_000_000_000, 3_000_000_005)),
        "one": [9],
        "pairs": [1, 2, 3, 4, 5, 5, 6, 6, 8],
    }
    for number in range(300):
        begin = random.choice([1, 1, 5, 1_000_000])
        chosen = list(range(begin, begin + random.randrange(1, 12)))
        for _ in range(random.choice([0, 0, 1, 2])):
            chosen.pop(random.randrange(len(chosen))) if len(chosen) > 1 else None
        for _ in range(random.choice([0, 0, 1, 2])):
            chosen.append(random.choice(chosen))
        journals[f"j-{number}"] = chosen
    rows = [
        row
        for id_, nrs in journals.items()
        for i, nr in enumerate(nrs)
        for row in events(id_, [nr], writer=f"w{i}")
    ]
    found = {
        line["persistence_id"]
        for line in ids_of(spark.createDataFrame(rows, JOURNAL)).where("is_broken").collect()
    }
    assert found == {
        id_ for id_, nrs in journals.items() if sorted(nrs) != list(range(min(nrs), max(nrs) + 1))
    }
    assert "pairs" in found and "far" not in found and 50 < len(found) < 250


def test_gaps_and_second_writers_are_named(spark: SparkSession) -> None:
    """Name gaps of the journal above deleted events, and each sequence_nr with two writers."""
    journal = spark.createDataFrame(
        events("hole", [1, 2, 5, 6])
        + events("below", [1, 4, 5])
        + events("cut", [3, 6])
        + events("start", [4, 5])
        + events("two", [1, 2, 3])
        + events("two", [2, 3], writer="z"),
        JOURNAL,
    )
    deleted = spark.createDataFrame([("below", 3), ("cut", 4)], DELETED)
    broken = ids_of(journal).where("is_broken").select("persistence_id")
    found = numbers.journal_findings(journal, broken, deleted, SCOPE).collect()
    assert sorted(
        (line["kind"], line["persistence_id"], line["sequence_nr"], line["tag"]) for line in found
    ) == [
        ("journal_hole", "cut", 5, None),
        ("journal_hole", "hole", 3, None),
        ("two_writers", "two", 2, "t"),
        ("two_writers", "two", 3, "t"),
    ]
    (gap,) = (line for line in found if line["persistence_id"] == "hole")
    assert gap["detail"] == "sequence_nr 3 to 4 are missing in front of 5"
    assert (
        "w at o-000000002-w, z at o-000000002-z" in found[-1]["detail"]
        or "w at o-000000002-w, z at o-000000002-z" in found[-2]["detail"]
    )


# persistence_id: (journal, deleted_to, view as (sequence_nr, number), wrong numbers as (sequence_nr, number,
# expected number))
NUMBERED: dict[str, tuple[list[tuple[Any, ...]], int, list[tuple[int, int]], list[tuple[int, int, int]]]] = {
    "all tagged": (events("all tagged", range(1, 6)), 0, [(n, n) for n in range(1, 6)], []),
    "some tagged": (events("some tagged", range(1, 7), lambda n: n % 2), 0, [(1, 1), (3, 2), (5, 3)], []),
    "starts at 2": (
        events("starts at 2", range(1, 4)),
        0,
        [(1, 2), (2, 3), (3, 4)],
        [(1, 2, 1), (2, 3, 2), (3, 4, 3)],
    ),
    "starts behind what is gone": (
        events("starts behind what is gone", range(1, 4)),
        0,
        [(1, 7), (2, 8), (3, 5)],
        [(3, 5, 9)],
    ),
    "one is wrong": (
        events("one is wrong", range(1, 6)),
        0,
        [(1, 1), (2, 2), (3, 4), (4, 3), (5, 5)],
        [(3, 4, 3), (4, 3, 4)],
    ),
    "one is missing": (events("one is missing", range(1, 5)), 0, [(1, 1), (3, 3), (4, 4)], []),
    "twice": (events("twice", range(1, 4)), 0, [(1, 1), (2, 2), (2, 4), (3, 3)], []),
    "deleted": (events("deleted", range(4, 8)), 3, [(n, n) for n in range(1, 8)], []),
    "deleted and wrong": (
        events("deleted and wrong", range(4, 8)),
        3,
        [(4, 40), (5, 5), (6, 6), (7, 7)],
        [(4, 40, 4)],
    ),
}


@pytest.fixture(scope="module")
def wrong(spark: SparkSession) -> dict[str, list[tuple[int, int, int]]]:
    """Return the wrong numbers of each case as (sequence_nr, view number, expected number).

    All cases go through Spark at once.
    """
    journal = spark.createDataFrame([row for case in NUMBERED.values() for row in case[0]], JOURNAL)
    in_view = spark.createDataFrame(
        [row for id_, case in NUMBERED.items() for row in view(id_, case[2])], VIEW
    )
    deleted = spark.createDataFrame([(id_, case[1]) for id_, case in NUMBERED.items() if case[1]], DELETED)
    ids = numbers.unproven(totals.of_numbers(in_view, SCOPE), numbers.tagged_events(journal, SCOPE))
    assert "all tagged" not in {line["persistence_id"] for line in ids.collect()}
    lines = [
        ("t", "starts behind what is gone", 9, 3),
        ("t", "starts at 2", 3, 3),
        ("t", "one is wrong", 9, 99),
    ]
    progress = spark.createDataFrame(
        lines, "tag string, persistence_id string, number bigint, reached bigint"
    )
    expected = numbers.expected(journal, in_view, deleted, ids, progress, SCOPE)
    found: dict[str, list[tuple[int, int, int]]] = {id_: [] for id_ in NUMBERED}
    for line in numbers.wrong_numbers(in_view, expected, SCOPE).collect():
        found[line["persistence_id"]].append(
            (line["sequence_nr"], line["view_number"], line["expected_number"])
        )
    return {id_: sorted(rows) for id_, rows in found.items()}


@pytest.mark.parametrize("case", NUMBERED)
def test_wrong_numbers_are_named_with_the_right_ones(
    case: str, wrong: dict[str, list[tuple[int, int, int]]]
) -> None:
    assert wrong[case] == NUMBERED[case][3]
