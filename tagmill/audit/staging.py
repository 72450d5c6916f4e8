"""Read each of Cassandra's tables in one pass, and stage narrow key rows and hashes as Parquet below the
audit's folder.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tagmill.arrow import schema_of
from tagmill.audit import row_hashes
from tagmill.cassandra.client import Cassandra
from tagmill.domain.time_buckets import BucketSize
from tagmill.domain.timeuuid import TICKS_PER_MILLISECOND
from tagmill.journal.frames import CleanedOf, JournalSchema, cleaned
from tagmill.journal.tag_view_reader import VIEW_COLUMNS
from tagmill.ledger.cleanups import CleanupLog
from tagmill.ledger.progress import read_intervals
from tagmill.runs.storage import RunFiles
from tagmill.spark.cassandra_table import CassandraTable
from tagmill.spark.columns import number_by
from tagmill.spark.materialize import materialize
from tagmill.spark.task_files import Convert, Target

ID = "persistence_id"
# The write time of an event or of a row of the view, in microseconds.
WRITTEN = "writetime(event)"
# missing: how many lower numbers were never delivered.
PROGRESS = schema_of("tag string, persistence_id string, number bigint, sequence_nr bigint, missing bigint")
# Value of deleted_to for a persistence_id that the journal knows nothing of.
GONE = 2**62


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
    # Ticks before which the application's TTL may have taken rows of the view (PipelineSettings.expired_to).
    expired_in_view: int = 0

    def judged(self) -> Column:
        """Return, over `tag` and `ticks`, whether a row is judged: not before the tag's start and not after
        `until`.
        """
        return (F.col("ticks") >= number_by("tag", self.start)) & (F.col("ticks") <= self.until)

    def is_expired_bucket(self) -> Column:
        """Return, over `bucket`, whether it has rows past the destination's retention."""
        return F.col("bucket") * TICKS_PER_MILLISECOND < self.expired

    def may_lack_rows(self) -> Column:
        """Return, over `bucket`, whether the application's TTL may have taken rows of the view."""
        return F.col("bucket") * TICKS_PER_MILLISECOND < self.expired_in_view

    def is_reached(self) -> Column:
        """Return, over `tag` and `ticks`, whether a row may be in ClickHouse."""
        return F.col("ticks") <= number_by("tag", self.reached)

    def is_due(self) -> Column:
        """Return, over `tag` and `ticks`, whether a row has to be in ClickHouse."""
        return F.col("ticks") <= number_by("tag", self.due)


@dataclass(frozen=True, slots=True)
class _Staging:
    """Writes what an audit keeps of a table's rows to files."""

    journal: JournalSchema
    files: RunFiles
    scope: Scope

    def _converted(self, convert: Callable[..., pa.RecordBatch]) -> Convert:
        return partial(convert, tags=self.scope.tags, until=self.scope.until, size=self.scope.size)


class EventStaging(_Staging):
    """Writes one row per event (row_hashes.JOURNAL)."""

    def target(self, folder: str) -> Target:
        """Return where the rows go."""
        repeated = [ID, "writer_uuid", "bucket", "flaw", "tags.list.element"]
        return Target(self.files, folder, row_hashes.JOURNAL, repeated)

    def of_table(self, spark: SparkSession, folder: str) -> list[str]:
        """Write all events of `messages`, of all persistence ids, and return the files."""
        messages, columns = self.journal.table(self.journal.names.messages), self.journal.columns
        convert = self._converted(row_hashes.of_messages)
        return messages.write(spark, columns, self.target(folder), convert, written=WRITTEN)

    def of_rows(self, rows: DataFrame, folder: str) -> list[str]:
        """Write these rows of messages, with `written`, and return the files."""
        return _written(rows, self.target(folder), self._converted(row_hashes.of_messages))


class ViewStaging(_Staging):
    """Writes one row per row of the view with a tag of the pipeline (row_hashes.VIEW)."""

    def target(self, folder: str) -> Target:
        """Return where the rows go."""
        repeated = [ID, "tag", "writer_uuid", "bucket", "timebucket"]
        return Target(self.files, folder, row_hashes.VIEW, repeated)

    def of_table(self, spark: SparkSession, folder: str) -> list[str]:
        """Write all rows of the view, and return the files."""
        view, convert = self.journal.table(self.journal.view_table), self._converted(row_hashes.of_view)
        return view.write(spark, self._columns(), self.target(folder), convert, written=WRITTEN)

    def of_partitions(self, keys: DataFrame, folder: str) -> list[str]:
        """Write the rows of some partitions (tag_name, timebucket), and return the files."""
        key = ["tag_name", "timebucket"]
        others = [name for name in self._columns() if name not in key]
        rows = self.journal.table(self.journal.view_table).rows_of(keys, key, *others, written=WRITTEN)
        return _written(rows, self.target(folder), self._converted(row_hashes.of_view))

    def _columns(self) -> list[str]:
        return sorted(self.journal.tables[self.journal.view_table] & set(VIEW_COLUMNS))


