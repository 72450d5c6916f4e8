"""Read what a journal's tables and Tagmill's own records say of persistence ids, for the schema of any
version of the plugin.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tagmill.cassandra.client import Cassandra
from tagmill.domain.journal_tables import OLD_TAGS, JournalTables, tag_columns
from tagmill.domain.time_buckets import BucketSize
from tagmill.domain.timeuuid import TICKS_PER_MILLISECOND
from tagmill.errors import ConfigurationError
from tagmill.journal.flaws import Reason
from tagmill.ledger.cleanups import CleanupLog
from tagmill.spark.cassandra_table import CassandraTable

ID = "persistence_id"
PROGRESS = "array<struct<tag:string,number:bigint,sequence_nr:bigint,offset:string>>"
REQUIRED = (
    "persistence_id partition_nr sequence_nr timestamp tags event event_manifest ser_id "
    "ser_manifest writer_uuid".split()
)
# The value of view_progress.scanned if tag_scanning had no row: a null would leave the value of an earlier build.
NOT_SCANNED = -1
META = ["meta_ser_id", "meta_ser_manifest", "meta"]
CleanedOf = Mapping[BucketSize, DataFrame]


@dataclass(frozen=True, slots=True)
class JournalSchema:
    """The tables of one journal keyspace and their columns, read from the schema by `cassandra`: they differ between
    versions of the plugin.
    """

    names: JournalTables
    tables: dict[str, set[str]]
    cassandra: Cassandra = field(repr=False, compare=False)

    @classmethod
    def load_checked(cls, cassandra: Cassandra, names: JournalTables) -> "JournalSchema":
        """Read the schema and check it; raises ConfigurationError when what a build needs is missing."""
        journal = cls.load(cassandra, names)
        journal._check()
        return journal

    @classmethod
    def load(cls, cassandra: Cassandra, names: JournalTables) -> "JournalSchema":
        """Read the schema without checking it; raises ConfigurationError when the keyspace does not exist."""
        tables = cassandra.tables(names.keyspace)
        if tables is None:
            raise ConfigurationError(
                f"keyspace {names.keyspace} does not exist in {cassandra.where}. Nothing was done; check "
                "the pipeline's keyspace"
            )
        return cls(names, {name: set(table.columns) for name, table in tables.items()}, cassandra)

    def table(self, name: str) -> CassandraTable:
        """Return a table of the keyspace, to read or to write."""
        return CassandraTable(self.cassandra, self.keyspace, name)

    @property
    def keyspace(self) -> str:
        """The journal's keyspace."""
        return self.names.keyspace

    @property
    def view_table(self) -> str:
        """The table of tag views."""
        return self.names.view

    @property
    def messages(self) -> set[str]:
        """The columns of messages; empty when the table does not exist."""
        return self.tables.get(self.names.messages, set())

    def _check(self) -> None:
        messages = self.names.messages
        for name in (messages, self.view_table, "tag_write_progress"):
            if name not in self.tables:
                way = (
                    "is it the journal's keyspace?"
                    if name == messages
                    else "create it: tagmill views migrate --pipeline … --step tables"
                )
                raise ConfigurationError(
                    f"keyspace {self.keyspace} has no table {name}. Nothing was built; {way}"
                )
        if missing := [column for column in REQUIRED if column not in self.messages]:
            raise ConfigurationError(
                f"{self.keyspace}.{messages} has no column {' and '.join(missing)}. Nothing was built; "
                "migrate the journal first: "
                "tagmill views migrate --pipeline …"
            )
        if 0 < len(old := [name for name in OLD_TAGS if name in self.messages]) < len(OLD_TAGS):
            raise ConfigurationError(
                f"{self.keyspace}.{messages} has {' and '.join(old)}, but not all of tag1 to tag3: "
                "events would seem to have only some of "
                "their tags. Nothing was built; if the view has them all, drop the others, too (ALTER "
                "TABLE … DROP)"
            )
        if self.meta and (
            missing := [column for column in META if column not in self.tables[self.view_table]]
        ):
            raise ConfigurationError(
                f"{self.keyspace}.{self.view_table} has no column {' and '.join(missing)}, {messages} "
                "has. Nothing was built; add what "
                "is missing (ALTER TABLE … ADD), or the metadata of replicated events would be lost"
            )

    @property
    def meta(self) -> bool:
        """Whether events can have metadata of replicated event sourcing."""
        return set(META) <= self.messages

    @property
    def columns(self) -> list[str]:
        """The columns of messages that a build reads."""
        optional = [name for name in ("message", *OLD_TAGS) if name in self.messages]
        return [*REQUIRED, *(META if self.meta else []), *optional]


