"""Parquet files into Cassandra's tables: read, encoded and sent by Spark's Python workers (docs/decisions/0023).

Each worker has a connection of its own, by the section [cassandra], and keeps it for the tasks that follow.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from tagmill.rowgroups import fitting, slots_of
from tagmill.settings import CassandraSettings
from tagmill.stores.bulk import PIECE_BYTES, Rows, Target, write_rows
from tagmill.stores.cassandra import connected
from tagmill.stores.files import RunFiles

# that are read at once, at most: where many rows have the same large value, a file tells nothing of their size
ROWS_AT_ONCE = 512
# of a column that are read ahead: a file may be one row group
READ_AHEAD_BYTES = 1024 * 1024
# of each core, so that none waits long for the last one
TASKS = 8
# files that are open at once, and of a slot of theirs, what is in memory
MERGED, MERGED_BYTES = 32, 32 * 1024 * 1024
COUNT = pa.schema({"rows": pa.int64()})
Order = Callable[[pa.Table], npt.NDArray[np.int64]]
# of a lot, by its number: its rows, and what all of them have beside
RowsOf = Callable[[int], tuple[Iterable[Rows], Mapping[str, Any]]]


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

    Of a file that lies by partition, rows go together. Errors: spark.errors.explained.
    """
    tasks = min(len(parts), TASKS * spark.sparkContext.defaultParallelism)
    return _written(spark, settings, target, partial(_of_part, files, parts, columns), len(parts), tasks)


def load_merged(
    spark: SparkSession, settings: CassandraSettings, files: RunFiles, names: Sequence[str], target: Target, slots: int,
    order: Order,
) -> int:  # fmt: skip
    """The same of files written in slots (rowgroups.write_groups): what MERGED files have in a slot is put in `order` and written together.

    Cassandra takes rows in the table's own order quickest: else each file's share of a partition goes in between those of others.
    """
    chunks = [names[begin : begin + MERGED] for begin in range(0, len(names), MERGED)]
    shares = min(slots, 2 * len(names), -(-TASKS * spark.sparkContext.defaultParallelism // max(1, len(chunks))))
    tasks = [(chunk, range(share, slots, shares)) for chunk in chunks for share in range(shares)]
    return _written(spark, settings, target, partial(_of_slots, files, tasks, order), len(tasks), len(tasks))


def _written(spark: SparkSession, settings: CassandraSettings, target: Target, rows_of: RowsOf, count: int, tasks: int) -> int:
    """Have workers write so many lots of rows; how many rows there were."""
    work = partial(_write, settings=settings, target=target, rows_of=rows_of)
    lines = spark.range(0, count, numPartitions=max(1, tasks)).mapInArrow(work, from_arrow_schema(COUNT)).collect()
    return sum(line["rows"] for line in lines)


def _write(
    batches: Iterable[pa.RecordBatch], settings: CassandraSettings, target: Target, rows_of: RowsOf
) -> Iterator[pa.RecordBatch]:
    cassandra, count = connected(settings), 0
    for batch in batches:
        for lot in batch["id"].to_pylist():
            rows, beside = rows_of(lot)
            count += write_rows(cassandra, target, rows, beside)
    yield pa.RecordBatch.from_pydict({"rows": [count]}, COUNT)


def _of_part(
    files: RunFiles, parts: Sequence[Part], columns: Sequence[str] | None, lot: int
) -> tuple[Iterable[Rows], Mapping[str, Any]]:
    return _rows(files, parts[lot].name, columns), parts[lot].beside


def _of_slots(
    files: RunFiles, tasks: Sequence[tuple[Sequence[str], range]], order: Order, lot: int
) -> tuple[Iterable[Rows], Mapping[str, Any]]:
    names, slots = tasks[lot]
    return chain.from_iterable(map(partial(_in_order, order=order), _merged(files, names, slots))), {}


def _in_order(rows: pa.Table, order: Order) -> Iterator[pa.Table]:
    """The rows in this order, some PIECE_BYTES at once."""
    places = pa.array(order(rows))
    at_once = fitting(rows, PIECE_BYTES)
    for begin in range(0, rows.num_rows, at_once):
        yield rows.take(places[begin : begin + at_once])


def _merged(files: RunFiles, names: Sequence[str], slots: range) -> Iterator[pa.Table]:
    """What the files have in each slot, some MERGED_BYTES at once."""
    with ExitStack() as stack:
        opened = [pq.ParquetFile(stack.enter_context(files.open(name))) for name in names]
        # what was written otherwise has a slot as a whole
        of_slots = [slots_of(file) or [place % slots.stop] * file.num_row_groups for place, file in enumerate(opened)]
        for slot in slots:
            waiting, size = list[pa.Table](), 0
            for file, said in zip(opened, of_slots, strict=True):
                for number in (number for number, its in enumerate(said) if its == slot):
                    waiting.append(file.read_row_group(number, use_threads=False))
                    size += waiting[-1].nbytes
                    if size >= MERGED_BYTES:
                        yield _together(waiting)
                        size = 0
            if waiting:
                yield _together(waiting)


def _together(waiting: list[pa.Table]) -> pa.Table:
    """One table, in one piece, of what waits, which is gone."""
    rows = pa.concat_tables(waiting).combine_chunks()
    waiting.clear()
    return rows


def _rows(files: RunFiles, name: str, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    """A file's rows, some PIECE_BYTES at once."""
    with files.open(name) as source:
        file = pq.ParquetFile(source, buffer_size=READ_AHEAD_BYTES)
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            at_once = max(1, min(ROWS_AT_ONCE, PIECE_BYTES * group.num_rows // max(1, group.total_byte_size)))
            yield from file.iter_batches(at_once, row_groups=[number], columns=None if columns is None else list(columns))
