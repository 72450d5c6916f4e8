"""Read each of Cassandra's tables in one pass, and stage narrow key rows and hashes as Parquet below the
audit's folder.

The hash of a row is that of a batch's row (tagmill.domain.batches.layout), over the columns that the journal
knows. Its sums are the same wherever the same rows are, in journal, view or ClickHouse; another value of any
column changes them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tagmill.delivery.tag_views.scan import as_batch_rows, checksum
from tagmill.domain.batches import layout
from tagmill.domain.time_buckets import BucketSize, View
from tagmill.domain.timeuuid import FUTURE_TICKS, TICKS_PER_MILLISECOND
from tagmill.journal.flaws import Reason
from tagmill.journal.frames import CleanedOf, JournalSchema, all_events, bucket, cleaned, event_tags
from tagmill.journal.tag_view_reader import VIEW_COLUMNS
from tagmill.spark.columns import signed, xxhash64
from tagmill.spark.connector import table
from tagmill.spark.materialize import materialize

ID = "persistence_id"
# Value of deleted_to for a persistence_id that the journal knows nothing of.
GONE = 2**62
KEYS = ("tag_name", "timebucket", "timestamp", ID, "tag_pid_sequence_nr", "sequence_nr")
TYPES = {"text": "string", "timeuuid": "string", "blob": "binary"}


@dataclass(frozen=True, slots=True)
class Scope:
    """The rows that an audit judges: those of these tags with start <= time <= until (ticks).

    `due` (per tag): rows up to it have to be in ClickHouse. Between it and `reached`, the watermark, rows may
    have come late: those that are in ClickHouse are compared, the others are pending.
    """

    pipeline: str
    tags: tuple[str, ...]
    size: BucketSize
    start: Mapping[str, int]
    due: Mapping[str, int]
    until: int
    reached: Mapping[str, int]
    # Ticks before which rows are past the destination's retention, so that ClickHouse may have them or not.
    expired: int = 0

    def judged(self) -> Column:
        """Return, over `tag` and `ticks`, whether a row is judged: not before the tag's start and not after
        `until`.
        """
        return (F.col("ticks") >= _by_tag(self.start)) & (F.col("ticks") <= self.until)

    def is_expired_bucket(self) -> Column:
        """Return, over `bucket`, whether it has rows past the destination's retention."""
        return F.col("bucket") * TICKS_PER_MILLISECOND < self.expired

    def is_reached(self) -> Column:
        """Return, over `tag` and `ticks`, whether a row may be in ClickHouse."""
        return F.col("ticks") <= _by_tag(self.reached)

    def is_due(self) -> Column:
        """Return, over `tag` and `ticks`, whether a row has to be in ClickHouse."""
        return F.col("ticks") <= _by_tag(self.due)


def _by_tag(values: Mapping[str, int]) -> Column:
    return F.create_map(
        *[part for tag, value in values.items() for part in (F.lit(tag), F.lit(value).cast("bigint"))]
    )[F.col("tag")]


def stage_journal(spark: SparkSession, journal: JournalSchema, scope: Scope, url: str) -> DataFrame:
    """Write one row per event of `messages`, of all persistence ids, and read them back.

    Out: persistence_id, partition_nr, sequence_nr, offset, ticks, bucket, writer_uuid, tags (those of the
    pipeline), tag_count (all), event_hash, flaw (a Reason, or null). Events without tags of the pipeline have
    no hash.
    """
    messages, all_tags = all_events(spark, journal), event_tags(journal.columns)
    old_only = (F.size(all_tags) > 0) & (F.size(event_tags(["tags"])) == 0)
    wanted = F.array_intersect(all_tags, F.array(*map(F.lit, scope.tags)))
    unread = _unread(journal)
    as_view = messages.select(
        F.lit(0).alias("unit"),
        F.lit("").alias("tag_name"),
        F.lit(0).cast("bigint").alias("timebucket"),
        "timestamp",
        ID,
        F.lit(0).cast("bigint").alias("tag_pid_sequence_nr"),
        "sequence_nr",
        *_payload(journal.columns),
        F.struct(
            "partition_nr",
            wanted.alias("tags"),
            F.size(all_tags).alias("tag_count"),
            F.when(old_only, Reason.OLD_TAGS.value).when(unread, Reason.BEFORE_0_10.value).alias("flaw"),
        ).alias("also"),
    )
    rows = as_batch_rows(as_view, scope.until + FUTURE_TICKS, "also")
    flaw = (
        F.when(F.col("offset_broken"), Reason.NO_TIME_UUID.value)
        .when(F.col("also.flaw").isNotNull(), F.col("also.flaw"))
        .when(F.col("event_missing"), Reason.NO_EVENT.value)
    )
    tagged = F.size("also.tags") > 0
    staged = rows.withColumn("ticks", F.col("event_time")).select(
        ID,
        "also.partition_nr",
        "sequence_nr",
        "offset",
        "ticks",
        bucket(scope.size),
        "writer_uuid",
        "also.tags",
        "also.tag_count",
        F.when(tagged, checksum(layout.EVENT)).alias("event_hash"),
        flaw.alias("flaw"),
    )
    return materialize(staged, url)


def _unread(journal: JournalSchema) -> Column:
    """Return whether the event lies in the column that plugins before 0.10 used."""
    return (
        F.col("event").isNull() & F.col("message").isNotNull()
        if "message" in journal.columns
        else F.lit(False)
    )


