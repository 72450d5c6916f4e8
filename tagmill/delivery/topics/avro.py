"""Read Avro's binary encoding as the specification says: every length, index and width is checked before it
is used.

fastavro parses the schemas. Its own reader checks less: an index of -1 counts from the end, numbers wrap
around, and an array of 10⁹ items that take no bytes is built whole. So each schema becomes a reader here,
once, which checks and reads in one pass.
Source: https://avro.apache.org/docs/1.12.0/specification/#binary-encoding
"""

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tagmill.delivery.topics.avro_logical_types import logical_type
from tagmill.delivery.topics.fields import InvalidRecord
from tagmill.delivery.topics.record_limits import Limits, Room

# A function that reads the value at a position of a record; it returns the value and the position behind it.
Read = Callable[[bytes, int, Room], tuple[Any, int]]
# Bytes and bits of a number, at most.
INT, LONG = (5, 32), (10, 64)


def parse_schema(text: bytes) -> Any:
    """Parse an Avro schema of a record, and return it with full names; raises ValueError if it is not one."""
    import fastavro

    try:
        schema = fastavro.parse_schema(json.loads(text))
    except Exception as error:  # fastavro raises different errors for a wrong schema: SchemaParseException, KeyError, TypeError …
        raise ValueError(f"no Avro schema: {type(error).__name__} {error}") from None
    if not isinstance(schema, dict) or schema["type"] != "record":
        raise ValueError("no Avro schema of a record, whose fields columns could be made of")
    record_reader(schema)
    return schema


def record_reader(schema: Any) -> Callable[[bytes, Limits], Mapping[str, Any]]:
    """Return a function that reads whole records of a parsed schema, and raises InvalidRecord for other bytes.

    Raises ValueError for a schema that no record can have.
    """
    try:
        read = _Types().reader(schema)
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"no Avro schema: {type(error).__name__} {error}") from None

    def record(data: bytes, limits: Limits) -> Mapping[str, Any]:
        event: Mapping[str, Any]
        try:
            event, end = read(data, 0, limits.room(len(data)))
        except (IndexError, struct.error):
            raise InvalidRecord("it ends within a value") from None
        except UnicodeDecodeError as error:
            raise InvalidRecord(f"a text that is not UTF-8: {error}") from None
        if end != len(data):
            raise InvalidRecord(f"{len(data) - end} bytes are left over")
        return event

    return record


def _varint(data: bytes, at: int, widest: tuple[int, int]) -> tuple[int, int]:
    """Return a zigzag-encoded number of at most `widest` bytes and bits, and the position behind it; raises
    InvalidRecord for a wider one.
    """
    most, bits = widest
    found = shift = 0
    for byte in data[at : at + most]:
        found |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            if found >> bits:
                break
            return (found >> 1) ^ -(found & 1), at + shift // 7
    else:
        if at + most > len(data):
            raise IndexError
    raise InvalidRecord(f"byte {at}: a number of more than {bits} bits")


def _int(data: bytes, at: int, room: Room) -> tuple[int, int]:
    byte = data[at]
    return ((byte >> 1) ^ -(byte & 1), at + 1) if byte < 0x80 else _varint(data, at, INT)


def _long(data: bytes, at: int, room: Room) -> tuple[int, int]:
    byte = data[at]
    return ((byte >> 1) ^ -(byte & 1), at + 1) if byte < 0x80 else _varint(data, at, LONG)


def _bytes(data: bytes, at: int, room: Room) -> tuple[bytes, int]:
    size, begin = _long(data, at, room)
    end = begin + size
    if size < 0:
        raise InvalidRecord(f"byte {at}: a length of {size}")
    if end > len(data):
        raise IndexError
    return data[begin:end], end


def _string(data: bytes, at: int, room: Room) -> tuple[str, int]:
    size, begin = data[at], at + 1
    if size & 0x81:  # the length is negative, or has more than one byte
        content, end = _bytes(data, at, room)
        return content.decode(), end
    end = begin + (size >> 1)
    if end > len(data):
        raise IndexError
    return data[begin:end].decode(), end


def _boolean(data: bytes, at: int, room: Room) -> tuple[bool, int]:
    byte = data[at]
    if byte > 1:
        raise InvalidRecord(f"byte {at}: a boolean of {byte}")
    return byte == 1, at + 1


def _null(data: bytes, at: int, room: Room) -> tuple[None, int]:
    return None, at


def _number(form: str) -> Read:
    unpack, size = struct.Struct(form).unpack_from, struct.calcsize(form)

    def number(data: bytes, at: int, room: Room) -> tuple[float, int]:
        return unpack(data, at)[0], at + size

    return number


_PRIMITIVE: dict[str, Read] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": _number("<f"),
    "double": _number("<d"),
    "bytes": _bytes,
    "string": _string,
}


