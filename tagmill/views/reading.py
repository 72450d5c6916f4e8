"""Reads what is new of each persistence_id, by key from where its build stands; where there is no record yet, the whole table at once.

An atomic write lies in the partition of its highest sequence_nr, so partition_nr is never computed: behind an event of partition n
the next one is in n, n + 1 or, where a write fills the rest of n and all of n + 1, in n + 2. The connector can't look up ranges
that differ from id to id, so new events of a known persistence_id are looked up sequence_nr by sequence_nr, in windows that
grow eightfold while they are full; what has no record, or much that is new, is read partition by partition.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tagmill.buckets import BucketSize, View
from tagmill.connector import table
from tagmill.delivery.scan import FUTURE_TICKS, offset_ticks
from tagmill.errors import ConfigurationError
from tagmill.journaltables import OLD_TAGS, JournalTables, tag_columns
from tagmill.stores.cassandra import Cassandra
from tagmill.views.model import Reason, Tell

ID = "persistence_id"
PROGRESS = "array<struct<tag:string,number:bigint,sequence_nr:bigint,offset:string>>"
REQUIRED = "persistence_id partition_nr sequence_nr timestamp tags event event_manifest ser_id ser_manifest writer_uuid".split()
META = ["meta_ser_id", "meta_ser_manifest", "meta"]
STATIC = "used"
REACH = 3
# two, so that a missing event with another one behind it is seen
FIRST_WINDOW = 2
# a window that would be larger, or is no smaller than this share of what lies before it, is read by partition
LARGEST_WINDOW = 4096
WHOLE_SHARE = 16
# where deletions have emptied the first partitions, the next event is looked for in so many
SEARCHED_PARTITIONS = 1024
# a task holds a page of each partition that it reads side by side: the connector's own 512 times 5000 rows wouldn't fit
BY_PARTITION = {"spark.cassandra.concurrent.reads": "32", "spark.cassandra.input.fetch.sizeInRows": "1000"}
SCAN = {"spark.cassandra.input.fetch.sizeInRows": "1000"}
# counting has the events of a row group in memory: they may not hide behind a dictionary
ROW_GROUPS = {
    "parquet.block.size": str(32 * 1024 * 1024),
    "parquet.page.size.row.check.min": "10",  # the first look at the size comes behind so many rows, which may have 5 MB each
    "parquet.enable.dictionary#event": "false",
}
# longer persistence_ids are read in slices of so many sequence_nrs, some at a time
LONG, SLICES_AT_ONCE = 100_000, 8


@dataclass(frozen=True, slots=True)
class Journal:
    """The columns of the tables of one journal keyspace, as they are: they differ between versions of the plugin."""

    names: JournalTables
    tables: dict[str, set[str]]

    @classmethod
    def look(cls, cassandra: Cassandra, names: JournalTables) -> "Journal":
        """Read the schema; raises ConfigurationError when what a build needs is missing."""
        journal = cls.there(cassandra, names)
        journal._check()
        return journal

    @classmethod
    def there(cls, cassandra: Cassandra, names: JournalTables) -> "Journal":
        """Read the schema, whatever it is; raises ConfigurationError when there is no such keyspace."""
        tables = cassandra.tables(names.keyspace)
        if tables is None:
            raise ConfigurationError(
                f"keyspace {names.keyspace} does not exist in {cassandra.where}. Nothing was done; check the pipeline's keyspace"
            )
        return cls(names, {name: set(table.columns) for name, table in tables.items()})

    @property
    def keyspace(self) -> str:
        """The journal's."""
        return self.names.keyspace

    @property
    def view_table(self) -> str:
        """The table of tag views."""
        return self.names.view

    @property
    def messages(self) -> set[str]:
        """Columns of messages, none when there is no such table."""
        return self.tables.get(self.names.messages, set())

    def _check(self) -> None:
        messages = self.names.messages
        for name in (messages, self.view_table, "tag_write_progress"):
            if name not in self.tables:
                way = "is it the journal's keyspace?" if name == messages else "create it: tagmill schema apply"
                raise ConfigurationError(f"keyspace {self.keyspace} has no table {name}. Nothing was built; {way}")
        if missing := [column for column in REQUIRED if column not in self.messages]:
            raise ConfigurationError(
                f"{self.keyspace}.{messages} has no column {' and '.join(missing)}. Nothing was built; migrate the journal first: "
                "tagmill views migrate"
            )
        if 0 < len(old := [name for name in OLD_TAGS if name in self.messages]) < len(OLD_TAGS):
            raise ConfigurationError(
                f"{self.keyspace}.{messages} has {' and '.join(old)}, but not all of tag1 to tag3: events would seem to have only some of "
                "their tags. Nothing was built; if the view has them all, drop the others, too (ALTER TABLE … DROP)"
            )
        if self.meta and (missing := [column for column in META if column not in self.tables[self.view_table]]):
            raise ConfigurationError(
                f"{self.keyspace}.{self.view_table} has no column {' and '.join(missing)}, {messages} has. Nothing was built; add what "
                "is missing (ALTER TABLE … ADD), or the metadata of replicated events would be lost"
            )

    @property
    def meta(self) -> bool:
        """Whether events can have metadata of replicated event sourcing."""
        return set(META) <= self.messages

    @property
    def columns(self) -> list[str]:
        """Columns of messages that a build reads."""
        optional = [name for name in ("message", *OLD_TAGS) if name in self.messages]
        return [*REQUIRED, *(META if self.meta else []), *optional]