def all_events(
    spark: SparkSession, journal: JournalSchema, columns: Collection[str] | None = None
) -> DataFrame:
    """Return all events of messages with the given columns, by default those that a build reads.

    As for the plugin, sequence_nrs begin with 1. A partition whose events are all deleted keeps its static
    column (plugins before 1.0): Cassandra returns it as a row without clustering key.
    """
    wanted = list(columns or journal.columns)
    rows = journal.table(journal.names.messages).rows(spark, *dict.fromkeys(("sequence_nr", *wanted)))
    return rows.where("sequence_nr > 0").select(*wanted)


def event_tags(columns: Collection[str]) -> Column:
    """Return an event's tags as the plugin sees them: those in `tags`, and those that plugins before 0.80
    wrote to tag1, tag2 and tag3.

    In: the columns that messages has. Out: array of distinct strings, maybe empty.

    Source: extractTags in the plugin's Extractors, which recovery and Reconciliation read by. Its
    EventsByTagMigration reads tag1 to tag3 alone, and leaves what is in `tags` to recovery.
    """
    none = F.array().cast("array<string>")
    there = tag_columns(columns)
    tags = F.coalesce("tags", none) if "tags" in there else none
    old = [F.col(name) for name in there if name != "tags"]
    return F.array_sort(F.array_union(tags, F.array_compact(F.array(*old)))) if old else tags


def persistence_ids(spark: SparkSession, journal: JournalSchema) -> DataFrame:
    """Return all persistence ids, one row each: from all_persistence_ids, or if that is missing or empty,
    from the keys of messages.
    """
    if (listed := journal.names.all_persistence_ids) in journal.tables:
        first = f"SELECT {ID} FROM {journal.names.cql(listed)} LIMIT 1"
        if journal.cassandra.application.execute(first):
            return journal.table(listed).rows(spark, ID)
    return with_events(spark, journal)


def with_events(spark: SparkSession, journal: JournalSchema) -> DataFrame:
    """Return all persistence ids that have an event in messages, one row each, whatever all_persistence_ids
    says.
    """
    return journal.table(journal.names.messages).rows(spark, ID, per_partition=1).distinct()


def build_positions(spark: SparkSession, journal: JournalSchema, ids: DataFrame, *, adopt: bool) -> DataFrame:
    """Return up to which event each persistence_id is built, and whether another writer has numbered it
    since.

    Out, one row a persistence_id: `sequence_nr` and `partition_nr` of the last event built (0 and 0: none),
    `known` (Tagmill has a record), `from_nr` (the larger of sequence_nr and deleted_to), `deleted_to`,
    `scanned` (tag_scanning), `progress` (PROGRESS sorted by tag: the last number of each tag), `found` (the
    same from tag_write_progress), `written` (as `plugin_progress` returns it), `reason` (why none of its events may be
    numbered: ELSEWHERE, the plugin's tables differ from the record, or DELETED, of its view; else null). With `adopt`,
    a persistence_id that differs starts from `found`, and `adopted` is true.
    """
    joined = (
        with_records(spark, journal, ids, by_key=False)
        .join(_found(spark, journal), ID, "left")
        .join(_scanned(spark, journal), ID, "left")
        .join(_deleted(spark, journal), ID, "left")
        .withColumn("found", F.coalesce("found", no_progress()))
        .withColumn("written", _newest_write())
        .withColumn("known", F.col("sequence_nr").isNotNull())
        .withColumn(
            "differs",
            ~(
                F.col("found").eqNullSafe(F.col("recorded"))
                & F.col("scanned").eqNullSafe(F.col("scanned_now"))
            ),
        )
    )
    taken = F.col("differs") & F.lit(adopt)
    # Where all events that were numbered are deleted, no rebuild can bring the numbers back.
    is_deleted = (F.size("forgotten") > 0) & (F.coalesce("deleted_to", F.lit(0)) < F.col("sequence_nr"))
    reason = F.when(F.col("differs"), F.lit(None if adopt else Reason.ELSEWHERE.value)).when(
        is_deleted, Reason.DELETED.value
    )
    kept = joined.select(
        ID,
        F.when(F.col("known") & ~taken, F.col("sequence_nr"))
        .otherwise(0)
        .cast("bigint")
        .alias("sequence_nr"),
        F.when(F.col("known") & ~taken, F.col("partition_nr"))
        .otherwise(0)
        .cast("bigint")
        .alias("partition_nr"),
        (F.col("known") & ~taken).alias("known"),
        F.coalesce("deleted_to", F.lit(0).cast("bigint")).alias("deleted_to"),
        F.col("scanned_now").alias("scanned"),
        F.when(taken, F.col("found")).otherwise(F.col("recorded")).alias("progress"),
        "found",
        "written",
        taken.alias("adopted"),
        reason.alias("reason"),
    )
    return kept.withColumn("from_nr", F.greatest("sequence_nr", "deleted_to"))


