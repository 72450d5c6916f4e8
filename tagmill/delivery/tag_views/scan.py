"""Read a plan's slices from tag_views and stage them as rows of batches: one Parquet file per unit, in
Cassandra's own order.
"""

import json
from collections.abc import Iterable
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tagmill.delivery.tag_views.model import Plan, ScanUnit, Slice
from tagmill.domain.batches import layout as batch_columns
from tagmill.domain.timeuuid import FUTURE_TICKS, from_datetime
from tagmill.journal.tag_view_reader import VIEW_COLUMNS, bounds
from tagmill.spark.columns import is_time_uuid, offset_ticks, signed, xxhash64
from tagmill.spark.connector import table


def stage(
    spark: SparkSession, plan: Plan, keyspace: str, view_table: str, target: str, batch_rows: int
) -> DataFrame:
    """Write the rows of all units to `target`, one file per unit, and return the written rows.

    A unit has more files only if a slice grew over batch_rows since it was counted.
    """
    whole = [unit for unit in plan.units if all(part.whole for part in unit.slices)]
    bounded = [unit for unit in plan.units if unit not in whole]
    frames = (
        [_whole(spark, table(spark, keyspace, view_table, directJoinSetting="on"), whole)] if whole else []
    )
    view = table(spark, keyspace, view_table)
    frames += [_bounded(view, unit, part) for unit in bounded for part in unit.slices]
    # A plan of holds alone may have no rows to read, because the view has lost them.
    rows = reduce(
        DataFrame.unionAll, frames or [view.where(F.lit(False)).select(F.lit(0).alias("unit"), *VIEW_COLUMNS)]
    )
    latest = from_datetime(plan.planned_at) + FUTURE_TICKS
    staged = with_checksums(as_batch_rows(rows, latest))
    staged.write.option("maxRecordsPerFile", batch_rows).mode("overwrite").parquet(target)
    return spark.read.schema(staged.schema).parquet(target)


def _whole(spark: SparkSession, view: DataFrame, units: list[ScanUnit]) -> DataFrame:
    """Read whole partitions by direct join: one task per unit, its buckets one after the other in time."""
    keys = json.dumps([[part.timebucket for part in unit.slices] for unit in units])
    identities = json.dumps([[str(unit.number), unit.tag] for unit in units])
    index = (F.col("id") + 1).cast("int")
    units_frame = spark.range(0, len(units), 1, len(units)).select(
        F.element_at(F.element_at(F.from_json(F.lit(identities), "array<array<string>>"), index), 1)
        .cast("int")
        .alias("unit"),
        F.element_at(F.element_at(F.from_json(F.lit(identities), "array<array<string>>"), index), 2).alias(
            "tag_name"
        ),
        F.explode(F.element_at(F.from_json(F.lit(keys), "array<array<bigint>>"), index)).alias("timebucket"),
    )
    return units_frame.join(view, ["tag_name", "timebucket"]).select("unit", *VIEW_COLUMNS)


def _bounded(view: DataFrame, unit: ScanUnit, part: Slice) -> DataFrame:
    """Read a part of one partition; Cassandra checks all conditions, since it compares TimeUUIDs by time and
    Spark compares text.
    """
    after, until = bounds(part.after, part.until)
    rows = view.where(
        (F.col("tag_name") == unit.tag)
        & (F.col("timebucket") == part.timebucket)
        & (F.col("timestamp") > F.lit(str(after)))
        & (F.col("timestamp") <= F.lit(str(until)))
    )
    return rows.select(F.lit(unit.number).alias("unit"), *VIEW_COLUMNS)


def as_batch_rows(rows: DataFrame, latest_ticks: int, *also: str) -> DataFrame:
    """Return the columns of a batch, and those that only the judgement needs.

    In: `unit` and the columns of tag_views. Out, one row each, in the same order: `unit`, the batch columns,
    `event_missing`, `offset_broken`, `size` (bytes of payload and keys), and the columns named in `also`.
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
        *also,
    )


def with_checksums(rows: DataFrame) -> DataFrame:
    """Add `row_checksum` (bigint, the bits of ClickHouse's UInt64; see tagmill.domain.batches.layout)."""
    return rows.withColumn("row_checksum", checksum())


def checksum(columns: Iterable[batch_columns.Column] = batch_columns.COLUMNS) -> Column:
    """Return the checksum of a batch row over all columns or some, the same as columns.row_checksum_sql
    computes in ClickHouse.
    """
    folded = F.lit(0).cast("bigint")
    for column in columns:
        value = F.col(column.name).cast("bigint") if column.kind == "number" else xxhash64(F.col(column.name))
        absent = F.col(column.name).isNull()
        if column.optional:
            salted = value * F.lit(signed(batch_columns.FACTOR)) + F.lit(signed(column.salt))
            folded = folded + F.when(absent, F.lit(0)).otherwise(xxhash64(salted))
            continue
        if column.nullable:
            value = F.when(absent, F.lit(signed(batch_columns.NULL_VALUE))).otherwise(value)
        folded = folded * F.lit(signed(batch_columns.FACTOR)) + value
    return xxhash64(folded)
