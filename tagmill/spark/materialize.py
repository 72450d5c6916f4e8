"""Write rows to Parquet once, so that later evaluations see the same rows."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from tagmill.runs.storage import RunFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def materialize(rows: DataFrame, url: str) -> DataFrame:
    """Write rows to Parquet and read them back, so that later evaluations see the same rows.

    If no row was written, the optimizer knows it, and leaves out all that depends on one.
    """
    rows.write.mode("overwrite").parquet(url)
    written = rows.sparkSession.read.schema(rows.schema).parquet(url)
    files, folder = _place(url)
    return written if files.has_rows(folder) else written.where("false")


def count_rows(url: str) -> int:
    """Return the number of rows that were written to a folder, by the footers of its Parquet files."""
    files, folder = _place(url)
    return files.count_rows(folder)


def _place(url: str) -> tuple[RunFiles, str]:
    """Return the files below the folder that has a URL's last part, and that part."""
    root, _, folder = url.rpartition("/")
    return _files(root), folder


@lru_cache(maxsize=8)
def _files(root: str) -> RunFiles:
    """Return the files below a URL; for object stores, a client is worth keeping."""
    return RunFiles(root.removeprefix("file://"))
