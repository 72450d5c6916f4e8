"""Offsets (TimeUUID, version 1) and their time, in 100 ns ticks since 1970-01-01 UTC. Pure.

Never compare offsets as text: the text begins with the low bits of the time. Cassandra orders them by time,
then by the remaining eight bytes as signed bytes (TimeUUIDType).
"""

from datetime import UTC, datetime, timedelta
from uuid import UUID

TICKS_PER_SECOND = 10_000_000
# Ticks after the plan from which an offset can't be the time of an event.
FUTURE_TICKS = 86_400 * TICKS_PER_SECOND
TICKS_PER_MILLISECOND = 10_000
# Ticks from 1582-10-15, when the time of version 1 UUIDs begins, to 1970-01-01 (RFC 4122, 4.1.4).
GREGORIAN_TICKS = 0x01B21DD213814000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOWEST_REST = 0x8080808080808080
_HIGHEST_REST = 0x7F7F7F7F7F7F7F7F


def ticks(offset: UUID) -> int:
    """Return the time of an offset in ticks since 1970; raises ValueError if it is not a version 1 UUID.

    Like Cassandra, it checks only the version: Cassandra's maxTimeuuid has another variant, for which
    uuid.UUID.version is None.
    """
    version = offset.int >> 76 & 0xF
    if version != 1:
        raise ValueError(f"{offset} is no TimeUUID (version {version})")
    return offset.time - GREGORIAN_TICKS


def from_datetime(moment: datetime) -> int:
    """Return the ticks since 1970 of an aware datetime."""
    return (moment - _EPOCH) // timedelta(microseconds=1) * 10


def to_datetime(value: int) -> datetime:
    """Return the moment of a tick value, rounded down to microseconds."""
    return _EPOCH + timedelta(microseconds=value // 10)


def lowest(value: int) -> UUID:
    """Return the first TimeUUID of a tick in Cassandra's order, as its minTimeuuid does."""
    return _with_rest(value, _LOWEST_REST)


def highest(value: int) -> UUID:
    """Return the last TimeUUID of a tick in Cassandra's order, as its maxTimeuuid does."""
    return _with_rest(value, _HIGHEST_REST)


def _with_rest(value: int, rest: int) -> UUID:
    time = value + GREGORIAN_TICKS
    most = ((time & 0xFFFFFFFF) << 32) | ((time >> 32 & 0xFFFF) << 16) | 0x1000 | (time >> 48 & 0x0FFF)
    return UUID(int=most << 64 | rest)