def plugin_progress(spark: SparkSession, journal: JournalSchema, ids: DataFrame) -> DataFrame:
    """Return what the plugin's tables say of persistence ids, whether the application or Tagmill wrote them.

    Out, one row a persistence_id: deleted_to, `scanned` (tag_scanning), `found` (tag_write_progress: PROGRESS
    sorted by tag), `written`: the newest write to the latter two (microseconds; 0: none).
    """
    return (
        ids.join(_found(spark, journal), ID, "left")
        .join(_scanned(spark, journal), ID, "left")
        .join(_deleted(spark, journal), ID, "left")
        .select(
            ID,
            F.coalesce("deleted_to", F.lit(0).cast("bigint")).alias("deleted_to"),
            F.col("scanned_now").alias("scanned"),
            F.coalesce("found", no_progress()).alias("found"),
            _newest_write().alias("written"),
        )
    )


def with_records(spark: SparkSession, journal: JournalSchema, ids: DataFrame, *, by_key: bool) -> DataFrame:
    """Return Tagmill's own record of each persistence_id.

    Out: sequence_nr and partition_nr of the last event built, `scanned` (tag_scanning at that time),
    `recorded` (PROGRESS sorted by tag), `forgotten` (tags whose view was deleted, and not rebuilt since: they have a
    sequence_nr, and no number). Without a record the first three are null, and the others are empty.

    `by_key`: the records of these persistence ids are looked up; otherwise, all records are read.
    """
    table = CassandraTable.of_ledger(journal.cassandra, "view_progress")
    columns = ("sequence_nr", "partition_nr", "scanned", "numbers", "sequence_nrs", "offsets")
    if by_key:
        keys = ids.select(F.lit(journal.keyspace).alias("journal"), ID)
        rows = table.rows_of(keys, ["journal", ID], *columns, left=True)
    else:
        there = table.rows(spark, "journal", ID, *columns).where(F.col("journal") == journal.keyspace)
        rows = ids.select(ID).join(there, ID, "left")
    recorded = F.expr(
        "transform(array_sort(map_keys(numbers)), t -> named_struct('tag', t, 'number', numbers[t],"
        " 'sequence_nr', sequence_nrs[t], 'offset', offsets[t]))"
    )
    return rows.select(
        ID,
        "sequence_nr",
        "partition_nr",
        F.when(F.col("scanned") != NOT_SCANNED, F.col("scanned")).alias("scanned"),
        F.coalesce(recorded.cast(PROGRESS), no_progress()).alias("recorded"),
        F.coalesce(F.array_except(F.map_keys("sequence_nrs"), F.map_keys("numbers")), no_tags()).alias(
            "forgotten"
        ),
    )


def recorded_ids(spark: SparkSession, journal: JournalSchema) -> DataFrame:
    """Return the persistence ids of the journal that Tagmill has a record of, one row each."""
    table = CassandraTable.of_ledger(journal.cassandra, "view_progress")
    return table.rows(spark, "journal", ID).where(F.col("journal") == journal.keyspace).select(ID)


def no_progress() -> Column:
    """Return a column with an empty PROGRESS array."""
    return F.from_json(F.lit("[]"), PROGRESS)


def no_tags() -> Column:
    """Return a column with an empty array of tags."""
    return F.array().cast("array<string>")


def cleaned(spark: SparkSession, log: CleanupLog) -> CleanedOf:
    """Return by bucket size the partitions that cleanups deleted, or are deleting, in all views that a
    journal had.

    Out, per size: tag, start (a timebucket).
    """
    there = CassandraTable.of_ledger(log.cassandra, "cleaned_buckets").rows(
        spark, "journal", "tag", start="timebucket"
    )
    keys: dict[BucketSize, list[str]] = {log.view.size: [log.journal]}
    for key, size in log.earlier.items():
        keys.setdefault(size, []).append(key)
    return {
        size: there.where(F.col("journal").isin(named)).select("tag", "start").distinct()
        for size, named in keys.items()
    }


