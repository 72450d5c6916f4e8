"""Rows for Parquet in row groups of bounded size: who reads the file has one of them in memory."""

from collections.abc import Iterable, Iterator

import pyarrow as pa

GROUP_BYTES = 32 * 1024 * 1024


def row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows, less than two GROUP_BYTES at once, or one row that is larger."""
    waiting, size = list[pa.RecordBatch](), 0
    for batch in batches:
        fitting = max(1, batch.num_rows * GROUP_BYTES // max(1, batch.nbytes))
        for begin in range(0, batch.num_rows, fitting):
            waiting.append(batch.slice(begin, fitting))
            size += waiting[-1].nbytes
            if size >= GROUP_BYTES:
                yield pa.Table.from_batches(waiting)
                waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)
