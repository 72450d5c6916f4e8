"""Decode the records of a Kafka Journal: the action in the header, and the events in an append's value. Pure.

Source of the format: kafka-journal's records (release of August 2026): the header `journal.action` is JSON, a
value is JSON or binary.
"""

import re
import struct
from datetime import timedelta
from typing import Annotated, Literal

import msgspec

ACTION = "journal.action"
SEQ_NR = msgspec.Meta(ge=1, le=2**63 - 1)
# Units of Scala's durations, in milliseconds.
UNITS = {
    "d": 86_400_000, "day": 86_400_000, "days": 86_400_000,
    "h": 3_600_000, "hr": 3_600_000, "hrs": 3_600_000, "hour": 3_600_000, "hours": 3_600_000,
    "m": 60_000, "min": 60_000, "mins": 60_000, "minute": 60_000, "minutes": 60_000,
    "s": 1000, "sec": 1000, "secs": 1000, "second": 1000, "seconds": 1000,
    "ms": 1, "milli": 1, "millis": 1, "millisecond": 1, "milliseconds": 1,
    "µs": 1e-3, "micro": 1e-3, "micros": 1e-3, "microsecond": 1e-3, "microseconds": 1e-3,
    "ns": 1e-6, "nano": 1e-6, "nanos": 1e-6, "nanosecond": 1e-6, "nanoseconds": 1e-6,
}  # fmt: skip
LONGEST = timedelta(days=365_000)
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zµ]+)\s*")


class Undecodable(ValueError):
    """A journal record whose header or value can't be read; the text says why."""


class Append(msgspec.Struct):
    """Adds events. Its `range` is not read: the value has their sequence numbers."""

    payload_type: Literal["json", "binary"] = msgspec.field(name="payloadType")
    origin: str | None = None
    version: str | None = None
    metadata: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))


class Delete(msgspec.Struct):
    """Deletes the events up to a sequence number."""

    to: Annotated[int, SEQ_NR]
    origin: str | None = None
    version: str | None = None


class Purge(msgspec.Struct):
    """Deletes everything of the id, as if it had never existed."""

    origin: str | None = None
    version: str | None = None


class Mark(msgspec.Struct):
    """Is published by readers, so that they know how far they have to read."""

    id: str | None = None
    origin: str | None = None
    version: str | None = None


Action = Append | Delete | Purge | Mark
KINDS: dict[str, type[Action]] = {"append": Append, "delete": Delete, "purge": Purge, "mark": Mark}
_NAMES = {kind: name for name, kind in KINDS.items()}


class Event(msgspec.Struct, frozen=True):
    """One event; text and JSON payloads are in `text`, as they were written, bytes in `data`."""

    seq_nr: int
    tags: list[str]
    payload_type: str | None = None
    text: str | None = None
    data: bytes | None = None


class Events(msgspec.Struct, frozen=True):
    """An append's value.

    `expire_after_ms` None: never; `metadata`: members of the value's own metadata, as they were written.
    """

    events: list[Event]
    expire_after_ms: int | None = None
    metadata: dict[str, msgspec.Raw] = {}
    warning: str | None = None

    @property
    def first(self) -> int:
        """The lowest sequence number."""
        return min(event.seq_nr for event in self.events)

    @property
    def last(self) -> int:
        """The highest sequence number."""
        return max(event.seq_nr for event in self.events)


class _JsonEvent(msgspec.Struct):
    seq_nr: Annotated[int, SEQ_NR] = msgspec.field(name="seqNr")
    tags: list[str] | None = None
    payload_type: Literal["json", "text"] | None = msgspec.field(name="payloadType", default=None)
    payload: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))


class _JsonValue(msgspec.Struct):
    events: Annotated[list[_JsonEvent], msgspec.Meta(min_length=1)]
    metadata: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))


_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_actions = {name: msgspec.json.Decoder(kind) for name, kind in KINDS.items()}
_json_value = msgspec.json.Decoder(_JsonValue)
_text = msgspec.json.Decoder(str)
_whole = msgspec.json.Decoder(msgspec.Raw)
TOO_DEEP = "nested too deeply"


def decode_action(header: bytes | None) -> Action | None:
    """Decode the header `journal.action`; None if the record has no such header, or an object that names none
    of the four actions.

    Raises Undecodable: it is not a JSON object, names several actions or an invalid one, or is nested too deeply.
    """
    if header is None:
        return None
    try:
        found = _object.decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Undecodable(f"header {ACTION}: {error}") from None
    except RecursionError:
        raise Undecodable(f"header {ACTION}: {TOO_DEEP}") from None
    named = [name for name in found if name in KINDS]
    if not named:
        return None
    if len(named) > 1:
        raise Undecodable(f"header {ACTION}: names {' and '.join(named)}")
    (name,) = named
    try:
        return _actions[name].decode(found[name])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Undecodable(f"header {ACTION}, {name}: {error}") from None


