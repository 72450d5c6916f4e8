"""Stage, fold and write many records with Spark."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from tagmill.arrow import begins
from tagmill.cassandra.bulk_writer import Target as TargetTable
from tagmill.kafka.client import Kafka
from tagmill.kafka.offset_ranges import Range
from tagmill.kafka.partitioner import HOME
from tagmill.kafka.worker_source import RecordsByTasks
from tagmill.kafka_journal.fold import segment_of
from tagmill.kafka_journal.model import JOURNAL_KINDS
from tagmill.kafka_journal.piece_files import PieceFiles
from tagmill.kafka_journal.records import DOOMED, ENTRY, MOST_SEGMENTS, STATE, STATE_KEY, Decode
from tagmill.kafka_journal.staging import (
    FACTS,
    FOLDED,
    KEY,
    OLD_ENTRY,
    PAYLOAD,
    REPEATED,
    STAGED,
    in_batches,
    outcomes,
)
from tagmill.kafka_journal.tables import KafkaJournalTables
from tagmill.runs.parquet_files import BY_SPARK
from tagmill.spark.bulk_load import Part, load
from tagmill.spark.cassandra_table import CassandraTable
from tagmill.spark.task_files import FILES, Target

# Ids of one segment that a query asks for.
IDS_TOGETHER = 50


class ManyRecords:
    """Records that Spark reads and writes."""

    def __init__(self, spark: SparkSession, tables: KafkaJournalTables, piece: PieceFiles) -> None:
        self.spark, self.tables, self.piece = spark, tables, piece
        self.metajournal = CassandraTable(tables.cassandra, tables.name, "metajournal", is_own=True)

    def stage(self, kafka: Kafka, ranges: Sequence[Range], decode: Decode) -> None:
        """See Records."""
        files, folder = self.piece.files, self.piece.records_folder
        target = Target(files, f"{folder}/written", STAGED, REPEATED)
        written = RecordsByTasks(self.spark, kafka.settings, ranges).made(
            partial(_staged, target, decode), FILES
        )
        for name in target.names(written):
            files.move(name, folder)

    def fold(self, segment_size: int) -> None:
        """See Records."""
        staged = self._staged()
        old_entries = entries(self.metajournal, staged)
        made = folded(staged, old_entries, segment_size)
        made.write.mode("overwrite").parquet(self.piece.files.url(self.piece.folds_folder))

    def write_delete_to(self, written_at: int) -> None:
        """See Records."""
        changed = "moved AND existed AND NOT purged AND NOT delete_to <=> old_delete_to"
        self._append(self._folds().where(changed).select("topic", "segment", "id", "delete_to"), written_at)

    def write_events(self, written_at: int) -> None:
        """See Records."""
        made = rows(self._staged(), self._folds()).withColumn("timestamp", F.unix_millis("timestamp"))
        files, folder, cassandra = self.piece.files, self.piece.events_folder, self.tables.cassandra
        made.write.mode("overwrite").options(**BY_SPARK).parquet(files.url(folder))
        parts = [Part(name) for name in files.parquet(folder)]
        to = TargetTable(self.tables.name, "journal", written_at)
        load(lambda: self.spark, cassandra.settings, files, parts, to, own=cassandra)

    def write_entries(self, written_at: int) -> None:
        """See Records."""
        moved = self._folds().where("moved").select(*ENTRY, F.to_date("created").alias("created_date"))
        self._append(moved, written_at)

    def differing(self) -> tuple[str, int | None] | None:
        """See Records."""
        folds = self._folds()
        moved = folds.where("moved").selectExpr(*STATE_KEY, *(f"{name} AS folded_{name}" for name in STATE))
        stored = _stored(self.metajournal, moved, *STATE, left=True)
        is_as_folded = " AND ".join(f"{name} <=> folded_{name}" for name in STATE)
        purged = folds.where("purged AND (NOT moved OR segment <> old_segment)")
        purged = purged.selectExpr("topic", "old_segment AS segment", "id")
        remaining = _stored(self.metajournal, purged, "seq_nr")
        wrong = (
            stored.where(f"NOT ({is_as_folded})")
            .select("id", "written")
            .unionByName(remaining.where("seq_nr IS NOT NULL").select("id", "written"))
        )
        row = wrong.first()
        return (row["id"], row["written"]) if row else None

    def delete_wide(self, written_at: int) -> None:
        """See Records."""
        span = (
            "(doomed_to - 1) div doomed_size - IF(purged, 0, coalesce(old_delete_to, 0) div "
            f"doomed_size) >= {MOST_SEGMENTS}"
        )
        wide = self._folds().where(f"doomed_to IS NOT NULL AND {span}").select(*DOOMED)
        journal = CassandraTable(self.tables.cassandra, self.tables.name, "journal", is_own=True)
        keys = journal.rows(self.spark, "topic", "id", "segment", per_partition=1)
        for row in keys.join(F.broadcast(wide), ["topic", "id"]).toLocalIterator():
            last = segment_of(row["doomed_to"], row["doomed_size"])
            if row["segment"] < last or row["purged"]:
                self.tables.delete_segments([(row["id"], row["topic"], row["segment"])], written_at)
            elif row["segment"] == last:
                self.tables.delete_events([(row["id"], row["topic"], last, row["doomed_to"])], written_at)

    def _staged(self) -> DataFrame:
        return self._read(self.piece.record_files, STAGED)

    def _folds(self) -> DataFrame:
        return self._read(self.piece.fold_files, FOLDED)

    def _read(self, names: Sequence[str], columns: pa.Schema) -> DataFrame:
        schema = from_arrow_schema(columns)
        if not names:
            return self.spark.createDataFrame([], schema)
        return self.spark.read.schema(schema).parquet(*map(self.piece.files.url, names))

    def _append(self, made: DataFrame, written_at: int) -> None:
        """Write rows of metajournal, those of a partition together."""
        self.metajournal.append(made.sortWithinPartitions(*STATE_KEY), written_at)


def entries(metajournal: CassandraTable, staged: DataFrame) -> DataFrame:
    """Return the existing entries (KEY and OLD_ENTRY) of the staged ids: those in today's segments, else those
    in segments of older rows.
    """
    ids = staged.where(F.col("kind").isin(*JOURNAL_KINDS)).select(*KEY, "segment", "old_segment").distinct()
    keys = ids.select(*KEY, F.posexplode(F.array("segment", "old_segment")).alias("is_old", "segment"))
    columns = [name for name in OLD_ENTRY if name not in ("segment", "written")]
    stored = _stored(metajournal, keys, *columns)
    entry = F.struct(*(F.col(name).alias(alias) for name, alias in OLD_ENTRY.items()))
    entries = stored.where("seq_nr IS NOT NULL").groupBy(*KEY).agg(F.min_by(entry, "is_old").alias("entry"))
    return entries.select(*KEY, "entry.*")


def _stored(metajournal: CassandraTable, keys: DataFrame, *columns: str, left: bool = False) -> DataFrame:
    """Return these columns of the entries of keys (STATE_KEY), those of a segment by few queries."""
    together = keys.repartition("topic", "segment")
    return metajournal.rows_of(
        together, STATE_KEY, *columns, left=left, together=IDS_TOGETHER, written="writetime(offset)"
    )


def folded(staged: DataFrame, old_entries: DataFrame, segment_size: int) -> DataFrame:
    """Fold the journal records of each id, marks included, into one row of FOLDED. In: STAGED, entries."""
    facts = staged.where(F.col("kind").isin(*JOURNAL_KINDS)).select(*FACTS)
    known = facts.join(old_entries, KEY, "left").repartition(*KEY)
    order = [*KEY, "partition", "offset"]
    if _is_any_moved(facts):
        known, order = known.withColumn("turn", _turn()), [*KEY, "turn", "partition", "offset"]
    in_order = known.sortWithinPartitions(*order)
    return in_order.mapInArrow(partial(_fold, segment_size=segment_size), from_arrow_schema(FOLDED))


def _is_any_moved(facts: DataFrame) -> bool:
    """Return whether an id has records in several partitions."""
    places = facts.select(*KEY, "partition").distinct()
    return not places.groupBy(*KEY).count().where("count > 1").isEmpty()


def _turn() -> Column:
    """Return what puts an id's partitions into the same order as pieces.in_turn."""
    of_id, in_partition = Window.partitionBy(*KEY), Window.partitionBy(*KEY, "partition")
    first = F.unix_micros(F.min("timestamp").over(in_partition))
    return F.when(F.max("layout").over(of_id) == HOME, F.col("layout")).otherwise(first)


