"""Write what Python tasks make of rows to files, one a task.

A task that is tried again writes another file. Files whose names no task has returned are never read.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from tagmill.arrow import row_groups
from tagmill.runs.parquet_files import write_file, write_table
from tagmill.runs.storage import RunFiles
from tagmill.spark.arrow_chunks import in_python

FILES = pa.schema({"name": pa.string()})
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

    def of_frame(self, rows: DataFrame, convert: Convert) -> list[str]:
        """Write what tasks make of a frame's rows, and return the files; none of them is empty."""
        work = partial(_converted, self, convert)
        return self.names(in_python(rows, work, from_arrow_schema(FILES)))

    def names(self, written: DataFrame) -> list[str]:
        """Run the tasks that write, and return the names of their files; none of them is empty."""
        return sorted(line["name"] for line in written.collect())

    def frame(self, spark: SparkSession, names: Sequence[str]) -> DataFrame:
        """Return the rows of these files; without any, those of an empty file, so that there is something to read."""
        if not names:
            names = [f"{self.folder}/none.parquet"]
            write_table(self.files, names[0], self.schema.empty_table())
        return spark.read.schema(from_arrow_schema(self.schema)).parquet(*map(self.files.url, names))


def _converted(target: Target, convert: Convert, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return target.write_rows(map(convert, rows))
