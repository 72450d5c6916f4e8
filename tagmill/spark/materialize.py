"""Write rows to Parquet once, so that later evaluations see the same rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def materialize(rows: DataFrame, url: str) -> DataFrame:
    """Write rows to Parquet and read them back, so that later evaluations see the same rows."""
    rows.write.mode("overwrite").parquet(url)
    return rows.sparkSession.read.schema(rows.schema).parquet(url)
