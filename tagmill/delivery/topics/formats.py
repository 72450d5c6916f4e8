"""Decode a record's value into an event: JSON, Avro or Protobuf. Pure, once the schema files are read."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec

from tagmill.delivery.topics.avro import record_reader
from tagmill.delivery.topics.fields import InvalidRecord, finder
from tagmill.delivery.topics.json_numbers import read_number
from tagmill.delivery.topics.protojson import Message
from tagmill.delivery.topics.record_limits import Limits, Room, check_json
from tagmill.domain.field_path import split
from tagmill.errors import ConfigurationError

MAGIC = 0
FRAME_BYTES = 5
# Limits of a frame for Protobuf: bytes of one number, and levels of messages within messages.
LONGEST_VARINT, MOST_NESTED = 5, 100
# Wire types of Protobuf's encoding, by a field type's number in descriptor.proto (1: double, 2: float, 3:
# int64 …).
WIRE_TYPES = {
    1: 1, 2: 5, 3: 0, 4: 0, 5: 0, 6: 1, 7: 5, 8: 0, 9: 2, 10: 3, 11: 2, 12: 2, 13: 0, 14: 0, 15: 5, 16: 1, 17: 0, 18: 0,
}  # fmt: skip


class Decoded(NamedTuple):
    """An event and the version of its schema ("" if nothing names one)."""

    event: Mapping[str, Any]
    schema_version: str


Decoder = Callable[[bytes], Decoded]


def json_decoder(version_field: str | None, limits: Limits) -> Decoder:
    """Return a decoder of JSON objects; a number with a point becomes a float if a float can hold it
    (json_numbers.read_number).
    """
    read = msgspec.json.Decoder(dict[str, Any], float_hook=read_number)
    version_of = finder(version_field) if version_field else None

    def decode(value: bytes) -> Decoded:
        limits.check_size(value)
        try:
            event = read.decode(value)
            check_json(event, value, limits)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRecord(f"no JSON object: {error}") from None
        version = version_of(event) if version_of else None
        return Decoded(event, "" if version is None else str(version))

    return decode


def avro_decoder(schemas: Mapping[str, Any], limits: Limits, *, framed: bool) -> Decoder:
    """Return a decoder of Avro records. `schemas`: parsed, by version; a single one unless `framed`.

    `framed`: a zero byte and the schema's id (4 bytes, big endian) come first, as schema registries write
    them.
    """
    readers = {version: record_reader(schema) for version, schema in schemas.items()}
    only = next(iter(readers.items()))

    def decode(value: bytes) -> Decoded:
        limits.check_size(value)
        version, read, body = _unframed(value, readers) if framed else (*only, value)
        try:
            return Decoded(read(body, limits), version)
        except InvalidRecord as error:
            raise InvalidRecord(f"no Avro of schema {version}: {error}") from None

    return decode


def _unframed(value: bytes, schemas: Mapping[str, Any]) -> tuple[str, Any, bytes]:
    if len(value) < FRAME_BYTES or value[0] != MAGIC:
        raise InvalidRecord("no frame of a schema registry (a zero byte and a schema id)")
    version = str(int.from_bytes(value[1:FRAME_BYTES], "big"))
    if version not in schemas:
        raise InvalidRecord(f"schema id {version} is not among schema_files ({', '.join(schemas)})")
    return version, schemas[version], value[FRAME_BYTES:]


def message_of(descriptors: bytes, message: str) -> Any:
    """Return a message's class from a descriptor set (protoc --include_imports --descriptor_set_out); raises
    ConfigurationError.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.message import DecodeError

    pool = descriptor_pool.DescriptorPool()
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
            pool.Add(file)
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(message))
    except KeyError:
        raise ConfigurationError(f"message_type: the descriptor set has no message {message}") from None
    except (DecodeError, TypeError) as error:
        raise ConfigurationError(f"schema_files: no descriptor set: {error}") from None