def all_events(spark: SparkSession, journal: Journal, columns: Collection[str] | None = None, **options: str) -> DataFrame:
    """The rows of messages, from end to end, with these columns, else with those that a build reads."""
    rows = table(spark, journal.keyspace, journal.names.messages, **options)
    # a partition whose events are all deleted keeps its static column (plugins before 1.0): Cassandra returns it as a row without key
    kept = rows.where("sequence_nr > 0") if STATIC in journal.messages else rows
    return kept.select(*(columns or journal.columns))


def event_tags(columns: Collection[str]) -> Column:
    """An event's tags as the plugin sees them: those of `tags`, and those that plugins before 0.80 wrote to tag1, tag2 and tag3.

    In: the columns of messages that there are. Out: array of strings, each once, maybe empty.

    Source: extractTags in the plugin's Extractors, which recovery and Reconciliation read by. Its EventsByTagMigration reads tag1 to tag3
    alone, and leaves what is in `tags` to recovery.
    """
    none = F.array().cast("array<string>")
    there = tag_columns(columns)
    tags = F.coalesce("tags", none) if "tags" in there else none
    old = [F.col(name) for name in there if name != "tags"]
    return F.array_sort(F.array_union(tags, F.array_compact(F.array(*old)))) if old else tags


def persistence_ids(spark: SparkSession, journal: Journal) -> DataFrame:
    """All persistence ids, one row each: from all_persistence_ids, or where that is missing or empty, the keys of messages."""
    if (listed := journal.names.all_persistence_ids) in journal.tables:
        named = table(spark, journal.keyspace, listed).select(ID)
        if named.take(1):
            return named
    return with_events(spark, journal)


def with_events(spark: SparkSession, journal: Journal) -> DataFrame:
    """All persistence ids that have an event in messages, one row each, whatever all_persistence_ids says."""
    # the DataFrame source can't say PER PARTITION LIMIT, the connector's Java API can: keys only, not the rows behind them
    jvm = spark._jvm  # noqa: SLF001 - pyspark has no other way to the Java API
    java = jvm.com.datastax.spark.connector.japi.CassandraJavaUtil  # type: ignore[union-attr]
    rows = java.javaFunctions(spark.sparkContext._jsc.sc()).cassandraTable(  # noqa: SLF001
        journal.keyspace,
        journal.names.messages,
        java.mapColumnTo(jvm.java.lang.Class.forName("java.lang.String")),  # type: ignore[union-attr]
    )
    columns = spark.sparkContext._gateway.new_array(jvm.java.lang.String, 1)  # type: ignore[union-attr]  # noqa: SLF001
    columns[0] = ID
    keys = rows.select(columns).perPartitionLimit(1)
    dataset = spark._jsparkSession.createDataset(keys.rdd(), jvm.org.apache.spark.sql.Encoders.STRING())  # type: ignore[union-attr]  # noqa: SLF001
    return DataFrame(dataset.toDF(), spark).toDF(ID).distinct()