def _payload(table_columns: Sequence[str]) -> list[Column]:
    """Return the columns of a view's row that are not keys; null for those that the table does not have."""
    return [
        (F.col(name) if name in table_columns else F.lit(None)).cast(TYPES.get(kind, kind)).alias(name)
        for name, kind in VIEW_COLUMNS.items()
        if name not in KEYS
    ]


def stage_view(spark: SparkSession, journal: JournalSchema, scope: Scope, url: str) -> DataFrame:
    """Write one row per row of the view with a tag of the pipeline, and read them back.

    Out: tag, persistence_id, sequence_nr, number, offset, ticks, bucket (of its time), timebucket (where it
    lies), writer_uuid, size (bytes), event_hash (as the journal's), row_hash (with the number), broken (its
    time can't be read).
    """
    there = sorted(journal.tables[journal.view_table] & set(VIEW_COLUMNS))
    view = (
        table(spark, journal.keyspace, journal.view_table)
        .select(*there)
        .where(F.col("tag_name").isin(list(scope.tags)))
    )
    as_view = view.select(F.lit(0).alias("unit"), *KEYS, *_payload(there))
    rows = as_batch_rows(as_view, scope.until + FUTURE_TICKS).withColumn("event_hash", checksum(layout.EVENT))
    staged = rows.withColumn("ticks", F.col("event_time")).select(
        "tag",
        ID,
        "sequence_nr",
        F.col("tag_pid_sequence_nr").alias("number"),
        "offset",
        "ticks",
        bucket(scope.size),
        "timebucket",
        "writer_uuid",
        "size",
        "event_hash",
        with_number(F.col("event_hash"), F.col("tag_pid_sequence_nr")).alias("row_hash"),
        F.col("offset_broken").alias("broken"),
    )
    return materialize(staged, url)


def with_number(event_hash: Column, number: Column) -> Column:
    """Return the hash of a row with its number, as stored.ROW_HASH computes it in ClickHouse."""
    return xxhash64(event_hash * F.lit(signed(layout.FACTOR)) + number)


def stage_deleted(
    spark: SparkSession,
    journal: JournalSchema,
    events: DataFrame,
    view: DataFrame,
    for_good: DataFrame,
    scope: Scope,
    url: str,
) -> DataFrame:
    """Write up to where the events of each persistence_id are deleted, and read it back.

    Out: persistence_id, deleted_to.

    metadata.deleted_to is written before the events go: read it after the journal. The plugin's deletion for
    good (deleteAllEvents with neverUsePersistenceIdAgain) takes the metadata too. A persistence_id that the
    view has and the journal knows nothing of is therefore deleted completely (GONE). Tagmill notes its own
    deletions for good (`for_good`) first, so they are known whatever is left.
    """
    in_view = view.where((F.col("ticks") <= scope.until) & ~F.col("broken")).select(ID).distinct()
    gone = in_view.join(events.select(ID).distinct(), ID, "left_anti").withColumn("deleted_to", F.lit(GONE))
    deleted = gone.unionByName(for_good)
    if journal.names.metadata in journal.tables:
        noted = (
            table(spark, journal.keyspace, journal.names.metadata)
            .select(ID, "deleted_to")
            .where("deleted_to > 0")
        )
        deleted = deleted.unionByName(noted)
    return materialize(deleted.groupBy(ID).agg(F.min("deleted_to").alias("deleted_to")), url)


def stage_progress(spark: SparkSession, ledger_keyspace: str, scope: Scope, url: str) -> DataFrame:
    """Write the ledger's progress and read it back.

    Out: tag, persistence_id, number, sequence_nr, missing (the number of lower numbers that were never
    delivered).
    """
    intervals = F.filter(F.split(F.coalesce("missing", F.lit("")), ","), lambda part: part != "")
    length = F.aggregate(
        intervals,
        F.lit(0).cast("bigint"),
        lambda total, part: (
            total
            + F.substring_index(part, "-", -1).cast("bigint")
            - F.substring_index(part, "-", 1).cast("bigint")
            + 1
        ),
    )
    rows = table(spark, ledger_keyspace, "progress").where(
        (F.col("pipeline") == scope.pipeline) & F.col("tag").isin(list(scope.tags))
    )
    return materialize(
        rows.select(
            "tag", ID, F.col("tag_pid_sequence_nr").alias("number"), "sequence_nr", length.alias("missing")
        ),
        url,
    )


def stage_cleaned(
    spark: SparkSession, ledger_keyspace: str, journal: str, views: Sequence[View], scope: Scope, url: str
) -> CleanedOf:
    """Write the buckets that cleanups have taken or are working on, of all `views` that the journal had; read
    them back.

    See tables.cleaned.
    """
    of_sizes = cleaned(spark, ledger_keyspace, journal, views).items()
    return {
        size: materialize(starts.where(F.col("tag").isin(list(scope.tags))), f"{url}/{size.value}")
        for size, starts in of_sizes
    }


def exploded(journal: DataFrame, deleted: DataFrame) -> DataFrame:
    """Return one row per event and tag of the pipeline, with `tag` and `dead` (deleted, or about to be)."""
    return with_dead(
        journal.where(F.size("tags") > 0).withColumn("tag", F.explode("tags")).drop("tags"), deleted
    )


def with_dead(rows: DataFrame, deleted: DataFrame) -> DataFrame:
    """Add `dead`: whether the sequence_nr is at or below deleted_to."""
    joined = rows.join(deleted, ID, "left")
    return joined.withColumn(
        "dead", F.coalesce(F.col("sequence_nr") <= F.col("deleted_to"), F.lit(False))
    ).drop("deleted_to")