def protobuf_decoder(
    descriptors: bytes, message: str, version: str, key: Sequence[str], limits: Limits
) -> Decoder:
    """Return a decoder of one type of Protobuf message from a descriptor set.

    `key`: the paths of the fields that make an event unique.

    Protobuf reads a message of another type without an error, and leaves this type's fields unset. So the
    decoder refuses what shows another type: a field's number with another wire type, or a message in which no
    field of the key is set. In the key, it also refuses an enum's number that the descriptor set doesn't
    name: once the number has a name, the same bytes would make another id.
    """
    from google.protobuf.message import DecodeError

    kind, heads = message_of(descriptors, message), {split(path)[0] for path in key}
    pool = kind.DESCRIPTOR.file.pool
    named = [(path, finder(path)) for path in key if _is_enum(kind.DESCRIPTOR, split(path))]

    def decode(value: bytes) -> Decoded:
        limits.check_size(value)
        try:
            found = kind.FromString(value)
            if heads.isdisjoint(field.name for field, _ in found.ListFields()):
                raise InvalidRecord(
                    f"none of the fields {', '.join(key)}, which make an event unique, is set"
                )
            _check_message(found, Room(limits, limits.values))
            event = Message(found, pool)
            for path, find in named:
                if isinstance(number := find(event), int):
                    raise InvalidRecord(
                        f"field {path}, of the key, is {number}, which the descriptor set has no name for"
                    )
            return Decoded(event, version)
        except (DecodeError, UnicodeDecodeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidRecord(f"no {message}: {error}") from None

    return decode


def framed_protobuf_decoder(
    contents: Mapping[str, bytes], message: str, key: Sequence[str], limits: Limits
) -> Decoder:
    """Return a decoder of Protobuf behind a schema registry's frame, which names the message by its place in
    the schema's file.

    `contents`: descriptor sets by registry id.
    """
    decoders = {
        version: protobuf_decoder(content, message, version, key, limits)
        for version, content in contents.items()
    }
    places = {
        version: _place_in_file(message_of(content, message).DESCRIPTOR)
        for version, content in contents.items()
    }

    def decode(value: bytes) -> Decoded:
        version, place, body = _unframed(value, places)
        named, begin = _named_place(body)
        if named != place:
            raise InvalidRecord(
                f"the frame names the message {named} of the schema's file, and {message} is {place}"
            )
        return decoders[version](body[begin:])

    return decode


def _place_in_file(descriptor: Any) -> list[int]:
    """Return a message's place in its file: the indexes of the messages that it is defined in, outermost
    first, then its own.
    """
    outer = descriptor.containing_type
    if outer is not None:
        return [*_place_in_file(outer), [one.name for one in outer.nested_types].index(descriptor.name)]
    return [list(descriptor.file.message_types_by_name).index(descriptor.name)]


def _named_place(body: bytes) -> tuple[list[int], int]:
    """Return the place of the message that a frame names, and the position at which the message's bytes
    begin.

    The place is written as a count and that many numbers; a count of 0 stands for [0].
    """
    count, at = _zigzag(body, 0)
    if count == 0:
        return [0], at
    place = list[int]()
    while len(place) < count <= MOST_NESTED:
        number, at = _zigzag(body, at)
        place.append(number)
    return place, at


def _zigzag(body: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    for index in range(at, min(at + LONGEST_VARINT, len(body))):
        number |= (body[index] & 0x7F) << shift
        shift += 7
        if body[index] < 0x80:
            return number >> 1 ^ -(number & 1), index + 1
    raise InvalidRecord(
        "no frame of a schema registry for Protobuf (which message of the schema it is, behind the schema id)"
    )


def _is_enum(message: Any, names: Sequence[str]) -> bool:
    field = message.fields_by_name.get(names[0])
    if field is None:
        return False
    return (
        _is_enum(field.message_type, names[1:])
        if names[1:] and field.message_type is not None
        else field.enum_type is not None
    )


def _check_message(message: Any, room: Room) -> None:
    """Raise InvalidRecord if a field of a message, or of a nested one, has another wire type, or if `room` has too
    little space.
    """
    from google.protobuf.unknown_fields import UnknownFieldSet

    for unknown in UnknownFieldSet(message):
        field = message.DESCRIPTOR.fields_by_number.get(unknown.field_number)
        # Two kinds of unknown fields are accepted: an enum's new value, which has the right wire type, and a
        # field with a new number.
        if field is not None and unknown.wire_type != WIRE_TYPES[field.type]:
            raise InvalidRecord(
                f"field {field.name} (number {field.number}) has wire type {unknown.wire_type}, not "
                f"{WIRE_TYPES[field.type]}"
            )
    room.enter(len(message.DESCRIPTOR.fields))
    for field, value in message.ListFields():
        if field.is_repeated:
            room.take(len(value))
        for inner in _messages(field, value):
            _check_message(inner, room)
    room.depth += 1


def _messages(field: Any, value: Any) -> Iterable[Any]:
    if field.message_type is None:
        return ()
    if not field.is_repeated:
        return (value,)
    if not field.message_type.GetOptions().map_entry:
        return cast(Iterable[Any], value)
    return (
        cast(Iterable[Any], value.values())
        if field.message_type.fields_by_name["value"].message_type is not None
        else ()
    )


def read_file(file: Path) -> bytes:
    """Return the bytes of a schema file; raises ConfigurationError if it can't be read."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"schema_files: {file} can't be read: {error.strerror}") from None


def schema_contents(schema_files: Mapping[str, Path]) -> dict[str, bytes]:
    """Return the bytes of the schema files by version; raises ConfigurationError if one can't be read."""
    return {version: read_file(file) for version, file in schema_files.items()}
