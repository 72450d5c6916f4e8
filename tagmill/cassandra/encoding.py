"""Encode whole Arrow columns as values of Cassandra's native protocol.

A value is its length, an int of four bytes, followed by its content. Length -2 means "not set": Cassandra
keeps the existing value.

Source: native_protocol_v4.spec and v5.spec, sections 3 ([value]) and 6 (the types).
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tagmill.cassandra import uuids

# A part of every row's bytes: the same bytes in all rows, or a binary array with each row's own.
Part: TypeAlias = bytes | pa.Array
Bytes = npt.NDArray[np.uint8]
# Bytes of the length in front of a value.
LENGTH = 4
UNSET = (-2).to_bytes(LENGTH, "big", signed=True)
# By Cassandra's type: the Arrow type that a number is cast to, and numpy's type of its bytes.
NUMBERS = {
    "tinyint": (pa.int8(), ">i1"), "smallint": (pa.int16(), ">i2"), "int": (pa.int32(), ">i4"), "bigint": (pa.int64(), ">i8"),
    "float": (pa.float32(), ">f4"), "double": (pa.float64(), ">f8"),
}  # fmt: skip
# By Arrow's unit: factor and divisor that give milliseconds.
MILLISECOND = {"s": (1000, 1), "ms": (1, 1), "us": (1, 1000), "ns": (1, 1_000_000)}


def encoded(values: pa.Array, kind: Any, protocol: int) -> list[Part]:
    """Encode the values of a column, nulls as not set, and return the parts that make up each row's bytes in
    order.

    `kind` is the driver's type of the column in Cassandra. Arrow types that fit:
    text: strings; blob: binary; uuid and timeuuid: strings or 16 bytes; timestamp: a timestamp of any unit,
    or integers in milliseconds;
    numbers: integers, or floats for float and double, that the type can hold. For other types the driver
    encodes value by value.

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
    found = _binary(rows)
    return pc.if_else(values.is_valid(), found, pa.scalar(UNSET, pa.binary())) if values.null_count else found


def _variable(values: pa.Array) -> list[Part]:
    """Encode binary values of any length as two parts: the lengths, -2 for nulls, and the contents."""
    lengths = pc.fill_null(pc.binary_length(values), -2).to_numpy(zero_copy_only=False).astype(">i4")
    return [_binary(lengths.view(np.uint8).reshape(-1, LENGTH)), pc.fill_null(values, b"")]


def _binary(rows: Bytes) -> pa.Array:
    """Convert each row of bytes to a binary value of Arrow's."""
    count, width = rows.shape
    content = pa.py_buffer(np.ascontiguousarray(rows))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), count, [None, content]).cast(pa.binary())
