"""Audit what has come since a baseline, and count what the baseline covers where it lies (docs/decisions/0115).

It proves that all agree, or leaves the whole to an audit that reads everything: what is wrong is not looked for here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from tagmill.audit import bucket_sums, row_comparison, staging, totals
from tagmill.audit.baseline_frames import FIGURES, FRAMES, Proven
from tagmill.audit.progress import Delivered, confirmed, progress_findings
from tagmill.audit.staging import ID, WRITTEN, Scope
from tagmill.domain.time_buckets import first_ticks
from tagmill.journal.flaws import Reason
from tagmill.journal.frames import CleanedOf, JournalSchema
from tagmill.runs.progress import Tell
from tagmill.runs.storage import RunFiles
from tagmill.spark.materialize import materialize
from tagmill.views.event_reader import Reader, in_lots


class Doubt(Exception):
    """What a baseline covers is not as it was, or something that came since may be wrong; the message says what."""


class Read(NamedTuple):
    """What has come since the baseline, read in the order of an audit, and what is deleted: persistence_id, deleted_to."""

    events: DataFrame
    view: DataFrame
    deleted: DataFrame


@dataclass(frozen=True, slots=True)
class Since:
    """An audit from a baseline on; its files go below `folder`."""

    spark: SparkSession
    journal: JournalSchema
    files: RunFiles
    folder: str
    proven: Proven
    tell: Tell
    _doubts: list[tuple[DataFrame, str]] = field(default_factory=list, init=False)

    @property
    def before(self) -> int:
        """The ticks before which the baseline covers all rows."""
        return self.proven.document.before

    def scope(self, scope: Scope) -> Scope:
        """Return what is left to judge of an audit's scope."""
        return replace(scope, start={tag: max(ticks, self.before) for tag, ticks in scope.start.items()})

    def stage_journal(self, scope: Scope, for_good: DataFrame) -> tuple[DataFrame, DataFrame, DataFrame]:
        """Count the events that the baseline covers, and write those behind them.

        Out: events (row_hashes.JOURNAL), deleted (persistence_id, deleted_to), the places (baseline_frames.FRAMES) as they are now.
        """
        counts = self.journal.table(self.journal.names.messages).rows(
            self.spark,
            ID,
            aggregated=True,
            events="count(sequence_nr)",
            newest=f"max({WRITTEN})",
        )
        counts = (
            counts.groupBy(ID)
            .agg(F.sum("events").alias("events"), F.max("newest").alias("newest"))
            .where("events > 0")
        )
        places = self.proven.frames["places"].withColumn("is_known", F.lit(True))
        is_same = F.expr("is_known AND events = upto - first + 1 AND newest = written")
        changed = places.join(counts, ID, "full").where(~F.coalesce(is_same, F.lit(False)))
        noted = staging.noted_deletions(self.spark, self.journal, for_good)
        deleted = materialize(noted, self._url("deleted"))
        changed = materialize(
            changed.join(deleted, ID, "left").select(
                ID,
                "first",
                "upto",
                "written",
                F.coalesce("is_known", F.lit(False)).alias("known"),
                F.coalesce("upto", F.lit(0)).alias("sequence_nr"),
                F.coalesce("partition_nr", F.lit(0)).alias("partition_nr"),
                F.coalesce("deleted_to", F.lit(0)).alias("deleted_to"),
                F.greatest(F.coalesce("upto", F.lit(0)), F.coalesce("deleted_to", F.lit(0))).alias("from_nr"),
                F.lit(None).cast("string").alias("reason"),
                F.coalesce("events", F.lit(0)).alias("events"),
            ),
            self._url("changed"),
        )
        still = materialize(self._counted(changed.where("known")), self._url("counted"))
        self._none(still.where("found != left OR newest > written"), "events that it covers were changed")
        stages = staging.EventStaging(self.journal, self.files, scope)
        reader = Reader(
            self.spark, self.journal.cassandra, stages, f"{self.folder}/journal", self.tell, written=WRITTEN
        )
        reader.stage_by_key(changed)
        events = stages.target(f"{self.folder}/journal").frame(self.spark, reader.files)
        flawed = F.col("flaw") == Reason.NO_TIME_UUID.value
        self._none(
            events.where(flawed | (F.col("ticks") < self.before)),
            "an event came late, or its time can't be read",
        )
        in_journal = totals.of_ids(events, scope)
        self._none(in_journal.where("is_broken"), "the journal has a gap, or two writers")
        staged = in_journal.select(ID, F.col("first").alias("begins"), F.col("events").alias("staged"))
        read = changed.join(still.select(ID, "found"), ID, "left").join(staged, ID, "left")
        self._none(
            read.where("known AND begins != from_nr + 1"), "the journal has a gap behind what it covers"
        )
        # A deletion in between can only lower the sum. Events that were counted though they are noted as deleted are in no
        # sum, which costs a needless audit of everything.
        self._none(
            read.where("events > coalesce(found, 0) + coalesce(staged, 0)"),
            "the journal has events that are not where they are looked for",
        )
        self._settle()
        kept = places.join(still.select(ID, "low"), ID, "left").withColumn(
            "first", F.coalesce(F.col("low") + 1, F.col("first"))
        )
        return events, deleted, kept.select(*_columns("places"))

    def _counted(self, changed: DataFrame) -> DataFrame:
        """Count the events of some persistence ids that the baseline covers and that are not deleted.

        Out: persistence_id, `low` (events up to it are deleted), `left` (how many have to be there), `found`, `newest` write,
        `written` (the newest then).
        """
        low = F.greatest(F.col("first") - 1, F.least("deleted_to", "upto")).alias("low")
        ids = changed.select(ID, low, "upto", "written", "partition_nr")
        keys = ids.withColumn("partitions", in_lots(F.lit(0).cast("bigint"), F.col("partition_nr")))
        where = {
            f"{ID} =": ID,
            "partition_nr IN": "partitions",
            "sequence_nr >": "low",
            "sequence_nr <=": "upto",
        }
        counted = self.journal.table(self.journal.names.messages).rows_of(
            keys.repartition(4 * self.spark.sparkContext.defaultParallelism),
            [],
            ID,
            where=where,
            aggregated=True,
            found="count(sequence_nr)",
            newest=f"max({WRITTEN})",
        )
        sums = counted.groupBy(ID).agg(F.sum("found").alias("found"), F.max("newest").alias("newest"))
        return ids.join(sums, ID, "left").select(
            ID,
            "low",
            (F.col("upto") - F.col("low")).alias("left"),
            F.coalesce("found", F.lit(0)).alias("found"),
            F.coalesce("newest", F.lit(0)).alias("newest"),
            "written",
        )

    def stage_view(self, scope: Scope, cleaned_of: CleanedOf) -> tuple[DataFrame, DataFrame, DataFrame]:
        """Count the partitions of the view that the baseline covers, and write the rows of the others.

        Out: rows (row_hashes.VIEW); the partitions (baseline_frames.FRAMES) that are still there; tag, timebucket and `left` rows of
        those that cleanups or the application's TTL took since, as a whole or in part.
        """
        view = self.journal.table(self.journal.view_table)
        key = ["tag_name", "timebucket"]
        there = view.rows(self.spark, *key, per_partition=1)
        there = materialize(there.where(F.col("tag_name").isin(list(scope.tags))), self._url("there"))
        covered = self.proven.frames["partitions"].withColumnRenamed("tag", "tag_name")
        is_new = F.col("timebucket") >= self.before // first_ticks(1)
        self._none(
            there.where(~is_new).join(covered, key, "left_anti"),
            "the view has a new partition of an earlier time",
        )
        counted = view.rows_of(
            covered.withColumnsRenamed({"rows": "rows_then", "written": "written_then"}),
            key,
            left=True,
            aggregated=True,
            rows="count(*)",
            written=f"max({WRITTEN})",
        )
        is_same = F.expr("rows = rows_then AND coalesce(written, 0) = written_then")
        changed = counted.where(~F.coalesce(is_same, F.lit(False)))
        changed = materialize(changed, self._url("changed-partitions"))
        starts = cleaned_of[scope.size].select(
            "tag", F.col("start").alias("timebucket"), F.lit(True).alias("is_cleaned")
        )
        changed = (
            changed.withColumnRenamed("tag_name", "tag")
            .withColumn("bucket", F.col("timebucket"))
            .join(starts, ["tag", "timebucket"], "left")
        )
        is_less = F.expr("coalesce(rows, 0) < rows_then AND coalesce(written, 0) <= written_then")
        is_taken = F.coalesce(F.expr("rows IS NULL AND is_cleaned"), F.lit(False)) | (
            scope.may_lack_rows() & is_less
        )
        self._none(changed.where(~is_taken), "rows of the view that it covers were changed")
        taken = changed.where(is_taken).select(
            "tag", "timebucket", F.coalesce("rows", F.lit(0)).alias("left")
        )
        stages = staging.ViewStaging(self.journal, self.files, scope)
        rows = stages.of_partitions(there.where(is_new), f"{self.folder}/view")
        kept = self.proven.frames["partitions"].join(
            taken.where("left = 0"), ["tag", "timebucket"], "left_anti"
        )
        return stages.target(f"{self.folder}/view").frame(self.spark, rows), kept, taken

    def check_stored(self, sums: DataFrame, scope: Scope) -> DataFrame:
        """Return ClickHouse's sums of the buckets that the baseline does not cover; the others have to be as they were.

        In: destination_reader.SUMS of all buckets.
        """
        border = self.before // first_ticks(1)
        then = self.proven.frames["stored"].withColumnsRenamed({"rows": "rows_then", "row_sum": "sum_then"})
        now = sums.where(F.col("bucket") < border)
        compared = now.join(then, ["tag", "bucket"], "full").where(~scope.is_expired_bucket())
        is_same = F.coalesce(F.expr("rows = rows_then AND row_sum = sum_then"), F.lit(False))
        self._none(compared.where(~is_same), "rows of ClickHouse that it covers were changed")
        return sums.where(F.col("bucket") >= border)

    def check_numbers(self, view: DataFrame, scope: Scope) -> None:
        """Check that the numbers of each tag go on, one by one."""
        then = self.proven.frames["numbers"].select("tag", ID, F.col("number").alias("last_number"))
        rows = view.where((F.col("ticks") <= scope.until) & ~F.col("broken"))
        place = F.row_number().over(Window.partitionBy("tag", ID).orderBy("sequence_nr", "number"))
        numbered = rows.withColumn("place", place).join(then, ["tag", ID], "left")
        self._none(
            numbered.where("number != coalesce(last_number, 0) + place"),
            "the numbers of a tag don't go on where they ended",
        )

    def judge(
        self,
        read: Read,
        delivered: Delivered,
        read_again: Callable[[], Delivered],
        sums: DataFrame,
        cleaned_of: CleanedOf,
        scope: Scope,
    ) -> DataFrame:
        """Return the lines (bucket_sums.bucket_sums) of what came since.

        In: `delivered`: of ClickHouse only rows since; `read_again` reads both again; `sums`: what check_stored returned.
        """
        events, view, deleted = read
        self._none(view.where("broken"), "the time of a row of the view can't be read")
        self._none(row_comparison.misplaced(view, scope), "a row of the view lies in another partition")
        lines = materialize(
            bucket_sums.bucket_sums(events, view, sums, deleted, cleaned_of, scope), self._url("lines")
        )
        self._none(lines.where("differs"), "sums of a bucket differ")
        self.check_numbers(view, scope)
        then = self.proven.frames["numbers"]
        numbered = view.select("tag", ID, "number").unionByName(then.select("tag", ID, "number"))
        none = row_comparison.no_findings(self.spark)

        def lagging(progress: DataFrame, ids: DataFrame) -> DataFrame:
            return progress_findings(
                progress, self._ids_in_all(ids), numbered, none, expires=scope.expired > 0
            )

        self._settle()
        if confirmed(delivered, lagging, read_again, self.files, self.folder).take(1):
            raise Doubt("progress is not what was delivered")
        return lines

    def _ids_in_all(self, ids: DataFrame) -> DataFrame:
        """Return ClickHouse's ids (destination_reader.IDS, without `first`) of all rows; `ids` are those of the rows since."""
        then = self.proven.frames["numbers"].drop("number").withColumn("last_due", F.col("last"))
        return (
            then.unionByName(ids.drop("first"))
            .groupBy("tag", ID)
            .agg(
                *(F.sum(name).alias(name) for name in ("rows", "numbers", "events")),
                *(F.max(name).alias(name) for name in ("last", "last_due")),
            )
        )

    def lines_then(self, taken: DataFrame) -> DataFrame:
        """Return the lines of the buckets that the baseline covers, with what was `taken` since as stage_view returns it."""
        lines = self.proven.frames["lines"].join(
            taken.withColumnRenamed("timebucket", "bucket"), ["tag", "bucket"], "left"
        )
        away = F.greatest(F.col("journal") - F.col("left"), F.lit(0))
        kept = F.greatest(F.col("left") - F.col("journal"), F.lit(0))
        now = {"view": F.col("left"), "deleted": kept, "cleaned": away}
        figures = (
            F.when(F.col("left").isNotNull(), now[name]).otherwise(F.col(name)).cast("bigint").alias(name)
            if name in now
            else F.col(name)
            for name in FIGURES
        )
        return lines.select("tag", "bucket", *figures)

    def _none(self, rows: DataFrame, why: str) -> None:
        """Expect that there are no such rows; `_settle` says whether there are."""
        self._doubts.append((rows, why))

    def _settle(self) -> None:
        """Raise Doubt if there is a row that was not expected: one job looks for all of them."""
        named = (rows.select(F.lit(why).alias("why")) for rows, why in self._doubts)
        found = reduce(DataFrame.unionAll, named).agg(F.min("why").alias("why")).first()
        self._doubts.clear()
        if found and found["why"]:
            raise Doubt(found["why"])

    def _url(self, name: str) -> str:
        return self.files.url(f"{self.folder}/{name}")


def _columns(frame: str) -> list[str]:
    return [field.split()[0] for field in FRAMES[frame].split(", ")]
