"""Rows that a seal writes down between its steps.

Spark reads them with a short plan, and this process without a job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from tagmill.runs.storage import RunFiles
from tagmill.spark.materialize import materialize

if TYPE_CHECKING:
    import pyarrow.compute as pc
    from pyspark.sql import DataFrame

ROWS_AT_ONCE = 100_000


class KeptRows(Protocol):
    """Rows that this process reads without a job."""

    def count(self) -> int:
        """Return the number of rows."""

    def tables(self, columns: Sequence[str], where: pc.Expression | None = None) -> Iterator[pa.Table]:
        """Yield these columns of the rows that satisfy `where`, at most ROWS_AT_ONCE rows at a time."""


@dataclass(frozen=True, slots=True)
class RowsInMemory:
    """Few rows, in memory."""

    table: pa.Table

    def count(self) -> int:
        """Return the number of rows."""
        return int(self.table.num_rows)

    def tables(self, columns: Sequence[str], where: pc.Expression | None = None) -> Iterator[pa.Table]:
        """Yield these columns of the rows that satisfy `where`, at once."""
        rows = self.table.select(list(columns))
        if where is not None:
            rows = rows.filter(where)
        if rows.num_rows:
            yield rows


@dataclass(frozen=True, slots=True)
class WorkingRows:
    """Rows in the Parquet files of a folder, the same for all readers; `frame` reads them with Spark."""

    frame: DataFrame
    files: RunFiles
    folder: str

    def count(self) -> int:
        """Return the number of rows, by the files' footers."""
        return self.files.count_rows(self.folder)

    def tables(self, columns: Sequence[str], where: pc.Expression | None = None) -> Iterator[pa.Table]:
        """Yield these columns of the rows that satisfy `where`, at most ROWS_AT_ONCE rows at a time."""
        for batch in self.files.record_batches(self.folder, ROWS_AT_ONCE, list(columns)):
            rows = pa.Table.from_batches([batch])
            if where is not None:
                rows = rows.filter(where)
            if rows.num_rows:
                yield rows


def counts(
    rows: KeptRows | None, columns: Sequence[str], where: pc.Expression | None = None
) -> Counter[tuple[Any, ...]]:
    """Count the rows that satisfy `where` by the values of these columns, which must be few; None has no rows."""
    found = Counter[tuple[Any, ...]]()
    for table in rows.tables(columns, where) if rows is not None else ():
        for line in table.group_by(list(columns)).aggregate([([], "count_all")]).to_pylist():
            found[tuple(line[name] for name in columns)] += line["count_all"]
    return found


def write(rows: DataFrame, files: RunFiles, folder: str) -> WorkingRows:
    """Write rows to a folder, in place of what is there."""
    return WorkingRows(materialize(rows, files.url(folder)), files, folder)