def _staged(target: Target, decode: Decode, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return target.write_rows(decode(batches))


def _fold(batches: Iterable[pa.RecordBatch], segment_size: int) -> Iterator[pa.RecordBatch]:
    records = (row for batch in batches for row in _records(batch))
    return in_batches(outcomes(records, segment_size), FOLDED)


def _records(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield the facts of records; the first of each id in the batch has the columns of its entry, too."""
    is_first = begins(batch.num_rows, [batch[name] for name in KEY])
    entries = iter(batch.select(list(OLD_ENTRY.values())).filter(pa.array(is_first)).to_pylist())
    for row, first in zip(batch.select(FACTS).to_pylist(), is_first.tolist(), strict=True):
        yield row | next(entries) if first else row


def rows(staged: DataFrame, folds: DataFrame) -> DataFrame:
    """Return the rows of `journal` to write, in the order of its partitions.

    In: STAGED and FOLDED of the same replication.
    """
    chosen = folds.where("moved").select(
        *KEY,
        "partitions",
        "dropped",
        "deletes",
        F.expr("size(forks) > 0").alias("forked"),
        "segment_size",
        F.col("record_id").alias("meta_record_id"),
    )
    appends = staged.where(F.col("kind") == "append").drop(
        "segment", "old_segment", "kind", "first", "to", "reason", "key", "value", "raw_headers"
    )
    at = F.struct(F.expr("int(array_position(partitions, partition) - 1)").alias("turn"), "offset")
    kept = (
        appends.join(chosen, KEY)
        .withColumn("at", at)
        .where(F.col("dropped").isNull() | (F.col("at") > F.col("dropped")))
    )
    # Of all deletes behind a record, the first one has the highest bound.
    deleted_to = F.coalesce(F.filter("deletes", _behind(F.col("at")))[0]["to"], F.lit(0))
    events = (
        kept.withColumn("deleted_to", deleted_to)
        .withColumn("event", F.explode("events"))
        .where("event.seq_nr > deleted_to")
    )
    if not chosen.where("forked").isEmpty():
        events = _last_appends(events)
    return events.select(
        "id",
        "topic",
        F.expr("(event.seq_nr - 1) div segment_size").alias("segment"),
        "event.seq_nr",
        "partition",
        "offset",
        "timestamp",
        "origin",
        "version",
        "meta_record_id",
        F.array_sort(F.array_distinct("event.tags")).alias("tags"),
        "metadata",
        *(f"event.{name}" for name in PAYLOAD),
        "headers",
    ).sortWithinPartitions("topic", "id", "segment", "seq_nr")


def _last_appends(events: DataFrame) -> DataFrame:
    """Keep the last append of each row of journal of forked ids.

    Rows of one key would be written with the same time, so that Cassandra mixed their columns.
    """
    of_row = Window.partitionBy(*KEY, "event.seq_nr", "timestamp").orderBy(F.desc("at"))
    last = events.where("forked").withColumn("age", F.row_number().over(of_row)).where("age = 1").drop("age")
    return events.where("NOT forked").unionByName(last)


def _behind(at: Column) -> Any:
    def behind(delete: Column) -> Column:
        return delete["at"] > at

    return behind
