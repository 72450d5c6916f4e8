"""Make the reports that the gate judges, with Spark in one pass over the key columns of what a run read.

`judged`: one row per tag row read. tag string, persistence_id string, tag_pid_sequence_nr bigint, sequence_nr
bigint, ticks bigint (null: a broken offset), timebucket bigint, bad_key boolean, event_missing boolean,
ttl_seconds int (null: no TTL, or delivered before), file string.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from operator import itemgetter

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tagmill.domain.time_buckets import BucketSize
from tagmill.domain.timeuuid import TICKS_PER_MILLISECOND
from tagmill.quality.model import OffendingRow, Reports, SchemaColumn, TagReport
from tagmill.quality.suspects import Suspects

_ROW = ("tag", "persistence_id", "tag_pid_sequence_nr", "sequence_nr", "ticks", "timebucket")


def read_reports(
    judged: DataFrame,
    suspects: Suspects,
    schema: Sequence[SchemaColumn],
    bucket_size: BucketSize,
    named_rows: int,
) -> Reports:
    """Run the reports: one Spark action over `judged`, another if keys or buckets are damaged."""
    of_tags = tag_report(judged, bucket_size.milliseconds).collect()
    tags = tuple(TagReport(**row.asDict()) for row in sorted(of_tags, key=itemgetter("tag")))

    def damaged() -> Iterator[OffendingRow]:
        rows = damaged_rows(judged, bucket_size.milliseconds, named_rows)
        return (OffendingRow(**row.asDict()) for row in rows.collect())

    return combined(tags, damaged, suspects, schema, bucket_size)


def combined(
    tags: tuple[TagReport, ...],
    damaged: Callable[[], Iterable[OffendingRow]],
    suspects: Suspects,
    schema: Sequence[SchemaColumn],
    bucket_size: BucketSize,
) -> Reports:
    """Return the reports of a run from its parts; `damaged` names rows, and is asked if keys or buckets are damaged."""
    named: list[OffendingRow] = []
    if any(tag.null_keys or tag.timebucket_misaligned or tag.wrong_bucket for tag in tags):
        named += damaged()
    known = {_place(row) for row in named}
    named += (row for row in suspects.offending if _place(row) not in known)
    rows, ids = suspects.newly_held
    return Reports(
        bucket_size,
        tuple(schema),
        tags,
        suspects.counts,
        tuple(named),
        newly_held=rows,
        newly_held_ids=ids,
    )


def _place(row: OffendingRow) -> tuple[object, ...]:
    return row.reason, row.tag, row.persistence_id, row.tag_pid_sequence_nr, row.sequence_nr


def tag_report(judged: DataFrame, bucket_ms: int) -> DataFrame:
    """Count, per tag, what the gate judges.

    Out: one row per tag, key `tag`; columns as TagReport. `wrong_bucket`: rows whose time is not in
    their bucket, or whose timebucket is no start of one. `fits_day`, `fits_hour`, `fits_minute`: rows that
    would be right if the application's bucket size were that one. Distinct persistence ids are not counted:
    even the approximate count switches code generation off and doubles the time.
    """
    keys = judged.select("tag", "ticks", "timebucket", "bad_key", "event_missing", "ttl_seconds")
    return keys.groupBy(F.coalesce("tag", F.lit("")).alias("tag")).agg(
        F.count(F.lit(1)).alias("rows"),
        F.count_if("bad_key").alias("null_keys"),
        F.count_if("event_missing").alias("null_events"),
        F.count_if(~_aligned(bucket_ms)).alias("timebucket_misaligned"),
        F.count_if(_is_outside(bucket_ms)).alias("wrong_bucket"),
        F.count_if(_fits(BucketSize.DAY.milliseconds)).alias("fits_day"),
        F.count_if(_fits(BucketSize.HOUR.milliseconds)).alias("fits_hour"),
        F.count_if(_fits(BucketSize.MINUTE.milliseconds)).alias("fits_minute"),
        F.min("ticks").alias("first_ticks"),
        F.max("ticks").alias("last_ticks"),
        F.min("ttl_seconds").alias("smallest_ttl_seconds"),
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
        "wrong_bucket": _is_outside(bucket_ms) & _aligned(bucket_ms),
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


def _is_outside(bucket_ms: int) -> Column:
    """Return whether a row with a time is not in the bucket of its time."""
    return F.col("ticks").isNotNull() & ~_fits(bucket_ms)


def _fits(bucket_ms: int) -> Column:
    return _aligned(bucket_ms) & _inside(bucket_ms)