def stands(spark: SparkSession, journal: Journal, ledger_keyspace: str, ids: DataFrame, *, adopt: bool) -> DataFrame:
    """Where the build of each persistence_id stands, and whether somebody else has numbered it since.

    Out, one row a persistence_id: `sequence_nr` and `partition_nr` of the last event built (0 and 0: none), `known` (there is a
    record), `from_nr` (deletions counted in), `deleted_to`, `scanned` (tag_scanning), `progress` (PROGRESS, sorted by tag: the
    last number of each tag), `found` (tag_write_progress, the same), `refused`. With `adopt`, what is found there is the start
    where they differ, and `adopted` says so.
    """
    joined = (
        records(spark, journal, ledger_keyspace, ids)
        .join(_found(spark, journal), ID, "left")
        .join(_scanned(spark, journal), ID, "left")
        .join(_deleted(spark, journal), ID, "left")
        .withColumn("found", F.coalesce("found", no_progress()))
        .withColumn("known", F.col("sequence_nr").isNotNull())
        .withColumn(
            "differs", ~(F.col("found").eqNullSafe(F.col("recorded")) & F.col("scanned").eqNullSafe(F.col("scanned_now")))
        )
    )
    taken = F.col("differs") & F.lit(adopt)
    kept = joined.select(
        ID,
        F.when(F.col("known") & ~taken, F.col("sequence_nr")).otherwise(0).cast("bigint").alias("sequence_nr"),
        F.when(F.col("known") & ~taken, F.col("partition_nr")).otherwise(0).cast("bigint").alias("partition_nr"),
        (F.col("known") & ~taken).alias("known"),
        F.coalesce("deleted_to", F.lit(0).cast("bigint")).alias("deleted_to"),
        F.col("scanned_now").alias("scanned"),
        F.when(taken, F.col("found")).otherwise(F.col("recorded")).alias("progress"),
        "found",
        taken.alias("adopted"),
        (F.col("differs") & ~F.lit(adopt)).alias("refused"),
    )
    return kept.withColumn("from_nr", F.greatest("sequence_nr", "deleted_to"))


def places(spark: SparkSession, journal: Journal, ids: DataFrame) -> DataFrame:
    """What the plugin's tables say of persistence ids, whoever numbered.

    Out, one row a persistence_id: deleted_to, `scanned` (tag_scanning), `found` (tag_write_progress: PROGRESS sorted by tag).
    """
    return (
        ids.join(_found(spark, journal), ID, "left")
        .join(_scanned(spark, journal), ID, "left")
        .join(_deleted(spark, journal), ID, "left")
        .select(
            ID, F.coalesce("deleted_to", F.lit(0).cast("bigint")).alias("deleted_to"), F.col("scanned_now").alias("scanned"),
            F.coalesce("found", no_progress()).alias("found"),
        )
    )  # fmt: skip


def records(spark: SparkSession, journal: Journal, ledger_keyspace: str, ids: DataFrame) -> DataFrame:
    """Our own record of each persistence_id, all of it null where there is none.

    Out: sequence_nr and partition_nr of the last event built, `scanned` (tag_scanning at that time), `recorded` (PROGRESS sorted by tag).
    """
    # a constant would leave the join as a filter, and the join would read the whole table: this one isn't known to be constant
    name = F.concat(F.lit(journal.keyspace), F.substring(ID, 1, 0))
    recorded = F.expr(
        "transform(array_sort(map_keys(numbers)), t -> named_struct('tag', t, 'number', numbers[t],"
        " 'sequence_nr', sequence_nrs[t], 'offset', offsets[t]))"
    )
    return (
        ids.select(name.alias("journal"), ID)
        .join(table(spark, ledger_keyspace, "view_progress", directJoinSetting="on"), ["journal", ID], "left")
        .select(
            ID, "sequence_nr", "partition_nr", "scanned", F.coalesce(recorded.cast(PROGRESS), no_progress()).alias("recorded")
        )
    )


def no_progress() -> Column:
    """An empty PROGRESS."""
    return F.from_json(F.lit("[]"), PROGRESS)


