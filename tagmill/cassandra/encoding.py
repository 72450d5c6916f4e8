"""Encode whole Arrow columns as values of Cassandra's native protocol.

A value is its length, an int of four bytes, followed by its content. Length -2 means "not set": Cassandra
keeps the existing value.

Source: native_protocol_v4.spec and v5.spec, sections 3 ([value]) and 6 (the types).
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tagmill.cassandra import uuids

# A part of every row's bytes: the same bytes in all rows, or a binary array with each row's own.
Part: TypeAlias = bytes | pa.Array
Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]
# Bytes of the length in front of a value.
LENGTH = 4
UNSET = (-2).to_bytes(LENGTH, "big", signed=True)
# By Cassandra's type: the Arrow type that a number is cast to, and numpy's type of its bytes.
NUMBERS = {
    "tinyint": (pa.int8(), ">i1"), "smallint": (pa.int16(), ">i2"), "int": (pa.int32(), ">i4"), "bigint": (pa.int64(), ">i8"),
    "float": (pa.float32(), ">f4"), "double": (pa.float64(), ">f8"),
}  # fmt: skip
COLLECTIONS = ("list", "set", "map")
# By Arrow's unit: factor and divisor that give milliseconds.
MILLISECOND = {"s": (1000, 1), "ms": (1, 1), "us": (1, 1000), "ns": (1, 1_000_000)}


def encoded(values: pa.Array, kind: Any, protocol: int) -> list[Part]:
    """Encode the values of a column, nulls as not set, and return the parts that make up each row's bytes in
    order.

    `kind` is the driver's type of the column in Cassandra. Arrow types that fit:
    text: strings; blob: binary; uuid and timeuuid: strings or 16 bytes; timestamp: a timestamp of any unit,
    or integers in milliseconds;
    numbers: integers, or floats for float and double, that the type can hold; list, set and map of these: lists
    and maps. For other types the driver encodes value by value.

    Raises ValueError, TypeError or NotImplementedError: the values do not fit the type.
    """
    if values.null_count == len(values):
        return [UNSET]
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    name = kind.typename
    if name in NUMBERS:
        return [_number(values, *NUMBERS[name])]
    if name in ENCODERS:
        return ENCODERS[name](values)
    if name in COLLECTIONS and (lists := _lists(values)) is not None:
        elements = _elements(lists)
        if _are_plain(elements, kind):
            return _collection(lists, elements, kind, protocol)
    found = [None if value is None else _content(value, kind, protocol) for value in values.to_pylist()]
    return _variable(pa.array(found, pa.binary()))


def one(value: Any, kind: Any, protocol: int) -> bytes:
    """Encode one Python value, with its length in front."""
    content = _content(value, kind, protocol)
    return len(content).to_bytes(LENGTH, "big") + content


def _content(value: Any, kind: Any, protocol: int) -> bytes:
    return bytes(kind.serialize(dict(value) if kind.typename == "map" else value, protocol))


def _number(values: pa.Array, arrow: pa.DataType, wire: str) -> pa.Array:
    floating = pa.types.is_floating(arrow)
    if not (pa.types.is_floating(values.type) if floating else pa.types.is_integer(values.type)):
        raise _other(values)
    return _fixed(_numpy(values.cast(arrow)).astype(wire).view(np.uint8), values)


def _boolean(values: pa.Array) -> list[Part]:
    if not pa.types.is_boolean(values.type):
        raise _other(values)
    return [_fixed(_numpy(values.cast(pa.uint8())), values)]


def _timestamp(values: pa.Array) -> list[Part]:
    times, by = 1, 1
    if pa.types.is_timestamp(values.type):
        times, by = MILLISECOND[values.type.unit]
    elif not pa.types.is_integer(values.type):
        raise _other(values)
    milliseconds = _numpy(values.cast(pa.int64())) * times // by
    return [_fixed(milliseconds.astype(">i8").view(np.uint8), values)]


def _text(values: pa.Array) -> list[Part]:
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        raise _other(values)
    return _variable(values.cast(pa.string()).cast(pa.binary()))


def _blob(values: pa.Array) -> list[Part]:
    if not _is_binary(values.type):
        raise _other(values)
    return _variable(values.cast(pa.binary()))


def _uuid(values: pa.Array) -> list[Part]:
    if _is_binary(values.type):
        return [_fixed(uuids.of_binary(values), values)]
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        raise _other(values)
    return [_fixed(uuids.of_text(values), values)]


ENCODERS: dict[str, Callable[[pa.Array], list[Part]]] = {
    **dict.fromkeys(("ascii", "text", "varchar"), _text),
    **dict.fromkeys(("uuid", "timeuuid"), _uuid),
    "blob": _blob, "boolean": _boolean, "timestamp": _timestamp,
}  # fmt: skip


def joined(parts: Sequence[Part]) -> tuple[Numbers, pa.Buffer]:
    """Join the parts of each row; return the offsets (bytes) at which rows begin and the last one ends, and
    the content. At least one part has the rows' own bytes.
    """
    together: list[Any] = []
    for part in parts:
        if isinstance(part, bytes) and together and isinstance(together[-1], bytes):
            together[-1] += part
        else:
            together.append(part)
    scalars = (pa.scalar(part, pa.binary()) if isinstance(part, bytes) else part for part in together)
    rows = pc.binary_join_element_wise(*scalars, pa.scalar(b"", pa.binary()))
    offsets = np.frombuffer(rows.buffers()[1], np.int32)[rows.offset : rows.offset + len(rows) + 1]
    return offsets.astype(np.int64), rows.buffers()[2]


def _lists(values: pa.Array) -> pa.Array | None:
    """Return lists, those of maps with a struct for each key; None: the values are neither."""
    if pa.types.is_map(values.type):
        entry = pa.struct([pa.field("key", values.type.key_type, False), values.type.item_field])
        return values.cast(pa.list_(entry))
    return values if pa.types.is_list(values.type) or pa.types.is_large_list(values.type) else None


def _elements(lists: pa.Array) -> list[pa.Array]:
    """Return the elements of all lists; of maps, the keys and the values."""
    flat = lists.flatten()
    return flat.flatten() if pa.types.is_struct(flat.type) else [flat]


def _are_plain(elements: Sequence[pa.Array], kind: Any) -> bool:
    """Return whether a collection's elements can be encoded together: none is null or of a type that only the driver
    encodes.
    """
    known = all(of.typename in NUMBERS or of.typename in ENCODERS for of in kind.subtypes)
    return known and len(elements) == len(kind.subtypes) and not any(some.null_count for some in elements)


def _collection(lists: pa.Array, elements: Sequence[pa.Array], kind: Any, protocol: int) -> list[Part]:
    """Encode lists or maps as two parts: length and number of elements, -2 for nulls, and the elements."""
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    places = np.concatenate([[0], np.cumsum(counts)])
    sizes = np.zeros(len(lists), np.int64)
    content: Part = b""
    if places[-1]:
        of_elements = zip(elements, kind.subtypes, strict=True)
        offsets, found = joined([part for some, of in of_elements for part in encoded(some, of, protocol)])
        bounds = offsets[places]
        sizes = np.diff(bounds)
        buffers = [None, pa.py_buffer(bounds.astype(np.int32)), found]
        content = pa.Array.from_buffers(pa.binary(), len(lists), buffers)
    head = np.stack([LENGTH + sizes, counts], axis=1).astype(">i4")
    return [_or_unset(_binary(head.view(np.uint8)), lists), content]


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    )


def _other(values: pa.Array) -> TypeError:
    return TypeError(f"values of Arrow's type {values.type} do not fit")


def _numpy(values: pa.Array) -> npt.NDArray[Any]:
    """Convert values to numpy, with zero for nulls."""
    found: npt.NDArray[Any] = pc.fill_null(values, 0).to_numpy(zero_copy_only=False)
    return found


def _fixed(content: Bytes, values: pa.Array) -> pa.Array:
    """Encode equally long contents, each with its length in front; nulls of `values` are not set."""
    content = content.reshape(len(values), -1)
    width = content.shape[1]
    rows = np.empty((len(values), LENGTH + width), np.uint8)
    rows[:, :LENGTH] = np.frombuffer(width.to_bytes(LENGTH, "big"), np.uint8)
    rows[:, LENGTH:] = content
    return _or_unset(_binary(rows), values)


def _or_unset(rows: pa.Array, values: pa.Array) -> pa.Array:
    """Return the bytes of rows, and those of "not set" where `values` are null."""
    return pc.if_else(values.is_valid(), rows, pa.scalar(UNSET, pa.binary())) if values.null_count else rows


def _variable(values: pa.Array) -> list[Part]:
    """Encode binary values of any length as two parts: the lengths, -2 for nulls, and the contents."""
    lengths = pc.fill_null(pc.binary_length(values), -2).to_numpy(zero_copy_only=False).astype(">i4")
    return [_binary(lengths.view(np.uint8).reshape(-1, LENGTH)), pc.fill_null(values, b"")]


def _binary(rows: Bytes) -> pa.Array:
    """Convert each row of bytes to a binary value of Arrow's."""
    count, width = rows.shape
    content = pa.py_buffer(np.ascontiguousarray(rows))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), count, [None, content]).cast(pa.binary())