def kind_of(action: Action) -> str:
    """Return the kind of an action: append, delete, purge or mark."""
    return _NAMES[type(action)]


def row_metadata(action: Append, events: Events) -> str | None:
    """Return the column metadata of an append's rows, as JSON: members of the header's and of the value's
    metadata; None if both are empty.

    The header's is empty for old records, which have no metadata there, or none that is an object.
    """
    both = {"header": _said(_members(bytes(action.metadata))), "payload": _said(events.metadata)}
    said = {name: members for name, members in both.items() if members}
    return msgspec.json.encode(said).decode() if said else None


def decode_events(action: Append, value: bytes | None) -> Events:
    """Decode the events of an append from its value.

    Raises Undecodable: the value is missing, cut off, or not in the form that the header names.
    """
    if value is None:
        raise Undecodable("an append without a value")
    return _of_json(value) if action.payload_type == "json" else _of_binary(value)


def _of_json(value: bytes) -> Events:
    try:
        found = _json_value.decode(value)
        events = [_json_event(event) for event in found.events]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Undecodable(f"value: {error}") from None
    return _with_metadata(events, bytes(found.metadata))


def _json_event(event: _JsonEvent) -> Event:
    raw, tags = bytes(event.payload), event.tags or []
    if raw == b"null":
        return Event(event.seq_nr, tags)
    if event.payload_type == "text":
        return Event(event.seq_nr, tags, "text", _text.decode(raw))
    return Event(event.seq_nr, tags, "json", raw.decode())


def _of_binary(value: bytes) -> Events:
    reading = _Bytes(value)
    try:
        version, count = reading.take(">B"), reading.take(">i")
        if count < 1:
            raise Undecodable(f"value: {count} events")
        events = [_binary_event(_Bytes(reading.sized())) for _ in range(count)]
        metadata = bytes(_whole.decode(reading.rest())) if version == 1 else b"null"
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Undecodable(f"value: {error}") from None
    except RecursionError:
        raise Undecodable(f"metadata: {TOO_DEEP}") from None
    return _with_metadata(events, metadata)


def _binary_event(reading: "_Bytes") -> Event:
    seq_nr: int = reading.take(">q")
    if seq_nr < 1:
        raise Undecodable(f"value: sequence number {seq_nr}")
    tags, listed = [], _Bytes(reading.sized())
    while listed.left:
        tags.append(listed.sized().decode())
    kind, payload = reading.take(">B"), reading.sized()
    if kind == 0:
        return Event(seq_nr, tags)
    if kind == 1:
        return Event(seq_nr, tags, "binary", data=payload)
    if kind in (2, 3):
        return Event(seq_nr, tags, "json" if kind == 2 else "text", payload.decode())
    raise Undecodable(f"value: payload kind {kind} of event {seq_nr}")


def _with_metadata(events: list[Event], metadata: bytes) -> Events:
    members = _said(_members(metadata))
    after, milliseconds, warning = members.get("expireAfter"), None, None
    if after is not None:
        try:
            milliseconds = duration_ms(_text.decode(after))
        except (ValueError, OverflowError, msgspec.DecodeError):
            warning = (
                f"expireAfter {bytes(after)[:60].decode(errors='replace')} is no duration: taken as none"
            )
    return Events(events, milliseconds, members, warning)


def _members(metadata: bytes) -> dict[str, msgspec.Raw]:
    if metadata == b"null":
        return {}
    try:
        return _object.decode(metadata)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    except RecursionError:
        raise Undecodable(f"metadata: {TOO_DEEP}") from None


def _said(members: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    return {name: value for name, value in members.items() if bytes(value) != b"null"}


def duration_ms(text: str) -> int:
    """Return the milliseconds of a duration as Scala writes it: `1 day`, `90 minutes`, `500 ms`; raises
    ValueError.
    """
    match = _DURATION.fullmatch(text)
    if not match or match[2] not in UNITS:
        raise ValueError(f"{text[:40]!r}")
    milliseconds = int(float(match[1]) * UNITS[match[2]])
    if not 0 < milliseconds <= LONGEST / timedelta(milliseconds=1):
        raise ValueError(f"{text[:40]!r} is too short or too long")
    return milliseconds


class _Bytes:
    """Reads big-endian values one after the other; raises Undecodable where the bytes end too early."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = memoryview(data), 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, form: str) -> int:
        value: int
        (value,) = struct.unpack(form, self._next(struct.calcsize(form)))
        return value

    def sized(self) -> bytes:
        size = self.take(">i")
        if size < 0:
            raise Undecodable(f"value: a length of {size}")
        return bytes(self._next(size))

    def rest(self) -> bytes:
        return bytes(self._next(self.left))

    def _next(self, size: int) -> memoryview:
        if size > self.left:
            raise Undecodable(f"value: cut off, {size} bytes expected at {self._at}, {self.left} are left")
        part = self._data[self._at : self._at + size]
        self._at += size
        return part
