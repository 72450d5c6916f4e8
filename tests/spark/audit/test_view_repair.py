"""What a repair stages from an audit's findings: where the journal holds the event, and which numbers two
events claim.
"""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tagmill.audit.model import FINDING_SCHEMA, Kind
from tagmill.audit.view_repair import stage

COLUMNS = [column.split()[0] for column in FINDING_SCHEMA.split(", ")]


def finding(kind: Kind, sequence_nr: int, **columns: Any) -> tuple[Any, ...]:
    values = {"kind": kind.value, "tag": "t", "persistence_id": "a", "sequence_nr": sequence_nr, **columns}
    return tuple(values.get(name) for name in COLUMNS)


@pytest.fixture
def staged(spark: SparkSession, tmp_path: Path) -> Any:
    """Return staged(findings, journal), which stages a repair and returns its rows by sequence_nr."""

    def make(findings: list[tuple[Any, ...]], journal: list[tuple[Any, ...]]) -> dict[int, Any]:
        spark.createDataFrame(findings, FINDING_SCHEMA).write.parquet(f"{tmp_path}/findings")
        events = spark.createDataFrame(
            journal, "persistence_id string, sequence_nr bigint, partition_nr bigint, offset string"
        )
        events.write.parquet(f"{tmp_path}/journal")
        stage(spark, str(tmp_path), f"{tmp_path}/repair")
        rows = spark.read.parquet(f"{tmp_path}/repair").collect()
        assert len({row.sequence_nr for row in rows}) == len(rows)
        return {row.sequence_nr: row for row in rows}

    return make


def test_stage_view_findings_get_their_events_place(staged: Any) -> None:
    """Findings in the view get partition and offset of their event; an extra row gets none.

    Findings in ClickHouse and of held persistence_ids are left out.
    """
    found = staged(
        [
            finding(Kind.MISPLACED, 1, expected_number=1),
            finding(Kind.MISSING_IN_VIEW, 2, expected_number=2, journal_partition_nr=7, journal_offset="own"),
            finding(Kind.EXTRA_IN_VIEW, 3),
            finding(Kind.MISSING_IN_CLICKHOUSE, 1, expected_number=1),
            finding(Kind.HELD, 4),
        ],
        [("a", 1, 0, "o1"), ("a", 2, 0, "o2"), ("b", 3, 0, "o3")],
    )
    places = {
        number: (row.kind, row.journal_partition_nr, row.journal_offset) for number, row in found.items()
    }
    assert places == {
        1: ("misplaced", 0, "o1"),
        2: ("missing_in_view", 7, "own"),
        3: ("extra_in_view", None, None),
    }


def test_stage_number_claimed_by_two_events_is_taken(staged: Any) -> None:
    """Mark a number as taken if two events of a tag claim it; a copy of one event claims no number."""
    found = staged(
        [
            finding(Kind.MISSING_IN_VIEW, 1, expected_number=1),
            finding(Kind.WRONG_NUMBER, 2, expected_number=1, view_number=9),
            finding(Kind.MISSING_IN_VIEW, 3, expected_number=3),
            finding(Kind.EXTRA_IN_VIEW, 4, view_number=3),
            finding(Kind.DUPLICATED_IN_VIEW, 5, expected_number=5, view_number=6),
            finding(Kind.MISSING_IN_VIEW, 6, expected_number=6),
            finding(Kind.MISSING_IN_VIEW, 7, expected_number=3, tag="u"),
        ],
        [("a", number, 0, f"o{number}") for number in range(1, 8)],
    )
    assert {number for number, row in found.items() if row.taken} == {1, 2, 3}
