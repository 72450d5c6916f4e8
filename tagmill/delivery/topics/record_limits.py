"""Limit how much one record may hold: decoding allocates no more than that, whatever the record's bytes
claim. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tagmill.delivery.topics.fields import InvalidRecord

# Values that a record may hold: VALUES_PER_BYTE for each of its bytes, and VALUES_BESIDE more. Values that
# take no bytes (null, an empty record) are few in sound data.
VALUES_PER_BYTE, VALUES_BESIDE = 16, 1000


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one record: bytes as Kafka has them, values (fields and items, nested ones too), and levels
    of nesting.
    """

    size: int
    values: int
    depth: int

    def check_size(self, value: bytes) -> None:
        """Raise InvalidRecord if a record has more bytes than max_record_bytes."""
        if len(value) > self.size:
            raise InvalidRecord(f"it has {len(value)} bytes, more than max_record_bytes ({self.size})")

    def room(self, size: int) -> "Room":
        """Return the room for the values of a record of this many bytes."""
        return Room(self, min(self.values, VALUES_BESIDE + VALUES_PER_BYTE * size))


class Room:
    """What a record may still hold while it is decoded."""

    __slots__ = ("depth", "limits", "values")

    def __init__(self, limits: Limits, values: int) -> None:
        self.limits, self.values, self.depth = limits, values, limits.depth

    def enter(self, count: int) -> None:
        """Account for a level of nesting, and values on it; raises InvalidRecord.

        The caller adds 1 to `depth` at the end of the level.
        """
        self.depth -= 1
        self.values -= count
        if self.depth < 0:
            raise InvalidRecord(f"it is nested deeper than max_record_depth ({self.limits.depth})")
        if self.values < 0:
            self.take(0)

    def take(self, count: int) -> None:
        """Account for `count` values; raises InvalidRecord if the record then holds too many."""
        self.values -= count
        if self.values < 0:
            raise InvalidRecord(
                f"it holds more values than max_record_values ({self.limits.values}), or than "
                f"{VALUES_PER_BYTE} for each of its bytes and {VALUES_BESIDE} besides"
            )


def check_json(event: Mapping[str, Any], text: bytes, limits: Limits) -> None:
    """Raise InvalidRecord if a JSON object, with all that is nested in it, exceeds the limits."""
    opened = text.count(b"{") + text.count(b"[")
    if opened <= limits.depth and opened + text.count(b",") <= limits.values:
        return  # nearly always so
    room, level = Room(limits, limits.values), [event]
    while level:
        room.enter(0)
        below: list[Any] = []
        for holder in level:
            room.take(len(holder))
            below += [
                part
                for part in (holder.values() if type(holder) is dict else holder)
                if type(part) in (dict, list)
            ]
        level = below
