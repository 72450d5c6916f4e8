"""Compare two tables of tag views partition by partition, copy the rows that differ, and find rows that only
one of them has.

The comparison uses sums: per tag and bucket of the new size, the number of rows and the sum of a 64-bit hash
over all their columns but timebucket that aren't null. The sums don't depend on the order of the rows or on their old
partitions. Where the sums are equal, the rows are.
"""

from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tagmill.cassandra.bulk_writer import TTL, WRITTEN
from tagmill.domain.time_buckets import View
from tagmill.journal.frames import bucket, deleted_for_good
from tagmill.spark.cassandra_table import CassandraTable
from tagmill.spark.columns import is_time_uuid, offset_ticks
from tagmill.spark.materialize import materialize
from tagmill.views.rebucket.tables import ViewTables

ROW = ["tag_name", "timestamp", "persistence_id", "tag_pid_sequence_nr"]
KEY = [*ROW, "timebucket"]
PARTITION = ["tag_name", "timebucket"]
# CQL of columns with write time (microseconds) and remaining TTL (seconds). Two cells, as either may be null or repaired.
TIMES: dict[str, Any] = {
    "written_row": "writetime(sequence_nr)", "written_event": "writetime(event)", "ttl_row": "ttl(sequence_nr)",
    "ttl_event": "ttl(event)",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Survey:
    """Totals of the source.

    `pairs`, one row a tag, timebucket and new bucket: rows, checksum, bytes, misplaced, broken.

    `superseded`: misplaced rows (KEY, bucket, hash) that are not copied, since they have another copy;
    `twice`: how many they are.
    """

    pairs: DataFrame
    superseded: DataFrame | None
    rows: int
    bytes: int
    misplaced: int
    twice: int
    broken: int


class TableDiff:
    """The rows of one journal in two tables; intermediate results are written below `url`."""

    def __init__(self, spark: SparkSession, tables: ViewTables, source: View, target: View, url: str) -> None:
        self.spark = spark
        self.tables = tables
        self.keyspace = tables.keyspace
        self.source = source
        self.target = target
        self.url = url
        self.steps = 0

    # -- looking

    def survey(self) -> Survey:
        """Count the source's rows, and sum up their hashes and sizes, in one pass."""
        rows = self._judged(self._rows(self.source))
        sums = rows.groupBy(*PARTITION, "bucket").agg(
            F.count("*").alias("rows"),
            F.sum("hash").alias("checksum"),
            F.sum("size").alias("bytes"),
            F.count_if(F.col("timebucket") != F.col("home")).alias("misplaced"),
            F.count_if("broken").alias("broken"),
        )
        pairs = self.fixed(sums)
        total = pairs.agg(
            *(
                F.coalesce(F.sum(name), F.lit(0)).alias(name)
                for name in ("rows", "bytes", "misplaced", "broken")
            )
        )
        line = total.collect()[0]
        superseded = self._superseded(pairs) if line["misplaced"] and not line["broken"] else None
        twice = superseded.count() if superseded is not None else 0
        return Survey(
            pairs,
            superseded if twice else None,
            line["rows"],
            line["bytes"],
            line["misplaced"],
            twice,
            line["broken"],
        )

    def broken(self, most: int) -> list[Any]:
        """Return the keys of at most `most` rows whose timestamp is not a TimeUUID, or is one before 1970."""
        rows = self._rows(self.source, *KEY).withColumn("ticks", offset_ticks(F.col("timestamp")))
        return rows.where(_is_broken()).select(*KEY).limit(most).collect()

    def _superseded(self, pairs: DataFrame) -> DataFrame:
        """Return misplaced rows that have another copy, in the right bucket or in a lower wrong one."""
        keys = pairs.where("misplaced > 0").select(*PARTITION).distinct()
        wrong = self._judged(self._rows(self.source, partitions=keys)).where(
            F.col("timebucket") != F.col("home")
        )
        wrong = self.fixed(wrong.select(*KEY, "home", "bucket", "hash"))
        right = wrong.select(*ROW, F.col("home").alias("timebucket"), F.col("timebucket").alias("there"))
        twins = self._table(self.source.table).rows_of(right, KEY)
        twins = twins.select(*ROW, F.col("there").alias("timebucket"))
        first = wrong.groupBy(*ROW).agg(F.min("timebucket").alias("first"))
        others = wrong.join(first, ROW).where(F.col("timebucket") > F.col("first")).select(*KEY)
        return self.fixed(wrong.join(twins.union(others).distinct(), KEY, "left_semi"))

    def lines(self, survey: Survey, *, with_target: bool) -> DataFrame:
        """Compare source and target, one row a tag and new bucket.

        Out: rows, checksum, bytes (what the target should have, by the source); t_rows, t_checksum (what it
        has); differs. Without `with_target`, the target counts as empty.
        """
        figures = ("rows", "checksum", "bytes")
        should = survey.pairs.select("tag_name", "bucket", *figures)
        if survey.superseded is not None:
            less = survey.superseded.select(
                "tag_name",
                "bucket",
                F.lit(-1).cast("bigint").alias("rows"),
                (-F.col("hash")).alias("checksum"),
                F.lit(0).cast("bigint").alias("bytes"),
            )
            should = should.unionByName(less)
        should = (
            should.groupBy("tag_name", "bucket")
            .agg(*(F.sum(name).alias(name) for name in figures))
            .where("rows > 0")
        )
        if with_target:
            found = (
                self._judged(self._rows(self.target))
                .groupBy("tag_name", F.col("timebucket").alias("bucket"))
                .agg(F.count("*").alias("t_rows"), F.sum("hash").alias("t_checksum"))
            )
        else:
            found = self.spark.createDataFrame(
                [], "tag_name string, bucket bigint, t_rows bigint, t_checksum bigint"
            )
        lines = should.join(found, ["tag_name", "bucket"], "full").na.fill(0)
        same = (F.col("rows") == F.col("t_rows")) & (F.col("checksum") == F.col("t_checksum"))
        return self.fixed(lines.withColumn("differs", ~same))

    # -- copying

    def copy(self, survey: Survey, lines: DataFrame) -> None:
        """Write the source's rows of the partitions that differ to the target, with the write time and
        remaining TTL of each row.

        The rows are written in the order in which they are read: those of a new partition are together in an old
        one, or the other way round. A repeat writes the same cells with the same write time.
        """
        partitions = self._feeding(survey, lines.where("differs and rows > 0"))
        some = partitions.count() < survey.pairs.select(*PARTITION).distinct().count()
        rows = self._rows(self.source, partitions=partitions if some else None, **TIMES)
        if survey.superseded is not None:
            rows = rows.join(survey.superseded.select(*KEY), KEY, "left_anti")
        columns = [name for name in rows.columns if name not in (*TIMES, "timebucket")]
        moved = rows.withColumn("ticks", offset_ticks(F.col("timestamp"))).select(
            *columns,
            bucket(self.target.size).alias("timebucket"),
            written().alias(WRITTEN),
            _ttl().alias(TTL),
        )
        self._table(self.target.table).append(moved, large=True)

    def _feeding(self, survey: Survey, lines: DataFrame) -> DataFrame:
        """Return the source's partitions that have rows of the new partitions in `lines`."""
        wanted = lines.select("tag_name", "bucket")
        return self.fixed(
            survey.pairs.join(wanted, ["tag_name", "bucket"], "left_semi").select(*PARTITION).distinct()
        )

    # -- rows that only one of them has

    def strays(self, survey: Survey, lines: DataFrame) -> DataFrame:
        """Return the target's rows that the source lacks, in partitions that differ.

        Out: KEY, sequence_nr, written (microseconds), remaining (TTL in seconds; 0: none).
        """
        partitions = lines.where("differs and t_rows > 0").select(
            "tag_name", F.col("bucket").alias("timebucket")
        )
        there = self._rows(self.target, *KEY, "sequence_nr", partitions=partitions, **TIMES)
        there = there.select(*KEY, "sequence_nr", written().alias("written"), _ttl().alias("remaining"))
        return self.fixed(
            there.join(
                self._moved(survey, lines.where("differs and t_rows > 0")).select(*KEY), KEY, "left_anti"
            )
        )

    def lost(self, survey: Survey, lines: DataFrame, cleaned: DataFrame | None = None) -> DataFrame:
        """Return the keys (KEY) of the source's rows that the target lacks or has with other contents.

        Partitions in `cleaned` (tag_name, timebucket) are left out. The target is read before the source: a
        copied row expires no sooner than its source row, so what the source still has must have been in the
        target.
        """
        differing = lines.where("differs and rows > 0")
        partitions = differing.select("tag_name", F.col("bucket").alias("timebucket"))
        there = self.fixed(
            self._judged(self._rows(self.target, partitions=partitions)).select(
                *KEY, F.col("hash").alias("t_hash")
            )
        )
        rows = self._moved(survey, differing)
        if cleaned is not None:
            rows = rows.join(cleaned, PARTITION, "left_anti")
        rows = rows.join(there, KEY, "left")
        return self.fixed(rows.where(~F.col("hash").eqNullSafe(F.col("t_hash"))).select(*KEY))

    def missed(self, lost: DataFrame, deleted: DataFrame) -> DataFrame:
        """Return the rows of `lost` that were not removed from the target on purpose.

        In: `deleted` as the method returns it.

        Those are the rows whose events are not deleted, and for which the target has no row of the same event
        under another number or with a later write time, as a rebuild or a repair of the view leaves it.
        """
        rows = self._rows(self.source, *ROW, "sequence_nr", **TIMES)
        rows = rows.join(lost.select(*ROW), ROW, "left_semi")
        rows = self.fixed(rows.select(*ROW, "sequence_nr", written().alias("written")))
        there = self._rows(
            self.target, *ROW, "sequence_nr", partitions=lost.select(*PARTITION).distinct(), **TIMES
        )
        missed = living(not_replaced(rows, there), deleted).select(*ROW)
        return self.fixed(lost.join(missed, ROW, "left_semi"))

    def foreign(self, strays: DataFrame, survey: Survey, lines: DataFrame, deleted: DataFrame) -> DataFrame:
        """Return the strays that were not taken out of the source on purpose.

        In: `strays` and `deleted` as the methods return them.

        Those are the rows whose events are not deleted, for which the source has no row of the same event under
        another number or with a later write time, and that were in no partition which a cleanup has deleted since.
        """
        partitions = self._feeding(survey, lines.where("differs and t_rows > 0"))
        there = self._rows(self.source, *ROW, "sequence_nr", partitions=partitions, **TIMES)
        rows = not_replaced(living(strays, deleted), there)
        rows = rows.withColumn("ticks", offset_ticks(F.col("timestamp")))
        rows = rows.withColumn("home", bucket(self.source.size))
        gone = self.cleaned(self.source).select("tag_name", F.col("timebucket").alias("home"), "cleaned_at")
        in_cleaned = rows.join(gone, ["tag_name", "home"]).where(
            F.col("written") <= F.unix_micros("cleaned_at")
        )
        return self.fixed(rows.join(in_cleaned.select(*KEY), KEY, "left_anti").drop("ticks", "home"))

    def deleted(self, metadata: str | None) -> DataFrame:
        """Return up to which sequence_nr events are deleted, by the ledger and the application's table:
        persistence_id, deleted_to.
        """
        known = deleted_for_good(self.tables.cassandra, self.spark, self.keyspace)
        if metadata is None:
            return known
        return known.unionByName(self._table(metadata).rows(self.spark, "persistence_id", "deleted_to"))

    def cleaned(self, view: View) -> DataFrame:
        """Return a view's partitions that cleanups have deleted: tag_name, timebucket, cleaned_at."""
        records = CassandraTable.of_ledger(self.tables.cassandra, "cleaned_buckets")
        rows = records.rows(self.spark, "journal", "timebucket", "cleaned_at", tag_name="tag")
        return rows.where(F.col("journal") == view.key(self.keyspace)).select(*PARTITION, "cleaned_at")

    def numbered(self) -> DataFrame:
        """Return how far the plugin's writers have numbered. Out: of (the table), persistence_id, tag, number."""
        progress = self._table("tag_write_progress").rows(
            self.spark, "persistence_id", "tag", number="tag_pid_sequence_nr"
        )
        found = progress.withColumn("of", F.lit("tag_write_progress"))
        if "tag_scanning" not in self.tables.there():
            return found
        scanning = self._table("tag_scanning").rows(self.spark, "persistence_id", number="sequence_nr")
        return found.unionByName(scanning.withColumns({"of": F.lit("tag_scanning"), "tag": F.lit("")}))

    def _moved(self, survey: Survey, lines: DataFrame) -> DataFrame:
        """Return the source's rows of the new partitions in `lines`, under their new `timebucket`, with
        hash.
        """
        rows = self._judged(self._rows(self.source, partitions=self._feeding(survey, lines)))
        if survey.superseded is not None:
            rows = rows.join(survey.superseded.select(*KEY), KEY, "left_anti")
        return rows.select(*ROW, F.col("bucket").alias("timebucket"), "hash")

    # -- reading

    def _table(self, name: str) -> CassandraTable:
        return CassandraTable(self.tables.cassandra, self.keyspace, name)

    def _rows(
        self, view: View, *columns: str, partitions: DataFrame | None = None, **times: Any
    ) -> DataFrame:
        """Return a view's rows of partitions (PARTITION), which are looked up by their keys, or all rows in one scan.

        Args:
            view: the source or the target.
            columns: to read; without any, all.
            partitions: the partitions; None: all.
            times: TIMES, to read besides.
        """
        table, chosen = self._table(view.table), columns or self.tables.there()[view.table].columns
        if partitions is None:
            return table.rows(self.spark, *chosen, **times)
        spread = partitions.repartition(4 * self.spark.sparkContext.defaultParallelism)
        return table.rows_of(spread, PARTITION, *chosen, **times)

    def _judged(self, rows: DataFrame) -> DataFrame:
        """Return what each row's comparison needs.

        Out: KEY, bucket (of its time, in the target's size), home (in the source's), hash (all columns but
        timebucket), size (bytes), broken (the timestamp is not a TimeUUID, or is one before 1970).
        """
        hashed = sorted(set(rows.columns) - {"timebucket"})
        # xxhash64 skips nulls, so the names of the columns that aren't null are hashed along with their values. A
        # column that only one of the tables has counts as null in the other.
        named = [F.when(F.col(name).isNotNull(), F.lit(name)) for name in hashed]
        parts = [part for name, label in zip(hashed, named, strict=True) for part in (label, F.col(name))]
        return rows.withColumn("ticks", offset_ticks(F.col("timestamp"))).select(
            *KEY,
            bucket(self.target.size),
            bucket(self.source.size).alias("home"),
            F.xxhash64(*parts).alias("hash"),
            _size().alias("size"),
            _is_broken().alias("broken"),
        )

    def fixed(self, rows: DataFrame) -> DataFrame:
        """Write rows to Parquet and read them back, so that later evaluations see the same rows."""
        self.steps += 1
        return materialize(rows, f"{self.url}/{self.steps:03d}")


def not_replaced(rows: DataFrame, other_rows: DataFrame) -> DataFrame:
    """Return the rows of which the other table has no row of the same event under another number or with a later
    write time, as a rebuild or a repair leaves it.

    In: `rows` with ROW, sequence_nr, written; `other_rows`, the other table's rows with ROW, sequence_nr and TIMES.
    """
    event = ["tag_name", "timestamp", "persistence_id", "sequence_nr"]
    other_rows = other_rows.select(
        *event, F.col("tag_pid_sequence_nr").alias("number"), written().alias("rewritten")
    )
    other = (F.col("number") != F.col("tag_pid_sequence_nr")) | (F.col("rewritten") > F.col("written"))
    replaced = rows.join(other_rows, event).where(other).select(*ROW)
    return rows.join(replaced, ROW, "left_anti")


def living(rows: DataFrame, deleted: DataFrame) -> DataFrame:
    """Return the rows whose events are not deleted.

    In: `rows` with persistence_id, sequence_nr; `deleted` as TableDiff.deleted returns it, which may have two rows
    for one persistence_id.
    """
    return rows.join(
        deleted,
        (rows["persistence_id"] == deleted["persistence_id"]) & F.expr("sequence_nr <= deleted_to"),
        "left_anti",
    )


def written() -> Column:
    """Return the time of a row's newest write (microseconds), from the columns of TIMES; 1 if it is
    unknown.
    """
    return F.coalesce(F.greatest("written_row", "written_event"), F.lit(1).cast("bigint"))


def _is_broken() -> Column:
    """Return whether a row's timestamp is not a TimeUUID, or is one before 1970, by its `ticks`."""
    return ~is_time_uuid(F.col("timestamp")) | (F.col("ticks") < 0)


def _ttl() -> Column:
    """Return the TTL that a row has left (seconds, at least 1), from the columns of TIMES; 0: the row has
    none.
    """
    left = F.least("ttl_row", "ttl_event")
    return F.when(left.isNull(), F.lit(0)).otherwise(F.greatest(left, F.lit(1))).cast("int")


def _size() -> Column:
    """Return the estimated size of a row: bytes of payload and keys, and 100 for the rest."""
    lengths = [F.coalesce(F.octet_length(name), F.lit(0)) for name in ("event", "persistence_id", "tag_name")]
    return reduce(lambda one, other: one + other, lengths) + F.lit(100)