def stage_table(stages: EventStaging | ViewStaging, spark: SparkSession, folder: str) -> DataFrame:
    """Write all rows of a table below a folder, and return them."""
    stages.files.remove_folder(folder)
    return stages.target(folder).frame(spark, stages.of_table(spark, folder))


def _written(rows: DataFrame, target: Target, convert: Convert) -> list[str]:
    """Write what tasks make of these rows, whose timestamp is text, and return the files."""
    as_read = rows.withColumn("timestamp", F.unhex(F.replace("timestamp", F.lit("-"), F.lit(""))))
    return target.of_frame(as_read, convert)


def stage_deleted(
    spark: SparkSession,
    journal: JournalSchema,
    in_journal: DataFrame,
    in_view: DataFrame,
    for_good: DataFrame,
    url: str,
) -> DataFrame:
    """Write up to where the events of each persistence_id are deleted, and read it back.

    In: `in_journal`, `in_view`: the persistence ids of the events, and of the view's rows that are judged. Out: persistence_id, deleted_to.

    metadata.deleted_to is written before the events go: read it after the journal. The plugin's deletion for
    good (deleteAllEvents with neverUsePersistenceIdAgain) takes the metadata too. A persistence_id that the
    view has and the journal knows nothing of is therefore deleted completely (GONE). Tagmill notes its own
    deletions for good (`for_good`) first, so they are known whatever is left.
    """
    gone = in_view.distinct().join(in_journal, ID, "left_anti").withColumn("deleted_to", F.lit(GONE))
    return materialize(_least(gone.unionByName(noted_deletions(spark, journal, for_good))), url)


def noted_deletions(spark: SparkSession, journal: JournalSchema, for_good: DataFrame) -> DataFrame:
    """Return up to where events are deleted, as the journal or Tagmill (`for_good`) has noted it: persistence_id, deleted_to."""
    if journal.names.metadata not in journal.tables:
        return _least(for_good)
    noted = journal.table(journal.names.metadata).rows(spark, ID, "deleted_to")
    return _least(for_good.unionByName(noted.where("deleted_to > 0")))


def _least(deleted: DataFrame) -> DataFrame:
    return deleted.groupBy(ID).agg(F.min("deleted_to").alias("deleted_to"))


def stage_progress(
    spark: SparkSession, cassandra: Cassandra, scope: Scope, files: RunFiles, folder: str
) -> DataFrame:
    """Write the ledger's progress to a folder, and read it back. Out: PROGRESS."""
    table, target = CassandraTable.of_ledger(cassandra, "progress"), Target(files, folder, PROGRESS, ["tag"])
    columns = ["pipeline", "tag", ID, "sequence_nr", "missing"]
    convert = partial(_progress, pipeline=scope.pipeline, tags=scope.tags)
    return target.frame(spark, table.write(spark, columns, target, convert, number="tag_pid_sequence_nr"))


def _progress(rows: pa.RecordBatch, pipeline: str, tags: Collection[str]) -> pa.RecordBatch:
    is_of_pipeline = pc.equal(rows["pipeline"], pipeline)
    rows = rows.filter(pc.and_(is_of_pipeline, pc.is_in(rows["tag"], pa.array(tags, pa.string()))))
    intervals = map(read_intervals, rows["missing"].to_pylist())
    missing = [sum(last - first + 1 for first, last in each) for each in intervals]
    columns = [*(rows[name] for name in PROGRESS.names[:-1]), pa.array(missing, pa.int64())]
    return pa.RecordBatch.from_arrays(columns, schema=PROGRESS)


def stage_cleaned(spark: SparkSession, log: CleanupLog, scope: Scope, url: str) -> CleanedOf:
    """Write the buckets that cleanups have taken or are working on, of all views that the journal had; read
    them back. Nothing is written if there are none.

    See frames.cleaned.
    """
    of_sizes = cleaned(spark, log).items()
    if not log.any_of(scope.tags):
        return {size: starts.where("false") for size, starts in of_sizes}
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