def cleaned_buckets(cleaned_of: CleanedOf, size: BucketSize) -> DataFrame:
    """Convert cleaned partitions of all sizes to buckets of one size.

    Out: tag, bucket, `partly` (only smaller partitions within the bucket were cleaned, not all of it;
    with_cleaned finds their rows).
    """
    step, frames = size.milliseconds, []
    for of, starts in cleaned_of.items():
        first = F.col("start") - F.pmod(F.col("start"), F.lit(step))
        last = F.col("start") + F.lit(of.milliseconds - 1)
        covered = starts.select("tag", F.explode(F.sequence(first, last, F.lit(step))).alias("bucket"))
        share = F.lit(min(of.milliseconds, step))
        frames.append(covered.groupBy("tag", "bucket").agg((F.count("*") * share < step).alias("partly")))
    return (
        reduce(DataFrame.unionAll, frames).groupBy("tag", "bucket").agg(F.bool_and("partly").alias("partly"))
    )


def with_cleaned(rows: DataFrame, cleaned_of: CleanedOf, tag: str = "tag") -> DataFrame:
    """Add `is_cleaned`: whether a cleanup took a partition, of any size, that the row's time is in.

    In: `ticks`, and the column `tag`.
    """
    is_cleaned = F.lit(False)
    for size, starts in cleaned_of.items():
        flag = f"cleaned_{size.value}"
        known = starts.select(F.col("tag").alias(tag), "start", F.lit(True).alias(flag))
        rows = (
            rows.withColumn("start", bucket(size))
            .join(F.broadcast(known), [tag, "start"], "left")
            .drop("start")
        )
        is_cleaned = is_cleaned | F.coalesce(F.col(flag), F.lit(False))
    return rows.withColumn("is_cleaned", is_cleaned).drop(*(f"cleaned_{size.value}" for size in cleaned_of))


def bucket(size: BucketSize) -> Column:
    """Return the bucket of `ticks` (bigint, milliseconds since 1970), computed in integers because a double
    can't hold ticks exactly.
    """
    return F.expr(f"(ticks - pmod(ticks, {size.ticks})) div {TICKS_PER_MILLISECOND}").alias("bucket")


def numbered(spark: SparkSession, journal: JournalSchema) -> DataFrame:
    """Return the keys of tag_write_progress: persistence_id, tag."""
    return journal.table("tag_write_progress").rows(spark, ID, "tag")


def _found(spark: SparkSession, journal: JournalSchema) -> DataFrame:
    """Return tag_write_progress as one row a persistence_id.

    Out: `found` (PROGRESS sorted by tag), `found_written` (time of the newest write, microseconds).
    """
    rows = journal.table("tag_write_progress").rows(
        spark,
        ID,
        "tag",
        "sequence_nr",
        "offset",
        number="tag_pid_sequence_nr",
        written="writetime(tag_pid_sequence_nr)",
    )
    progress = F.array_sort(F.collect_list(F.struct("tag", "number", "sequence_nr", "offset"))).cast(PROGRESS)
    return rows.groupBy(ID).agg(progress.alias("found"), F.max("written").alias("found_written"))


def _newest_write() -> Column:
    none = F.lit(0).cast("bigint")
    return F.greatest(F.coalesce("found_written", none), F.coalesce("scanned_written", none))


def _scanned(spark: SparkSession, journal: JournalSchema) -> DataFrame:
    if "tag_scanning" not in journal.tables:
        none = spark.range(0)
        return none.select(
            F.col("id").cast("string").alias(ID),
            F.col("id").alias("scanned_now"),
            F.col("id").alias("scanned_written"),
        )
    return journal.table("tag_scanning").rows(
        spark, ID, scanned_now="sequence_nr", scanned_written="writetime(sequence_nr)"
    )


def _deleted(spark: SparkSession, journal: JournalSchema) -> DataFrame:
    if journal.names.metadata not in journal.tables:
        return spark.range(0).select(F.col("id").cast("string").alias(ID), F.col("id").alias("deleted_to"))
    return journal.table(journal.names.metadata).rows(spark, ID, "deleted_to")


def deleted_for_good(cassandra: Cassandra, spark: SparkSession, journal: str) -> DataFrame:
    """Return the persistence ids that `journal clean` has deleted for good, as only the ledger knows.

    Out: persistence_id, deleted_to.
    """
    table = CassandraTable.of_ledger(cassandra, "deleted_ids")
    rows = table.rows(spark, "journal", ID, "deleted_to").where(F.col("journal") == journal)
    return rows.select(ID, "deleted_to")
