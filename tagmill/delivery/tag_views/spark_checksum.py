"""The checksums of batch rows as Spark's columns; arrow_checksum has those of Arrow."""

from collections.abc import Iterable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tagmill.domain.batches import layout
from tagmill.spark.columns import signed, xxhash64


def with_checksums(rows: DataFrame) -> DataFrame:
    """Add `row_checksum` (bigint, the bits of ClickHouse's UInt64; see tagmill.domain.batches.layout)."""
    return rows.withColumn("row_checksum", checksum())


def checksum(columns: Iterable[layout.Column] = layout.COLUMNS) -> Column:
    """Return the checksum of a batch row over all columns or some, the same as columns.row_checksum_sql
    computes in ClickHouse.
    """
    folded = F.lit(0).cast("bigint")
    for column in columns:
        value = F.col(column.name).cast("bigint") if column.kind == "number" else xxhash64(F.col(column.name))
        absent = F.col(column.name).isNull()
        if column.optional:
            salted = value * F.lit(signed(layout.FACTOR)) + F.lit(signed(column.salt))
            folded = folded + F.when(absent, F.lit(0)).otherwise(xxhash64(salted))
            continue
        if column.nullable:
            value = F.when(absent, F.lit(signed(layout.NULL_VALUE))).otherwise(value)
        folded = folded * F.lit(signed(layout.FACTOR)) + value
    return xxhash64(folded)
