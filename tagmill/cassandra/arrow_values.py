"""Convert columns of Cassandra's values, as the bytes of the native protocol, to Arrow.

Source: native_protocol_v4.spec and v5.spec, section 6 (the types).
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from cassandra import cqltypes

from tagmill.cassandra import uuids

Values = npt.NDArray[np.object_]
# A driver's class of a type of Cassandra's.
Kind = type[cqltypes._CassandraType]
PROTOCOL = 4  # collections are the same in all versions from 3 on
MOMENT = pa.timestamp("us", "UTC")


def as_arrow(values: Values, kind: Kind) -> pa.Array:
    """Convert a column's values (bytes, None: null) of one of Cassandra's types to Arrow's type of `arrow_type`,
    but a UUID to binary(16).

    Raises TypeError for a type that has none.
    """
    raw = pa.array(values, pa.binary())
    if kind in _NUMBERS:
        return _numbers(raw, _NUMBERS[kind])
    if issubclass(kind, cqltypes.BytesType):
        return raw
    if issubclass(kind, (cqltypes.UTF8Type, cqltypes.AsciiType)):
        return raw.cast(pa.string())
    if _is_uuid(kind):
        return raw.cast(pa.binary(16))
    if issubclass(kind, cqltypes.DateType):
        # The driver's own moments are off by a microsecond far from 1970.
        return _numbers(raw, _NUMBERS[cqltypes.LongType]).cast(pa.timestamp("ms", "UTC")).cast(MOMENT)
    return _decoded(raw, kind)


def with_texts(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Convert the columns of UUIDs, binary(16), to text in the canonical form, as `arrow_type` has them."""
    columns = [
        _text(column) if pa.types.is_fixed_size_binary(column.type) else column for column in rows.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)


def arrow_type(kind: Kind) -> pa.DataType:
    """Return the Arrow type that Spark takes for one of Cassandra's types; UUIDs are text.

    Raises TypeError for a type that has none.
    """
    if kind in _NUMBERS:
        return pa.from_numpy_dtype(_NUMBERS[kind].newbyteorder("="))
    for kinds, found in _PLAIN.items():
        if issubclass(kind, kinds):
            return found
    inner = [arrow_type(part) for part in kind.subtypes]
    if issubclass(kind, (cqltypes.SetType, cqltypes.ListType)):
        return pa.list_(*inner)
    if issubclass(kind, cqltypes.MapType):
        return pa.map_(*inner)
    if issubclass(kind, cqltypes.TupleType) and not issubclass(kind, cqltypes.UserType):
        return pa.struct([(str(place), part) for place, part in enumerate(inner)])
    raise TypeError(f"values of Cassandra's type {kind.cql_parameterized_type()} have no place in Arrow")


_NUMBERS: dict[Any, np.dtype[Any]] = {
    cqltypes.LongType: np.dtype(">i8"),
    cqltypes.CounterColumnType: np.dtype(">i8"),
    cqltypes.Int32Type: np.dtype(">i4"),
    cqltypes.ShortType: np.dtype(">i2"),
    cqltypes.ByteType: np.dtype("i1"),
    cqltypes.FloatType: np.dtype(">f4"),
    cqltypes.DoubleType: np.dtype(">f8"),
}
_PLAIN: dict[Any, pa.DataType] = {
    (cqltypes.UTF8Type, cqltypes.AsciiType, cqltypes.UUIDType, cqltypes.TimeUUIDType): pa.string(),
    cqltypes.BytesType: pa.binary(),
    cqltypes.DateType: MOMENT,  # the driver's name of a timestamp
    cqltypes.SimpleDateType: pa.date32(),
    cqltypes.BooleanType: pa.bool_(),
}


def _is_uuid(kind: Kind) -> bool:
    return issubclass(kind, (cqltypes.UUIDType, cqltypes.TimeUUIDType))


def _text(values: pa.Array) -> pa.Array:
    """Convert UUIDs to text, nulls to null."""
    found = uuids.text(uuids.of_binary(values))
    return pc.if_else(values.is_valid(), found, pa.scalar(None, pa.string())) if values.null_count else found


def _numbers(raw: pa.BinaryArray, kind: np.dtype[Any]) -> pa.Array:
    """Convert the bytes of numbers to Arrow; an empty value, which old clients could write, becomes null."""
    raw = pc.if_else(pc.equal(pc.binary_length(raw), kind.itemsize), raw, pa.scalar(None, pa.binary()))
    found = (
        uuids.same_length(raw, bytes(kind.itemsize), "a number has another length")
        .view(kind)[:, 0]
        .astype(kind.newbyteorder("="))
    )
    return pa.array(found, mask=raw.is_null().to_numpy(zero_copy_only=False))


def _decoded(raw: pa.BinaryArray, kind: Kind) -> pa.Array:
    """Have the driver decode each different value once."""
    codes = raw.dictionary_encode()
    different = [_plain(kind.from_binary(value, PROTOCOL), kind) for value in codes.dictionary.to_pylist()]
    return pa.array(different, arrow_type(kind)).take(codes.indices)


def _plain(value: Any, kind: Kind) -> Any:
    """Return a value of the driver's as Arrow takes it."""
    if value is None:
        return None
    if issubclass(kind, cqltypes.MapType):
        of_key, of_value = kind.subtypes
        return [(_plain(key, of_key), _plain(item, of_value)) for key, item in value.items()]
    if issubclass(kind, (cqltypes.SetType, cqltypes.ListType)):
        return [_plain(item, kind.subtypes[0]) for item in value]
    if issubclass(kind, cqltypes.TupleType):
        return {
            str(n): _plain(item, of) for n, (item, of) in enumerate(zip(value, kind.subtypes, strict=False))
        }
    if issubclass(kind, cqltypes.SimpleDateType):
        return value.date()
    return str(value) if _is_uuid(kind) else value
