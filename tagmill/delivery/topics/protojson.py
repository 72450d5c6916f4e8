"""Read Protobuf messages as events: their fields by path, and nested values as ProtoJSON. Pure.

Source: https://protobuf.dev/programming-guides/json (google.protobuf.json_format, with the fields' own names
and default values).
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from tagmill.delivery.topics.fields import InvalidRecord, Nested

SECOND = 1_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIMESTAMP, STRUCT, VALUE = (f"google.protobuf.{name}" for name in ("Timestamp", "Struct", "Value"))
# Messages that wrap one plain value and stand for it; one that is not set stands for null.
WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
# Sorted, because the order of a map's entries in memory differs between processes.
_sorted = msgspec.json.Encoder(order="sorted")


class _ByName(Nested, Mapping[str, Any]):
    """Mapping whose `get` finds values by name; a value that is None counts as absent."""

    def __getitem__(self, name: str) -> Any:
        value = self.get(name)
        if value is None:
            raise KeyError(name)
        return value


class Message(_ByName):
    """A message as a mapping of its fields; `get` returns None for a field that has presence and is not
    set.
    """

    def __init__(self, message: Any, pool: Any) -> None:
        self.message, self.pool = message, pool

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field's value; of a Struct, also the value that its `fields` hold under the name."""
        message = self.message
        field = message.DESCRIPTOR.fields_by_name.get(name)
        if field is None:
            return self._dynamic(name, default)
        if field.has_presence and not message.HasField(name):
            return default
        if field.is_repeated:
            return (_Map if _is_map(field) else _Repeated)(message, field, self.pool)
        return _single(field, getattr(message, name), self.pool)

    def _dynamic(self, name: str, default: Any) -> Any:
        message, kind = self.message, self.message.DESCRIPTOR.full_name
        if kind == VALUE and message.WhichOneof("kind") == "struct_value":
            message, kind = message.struct_value, STRUCT
        if kind == STRUCT and name in message.fields:
            return Message(message.fields[name], self.pool)
        return default

    def __iter__(self) -> Iterator[str]:
        if self.message.DESCRIPTOR.full_name == STRUCT:
            return iter(sorted(self.message.fields))
        return (field.name for field, _ in self.message.ListFields() if not field.is_extension)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"a {self.message.DESCRIPTOR.full_name}"

    def leaf(self) -> Any:
        """Return the value that a wrapper or a Value stands for; any other message is returned itself."""
        kind = self.message.DESCRIPTOR.full_name
        if kind in WRAPPERS:
            return self.message.value
        if kind != VALUE:
            return self
        name = self.message.WhichOneof("kind")
        if name in (None, "null_value"):
            return None
        value = getattr(self.message, name)
        return value if name in ("number_value", "string_value", "bool_value") else Message(value, self.pool)

    def text(self) -> str:
        """Return the message as ProtoJSON, a JSON string without its quotes; raises InvalidRecord."""
        value = _as_json(self.message, self.pool)
        return value if isinstance(value, str) else _sorted.encode(value).decode()


class _Repeated(Nested):
    """A repeated field."""

    def __init__(self, message: Any, field: Any, pool: Any) -> None:
        self.message, self.field, self.pool = message, field, pool

    def __repr__(self) -> str:
        return f"a repeated {self.field.name}"

    def text(self) -> str:
        """Return the field's values as ProtoJSON; raises InvalidRecord."""
        alone = type(self.message)()
        getattr(alone, self.field.name).MergeFrom(getattr(self.message, self.field.name))
        return _sorted.encode(_as_json(alone, self.pool)[self.field.name]).decode()


class _Map(_Repeated, _ByName):
    """Map whose keys are texts, as in ProtoJSON."""

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of the key that has this text in ProtoJSON."""
        entries = getattr(self.message, self.field.name)
        for key in entries:
            if _key(key) == name:
                return _single(self.field.message_type.fields_by_name["value"], entries[key], self.pool)
        return default

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(map(_key, getattr(self.message, self.field.name))))

    def __len__(self) -> int:
        return len(getattr(self.message, self.field.name))


class Instant(Nested):
    """Timestamp in nanoseconds; it is checked only where it is used."""

    def __init__(self, message: Any) -> None:
        self.message = message

    def __repr__(self) -> str:
        return f"a Timestamp of {self.message.seconds} s, {self.message.nanos} ns"

    def key(self) -> str:
        """Return the text that enters ids: that of a datetime, with nine digits only where six are too few;
        raises InvalidRecord.
        """
        nanos = self._nanos()
        try:
            text = str(EPOCH + timedelta(seconds=self.message.seconds, microseconds=nanos // 1000))
        except OverflowError:
            raise InvalidRecord(f"{self!r} is no moment", "is no moment") from None
        return f"{text[:19]}.{nanos:09}{text[-6:]}" if nanos % 1000 else text

    def text(self) -> str:
        """Return the timestamp as ProtoJSON; raises InvalidRecord."""
        return str(_as_json(self.message, None))

    def milliseconds(self) -> int:
        """Return the whole milliseconds since 1970; raises InvalidRecord."""
        return int(self.message.seconds) * 1000 + self._nanos() // 1_000_000

    def _nanos(self) -> int:
        nanos = int(self.message.nanos)
        if not 0 <= nanos < SECOND:
            raise InvalidRecord(f"{self!r} is no moment", "is no moment")
        return nanos


def _single(field: Any, value: Any, pool: Any) -> Any:
    if field.message_type is not None:
        return Instant(value) if field.message_type.full_name == TIMESTAMP else Message(value, pool)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else value
    return value


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _key(key: Any) -> str:
    return ("false", "true")[key] if isinstance(key, bool) else str(key)


def _as_json(message: Any, pool: Any) -> Any:
    from google.protobuf import json_format

    try:
        return json_format.MessageToDict(
            message,
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
            descriptor_pool=pool,
        )
    except (json_format.Error, ValueError, TypeError, RecursionError) as error:
        raise InvalidRecord(f"has no ProtoJSON: {error}", "has no ProtoJSON") from None
