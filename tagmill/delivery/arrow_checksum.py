"""Compute the checksums of Arrow rows by the rule of tagmill.domain.batches.layout, so that a worker that
decodes records needs no JVM.
"""

from collections.abc import Iterable
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh64_intdigest

from tagmill.domain.batches.layout import FACTOR, NULL_VALUE, Column

Hashes = npt.NDArray[np.uint64]
_FACTOR = np.uint64(FACTOR)


def row_checksums(rows: pa.RecordBatch, columns: Iterable[Column]) -> Hashes:
    """Return each row's checksum, as the bits of ClickHouse's UInt64.

    ClickHouse computes the same with layout.row_checksum_sql.
    """
    folded = np.zeros(rows.num_rows, np.uint64)
    for column in columns:
        values, absent = rows[column.name], rows[column.name].is_null().to_numpy(zero_copy_only=False)
        found = _numbers(values) if column.kind == "number" else _texts(values, column)
        if column.optional:
            salted = hashes_of_numbers(found * _FACTOR + np.uint64(column.salt))
            folded = folded + np.where(absent, np.uint64(0), salted)
        else:
            folded = folded * _FACTOR + np.where(absent, np.uint64(NULL_VALUE), found)
    return hashes_of_numbers(folded)


def _numbers(values: pa.Array) -> Hashes:
    return cast(Hashes, pc.fill_null(values.cast(pa.int64()), 0).to_numpy().view(np.uint64))


def _texts(values: pa.Array, column: Column) -> Hashes:
    kept = pc.fill_null(values.cast(pa.binary()), b"")
    if column.repeats:
        coded = kept.dictionary_encode()
        return cast(Hashes, _hashes(coded.dictionary.to_pylist())[coded.indices.to_numpy()])
    return _hashes(kept.to_pylist())


def _hashes(contents: list[bytes]) -> Hashes:
    return np.fromiter(map(xxh64_intdigest, contents), np.uint64, len(contents))


def hashes_of_numbers(values: Hashes) -> Hashes:
    """Return XXH64 of the 8 bytes of each value, the lowest byte first."""
    contents: Any = values.astype("<u8").view("V8").tolist()
    return _hashes(contents)
