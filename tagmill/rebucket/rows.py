"""The rows of two tables of tag views: counted and summed up per partition, copied where they differ, and what is only in one of them.

What is compared is sums: per tag and bucket of the new size the number of rows, and the sum of a 64-bit hash over all their columns but
timebucket. They are the same in whatever order, and in whatever old partitions, the rows lie; where they are equal the rows are.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from tagmill.audit.staging import deleted_for_good, kept
from tagmill.buckets import View
from tagmill.connector import CASSANDRA, table
from tagmill.delivery.scan import is_time_uuid, offset_ticks
from tagmill.views.tables import bucket
from tagmill.views.writing import BATCHES

ROW = ["tag_name", "timestamp", "persistence_id", "tag_pid_sequence_nr"]
KEY = [*ROW, "timebucket"]
PLACE = ["tag_name", "timebucket"]
# write time (microseconds) and remaining TTL (seconds) as columns: of two cells, since either may be null or have been mended
TIMES = {
    "writetime(sequence_nr)": "written_row", "writetime(event)": "written_event", "ttl(sequence_nr)": "ttl_row",
    "ttl(event)": "ttl_event",
}  # fmt: skip
# a session of the connector hears of a new table within this time
PATIENCE_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Survey:
    """What is in the source. `pairs`, one row a tag, timebucket and new bucket: rows, checksum, bytes, misplaced, broken."""

    pairs: DataFrame
    superseded: DataFrame | None
    rows: int
    bytes: int
    misplaced: int
    twice: int
    broken: int


class Rows:
    """The rows of one journal in two tables; frames that are fixed go below `url`."""

    def __init__(self, spark: SparkSession, keyspace: str, source: View, target: View, url: str) -> None:
        self.spark = spark
        self.keyspace = keyspace
        self.source = source
        self.target = target
        self.url = url
        self.steps = 0

    # -- looking

    def survey(self) -> Survey:
        """One pass over the source."""
        rows = self._judged(self._table(self.source.table))
        sums = rows.groupBy(*PLACE, "bucket").agg(
            F.count("*").alias("rows"), F.sum("hash").alias("checksum"), F.sum("size").alias("bytes"),
            F.count_if(F.col("timebucket") != F.col("home")).alias("misplaced"), F.count_if("broken").alias("broken"),
        )  # fmt: skip
        pairs = self.fixed(sums)
        total = pairs.agg(*(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("rows", "bytes", "misplaced", "broken")))
        line = total.collect()[0]
        superseded = self._superseded(pairs) if line["misplaced"] and not line["broken"] else None
        twice = superseded.count() if superseded is not None else 0
        return Survey(pairs, superseded if twice else None, line["rows"], line["bytes"], line["misplaced"], twice, line["broken"])

    def broken(self, most: int) -> list[Any]:
        """Some rows whose timestamp is no TimeUUID of this age."""
        rows = self._judged(self._table(self.source.table)).where("broken")
        return rows.select(*KEY).limit(most).collect()

    def _superseded(self, pairs: DataFrame) -> DataFrame:
        """Rows in a bucket that their time isn't in, of which there is another copy: in the right one, or in a lower wrong one."""
        keys = pairs.where("misplaced > 0").select(*PLACE).distinct()
        wrong = self._judged(self._at(self.source.table, keys)).where(F.col("timebucket") != F.col("home"))
        wrong = self.fixed(wrong.select(*KEY, "home", "bucket", "hash"))
        right = self._table(self.source.table, directJoinSetting="on").select(*KEY)
        twins = wrong.withColumnRenamed("timebucket", "there").withColumnRenamed("home", "timebucket").join(right, KEY)
        twins = twins.select(*ROW, F.col("there").alias("timebucket"))
        first = wrong.groupBy(*ROW).agg(F.min("timebucket").alias("first"))
        others = wrong.join(first, ROW).where(F.col("timebucket") > F.col("first")).select(*KEY)
        return self.fixed(wrong.join(twins.union(others).distinct(), KEY, "left_semi"))

    def lines(self, survey: Survey, *, with_target: bool) -> DataFrame:
        """One row a tag and bucket: rows, checksum, bytes as the source says they should be; t_rows, t_checksum in the target; differs."""
        figures = ("rows", "checksum", "bytes")
        should = survey.pairs.select("tag_name", "bucket", *figures)
        if survey.superseded is not None:
            less = survey.superseded.select(
                "tag_name", "bucket", F.lit(-1).cast("bigint").alias("rows"), (-F.col("hash")).alias("checksum"),
                F.lit(0).cast("bigint").alias("bytes"),
            )  # fmt: skip
            should = should.unionByName(less)
        should = should.groupBy("tag_name", "bucket").agg(*(F.sum(name).alias(name) for name in figures)).where("rows > 0")
        if with_target:
            found = (
                self._judged(self._table(self.target.table))
                .groupBy("tag_name", F.col("timebucket").alias("bucket"))
                .agg(F.count("*").alias("t_rows"), F.sum("hash").alias("t_checksum"))
            )
        else:
            found = self.spark.createDataFrame([], "tag_name string, bucket bigint, t_rows bigint, t_checksum bigint")
        lines = should.join(found, ["tag_name", "bucket"], "full").na.fill(0)
        same = (F.col("rows") == F.col("t_rows")) & (F.col("checksum") == F.col("t_checksum"))
        return self.fixed(lines.withColumn("differs", ~same))

    # -- copying

    def copy(self, survey: Survey, lines: DataFrame) -> None:
        """Write what the source has of the partitions that differ, with the write time and the remaining TTL of each row.

        They are written as the scan brings them: the rows of a new partition lie together in the old one, or the other way round. A
        repeat writes the same cells, with the same write time.
        """
        rows = self._timed(self.source.table)
        places = self._feeding(survey, lines.where("differs and rows > 0"))
        if places.count() < survey.pairs.select(*PLACE).distinct().count():
            rows = rows.join(places, PLACE, "left_semi")
        if survey.superseded is not None:
            rows = rows.join(survey.superseded.select(*KEY), KEY, "left_anti")
        columns = [name for name in rows.columns if name not in (*TIMES.values(), "timebucket")]
        moved = rows.withColumn("ticks", offset_ticks(F.col("timestamp"))).select(
            *columns, bucket(self.target.size).alias("timebucket"), written().alias("written"), _ttl().alias("remaining")
        )
        options = {**BATCHES, "keyspace": self.keyspace, "table": self.target.table, "writetime": "written", "ttl": "remaining"}
        moved.write.format(CASSANDRA).options(**options).mode("append").save()

    def _feeding(self, survey: Survey, lines: DataFrame) -> DataFrame:
        """The source's partitions that have rows of some new ones."""
        wanted = lines.select("tag_name", "bucket")
        return self.fixed(survey.pairs.join(wanted, ["tag_name", "bucket"], "left_semi").select(*PLACE).distinct())

    # -- rows that only one of them has

    def strays(self, survey: Survey, lines: DataFrame) -> DataFrame:
        """Rows of the target that the source has not, among partitions that differ: KEY, sequence_nr, written (µs), remaining (seconds)."""
        places = lines.where("differs and t_rows > 0").select("tag_name", F.col("bucket").alias("timebucket"))
        there = self._timed(self.target.table).join(places, PLACE, "left_semi")
        there = there.select(*KEY, "sequence_nr", written().alias("written"), _ttl().alias("remaining"))
        return self.fixed(there.join(self._moved(survey, lines.where("differs and t_rows > 0")).select(*KEY), KEY, "left_anti"))

    def lost(self, survey: Survey, lines: DataFrame, cleaned: DataFrame | None = None) -> DataFrame:
        """Rows of the source that the target has not, or has with other contents: KEY. `cleaned` (tag_name, timebucket) are not missed.

        The target is read before the source: a copied row expires no sooner than the one that it is copied from, so what the source
        still has then must have been there.
        """
        differing = lines.where("differs and rows > 0")
        places = differing.select("tag_name", F.col("bucket").alias("timebucket"))
        there = self.fixed(self._judged(self._at(self.target.table, places)).select(*KEY, F.col("hash").alias("t_hash")))
        rows = self._moved(survey, differing)
        if cleaned is not None:
            rows = rows.join(cleaned, PLACE, "left_anti")
        rows = rows.join(there, KEY, "left")
        return self.fixed(rows.where(~F.col("hash").eqNullSafe(F.col("t_hash"))).select(*KEY))

    def missed(self, lost: DataFrame, deleted: DataFrame) -> DataFrame:
        """Those of `lost` that nobody has taken from the target on purpose. In: `deleted` of the method.

        That is: their events are not deleted, and the target has no row of the same event under another number, nor one that was
        written later (a view is rebuilt and repaired).
        """
        event = ["tag_name", "timestamp", "persistence_id", "sequence_nr"]
        rows = self._timed(self.source.table).join(lost.select(*ROW), ROW, "left_semi")
        rows = self.fixed(rows.select(*ROW, "sequence_nr", written().alias("written")))
        places = lost.select("tag_name", "timebucket").distinct()
        there = self._timed(self.target.table).join(places, PLACE, "left_semi")
        there = there.select(*event, F.col("tag_pid_sequence_nr").alias("number"), written().alias("rewritten"))
        other = (F.col("number") != F.col("tag_pid_sequence_nr")) | (F.col("rewritten") > F.col("written"))
        replaced = rows.join(there, event).where(other).select(*ROW)
        missed = living(rows, deleted).join(replaced, ROW, "left_anti").select(*ROW)
        return self.fixed(lost.join(missed, ROW, "left_semi"))

    def deleted(self, ledger_keyspace: str, metadata: str | None) -> DataFrame:
        """Up to where events are deleted, by the ledger and by the application's table: persistence_id, deleted_to."""
        known = deleted_for_good(self.spark, ledger_keyspace, self.keyspace)
        return known.unionByName(self._table(metadata).select(*known.columns)) if metadata else known

    def cleaned(self, ledger_keyspace: str) -> DataFrame:
        """Partitions of the target that cleanups have deleted: tag_name, timebucket."""
        records = table(self.spark, ledger_keyspace, "cleaned_buckets").where(F.col("journal") == self.target.key(self.keyspace))
        return records.select(F.col("tag").alias("tag_name"), "timebucket")

    def _moved(self, survey: Survey, lines: DataFrame) -> DataFrame:
        """The source's rows of some new partitions, `timebucket` the new one; with hash."""
        rows = self._judged(self._at(self.source.table, self._feeding(survey, lines)))
        if survey.superseded is not None:
            rows = rows.join(survey.superseded.select(*KEY), KEY, "left_anti")
        return rows.select(*ROW, F.col("bucket").alias("timebucket"), "hash")

    # -- reading

    def wait_for(self, name: str) -> None:
        """Until the connector's session has heard of a table."""
        for attempt in Retrying(
            retry=retry_if_exception_type(AnalysisException),
            stop=stop_after_delay(PATIENCE_SECONDS),
            wait=wait_fixed(0.5),
            reraise=True,
        ):
            with attempt:
                self._table(name)

    def _table(self, name: str, **options: str) -> DataFrame:
        return table(self.spark, self.keyspace, name, **options)

    def _timed(self, name: str) -> DataFrame:
        """All rows with TIMES, in one scan."""
        rows = self._table(name)
        return rows.select(*rows.columns, *(F.expr(function).alias(alias) for function, alias in TIMES.items()))

    def _at(self, name: str, places: DataFrame) -> DataFrame:
        """Whole partitions (tag_name, timebucket), looked up by their keys."""
        spread = places.repartition(4 * self.spark.sparkContext.defaultParallelism)
        return spread.join(self._table(name, directJoinSetting="on"), PLACE)

    def _judged(self, rows: DataFrame) -> DataFrame:
        """KEY, bucket (of its time, in the target's size), home (in the source's), hash (all columns but timebucket), size, broken."""
        hashed = sorted(set(rows.columns) - {"timebucket"})
        # the hash of a null is that of nothing at all: whether there is one goes in beside it
        parts = [part for name in hashed for part in (F.col(name).isNull(), F.col(name))]
        return rows.withColumn("ticks", offset_ticks(F.col("timestamp"))).select(
            *KEY, bucket(self.target.size), bucket(self.source.size).alias("home"), F.xxhash64(*parts).alias("hash"), _size().alias("size"),
            (~is_time_uuid(F.col("timestamp")) | (F.col("ticks") < 0)).alias("broken"),
        )  # fmt: skip

    def fixed(self, rows: DataFrame) -> DataFrame:
        """The same rows whenever they are read again."""
        self.steps += 1
        return kept(rows, f"{self.url}/{self.steps:03d}")