def cleaned(spark: SparkSession, ledger_keyspace: str, journal: str, views: Sequence[View], size: BucketSize) -> DataFrame:
    """Buckets that cleanup took away or is at, of all the `views` that a journal had, in buckets of one size. Out: tag, bucket."""
    there = table(spark, ledger_keyspace, "cleaned_buckets")
    step, frames = size.milliseconds, []
    for view in views:
        first = F.col("timebucket") - F.pmod(F.col("timebucket"), F.lit(step))
        last = F.col("timebucket") + F.lit(view.size.milliseconds - 1)
        covered = F.explode(F.sequence(first, last, F.lit(step))).alias("bucket")
        frames.append(there.where(F.col("journal") == view.key(journal)).select("tag", covered))
    return reduce(DataFrame.unionAll, frames).distinct()


def _found(spark: SparkSession, journal: Journal) -> DataFrame:
    """tag_write_progress: one row a persistence_id, `found` PROGRESS sorted by tag."""
    rows = table(spark, journal.keyspace, "tag_write_progress").select(
        ID, F.struct("tag", F.col("tag_pid_sequence_nr").alias("number"), "sequence_nr", "offset").alias("line")
    )
    return rows.groupBy(ID).agg(F.array_sort(F.collect_list("line")).cast(PROGRESS).alias("found"))


def _scanned(spark: SparkSession, journal: Journal) -> DataFrame:
    if "tag_scanning" not in journal.tables:
        return spark.range(0).select(F.col("id").cast("string").alias(ID), F.col("id").alias("scanned_now"))
    return table(spark, journal.keyspace, "tag_scanning").select(ID, F.col("sequence_nr").alias("scanned_now"))


def _deleted(spark: SparkSession, journal: Journal) -> DataFrame:
    if journal.names.metadata not in journal.tables:
        return spark.range(0).select(F.col("id").cast("string").alias(ID), F.col("id").alias("deleted_to"))
    return table(spark, journal.keyspace, journal.names.metadata).select(ID, "deleted_to")


