"""Progress compared with ClickHouse's figures, also where journal and view have no rows left to compare."""

import pytest
from pyspark.sql import SparkSession

from tagmill.audit.destination_reader import IDS
from tagmill.audit.progress import progress_findings
from tagmill.audit.row_comparison import FINDING_SCHEMA

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
        spark.createDataFrame(
            progress, "tag string, persistence_id string, number bigint, sequence_nr bigint, missing bigint"
        ),
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