class _Types:
    """Builds the readers of a schema's types; behind its definition, a type can be referred to by its
    name.
    """

    def __init__(self) -> None:
        self.named: dict[str, Read] = {}

    def reader(self, schema: Any) -> Read:
        if isinstance(schema, list):
            return self.union(schema)
        if isinstance(schema, str):
            return _PRIMITIVE.get(schema) or self.reference(schema)
        read = _PRIMITIVE.get(schema["type"]) or self.complex(schema)
        if (logical := logical_type(schema)) is not None:
            read = _logical(read, logical.convert)
        if "name" in schema:
            self.named[schema["name"]] = read
        return read

    def complex(self, schema: Mapping[str, Any]) -> Read:
        kind = schema["type"]
        if kind == "fixed":
            return _fixed(schema)
        if kind == "enum":
            return _enum(schema)
        if kind == "array":
            return _array(self.reader(schema["items"]))
        return _map(self.reader(schema["values"])) if kind == "map" else self.record(schema)

    def reference(self, name: str) -> Read:
        if name in self.named:
            return self.named[name]
        named = self.named

        def within_itself(data: bytes, at: int, room: Room) -> tuple[Any, int]:
            return named[name](data, at, room)

        return within_itself

    def union(self, branches: Sequence[Any]) -> Read:
        if any(isinstance(branch, list) for branch in branches):
            raise ValueError("no Avro schema: a union within a union")
        reads = dict(enumerate(map(self.reader, branches)))

        def union(data: bytes, at: int, room: Room) -> tuple[Any, int]:
            index, begin = _int(data, at, room)
            if index not in reads:
                raise InvalidRecord(f"byte {at}: index {index} of a union of {len(reads)} types")
            return reads[index](data, begin, room)

        return (
            _optional(reads, branches.index("null"), union)
            if len(reads) == 2 and "null" in branches
            else union
        )

    def record(self, schema: Mapping[str, Any]) -> Read:
        members = [(field["name"], self.reader(field["type"])) for field in schema["fields"]]
        count = len(members)

        def record(data: bytes, at: int, room: Room) -> tuple[dict[str, Any], int]:
            room.enter(count)
            event = {}
            for name, read in members:
                event[name], at = read(data, at, room)
            room.depth += 1
            return event, at

        return record


def _optional(reads: Mapping[int, Read], null: int, other: Read) -> Read:
    """Return a fast reader of a union of null and one type; `other` reads an index that is not written in its
    usual single byte.
    """
    present, read = 1 - null, reads[1 - null]
    absent_byte, present_byte = 2 * null, 2 * present

    def optional(data: bytes, at: int, room: Room) -> tuple[Any, int]:
        byte = data[at]
        if byte == present_byte:
            return read(data, at + 1, room)
        return (None, at + 1) if byte == absent_byte else other(data, at, room)

    return optional


def _logical(read: Read, convert: Callable[[Any], Any]) -> Read:
    def logical(data: bytes, at: int, room: Room) -> tuple[Any, int]:
        value, end = read(data, at, room)
        try:
            return convert(value), end
        except (ValueError, OverflowError):
            return value, end

    return logical


def _fixed(schema: Mapping[str, Any]) -> Read:
    size = schema["size"]
    if type(size) is not int or size < 0:
        raise ValueError(f"no Avro schema: fixed {schema['name']} has the size {size!r}")

    def fixed(data: bytes, at: int, room: Room) -> tuple[bytes, int]:
        if at + size > len(data):
            raise IndexError
        return data[at : at + size], at + size

    return fixed


def _enum(schema: Mapping[str, Any]) -> Read:
    name, symbols = schema["name"], dict(enumerate(schema["symbols"]))

    def enum(data: bytes, at: int, room: Room) -> tuple[str, int]:
        index, end = _int(data, at, room)
        if index not in symbols:
            raise InvalidRecord(f"byte {at}: index {index} of enum {name}, which has {len(symbols)} symbols")
        return symbols[index], end

    return enum


def _block(data: bytes, at: int, room: Room) -> tuple[int, int, int | None]:
    """Return a block's number of items, where they begin, and where they end if the block says so."""
    count, begin = _long(data, at, room)
    room.take(abs(count))
    if count >= 0:
        return count, begin, None
    size, begin = _long(data, begin, room)
    return -count, begin, begin + size


def _check_end(at: int, end: int | None) -> None:
    if end is not None and at != end:
        raise InvalidRecord(f"byte {at}: a block that says it ends at byte {end}")


def _array(read: Read) -> Read:
    def array(data: bytes, at: int, room: Room) -> tuple[list[Any], int]:
        room.enter(0)
        items = []
        count, at, end = _block(data, at, room)
        while count:
            for _ in range(count):
                item, at = read(data, at, room)
                items.append(item)
            _check_end(at, end)
            count, at, end = _block(data, at, room)
        room.depth += 1
        return items, at

    return array


def _map(read: Read) -> Read:
    def entries(data: bytes, at: int, room: Room) -> tuple[dict[str, Any], int]:
        room.enter(0)
        found = {}
        count, at, end = _block(data, at, room)
        while count:
            for _ in range(count):
                name, at = _string(data, at, room)
                found[name], at = read(data, at, room)
            _check_end(at, end)
            count, at, end = _block(data, at, room)
        room.depth += 1
        return found, at

    return entries
