"""Turn the staged lines and findings into the report, and into the ledger's record of each partition of the
view.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tagmill.audit.baseline_frames import FIGURES, Proven
from tagmill.audit.model import AuditReport, BucketLine, Finding, Kind, TagLine
from tagmill.audit.staging import GONE, Scope
from tagmill.audit.totals import MOST_TAGS, Totals
from tagmill.cassandra.bulk_writer import Target, write_rows
from tagmill.cassandra.client import PARTITIONS_TOGETHER, Cassandra
from tagmill.config.tag_views import PipelineSettings
from tagmill.domain.time_buckets import View
from tagmill.journal.view_warnings import early, large_partitions
from tagmill.ledger.audits import AuditRow
from tagmill.runs.storage import RunFiles
from tagmill.spark.cassandra_table import CassandraTable
from tagmill.spark.materialize import materialize

# Buckets with findings that a report names at most.
NAMED_BUCKETS = 100


class EventFacts(NamedTuple):
    """The events read with more than MOST_TAGS tags (how many, the most tags, an example's persistence_id), and the time
    of the journal's first event (ticks).
    """

    many: int
    most: int | None
    example: str | None
    first: int | None


@dataclass(frozen=True, slots=True)
class Judged:
    """The staged frames of an audit: bucket_sums.bucket_sums as `lines`, model.FINDING_SCHEMA as `findings`.

    `untagged`: the number of rows of the view that are not judged, because their events have no tags. `proven`:
    the baseline from which on journal and view were read; None: all were read.
    """

    totals: Totals
    deleted: DataFrame
    lines: DataFrame
    findings: DataFrame
    untagged: int
    audited_at: datetime
    url: str
    facts: EventFacts
    proven: Proven | None = None

    @property
    def partitions(self) -> DataFrame:
        """The partitions of the view: tag, timebucket, rows, bytes."""
        read = self.totals.partitions.select("tag", "timebucket", "rows", "bytes")
        if self.proven is None:
            return read
        return read.unionByName(self.proven.frames["partitions"].drop("written"))


def event_facts(ids: DataFrame, proven: Proven | None) -> EventFacts:
    """Return what a report says of the events (`ids`: totals.of_ids), and of those that the baseline covers."""
    line = ids.agg(
        F.coalesce(F.sum("many"), F.lit(0)).alias("many"),
        F.max("most").alias("most"),
        F.min(F.when(F.col("many") > 0, F.col("persistence_id"))).alias("example"),
        F.min("earliest").alias("first"),
    ).first()
    assert line is not None
    known = (line["first"], proven.document.first if proven else None)
    first = min((ticks for ticks in known if ticks is not None), default=None)
    return EventFacts(line["many"], line["most"], line["example"], first)


def made(
    judged: Judged,
    row: AuditRow,
    scope: Scope,
    pipeline: PipelineSettings,
    files: RunFiles,
    folder: str,
    now: datetime,
) -> AuditReport:
    """Return the report, and write all its lines next to it, to `buckets`. `folder` has the staged frames."""
    has_findings = files.has_rows(f"{folder}/findings")
    some_gone = (files.largest(f"{folder}/deleted", "deleted_to") or 0) >= GONE
    counts = judged.findings.groupBy("tag", "kind").count().collect() if has_findings else []
    lines = materialize(_lines(judged), f"{judged.url}/buckets")
    of_tags = {
        line["tag"]: line
        for line in lines.groupBy("tag").agg(*(F.sum(name).alias(name) for name in FIGURES)).collect()
    }
    tags = []
    for tag in scope.tags:
        figures = {name: of_tags[tag][name] if tag in of_tags else 0 for name in FIGURES}
        found = _by_kind(line for line in counts if line["tag"] == tag)
        is_any_due = scope.due[tag] >= scope.start[tag]
        up_to = scope.due[tag] if figures["pending"] and is_any_due else None
        tags.append(TagLine(tag=tag, **figures, findings=found, up_to=up_to))
    differing = lines.where(F.size("findings") > 0).orderBy("tag", "timebucket").limit(NAMED_BUCKETS)
    total = _by_kind(counts)
    done_at = now.replace(microsecond=0)
    return AuditReport(
        pipeline=row.pipeline,
        audit=row.audit,
        started_at=row.started_at,
        done_at=done_at,
        until=row.until,
        agrees=not total,
        tags=tags,
        buckets=[BucketLine(**line.asDict()) for line in (differing.collect() if counts else ())],
        findings=total,
        named=list(_named(judged.findings, pipeline.quality.named_rows)) if has_findings else [],
        warnings=list(_warnings(judged, pipeline, some_gone=some_gone)),
        folder=folder,
        proven_by=judged.proven.document.audit if judged.proven else 0,
        proven_before=judged.proven.document.before if judged.proven else None,
    )


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
    named = (
        findings.withColumn("place", F.row_number().over(order))
        .where(F.col("place") <= most)
        .drop("place")
        .collect()
    )
    kinds = list(Kind)
    for line in sorted(named, key=lambda line: kinds.index(Kind(line["kind"]))):
        yield Finding(**line.asDict())


# -- warnings


def _warnings(judged: Judged, pipeline: PipelineSettings, *, some_gone: bool) -> Iterator[str]:
    yield from large_partitions(judged.partitions, pipeline.view, pipeline.quality)
    facts = judged.facts
    if facts.many:
        yield (
            f"{facts.many} events have more than {MOST_TAGS} tags (at most {facts.most}, for "
            f"example of {facts.example!r}): each tag is "
            "a row of tag_views and of ClickHouse"
        )
    if judged.untagged:
        yield (
            f"tag_views has {judged.untagged} rows of events that have no tags in the journal (migrated "
            "from columns that were dropped "
            "since, or taken from them): it has no word on them, and rebuilds and repairs keep them"
        )
    gone = judged.deleted.where(F.col("deleted_to") == GONE)
    ids = gone.agg(F.count("*").alias("ids"), F.min("persistence_id").alias("id"))
    line = ids.first() if some_gone else None
    if line and line["ids"]:
        yield (
            f"the journal knows nothing of {line['ids']} persistence ids that the view has (for example "
            f"{line['id']!r}): deleted for good "
            "(neverUsePersistenceIdAgain), or lost"
        )
    if facts.first is not None:
        yield from early(facts.first, pipeline.first_time_bucket, pipeline.bucket_size)


# -- the ledger


def write_buckets(
    judged: Judged,
    row: AuditRow,
    cassandra: Cassandra,
    view: View,
    written: int,
    *,
    few: bool,
) -> None:
    """Write to the ledger whether each partition of the view agrees; if they are `few`, by this process.

    A later audit's result wins, however late this one is written.
    """
    ledger_keyspace = cassandra.settings.ledger_keyspace
    in_tags = judged.findings.where("tag IS NOT NULL")
    disagreeing = (
        in_tags.select("tag", "timebucket")
        .union(in_tags.select("tag", F.col("view_timebucket").alias("timebucket")))
        .distinct()
        .withColumn("found", F.lit(True))
    )
    words = judged.totals.partitions.join(disagreeing, ["tag", "timebucket"], "left").select(
        F.lit(view.key(row.pipeline)).alias("pipeline"),
        "tag",
        "timebucket",
        F.lit(row.audit).cast("bigint").alias("audit"),
        F.lit(judged.audited_at).alias("audited_at"),
        "rows",
        _agrees().alias("agrees"),
    )
    if few:
        if rows := [line.asDict() for line in words.drop("audited_at").collect()]:
            target = Target(ledger_keyspace, "audited_buckets", written)
            shared = {"audited_at": judged.audited_at}
            write_rows(
                cassandra, target, [pa.RecordBatch.from_pylist(rows)], shared, mixed=PARTITIONS_TOGETHER
            )
        return
    CassandraTable.of_ledger(cassandra, "audited_buckets").append(words, written)


def _agrees() -> Column:
    return F.col("proven") & F.col("found").isNull()
