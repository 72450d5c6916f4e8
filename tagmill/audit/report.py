"""Turn the staged lines and findings into the report, and into the ledger's record of each partition of the view."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tagmill.audit.model import AuditReport, BucketLine, Finding, Kind, Line
from tagmill.audit.staging import GONE, Scope, kept
from tagmill.config.tag_views import PipelineSettings, QualitySettings
from tagmill.domain.time_buckets import BucketSize, View
from tagmill.domain.timeuuid import to_datetime
from tagmill.ledger.audits import AuditRow
from tagmill.spark.connector import CASSANDRA

FIGURES = ("journal", "view", "clickhouse", "deleted", "pending", "cleaned")
# Buckets with findings that a report names at most.
NAMED_BUCKETS = 100
# Most events per day and tag for a bucket size (the plugin's guidance: thousands → Day, 100,000s → Hour, millions → Minute).
EVENTS_A_DAY = {BucketSize.DAY: 100_000, BucketSize.HOUR: 1_000_000}
MOST_TAGS = 10
# Empty buckets before the first event above which a report warns, because readers look into each of them.
EMPTY_BUCKETS = 1000


@dataclass(frozen=True, slots=True)
class Judged:
    """The staged frames of an audit: sums.bucket_sums as `lines`, model.FINDING_SCHEMA as `findings`.

    `untagged`: the number of rows of the view that are not judged, because their events have no tags.
    """

    events: DataFrame
    view: DataFrame
    deleted: DataFrame
    lines: DataFrame
    findings: DataFrame
    untagged: int
    audited_at: datetime
    url: str


def made(judged: Judged, row: AuditRow, scope: Scope, pipeline: PipelineSettings, folder: str, now: datetime) -> AuditReport:
    """Return the report, and write all its lines next to it, to `buckets`."""
    counts = judged.findings.groupBy("tag", "kind").count().collect()
    lines = kept(_lines(judged), f"{judged.url}/buckets")
    of_tags = {line["tag"]: line for line in lines.groupBy("tag").agg(*(F.sum(name).alias(name) for name in FIGURES)).collect()}
    tags = []
    for tag in scope.tags:
        figures = {name: of_tags[tag][name] if tag in of_tags else 0 for name in FIGURES}
        tags.append(Line(tag=tag, **figures, findings=_by_kind(line for line in counts if line["tag"] == tag)))
    differing = lines.where(F.size("findings") > 0).orderBy("tag", "timebucket").limit(NAMED_BUCKETS).collect()
    total = _by_kind(counts)
    done_at = now.replace(microsecond=0)
    return AuditReport(
        pipeline=row.pipeline, audit=row.audit, started_at=row.started_at, done_at=done_at, until=row.until,
        agrees=not total, tags=tags, buckets=[BucketLine(**line.asDict()) for line in differing], findings=total,
        named=list(_named(judged.findings, pipeline.quality.named_rows)), warnings=list(_warnings(judged, pipeline)), folder=folder,
    )  # fmt: skip


def _by_kind(counts: Any) -> dict[Kind, int]:
    found: dict[Kind, int] = {}
    for line in counts:
        kind = Kind(line["kind"])
        found[kind] = found.get(kind, 0) + line["count"]
    return {kind: found[kind] for kind in Kind if kind in found}


def _lines(judged: Judged) -> DataFrame:
    """Return one row per tag and bucket: tag, timebucket, FIGURES, findings (map of kind to count)."""
    found = (
        judged.findings.where("tag IS NOT NULL AND timebucket IS NOT NULL")
        .groupBy("tag", "timebucket", "kind")
        .count()
        .groupBy("tag", "timebucket")
        .agg(F.map_from_entries(F.collect_list(F.struct("kind", "count"))).alias("findings"))
    )
    lines = judged.lines.withColumnRenamed("bucket", "timebucket").join(found, ["tag", "timebucket"], "full")
    none = F.create_map().cast("map<string,bigint>")
    return lines.select(
        "tag",
        "timebucket",
        *(F.coalesce(name, F.lit(0)).alias(name) for name in FIGURES),
        F.coalesce("findings", none).alias("findings"),
    )


def _named(findings: DataFrame, most: int) -> Iterator[Finding]:
    """Yield the first findings of each kind, at most `most` of each."""
    order = Window.partitionBy("kind").orderBy("tag", "persistence_id", "sequence_nr")
    named = findings.withColumn("place", F.row_number().over(order)).where(F.col("place") <= most).drop("place").collect()
    kinds = list(Kind)
    for line in sorted(named, key=lambda line: kinds.index(Kind(line["kind"]))):
        yield Finding(**line.asDict())


# -- warnings


def _warnings(judged: Judged, pipeline: PipelineSettings) -> Iterator[str]:
    partitions = judged.view.groupBy("tag", "timebucket").agg(F.count("*").alias("rows"), F.sum("size").alias("bytes"))
    yield from large_partitions(partitions, pipeline.view, pipeline.quality)
    many = judged.events.where(F.col("tag_count") > MOST_TAGS)
    line = many.agg(F.count("*").alias("events"), F.max("tag_count").alias("most"), F.first("persistence_id").alias("id")).first()
    if line and line["events"]:
        yield (
            f"{line['events']} events have more than {MOST_TAGS} tags (at most {line['most']}, for example of {line['id']!r}): each tag is "
            "a row of tag_views and of ClickHouse"
        )
    if judged.untagged:
        yield (
            f"tag_views has {judged.untagged} rows of events that have no tags in the journal (migrated from columns that were dropped "
            "since, or taken from them): it has no word on them, and rebuilds and repairs keep them"
        )
    gone = judged.deleted.where(F.col("deleted_to") == GONE)
    line = gone.agg(F.count("*").alias("ids"), F.min("persistence_id").alias("id")).first()
    if line and line["ids"]:
        yield (
            f"the journal knows nothing of {line['ids']} persistence ids that the view has (for example {line['id']!r}): deleted for good "
            "(neverUsePersistenceIdAgain), or lost"
        )
    first = judged.events.where("ticks >= 0").agg(F.min("ticks")).first()
    if first and first[0] is not None:
        yield from early(first[0], pipeline.first_time_bucket, pipeline.bucket_size)


def early(first_ticks: int, first_time_bucket: datetime, size: BucketSize) -> Iterator[str]:
    """Yield a sentence if readers look into many buckets before the first event."""
    begin = size.start(int(first_time_bucket.timestamp()) * 10_000_000)
    empty = (size.start(first_ticks) - begin) // size.milliseconds
    if empty > EMPTY_BUCKETS:
        yield (
            f"first_time_bucket {first_time_bucket:%Y%m%dT%H:%M} is {empty} {size.value} buckets before the first event "
            f"({to_datetime(first_ticks):%Y%m%dT%H:%M}): readers look into each of them"
        )


def large_partitions(partitions: DataFrame, view: View, quality: QualitySettings) -> Iterator[str]:
    """Yield a sentence for each tag with partitions over the limits. In, one row per partition: tag, timebucket, rows, bytes."""
    large = partitions.where((F.col("rows") > quality.max_partition_rows) | (F.col("bytes") > quality.max_partition_bytes))
    largest = large.groupBy("tag").agg(
        F.count("*").alias("count"),
        F.max("rows").alias("rows"),
        F.max("bytes").alias("bytes"),
        F.max_by("timebucket", "bytes").alias("of"),
    )
    for line in largest.orderBy("tag").collect():
        yield (
            f"tag {line['tag']}: {line['count']} partitions of {view.table} have more than {quality.max_partition_rows} rows or "
            f"{quality.max_partition_bytes >> 20} MiB, the largest {line['rows']} rows and {line['bytes'] >> 20} MiB "
            f"(timebucket {line['of']}). {_fitting(line['rows'], line['bytes'], view.size, quality)}"
        )


def _fitting(rows: int, size_bytes: int, size: BucketSize, quality: QualitySettings) -> str:
    """Return a sentence that says which bucket size would fit."""
    sizes = list(BucketSize)
    for smaller in sizes[sizes.index(size) + 1 :]:
        share = smaller.milliseconds / size.milliseconds
        fits = rows * share <= quality.max_partition_rows and size_bytes * share <= quality.max_partition_bytes
        a_day = rows * BucketSize.DAY.milliseconds / size.milliseconds
        if fits and a_day <= EVENTS_A_DAY.get(smaller, a_day):
            return f"bucket_size {smaller.value} would fit: tagmill views rebucket --to {smaller.value}"
    if size is BucketSize.MINUTE:
        return "Minute is the smallest size: use more tags"
    return "bucket_size Minute is the smallest, and would fit best: tagmill views rebucket --to Minute"


# -- the ledger


def write_buckets(judged: Judged, row: AuditRow, scope: Scope, ledger_keyspace: str, view: View, written: int) -> None:
    """Write to the ledger whether each partition of the view agrees. A later audit's result wins, however late this one is written."""
    proven = ~F.col("broken") & scope.judged() & scope.is_due()
    partitions = judged.view.groupBy("tag", "timebucket").agg(F.count("*").alias("rows"), F.bool_and(proven).alias("proven"))
    in_tags = judged.findings.where("tag IS NOT NULL")
    disagreeing = (
        in_tags.select("tag", "timebucket")
        .union(in_tags.select("tag", F.col("view_timebucket").alias("timebucket")))
        .distinct()
        .withColumn("found", F.lit(True))
    )
    words = partitions.join(disagreeing, ["tag", "timebucket"], "left").select(
        F.lit(view.key(row.pipeline)).alias("pipeline"), "tag", "timebucket", F.lit(row.audit).cast("bigint").alias("audit"),
        F.lit(judged.audited_at).alias("audited_at"), "rows", _agrees().alias("agrees"),
    )  # fmt: skip
    options = {"keyspace": ledger_keyspace, "table": "audited_buckets", "spark.cassandra.output.timestamp": str(written)}
    words.write.format(CASSANDRA).options(**options).mode("append").save()


def _agrees() -> Column:
    return F.col("proven") & F.col("found").isNull()
