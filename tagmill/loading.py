"""Parquet files into Cassandra's tables: read, encoded and sent by Spark's Python workers (docs/decisions/0023).

Each worker has a connection of its own, by the section [cassandra], and keeps it for the tasks that follow.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tagmill.settings import CassandraSettings
from tagmill.stores.bulk import PIECE_BYTES, Target, write_rows
from tagmill.stores.cassandra import Cassandra
from tagmill.stores.files import RunFiles

# that are read at once, at most: where many rows have the same large value, a file tells nothing of their size
ROWS_AT_ONCE = 512
# of a column that are read ahead: a file may be one row group
READ_AHEAD_BYTES = 1024 * 1024
# of each core, so that none waits long for the last one
TASKS = 8


@dataclass(frozen=True, slots=True)
class Part:
    """A Parquet file, relative to the root, and what all of its rows have beside what is in there (values of Python's by column)."""

    name: str
    beside: Mapping[str, Any] = field(default_factory=dict)


def load(
    spark: SparkSession, settings: CassandraSettings, files: RunFiles, parts: Sequence[Part], target: Target,
    columns: Sequence[str] | None = None,
) -> int:  # fmt: skip
    """Write the rows of the files, these columns or all, as stores.bulk.write_rows does; how many there were.

    Of a file that lies by partition, rows go together. Errors: delivery.sparkerrors.explained.
    """
    work = partial(_load, settings=settings, files=files, parts=parts, target=target, columns=columns)
    tasks = min(len(parts), TASKS * spark.sparkContext.defaultParallelism)
    counts = spark.range(0, len(parts), numPartitions=max(1, tasks)).mapInArrow(work, "rows bigint").collect()
    return sum(line["rows"] for line in counts)


def _load(
    batches: Iterable[pa.RecordBatch], settings: CassandraSettings, files: RunFiles, parts: Sequence[Part], target: Target,
    columns: Sequence[str] | None,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    cassandra, count = _connected(settings), 0
    for batch in batches:
        for part in (parts[index] for index in batch["id"].to_pylist()):
            count += write_rows(cassandra, target, _rows(files, part.name, columns), part.beside)
    yield pa.RecordBatch.from_pydict({"rows": [count]}, pa.schema({"rows": pa.int64()}))


def _rows(files: RunFiles, name: str, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    """A file's rows, some PIECE_BYTES at once."""
    with files.open(name) as source:
        file = pq.ParquetFile(source, buffer_size=READ_AHEAD_BYTES)
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            fitting = PIECE_BYTES * group.num_rows // max(1, group.total_byte_size)
            at_once = max(1, min(ROWS_AT_ONCE, fitting))
            yield from file.iter_batches(at_once, row_groups=[number], columns=None if columns is None else list(columns))


_kept: list[tuple[CassandraSettings, Cassandra]] = []


def _connected(settings: CassandraSettings) -> Cassandra:
    """This worker's connection; another Cassandra's is closed. It ends with the worker, whose threads hold nobody up."""
    if _kept and _kept[0][0] != settings:
        _kept.pop()[1].close()
    if not _kept:
        # what the driver logs comes as an exception, too
        logging.getLogger("cassandra").setLevel(logging.CRITICAL)
        # as the connector's own: to compress would cost up to 2 CPU seconds a million rows
        _kept.append((settings, Cassandra(settings, compression=False)))
    return _kept[0][1]