def living(rows: DataFrame, deleted: DataFrame) -> DataFrame:
    """The rows whose events are not deleted. In: persistence_id, sequence_nr; `deleted` of Rows.deleted, which may name one twice."""
    return rows.join(
        deleted, (rows["persistence_id"] == deleted["persistence_id"]) & F.expr("sequence_nr <= deleted_to"), "left_anti"
    )


def written() -> Column:
    """The newest write of a row with TIMES, in microseconds."""
    return F.coalesce(F.greatest("written_row", "written_event"), F.lit(1).cast("bigint"))


def _ttl() -> Column:
    """Seconds that are left; 0: it has no TTL."""
    left = F.least("ttl_row", "ttl_event")
    return F.when(left.isNull(), F.lit(0)).otherwise(F.greatest(left, F.lit(1))).cast("int")


def _size() -> Column:
    """Bytes of payload and keys."""
    lengths = [F.coalesce(F.octet_length(name), F.lit(0)) for name in ("event", "persistence_id", "tag_name")]
    return reduce(lambda one, other: one + other, lengths) + F.lit(100)


def numbered(spark: SparkSession, keyspace: str, tables: Iterable[str]) -> DataFrame:
    """How far the plugin's writers are. Out: of (the table), persistence_id, tag, number."""
    chosen = {
        "tag_write_progress": (F.col("tag"), F.col("tag_pid_sequence_nr")), "tag_scanning": (F.lit(""), F.col("sequence_nr")),
    }  # fmt: skip
    frames = [
        table(spark, keyspace, name).select(
            F.lit(name).alias("of"), "persistence_id", chosen[name][0].alias("tag"), chosen[name][1].alias("number")
        )
        for name in tables
    ]
    return reduce(DataFrame.unionByName, frames)
