"""Counts and examples of judged rows, however the rows are spread over tables."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagmill.quality.model import DispositionCount
from tagmill.quality.suspects import COLUMNS, Suspects

TYPES = [pa.string(), pa.string(), *[pa.int64()] * 4, pa.string(), pa.string()]
SCHEMA = pa.schema(zip(COLUMNS, TYPES, strict=True))
SEVEN = 1_795_244_400_000


def suspect(
    persistence_id: str | None, number: int, reason: str = "hole", action: str = "hold", tag: str = "order"
) -> tuple[Any, ...]:
    return (tag, persistence_id, number, number, number, SEVEN, action, reason)


def counted(rows: list[tuple[Any, ...]], limit: int = 20, waiting: Any = (), at_once: int = 2) -> Suspects:
    """Return what was counted of rows that come a few at a time."""
    suspects = Suspects(limit, waiting)
    for begin in range(0, len(rows), at_once):
        some = [dict(zip(COLUMNS, row, strict=True)) for row in rows[begin : begin + at_once]]
        suspects.add(pa.Table.from_pylist(some, schema=SCHEMA))
    return suspects


@pytest.mark.parametrize("at_once", [1, 2, 9])
def test_rows_are_counted_by_tag_reason_action(at_once: int) -> None:
    rows = [
        suspect("a", 6),
        suspect("a", 7),
        suspect("b", 3),
        suspect("c", 5, "duplicate_same_event", "drop"),
        suspect("a", 2, tag="t"),
    ]
    assert counted(rows, at_once=at_once).counts == (
        DispositionCount("order", "duplicate_same_event", "drop", 1, 1),
        DispositionCount("order", "hole", "hold", 3, 2),
        DispositionCount("t", "hole", "hold", 1, 1),
    )


@pytest.mark.parametrize("at_once", [1, 2, 9])
def test_everybodys_first_row_precedes_anybodys_second(at_once: int) -> None:
    """Name the first row of each persistence_id before a second one of any."""
    rows = [suspect("a", n) for n in range(9, 2, -1)] + [
        suspect("b", 4),
        suspect("c", 8),
        suspect("d", 1, "late", "late"),
    ]
    found = [
        (line.reason, line.persistence_id, line.tag_pid_sequence_nr)
        for line in counted(rows, 4, at_once=at_once).offending
    ]
    assert found == [("hole", "a", 3), ("hole", "a", 4), ("hole", "b", 4), ("hole", "c", 8), ("late", "d", 1)]


@given(
    st.lists(
        st.builds(suspect, st.sampled_from([None, "", "a", "b", "c"]), st.integers(1, 6)),
        unique_by=lambda row: row[1:3],
    ),
    st.integers(1, 5),
    st.integers(1, 30),
)
def test_examples_do_not_depend_on_tables(rows: list[tuple[Any, ...]], limit: int, at_once: int) -> None:
    """The same rows are named whether they come in one table or in many."""
    assert counted(rows, limit, at_once=at_once).offending == counted(rows, limit, at_once=1000).offending


def test_newly_held_open_holds_are_left_out() -> None:
    """Count persistence_ids without an open hold, each once. A hold of one tag does not cover another tag."""
    rows = [
        suspect("a", 6),
        suspect("a", 7),
        suspect("b", 3),
        suspect("b", 4, tag="t"),
        suspect("c", 5, "late", "late"),
    ]
    assert counted(rows).newly_held == (4, 2)
    assert counted(rows, waiting=[("order", "b")]).newly_held == (3, 2)
    assert counted([], waiting=[("order", "b")]).newly_held == (0, 0)


def test_damaged_keys_are_counted_and_named() -> None:
    """A row without tag or persistence_id has its place, before all others."""
    (named, other) = counted(
        [suspect("a", 3, tag=""), (None, None, None, 1, 1, SEVEN, "hold", "hole")]
    ).offending
    assert (named.tag, named.persistence_id, named.tag_pid_sequence_nr, other.persistence_id) == (
        "",
        None,
        None,
        "a",
    )
