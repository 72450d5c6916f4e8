"""Warn of views that are slow to read: many empty buckets, or partitions that are too large."""

from collections.abc import Iterator
from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tagmill.config.tag_views import QualitySettings
from tagmill.domain.time_buckets import BucketSize, View
from tagmill.domain.timeuuid import to_datetime

# Most events per day and tag for a bucket size (the plugin's guidance: thousands → Day, 100,000s → Hour,
# millions → Minute).
EVENTS_A_DAY = {BucketSize.DAY: 100_000, BucketSize.HOUR: 1_000_000}


# Empty buckets before the first event above which a report warns, because readers look into each of them.
EMPTY_BUCKETS = 1000


def early(first_ticks: int, first_time_bucket: datetime, size: BucketSize) -> Iterator[str]:
    """Yield a sentence if readers look into many buckets before the first event."""
    begin = size.start(int(first_time_bucket.timestamp()) * 10_000_000)
    empty = (size.start(first_ticks) - begin) // size.milliseconds
    if empty > EMPTY_BUCKETS:
        yield (
            f"first_time_bucket {first_time_bucket:%Y%m%dT%H:%M} is {empty} {size.value} buckets before "
            "the first event "
            f"({to_datetime(first_ticks):%Y%m%dT%H:%M}): readers look into each of them"
        )


def large_partitions(partitions: DataFrame, view: View, quality: QualitySettings) -> Iterator[str]:
    """Yield a sentence for each tag with partitions over the limits.

    In, one row per partition: tag, timebucket, rows, bytes.
    """
    large = partitions.where(
        (F.col("rows") > quality.max_partition_rows) | (F.col("bytes") > quality.max_partition_bytes)
    )
    largest = large.groupBy("tag").agg(
        F.count("*").alias("count"),
        F.max("rows").alias("rows"),
        F.max("bytes").alias("bytes"),
        F.max_by("timebucket", "bytes").alias("of"),
    )
    for line in sorted(largest.collect(), key=lambda line: str(line["tag"])):
        yield (
            f"tag {line['tag']}: {line['count']} partitions of {view.table} have more than "
            f"{quality.max_partition_rows} rows or "
            f"{quality.max_partition_bytes >> 20} MiB, the largest {line['rows']} rows and "
            f"{line['bytes'] >> 20} MiB "
            f"(timebucket {line['of']}). {_fitting(line['rows'], line['bytes'], view.size, quality)}"
        )


def _fitting(rows: int, size_bytes: int, size: BucketSize, quality: QualitySettings) -> str:
    """Return a sentence that says which bucket size would fit."""
    sizes = list(BucketSize)
    for smaller in sizes[sizes.index(size) + 1 :]:
        share = smaller.milliseconds / size.milliseconds
        fits = (
            rows * share <= quality.max_partition_rows and size_bytes * share <= quality.max_partition_bytes
        )
        a_day = rows * BucketSize.DAY.milliseconds / size.milliseconds
        if fits and a_day <= EVENTS_A_DAY.get(smaller, a_day):
            return f"bucket_size {smaller.value} would fit: tagmill views rebucket --pipeline … --to {smaller.value}"
    if size is BucketSize.MINUTE:
        return "Minute is the smallest size: use more tags"
    return "bucket_size Minute is the smallest, and would fit best: tagmill views rebucket --pipeline … --to Minute"
