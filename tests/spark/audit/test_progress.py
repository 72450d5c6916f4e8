"""Progress compared with ClickHouse's figures, also where journal and view have no rows left to compare."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tagmill.audit.destination_reader import IDS
from tagmill.audit.progress import Delivered, confirmed, progress_findings
from tagmill.audit.row_comparison import FINDING_SCHEMA
from tagmill.runs.storage import RunFiles

READ_PROGRESS = "tag string, persistence_id string, number bigint, sequence_nr bigint, missing bigint"
# name: progress (number, missing), ClickHouse (rows, numbers, events, last), last number in view, missing
# rows -> finding
CASES = {
    "all there": ((5, 0), (5, 5, 5, 5), 5, 0, None),
    "the view was cleaned up": ((5, 0), (5, 5, 5, 5), None, 0, None),
    "cleaned up and lost": (
        (5, 0),
        (3, 3, 3, 5),
        None,
        0,
        "says that 5 events were delivered, ClickHouse has 3",
    ),
    "cleaned up, and all is lost": (
        (5, 0),
        None,
        5,
        0,
        "says that 5 events were delivered, ClickHouse has 0",
    ),
    "lost, and a finding of its own": ((5, 0), (3, 3, 3, 5), 5, 2, None),
    "the first was number 4": ((5, 3), (2, 2, 2, 5), 5, 0, None),
    "given up and lost": ((5, 1), (3, 3, 3, 5), 5, 0, "says that 4 events were delivered, ClickHouse has 3"),
    "renumbered": ((7, 0), (7, 6, 7, 7), 7, 0, None),
    "an event under two numbers": ((5, 0), (5, 5, 4, 5), 5, 0, None),
}


@pytest.fixture(scope="module")
def said(spark: SparkSession) -> dict[str, str]:
    """Return the detail of the finding in each case. Each case is its own persistence_id."""
    progress = [("t", name, done, 9, missing) for name, ((done, missing), *_) in CASES.items()]
    stored = [
        ("t", name, *counts, None, last, last)
        for name, (_, figures, *_) in CASES.items()
        if figures
        for *counts, last in [figures]
    ]
    view = [("t", name, last) for name, (_, _, last, *_) in CASES.items() if last]
    lost = [
        ("missing_in_clickhouse", "t", name) for name, (*_, count, _) in CASES.items() for _ in range(count)
    ]
    found = spark.createDataFrame(lost, "kind string, tag string, persistence_id string")
    rows = progress_findings(
        spark.createDataFrame(progress, READ_PROGRESS),
        spark.createDataFrame(stored, IDS),
        spark.createDataFrame(view, "tag string, persistence_id string, number bigint"),
        found,
    )
    assert rows.columns == [field.split()[0] for field in FINDING_SCHEMA.split(", ")]
    return {row["persistence_id"]: row["detail"] for row in rows.collect()}


@pytest.mark.parametrize("name", CASES)
def test_progress_differs_where_it_should(said: dict[str, str], name: str) -> None:
    """Report progress that disagrees with ClickHouse, unless missing rows explain it."""
    expected = CASES[name][-1]
    assert (said.get(name) is None) if expected is None else (expected in said[name])


def test_only_what_differs_twice_is_confirmed(spark: SparkSession, tmp_path: Path) -> None:
    """A run delivers of b between the two readings, and is about to deliver of c when both are read again."""

    def read(done: dict[str, int], stored: dict[str, int]) -> Delivered:
        progress = [("t", name, number, 9, 0) for name, number in done.items()]
        ids = [("t", name, last, last, last, 1, last, last) for name, last in stored.items()]
        return Delivered(spark.createDataFrame(progress, READ_PROGRESS), spark.createDataFrame(ids, IDS))

    in_view = spark.createDataFrame(
        [("t", name, 9) for name in "abc"], "tag string, persistence_id string, number bigint"
    )
    none = spark.createDataFrame([], "kind string, tag string, persistence_id string")
    again = [read({"a": 3, "b": 7, "c": 3}, {"a": 6, "b": 7, "c": 7})]
    rows = confirmed(
        read({"a": 3, "b": 3, "c": 3}, {"a": 5, "b": 7, "c": 3}),
        lambda progress, ids: progress_findings(progress, ids, in_view, none),
        again.pop,
        RunFiles(str(tmp_path)),
        "audit",
    )
    assert [row["detail"] for row in rows.collect()] == ["progress says number 3, ClickHouse has 6"]
    assert again == []
