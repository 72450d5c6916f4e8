"""Decode topic records in bulk.

Makes the same columns as RecordDecoder, a batch at a time with Arrow. Raises ValueError or OverflowError for
a batch with an irregular record (a tombstone, an undecodable value, a field that doesn't fit); the caller
then splits the batch, in the end into single records.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tagmill.delivery.topics.event_ids import OF_ID, SHARDED, Value, part_of
from tagmill.delivery.topics.fields import PLAIN, Event, Field, finder, plain
from tagmill.delivery.topics.record_decoder import RecordDecoder
from tagmill.delivery.topics.table_columns import fields
from tagmill.domain.batches.layout import Column

DIGEST = 32
# The two hexadecimal digits of each value of a byte.
HEX = np.array([b"%02x" % byte for byte in range(256)])
ARROW = {
    "String": pa.string(), "Int8": pa.int8(), "Int16": pa.int16(), "Int32": pa.int32(), "Int64": pa.int64(), "UInt8": pa.int16(),
    "UInt16": pa.int32(),
}  # fmt: skip
# By column type: the Python types whose values Arrow converts exactly as fields.KINDS does, and the Arrow
# type that it converts them to.
ALIKE: dict[str, tuple[set[type], pa.DataType]] = {
    **dict.fromkeys(("String", "LowCardinality(String)"), ({str}, pa.string())),
    **{name: ({int}, ARROW[name]) for name in ("Int8", "Int16", "Int32", "Int64")},
    "Float64": ({float, int}, pa.float64()),
}


def arrow_type(column: Column) -> pa.DataType:
    """Return the Arrow type that holds a column's values as a sealed file has them."""
    return ARROW[column.file_type.removeprefix("Nullable(").removesuffix(")")]


class VectorizedDecoder:
    """Reads batches of values of one pipeline's topics in which every value is an event."""

    def __init__(self, reader: RecordDecoder) -> None:
        self.reader, self.pipeline = reader, reader.pipeline
        self.key = [(path, finder(path)) for path in self.pipeline.key]
        self.fields = [
            (field, finder(field.path), read)
            for field, read in zip(fields(self.pipeline.columns), reader.fields, strict=True)
        ]

    def read(self, values: Sequence[bytes | None], timestamps_ms: Sequence[int]) -> dict[str, pa.Array]:
        """Return the columns `reader.names` of these events; raises ValueError or OverflowError if a value
        has to be read alone.
        """
        if None in values:
            raise ValueError("a tombstone")
        decoded = self.reader.decoded(cast(Sequence[bytes], values))
        events = [event for event, _ in decoded]
        shards, ids = unique_ids(
            [self._key(path, [find(event) for event in events]) for path, find in self.key],
            self.pipeline.shards,
        )
        moments = list(map(self.reader.created_at, events, timestamps_ms))
        versions = [version for _, version in decoded]
        columns = [self._column(field, find, read, events) for field, find, read in self.fields]
        return dict(
            zip(
                self.reader.names,
                (ids, pa.array(shards), pa.array(moments), pa.array(versions), *columns),
                strict=True,
            )
        )

    def _key(self, path: str, values: Sequence[Any]) -> Sequence[Value]:
        return values if PLAIN.issuperset(map(type, values)) else [plain(path, value) for value in values]

    def _column(self, field: Field, find: Any, read: Any, events: Sequence[Event]) -> pa.Array:
        types, made = ALIKE.get(field.type, (set(), pa.null()))
        found = [find(event) for event in events]
        if set(map(type, found)) <= (types | {type(None)} if field.nullable else types):
            try:
                return _ordinary(found, made)
            except (ValueError, OverflowError):
                pass  # Arrow refuses a value that the column can't hold; the field's own reader decides about it.
        return pa.array(map(read, events), arrow_type(field.column))


def _ordinary(values: Sequence[Any], made: pa.DataType) -> pa.Array:
    column = pa.array(values, made)
    if not pa.types.is_floating(made):
        return column
    if pc.any(pc.is_nan(column)).as_py():
        raise ValueError("NaN")
    return pc.add(column, 0.0).view(pa.int64())


def unique_ids(columns: Sequence[Sequence[Value]], shards: int) -> tuple[npt.NDArray[np.int32], pa.Array]:
    """Return the shards and the ids that event_ids.unique_id gives to many events.

    In: the values of each field of the key.

    Raises ValueError or OverflowError: a text that isn't Unicode, or a number of more than 64 bits, among
    others of its type.
    """
    contents = pc.binary_join_element_wise(
        *(piece for column in columns for piece in _parts(column)), b""
    ).to_pylist()
    digests = np.frombuffer(b"".join([sha256(content).digest() for content in contents]), np.uint8).reshape(
        -1, DIGEST
    )
    digits = np.ascontiguousarray(HEX[digests[:, OF_ID]])
    ends = np.arange(0, digits.nbytes + 1, 2 * OF_ID.stop, dtype=np.int32)
    found = np.ascontiguousarray(digests[:, SHARDED]).view(">u8").ravel() % shards
    return found.astype(np.int32), pa.StringArray.from_buffers(
        len(digests), pa.py_buffer(ends), pa.py_buffer(digits)
    )


def _parts(values: Sequence[Value]) -> tuple[Any, ...]:
    """Return each value's part (event_ids.part_of) behind its length, as columns of pieces that are to be
    joined.
    """
    kinds = set(map(type, values))
    if kinds == {str}:
        return _with_lengths(b"s:", pa.array(values, pa.string()))
    if kinds == {int}:
        return _with_lengths(b"i:", pa.array(values, pa.int64()).cast(pa.string()))
    return _with_lengths(b"", pa.array(map(part_of, values), pa.binary()))


def _with_lengths(letter: bytes, texts: pa.Array) -> tuple[Any, ...]:
    lengths = (pc.binary_length(texts).to_numpy() + len(letter)).astype(">u4")
    before = pa.FixedSizeBinaryArray.from_buffers(pa.binary(4), len(texts), [None, pa.py_buffer(lengths)])
    return before.cast(pa.binary()), letter, texts.cast(pa.binary())