class Reader:
    """Stages the new events of many persistence ids, pass by pass, below one folder."""

    def __init__(self, spark: SparkSession, journal: Journal, folder: str, until: int, tell: Tell) -> None:
        self.spark = spark
        self.journal = journal
        self.folder = folder
        self.until = until
        self.tell = tell
        self.passes = 0
        self.numbered: DataFrame | None = None
        by_key, messages = {"directJoinSetting": "on"}, journal.names.messages
        self.messages = table(spark, journal.keyspace, messages, **by_key).select(*journal.columns)
        self.partitions = table(spark, journal.keyspace, messages, **by_key, **BY_PARTITION).select(*journal.columns)

    def stage(self, stands: DataFrame, *, adopt: bool) -> bool:
        """Write all new events to `folder`/pass-N; whether there are any. In: what `stands` returns.

        In a first build there may be events of other persistence ids among them; numbering leaves them out. With `adopt`, tags that
        gave an event of an adopted persistence_id its number are not among the event's tags.
        """
        open_ids = stands.where("not refused")
        if adopt:
            last = F.transform("progress", lambda line: F.struct(line["tag"], line["sequence_nr"]))
            self.numbered = open_ids.where("adopted").select(ID, F.map_from_entries(last).alias("numbered"))
        if not stands.where("known").take(1):
            return self._whole_table(open_ids)
        jumped = open_ids.where("deleted_to > sequence_nr").select(ID, "from_nr", F.col("partition_nr").alias("first"))
        plain = open_ids.where("deleted_to <= sequence_nr").select(ID, "from_nr", F.col("partition_nr").alias("first"), "known")
        known = plain.where("known").drop("known")
        if known.take(1):
            self._windows(known)
        self._partitions(plain.where("not known").drop("known").unionByName(self._behind_deletions(jumped)))
        return self.passes > 0

    def stage_again(self, ids: DataFrame, *, by_key: bool) -> None:
        """Write all events behind from_nr, as `stage` does. In: persistence_id, from_nr.

        Without `by_key` events of other persistence ids are among them.
        """
        if not by_key:
            self._whole_table(ids)
            return
        first = ids.select(ID, "from_nr", F.lit(0).cast("bigint").alias("first"))
        self._partitions(first.where("from_nr = 0").unionByName(self._behind_deletions(first.where("from_nr > 0"))))

    def _whole_table(self, open_ids: DataFrame) -> bool:
        """Read the table from end to end, which costs less than to ask for each partition."""
        rows = all_events(self.spark, self.journal, **SCAN)
        deleted = open_ids.where("from_nr > 0").select(ID, "from_nr")
        if deleted.take(1):
            rows = rows.join(deleted, ID, "left").where("from_nr is null or sequence_nr > from_nr")
        return self._kept(rows) is not None

    def _behind_deletions(self, ids: DataFrame) -> DataFrame:
        """The partition of the first event behind deleted_to; ids whose events are all deleted are left out.

        In and out: persistence_id, from_nr, first (partition_nr).
        """
        if not ids.take(1):
            return ids
        until = F.col("first") + F.least(F.col("from_nr"), F.lit(SEARCHED_PARTITIONS))
        keys = ids.select(
            ID,
            "from_nr",
            (F.col("from_nr") + 1).alias("sequence_nr"),
            F.explode(F.sequence("first", until)).alias("partition_nr"),
        )
        found = self._looked_up(keys).select(ID, "from_nr", "partition_nr")
        exact = found.groupBy(ID, "from_nr").agg(F.min("partition_nr").alias("first"))
        # a hole behind the deletions: nothing has the next sequence_nr, then only the first partitions are looked at
        rest = ids.join(exact.select(ID), ID, "left_anti")
        return exact.unionByName(rest)

    def _windows(self, ids: DataFrame) -> None:
        """Look up sequence_nrs from from_nr + 1 on. In: persistence_id, from_nr, first (partition_nr of the last event built)."""
        window, full = FIRST_WINDOW, ids
        while True:
            ahead = full.select(
                ID,
                "from_nr",
                F.explode(F.sequence(F.col("from_nr") + 1, F.col("from_nr") + window)).alias("sequence_nr"),
                F.col("first"),
            ).select("*", F.explode(F.sequence("first", F.col("first") + (REACH - 1))).alias("partition_nr"))
            found = self._kept(self._looked_up(ahead))
            if found is None:
                return
            reached = found.groupBy(ID).agg(F.max("sequence_nr").alias("last"), F.max("partition_nr").alias("first"))
            full = (
                full.select(ID, "from_nr").join(reached, ID).where(F.col("last") == F.col("from_nr") + window)
                .select(ID, F.col("last").alias("from_nr"), "first")
            )  # fmt: skip
            full = self._settled(full)
            if not full.take(1):
                return
            window *= 8
            whole = (F.lit(window) > LARGEST_WINDOW) | (F.lit(window * WHOLE_SHARE) >= F.col("from_nr"))
            self._partitions(full.where(whole))
            full = full.where(~whole)
            if not full.take(1):
                return

    def _partitions(self, ids: DataFrame) -> None:
        """Read whole partitions from `first` on, behind from_nr. In: persistence_id, from_nr, first."""
        while ids.take(1):
            long = self._long(ids)
            if long is not None:
                self._slices(long)
                ids = ids.join(F.broadcast(long.select(ID)), ID, "left_anti")
            keys = ids.select("*", F.explode(F.sequence("first", F.col("first") + (REACH - 1))).alias("partition_nr"))
            found = self._kept(self._spread(keys).join(self.partitions, [ID, "partition_nr"]).where("sequence_nr > from_nr"))
            if found is None:
                return
            ids = self._settled(_onward(ids, found))

    def _long(self, ids: DataFrame) -> DataFrame | None:
        """Those with an event LONG behind from_nr in reach."""
        keys = ids.select(
            ID, "from_nr", "first", (F.col("from_nr") + LONG).alias("sequence_nr"),
            F.explode(F.sequence("first", F.col("first") + (REACH - 1))).alias("partition_nr"),
        )  # fmt: skip
        long = self._settled(self._looked_up(keys).select(ID, "from_nr", "first").distinct())
        return long if long.take(1) else None

    def _slices(self, ids: DataFrame) -> None:
        """Read long partitions in slices of LONG sequence_nrs, SLICES_AT_ONCE at a time, each a task of its own."""
        lowest = ids.agg(F.min("from_nr")).first()[0] // LONG  # type: ignore[index]
        keys = ids.select("*", F.explode(F.sequence("first", F.col("first") + (REACH - 1))).alias("partition_nr"))
        while True:
            frames = []
            for part in range(lowest, lowest + SLICES_AT_ONCE):
                within = self.partitions.where((F.col("sequence_nr") > part * LONG) & (F.col("sequence_nr") <= (part + 1) * LONG))
                frames.append(self._spread(keys).join(within, [ID, "partition_nr"]).where("sequence_nr > from_nr"))
            found = self._kept(reduce(DataFrame.unionAll, frames))
            if found is None:
                return
            lowest += SLICES_AT_ONCE
            reached = found.groupBy(ID).agg(F.max("sequence_nr").alias("last"), F.max("partition_nr").alias("first"))
            going = reached.where(F.col("last") > (lowest - 1) * LONG)
            keys = self._settled(
                ids.select(ID, "from_nr").join(going, ID)
                .select(ID, "from_nr", "first", F.explode(F.sequence("first", F.col("first") + (REACH - 1))).alias("partition_nr"))
            )  # fmt: skip
            self._partitions(self._settled(_onward(ids, found).join(going.select(ID), ID, "left_anti")))
            if not keys.take(1):
                return

    def _looked_up(self, keys: DataFrame) -> DataFrame:
        """Single events. In: persistence_id, partition_nr, sequence_nr and what is to be kept beside them."""
        return self._spread(keys).join(self.messages, [ID, "partition_nr", "sequence_nr"])

    def _spread(self, keys: DataFrame) -> DataFrame:
        """Over all cores, however few bytes the keys are: what they fetch is large."""
        return keys.repartition(4 * self.spark.sparkContext.defaultParallelism)

    def _settled(self, ids: DataFrame) -> DataFrame:
        """Computed once: the same rows whenever it is asked again, whatever the application writes meanwhile."""
        return ids.localCheckpoint()

    def _kept(self, rows: DataFrame) -> DataFrame | None:
        """Write a pass; None when it has no row."""
        folder = f"{self.folder}/pass-{self.passes + 1}"
        self._as_events(rows).write.options(**ROW_GROUPS).mode("overwrite").parquet(folder)
        found = self.spark.read.schema(EVENT_KEYS).parquet(folder)
        if not found.take(1):
            return None
        self.passes += 1
        self.tell(f"reading, pass {self.passes}")
        return found

    def _as_events(self, rows: DataFrame) -> DataFrame:
        """The columns of a staged event; payloads only where there are tags."""
        tags = event_tags(self.journal.columns)
        tagged = F.size(tags) > 0
        if self.numbered is not None:
            rows = rows.join(self.numbered, ID, "left")
            tags = F.filter(tags, lambda tag: F.coalesce(F.col("numbered")[tag], F.lit(0)) < F.col("sequence_nr"))
            tagged = tagged & (F.size(tags) > 0)
        ticks = offset_ticks(F.col("timestamp"))
        payload = ["event", "event_manifest", "ser_id", "ser_manifest", "writer_uuid", *(META if self.journal.meta else [])]
        return rows.select(
            ID,
            "partition_nr",
            "sequence_nr",
            "timestamp",
            F.when(tagged, tags).alias("tags"),
            ticks.alias("ticks"),
            self._flaw(tagged, ticks).alias("flaw"),
            *(F.when(tagged, F.col(name)).alias(name) for name in payload),
        )

    def _flaw(self, tagged: Column, ticks: Column) -> Column:
        """A Reason, or null. Untagged events get no row, so it doesn't matter what is wrong with them."""
        missing = F.col("event").isNull() | F.col("ser_id").isNull()
        time_uuid = F.substring("timestamp", 15, 1) == "1"
        wrong_time = ~time_uuid | (ticks < 0) | (ticks > self.until + FUTURE_TICKS)
        young = time_uuid & (ticks > self.until) & (ticks <= self.until + FUTURE_TICKS)
        unread = F.col("message").isNotNull() if "message" in self.journal.columns else F.lit(False)
        return (
            F.when(tagged & F.col("event").isNull() & unread, Reason.BEFORE_0_10.value)
            .when(tagged & missing, Reason.NO_EVENT.value)
            .when(tagged & wrong_time, Reason.NO_TIME_UUID.value)
            .when(young, Reason.YOUNG.value)
        )


EVENT_KEYS = f"{ID} string, partition_nr bigint, sequence_nr bigint"


def _onward(ids: DataFrame, found: DataFrame) -> DataFrame:
    """Those whose events went on behind the first partition asked for: next comes what is behind their last one."""
    reached = found.groupBy(ID).agg(F.max("partition_nr").alias("last"))
    return ids.join(reached, ID).where("last > first").select(ID, "from_nr", (F.col("last") + 1).alias("first"))
