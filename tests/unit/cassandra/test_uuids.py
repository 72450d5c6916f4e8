"""Columns of UUIDs say what Python's standard library says of each UUID."""

from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagmill.cassandra import uuids
from tagmill.domain.timeuuid import lowest, ticks

SOME = st.lists(st.uuids(), max_size=20)
TIMES = st.lists(st.integers(-(2**48), 2**59), max_size=20)


@given(SOME)
def test_text_and_bytes_are_the_same_uuids(some: list[UUID]) -> None:
    of_text = uuids.of_text(pa.array([str(one) for one in some], pa.string()))
    of_binary = uuids.of_binary(pa.array([one.bytes for one in some], pa.binary()))
    assert of_text.tobytes() == of_binary.tobytes() == b"".join(one.bytes for one in some)
    assert uuids.text(of_text).to_pylist() == [str(one) for one in some]
    assert uuids.versions(of_text).tolist() == [one.int >> 76 & 15 for one in some]


@given(TIMES)
def test_time_uuids_have_their_time(times: list[int]) -> None:
    column = pa.array([str(lowest(one)) for one in times], pa.string())
    assert uuids.ticks(uuids.of_text(column)).tolist() == [ticks(lowest(one)) for one in times]


def test_slices_and_nulls_are_read_where_they_are() -> None:
    """Read slices from their own first row, and nulls as 16 zero bytes."""
    one = UUID("01234567-89ab-cdef-0123-456789abcdef")
    text = pa.array(["x", str(one).upper(), None, "y"])[1:3]
    assert uuids.of_text(text).tobytes() == one.bytes + bytes(16)
    binary = pa.array([b"x", one.bytes, None, b"y"], pa.binary())[1:3]
    assert uuids.of_binary(binary).tobytes() == one.bytes + bytes(16)


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "x",
        "01234567-89ab-cdef-0123-456789abcde",
        "01234567089ab-cdef-0123-456789abcdef",
        "g" * 36,
        "é" * 18,
    ],
)
def test_what_is_no_uuid_is_said(wrong: str) -> None:
    """Refuse texts and bytes that are not UUIDs."""
    with pytest.raises(ValueError, match="is no UUID"):
        uuids.of_text(pa.array([wrong]))
    with pytest.raises(ValueError, match="16 bytes"):
        uuids.of_binary(pa.array([wrong.encode()], pa.binary()))
