"""Load Parquet files into Cassandra's tables: Spark's Python workers read, encode and send the rows
(docs/decisions/0023). Few rows are written by this process, which starts no worker for them.

Each worker has a connection of its own, configured in [cassandra], and keeps it for later tasks.
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

from tagmill.arrow import fitting
from tagmill.cassandra.bulk_writer import PIECE_BYTES, Rows, Target, write_rows
from tagmill.cassandra.client import Cassandra, connected
from tagmill.config.settings import CassandraSettings
from tagmill.runs.parquet_files import slots_of
from tagmill.runs.storage import RunFiles

# Rows that are read at once, at most: if many rows share a large value, the file's size says nothing about
# theirs.
ROWS_AT_ONCE = 512
# Bytes of a column that are read ahead: a file may be a single row group.
READ_AHEAD_BYTES = 1024 * 1024
# Tasks for each core, so that no core waits long for the last task.
TASKS = 8
# Files that are merged, and so open, at once, and bytes of a slot of these files that are in memory at once.
MERGED, MERGED_BYTES = 32, 32 * 1024 * 1024
# Rows, and bytes of them in memory, that this process writes itself: both are quickly written, whatever they are.
FEW_ROWS, FEW_BYTES = 50_000, 32 * 1024 * 1024
COUNT = pa.schema({"rows": pa.int64()})
Order = Callable[[pa.Table], npt.NDArray[np.int64]]
# A function that returns a lot by its number: its rows, and the values that all of them share.
RowsOf = Callable[[int], tuple[Iterable[Rows], Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Part:
    """A Parquet file, relative to the root, and `beside`: columns that are not in it, with the Python value
    that all its rows share.
    """

    name: str
    beside: Mapping[str, Any] = field(default_factory=dict)


def load(
    spark: Callable[[], SparkSession],
    settings: CassandraSettings,
    files: RunFiles,
    parts: Sequence[Part],
    target: Target,
    columns: Sequence[str] | None = None,
    *,
    own: Cassandra | None = None,
) -> int:
    """Write the rows of files, these columns or all, as stores.bulk.write_rows does, and return how many
    there were.

    Rows of a partition that follow each other in a file are written together. `own`: a connection by which
    this process writes FEW_ROWS, without calling `spark` for the session. Errors: spark.errors.explained.
    """
    rows_of = partial(_of_part, files, parts, columns)
    if own is not None and are_few(files, [part.name for part in parts]):
        return _written_here(own, target, rows_of, len(parts))
    session = spark()
    tasks = min(len(parts), TASKS * session.sparkContext.defaultParallelism)
    return _written(session, settings, target, rows_of, len(parts), tasks)


def load_merged(
    spark: Callable[[], SparkSession],
    settings: CassandraSettings,
    files: RunFiles,
    names: Sequence[str],
    target: Target,
    slots: int,
    order: Order,
    *,
    own: Cassandra | None = None,
) -> int:
    """Write the rows of files that have slots (parquet_files.write_groups) as `load` does, and return how many
    there were.

    The rows of a slot in MERGED files are sorted by `order` and written together. Cassandra takes rows
    fastest in the table's own order; file by file, the rows of a partition would come in many separate
    shares.
    """
    chunks = [names[begin : begin + MERGED] for begin in range(0, len(names), MERGED)]
    if own is not None and are_few(files, names):
        wholes = [(chunk, range(slots)) for chunk in chunks]
        return _written_here(own, target, partial(_of_slots, files, wholes, order), len(wholes))
    session = spark()
    shares = min(
        slots, 2 * len(names), -(-TASKS * session.sparkContext.defaultParallelism // max(1, len(chunks)))
    )
    tasks = [(chunk, range(share, slots, shares)) for chunk in chunks for share in range(shares)]
    return _written(
        session, settings, target, partial(_of_slots, files, tasks, order), len(tasks), len(tasks)
    )


def are_few(files: RunFiles, names: Sequence[str]) -> bool:
    """Return whether files have at most FEW_ROWS of FEW_BYTES together, by their footers."""
    rows = size = 0
    for footer in files.footers(names):
        rows += footer.num_rows
        size += sum(footer.row_group(number).total_byte_size for number in range(footer.num_row_groups))
        if rows > FEW_ROWS or size > FEW_BYTES:
            return False
    return True


def _written_here(cassandra: Cassandra, target: Target, rows_of: RowsOf, count: int) -> int:
    """Write `count` lots of rows by this process's own connection, and return the number of rows."""
    return sum(write_rows(cassandra, target, *rows_of(lot)) for lot in range(count))


def _written(
    spark: SparkSession, settings: CassandraSettings, target: Target, rows_of: RowsOf, count: int, tasks: int
) -> int:
    """Have workers write `count` lots of rows in `tasks` tasks, and return the number of rows."""
    work = partial(_write, settings=settings, target=target, rows_of=rows_of)
    lines = (
        spark.range(0, count, numPartitions=max(1, tasks))
        .mapInArrow(work, from_arrow_schema(COUNT))
        .collect()
    )
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
    return chain.from_iterable(map(partial(_in_order, order=order), merged_slots(files, names, slots))), {}


def _in_order(rows: pa.Table, order: Order) -> Iterator[pa.Table]:
    """Yield the rows in this order, about PIECE_BYTES at once."""
    places = pa.array(order(rows))
    at_once = fitting(rows, PIECE_BYTES)
    for begin in range(0, rows.num_rows, at_once):
        yield rows.take(places[begin : begin + at_once])


def merged_slots(files: RunFiles, names: Sequence[str], slots: range) -> Iterator[pa.Table]:
    """Yield the rows that the files have in each slot, about MERGED_BYTES at once."""
    with ExitStack() as stack:
        opened = [pq.ParquetFile(stack.enter_context(files.open(name))) for name in names]
        # A file that was written without slots counts as a single slot.
        of_slots = [
            slots_of(file) or [place % slots.stop] * file.num_row_groups for place, file in enumerate(opened)
        ]
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
    """Join the waiting tables into one, in one piece of memory, and empty the list."""
    rows = pa.concat_tables(waiting).combine_chunks()
    waiting.clear()
    return rows


def _rows(files: RunFiles, name: str, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    """Yield a file's rows, about PIECE_BYTES at once."""
    with files.open(name) as source:
        file = pq.ParquetFile(source, buffer_size=READ_AHEAD_BYTES)
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            at_once = max(1, min(ROWS_AT_ONCE, PIECE_BYTES * group.num_rows // max(1, group.total_byte_size)))
            yield from file.iter_batches(
                at_once, row_groups=[number], columns=None if columns is None else list(columns)
            )
