"""Offsets, their time, and their order in Cassandra."""

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid1, uuid4

import pytest
from cassandra.util import min_uuid_from_time
from hypothesis import given
from hypothesis import strategies as st

from tagmill.domain import timeuuid

# Ticks from 1582-10-15 to the year 5236, the range of the 60 bits of a time UUID.
TICKS = st.integers(-timeuuid.GREGORIAN_TICKS, 2**60 - 1 - timeuuid.GREGORIAN_TICKS)


def cassandra_order(offset: UUID) -> tuple[int, bytes]:
    """Return the key of TimeUUIDType.compare: the time, then the last eight bytes as signed ones."""
    return offset.time, bytes(byte ^ 0x80 for byte in offset.bytes[8:])


def test_ticks_of_new_offset_are_now() -> None:
    """Offsets made now have the current time."""
    before = timeuuid.from_datetime(datetime.now(UTC) - timedelta(milliseconds=1))
    found = timeuuid.ticks(uuid1())
    assert before <= found <= timeuuid.from_datetime(datetime.now(UTC) + timedelta(milliseconds=1))


def test_a_recorded_offset_has_its_known_time() -> None:
    # The driver makes this offset for 2026-11-21T07:00:00.001Z.
    assert timeuuid.ticks(min_uuid_from_time(1_795_244_400.001)) == 17_952_444_000_010_000


@given(TICKS)
def test_lowest_and_highest_keep_their_tick(tick: int) -> None:
    """Lowest and highest offset of a tick have that tick."""
    assert timeuuid.ticks(timeuuid.lowest(tick)) == timeuuid.ticks(timeuuid.highest(tick)) == tick


@given(TICKS, st.integers(0, 2**62 - 1))
def test_offsets_lie_between_lowest_and_highest(tick: int, rest: int) -> None:
    """Offsets of a tick lie between its lowest and highest offset in Cassandra's order."""
    low, high = timeuuid.lowest(tick), timeuuid.highest(tick)
    offset = UUID(int=(low.int >> 64 << 64) | 0x8000000000000000 | rest)
    assert cassandra_order(low) <= cassandra_order(offset) <= cassandra_order(high)


@given(TICKS, TICKS)
def test_bounds_of_different_ticks_are_ordered_by_time(one: int, other: int) -> None:
    if one < other:
        assert cassandra_order(timeuuid.highest(one)) < cassandra_order(timeuuid.lowest(other))


def test_a_random_uuid_has_no_time() -> None:
    with pytest.raises(ValueError, match="no TimeUUID .version 4"):
        timeuuid.ticks(uuid4())


@given(st.datetimes(datetime(1900, 1, 1), datetime(2900, 1, 1)))
def test_a_moment_survives_as_ticks(moment: datetime) -> None:
    aware = moment.replace(tzinfo=UTC)
    assert timeuuid.to_datetime(timeuuid.from_datetime(aware)) == aware


def test_ticks_below_a_microsecond_are_rounded_down() -> None:
    assert timeuuid.to_datetime(19) == datetime(1970, 1, 1, microsecond=1, tzinfo=UTC)
    assert timeuuid.to_datetime(-1) == datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)


def test_another_time_zone_is_the_same_moment() -> None:
    assert timeuuid.from_datetime(datetime.fromisoformat("1970-01-01T01:00:00+01:00")) == 0
