"""Batch rows as Spark's columns: those of rows of tag_views, and their checksums."""

from collections.abc import Iterable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tagmill.domain.batches import layout
from tagmill.spark.columns import is_time_uuid, offset_ticks, signed, xxhash64


def as_batch_rows(rows: DataFrame, latest_ticks: int) -> DataFrame:
    """Return the columns of a batch, and those that only the judgement needs.

    In: `unit` and the columns of tag_views. Out, one row each, in the same order: `unit`, the batch columns,
    `event_missing`, `offset_broken` and `size` (bytes of payload and keys).
    """
    ticks = F.col("ticks")
    return rows.withColumn("ticks", offset_ticks(F.col("timestamp"))).select(
        "unit",
        F.col("tag_name").alias("tag"),
        "persistence_id",
        F.coalesce("sequence_nr", F.lit(0).cast("bigint")).alias("sequence_nr"),
        "tag_pid_sequence_nr",
        ticks.alias("event_time"),
        F.col("timestamp").alias("offset"),
        "timebucket",
        F.coalesce("writer_uuid", F.lit("")).alias("writer_uuid"),
        F.coalesce("ser_id", F.lit(0)).alias("ser_id"),
        F.coalesce("ser_manifest", F.lit("")).alias("ser_manifest"),
        F.coalesce("event_manifest", F.lit("")).alias("event_manifest"),
        F.coalesce("event", F.lit(b"")).alias("event"),
        "meta_ser_id",
        "meta_ser_manifest",
        "meta",
        F.lit(0).alias("late"),
        (F.col("event").isNull() | F.col("ser_id").isNull()).alias("event_missing"),
        (~is_time_uuid(F.col("timestamp")) | (ticks < 0) | (ticks > latest_ticks)).alias("offset_broken"),
        (
            F.coalesce(F.octet_length("event"), F.lit(0))
            + F.coalesce(F.octet_length("meta"), F.lit(0))
            + F.octet_length("persistence_id")
            + F.octet_length("tag_name")
            + F.lit(100)
        ).alias("size"),
    )


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
