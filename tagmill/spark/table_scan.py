"""Read a whole table of Cassandra with Python tasks, each a part of its tokens, and write what they make of the rows
to files, one a task.

A task that is tried again writes another file. Files whose names no task has returned are never read.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from tagmill.arrow import row_groups
from tagmill.cassandra.client import Cassandra
from tagmill.cassandra.paging import Pages, kept_pages, token_ranges
from tagmill.config.settings import CassandraSettings
from tagmill.domain import identifiers
from tagmill.runs.parquet_files import write_file, write_table
from tagmill.runs.storage import RunFiles

FILES = pa.schema({"name": pa.string()})
TASKS_PER_CORE = 8
# Makes the rows to write of rows of the table.
Convert = Callable[[pa.RecordBatch], pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class Target:
    """Where tasks write: below `folder` of `files`, rows of `schema`; the values of the `repeated` columns repeat."""

    files: RunFiles
    folder: str
    schema: pa.Schema
    repeated: Sequence[str]

    def write(self, groups: Iterator[pa.Table], prefix: str = "") -> str | None:
        """Write a file of row groups and return its name, which begins with `prefix`; None if there are no groups."""
        return write_file(self.files, self.folder, self.schema, groups, self.repeated, prefix)

    def write_rows(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write a task's rows, and yield the name of its file (FILES) if there are any."""
        if name := self.write(row_groups(rows)):
            yield pa.RecordBatch.from_pylist([{"name": name}], FILES)

    def names(self, written: DataFrame) -> list[str]:
        """Run the tasks that write, and return the names of their files; none of them is empty."""
        return sorted(line["name"] for line in written.collect())

    def frame(self, spark: SparkSession, names: Sequence[str]) -> DataFrame:
        """Return the rows of these files; without any, those of an empty file, so that there is something to read."""
        if not names:
            names = [f"{self.folder}/none.parquet"]
            write_table(self.files, names[0], self.schema.empty_table())
        return spark.read.schema(from_arrow_schema(self.schema)).parquet(*map(self.files.url, names))


@dataclass(frozen=True, slots=True)
class TableScan:
    """What tasks read: these columns of a table (quoted for CQL) with this partition key."""

    table: str
    key: Sequence[str]
    columns: Sequence[str]

    def write(self, spark: SparkSession, cassandra: Cassandra, target: Target, convert: Convert) -> list[str]:
        """Read all rows, write what `convert` makes of them to `target`, and return the files' names.

        A cluster whose partitioner isn't Murmur3 is read by one task.
        """
        tasks = TASKS_PER_CORE * spark.sparkContext.defaultParallelism
        ranges: Sequence[tuple[int | None, int | None]] = token_ranges(cassandra, tasks) or [(None, None)]
        rows = spark.createDataFrame(ranges, "low long, high long").repartition(min(tasks, len(ranges)))
        task = partial(_scan, self, target, convert, cassandra.settings)
        return target.names(rows.mapInArrow(task, from_arrow_schema(FILES)))

    def rows_between(self, pages: Pages, low: int | None, high: int | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows with low < token <= high, or all."""
        query = f"SELECT {', '.join(map(identifiers.cql, self.columns))} FROM {self.table}"
        if low is None:
            return pages.of(query)
        token = f"token({', '.join(map(identifiers.cql, self.key))})"
        return pages.of(f"{query} WHERE {token} > ? AND {token} <= ?", low, high)


def _scan(
    scan: TableScan,
    target: Target,
    convert: Convert,
    settings: CassandraSettings,
    ranges: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    pages = kept_pages(settings)
    bounds = (
        between
        for part in ranges
        for between in zip(part["low"].to_pylist(), part["high"].to_pylist(), strict=True)
    )
    rows = (page for low, high in bounds for page in scan.rows_between(pages, low, high))
    yield from target.write_rows(convert(page) for page in rows)
