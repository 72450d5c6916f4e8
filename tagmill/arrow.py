"""Schemas of Arrow, rows that begin a group, and row groups of bounded size: a reader of a file has a whole row group
in memory.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

GROUP_BYTES = 32 * 1024 * 1024


CODEC = {"compression": "zstd", "compression_level": 1}


_TYPES = {
    "string": pa.string(),
    "binary": pa.binary(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "boolean": pa.bool_(),
}


def schema_of(columns: str) -> pa.Schema:
    """Return the schema of columns that are given as Spark's: `"tag string, number bigint"`."""
    names_and_types = (column.split() for column in columns.split(","))
    return pa.schema([(name, _TYPES[kind]) for name, kind in names_and_types])


def begins(count: int, keys: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
    """Return for each of `count` rows whether its keys, none of them null, are others than those of the row before."""
    is_first = np.zeros(count, bool)
    is_first[:1] = True
    for key in keys:
        is_first[1:] |= pc.not_equal(key[1:], key[:-1]).to_numpy(zero_copy_only=False)
    return is_first


def fitting(rows: pa.RecordBatch | pa.Table, size: int) -> int:
    """Return how many of these rows have `size` bytes together, if they are alike; at least one."""
    return max(1, int(rows.num_rows * size // max(1, rows.nbytes)))


def row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the rows in tables of less than two GROUP_BYTES, but for a single row that is larger."""
    waiting, size = list[pa.RecordBatch](), 0
    for batch in batches:
        at_once = fitting(batch, GROUP_BYTES)
        for begin in range(0, batch.num_rows, at_once):
            waiting.append(batch.slice(begin, at_once))
            size += waiting[-1].nbytes
            if size >= GROUP_BYTES:
                yield pa.Table.from_batches(waiting)
                waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)
