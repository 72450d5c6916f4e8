"""Make the reports that the gate judges, with Spark in one pass over the key columns of what a run read.

`judged`: one row per tag row read. tag string, persistence_id string, tag_pid_sequence_nr bigint, sequence_nr
bigint, ticks bigint (null: a broken offset), timebucket bigint, bad_key boolean, event_missing boolean,
ttl_seconds int (null: no TTL, or delivered before), file string. `dispositions`: one row per suspect. tag,
persistence_id, tag_pid_sequence_nr, sequence_nr, ticks, timebucket, action string (deliver, drop, hold,
late), reason string.
"""

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tagmill.domain.time_buckets import BucketSize
from tagmill.domain.timeuuid import TICKS_PER_MILLISECOND
from tagmill.quality.model import DispositionCount, OffendingRow, Reports, SchemaColumn, TagReport

_ROW = ("tag", "persistence_id", "tag_pid_sequence_nr", "sequence_nr", "ticks", "timebucket")


def read_reports(
    judged: DataFrame,
    dispositions: DataFrame,
    schema: Sequence[SchemaColumn],
    bucket_size: BucketSize,
    named_rows: int,
) -> Reports:
    """Run the reports: one Spark action over `judged`, one or two over `dispositions`, another if keys or
    buckets are damaged.

    `dispositions` is read twice: persist it if it is costly to make.
    """
    tags = tuple(TagReport(**row.asDict()) for row in tag_report(judged, bucket_size.milliseconds).collect())
    counts = tuple(DispositionCount(**row.asDict()) for row in disposition_report(dispositions).collect())
    named: list[OffendingRow] = []
    if any(tag.null_keys or tag.timebucket_misaligned or tag.wrong_bucket for tag in tags):
        named += (
            OffendingRow(**row.asDict())
            for row in damaged_rows(judged, bucket_size.milliseconds, named_rows).collect()
        )
    if counts:
        known = {
            (row.reason, row.tag, row.persistence_id, row.tag_pid_sequence_nr, row.sequence_nr)
            for row in named
        }
        suspects = (
            OffendingRow(**row.asDict()) for row in offending_rows(dispositions, named_rows).collect()
        )
        named += (
            row
            for row in suspects
            if (row.reason, row.tag, row.persistence_id, row.tag_pid_sequence_nr, row.sequence_nr)
            not in known
        )
    return Reports(bucket_size, tuple(schema), tags, counts, tuple(named))


def newly_held(dispositions: DataFrame, waiting: DataFrame | None) -> tuple[int, int]:
    """Count the held rows of persistence_ids without an open hold before the run, and those persistence_ids.

    In: `waiting`, the tag and persistence_id of holds that were open. A persistence_id that is held in two
    tags counts once.
    """
    held = dispositions.where("action = 'hold'").select("tag", "persistence_id")
    if waiting is not None:
        held = held.join(F.broadcast(waiting), ["tag", "persistence_id"], "left_anti")
    line = (
        held.groupBy("persistence_id")
        .count()
        .agg(F.sum("count").alias("rows"), F.count(F.lit(1)).alias("ids"))
        .first()
    )
    assert line is not None  # noqa: S101 - an aggregate without keys has one row
    return int(line["rows"] or 0), int(line["ids"])


def tag_report(judged: DataFrame, bucket_ms: int) -> DataFrame:
    """Count, per tag, what the gate judges.

    Out: one row per tag, key and order `tag`; columns as TagReport. `wrong_bucket`: rows whose time is not in
    their bucket. `fits_day`, `fits_hour`, `fits_minute`: rows that would be right if the application's bucket
    size were that one. Distinct persistence ids are not counted: even the approximate count switches code
    generation off and doubles the time.
    """
    keys = judged.select("tag", "ticks", "timebucket", "bad_key", "event_missing", "ttl_seconds")
    return (
        keys.groupBy(F.coalesce("tag", F.lit("")).alias("tag"))
        .agg(
            F.count(F.lit(1)).alias("rows"),
            F.count_if("bad_key").alias("null_keys"),
            F.count_if("event_missing").alias("null_events"),
            F.count_if(~_aligned(bucket_ms)).alias("timebucket_misaligned"),
            F.count_if(~_inside(bucket_ms)).alias("wrong_bucket"),
            F.count_if(_fits(BucketSize.DAY)).alias("fits_day"),
            F.count_if(_fits(BucketSize.HOUR)).alias("fits_hour"),
            F.count_if(_fits(BucketSize.MINUTE)).alias("fits_minute"),
            F.min("ticks").alias("first_ticks"),
            F.max("ticks").alias("last_ticks"),
            F.min("ttl_seconds").alias("smallest_ttl_seconds"),
        )
        .orderBy("tag")
    )


def disposition_report(dispositions: DataFrame) -> DataFrame:
    """Count the suspects by tag, reason and action.

    Out: one row per (tag, reason, action), key and order the same; rows, approx_persistence_ids.
    """
    return (
        dispositions.select("tag", "reason", "action", "persistence_id")
        .groupBy(F.coalesce("tag", F.lit("")).alias("tag"), "reason", "action")
        .agg(
            F.count(F.lit(1)).alias("rows"),
            F.approx_count_distinct("persistence_id").alias("approx_persistence_ids"),
        )
        .orderBy("tag", "reason", "action")
    )


def offending_rows(dispositions: DataFrame, limit: int) -> DataFrame:
    """Name the first suspects: `limit` rows of each tag, reason and action.

    The first rows of all persistence_ids come before any second row, so that many ids are named rather than
    many rows of one.
    Out: columns as OffendingRow, file null; ordered by reason, tag, persistence_id, tag_pid_sequence_nr,
    sequence_nr.
    """
    kind = ("reason", "action", F.coalesce("tag", F.lit("")))
    # Spark pushes both limits below the shuffle (WindowGroupLimit), so one hot id or tag moves `limit` rows
    # per task.
    of_an_id = Window.partitionBy(*kind, "persistence_id").orderBy("tag_pid_sequence_nr", "sequence_nr")
    of_a_kind = Window.partitionBy(*kind).orderBy(
        "nth", "persistence_id", "tag_pid_sequence_nr", "sequence_nr"
    )
    return (
        dispositions.select(*_ROW, "action", "reason")
        .withColumn("nth", F.row_number().over(of_an_id))
        .where(F.col("nth") <= limit)
        .withColumn("place", F.row_number().over(of_a_kind))
        .where(F.col("place") <= limit)
        .select(*_named(F.col("reason"), F.col("action"), F.lit(None).cast("string")))
        .orderBy("reason", "tag", "persistence_id", "tag_pid_sequence_nr", "sequence_nr")
    )


def damaged_rows(judged: DataFrame, bucket_ms: int, limit: int) -> DataFrame:
    """Name any `limit` rows for each kind of damage of keys and buckets: null_key, misaligned_bucket,
    wrong_bucket.

    Out: columns as OffendingRow; action 'read' (nothing was decided about them).
    """
    rows = judged.select(*_ROW, "bad_key", "file")
    kinds = {
        "null_key": F.col("bad_key"),
        "misaligned_bucket": ~_aligned(bucket_ms),
        "wrong_bucket": ~_inside(bucket_ms),
    }
    found = (
        rows.where(is_damaged).limit(limit).select(*_named(F.lit(reason), F.lit("read"), F.col("file")))
        for reason, is_damaged in kinds.items()
    )
    return reduce(DataFrame.unionByName, found)


def _named(reason: Column, action: Column, file: Column) -> list[Column]:
    columns = [F.coalesce("tag", F.lit("")).alias("tag"), *(F.col(name) for name in _ROW[1:])]
    return [reason.alias("reason"), action.alias("action"), *columns, file.alias("file")]


def _aligned(bucket_ms: int) -> Column:
    return F.col("timebucket") % bucket_ms == 0


def _inside(bucket_ms: int) -> Column:
    start = F.col("timebucket") * TICKS_PER_MILLISECOND
    return (F.col("ticks") >= start) & (F.col("ticks") < start + bucket_ms * TICKS_PER_MILLISECOND)


def _fits(size: BucketSize) -> Column:
    return _aligned(size.milliseconds) & _inside(size.milliseconds)
