"""Write a sealed replication to Cassandra.

All of it may be written again: each row has the replication's own timestamp.

The order is Kafka Journal's: a delete moves delete_to before its events are deleted, events are written
before the entry that counts them, and a purge deletes the entry last. Deletions have a write time that is a
microsecond earlier than that of the rows.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tagmill.kafka.client import KafkaRecord
from tagmill.kafka_journal import staging
from tagmill.kafka_journal.fold import segment_of
from tagmill.kafka_journal.model import Manifest, Tell
from tagmill.kafka_journal.tables import KafkaJournalTables
from tagmill.kafka_journal.write_times import WriteTimes
from tagmill.ledger.dead_letters import DeadLetter
from tagmill.runs import checkpoints
from tagmill.runs.storage import RunFiles
from tagmill.spark.cassandra_append import append
from tagmill.spark.connector import table

# Rows of FOLDED that are read at once.
AT_ONCE = 10_000
# Sequence numbers may skip: if this many segments of an id are to be deleted, the existing ones are looked up
# instead of counted through.
MOST_SEGMENTS = 10_000
# Below this many segments of an id, those that earlier deletes have emptied are deleted again, in case an
# unusual log left events there.
FEW_SEGMENTS = 1000
ENTRY = (
    "topic", "segment", "id", "partition", "offset", "segment_size", "seq_nr", "delete_to", "created", "updated", "origin", "record_id",
)  # fmt: skip
STATE_KEY, STATE = ("topic", "segment", "id"), ("partition", "offset", "seq_nr", "delete_to")
HIGHEST = 2**63 - 1
DOOMED = ["topic", "id", "purged", "doomed_to", "doomed_size", "old_delete_to"]


class Writing:
    """Writes one sealed replication."""

    def __init__(
        self,
        spark: SparkSession,
        tables: KafkaJournalTables,
        files: RunFiles,
        manifest: Manifest,
        written_at: int,
        times: WriteTimes,
        tell: Tell,
    ) -> None:
        self.spark, self.tables, self.files, self.manifest, self.times, self.tell = (
            spark,
            tables,
            files,
            manifest,
            times,
            tell,
        )
        self.folder, url = manifest.folder, files.url(manifest.folder)
        self.staged = spark.read.schema(staging.schema_of(staging.STAGED)).parquet(f"{url}/records")
        self.folds = spark.read.schema(staging.schema_of(staging.FOLDED)).parquet(f"{url}/folds")
        self.removed_at, self.written_at = written_at, written_at + 1

    def write(self) -> None:
        """Write everything but the pointers; raises GuardRefused if a row is outranked by a later write."""
        counts = self.manifest.counts
        if counts.deletes:
            moved = self.folds.where("moved AND existed AND NOT purged AND NOT delete_to <=> old_delete_to")
            self._append(moved.select("topic", "segment", "id", "delete_to"), "metajournal", self.removed_at)
            checkpoints.reached("replicate.after_delete_to")
        if counts.deletes or counts.purges:
            self.tell("deleting events")
            self._delete_events()
            checkpoints.reached("replicate.after_deletes")
        if counts.appends:
            self.tell(f"writing {counts.events} events")
            self._append(staging.rows(self.staged, self.folds), "journal", self.written_at, large=True)
        checkpoints.reached("replicate.after_events")
        self.tell(f"writing the entries of {counts.ids} ids")
        self._write_entries()
        self._read_back()
        checkpoints.reached("replicate.after_entries")

    def dead_letters(self) -> Iterator[DeadLetter]:
        """Yield the records that can't be read, as they came, with the reasons."""
        broken = self.staged.where("kind = 'broken'")
        for row in broken.select(
            "topic", "partition", "offset", "timestamp", "key", "value", "raw_headers", "reason"
        ).toLocalIterator():
            headers = [(header["key"], _bytes(header["value"])) for header in row["raw_headers"] or ()]
            place = (row["topic"], row["partition"], row["offset"], row["timestamp"])
            yield DeadLetter(
                KafkaRecord(*place, _bytes(row["key"]), _bytes(row["value"]), headers), row["reason"]
            )

    def _write_entries(self) -> None:
        if self.manifest.counts.purges:
            for part in self._folds(["topic", "old_segment", "id", "purged"]):
                purged = ((row["topic"], row["old_segment"], row["id"]) for row in part if row["purged"])
                self.tables.delete_entries(purged, self.removed_at)
            checkpoints.reached("replicate.after_purges")
        entries = self.folds.where("moved").select(*ENTRY, F.to_date("created").alias("created_date"))
        self._append(entries, "metajournal", self.written_at)
        for part in self._folds(["expire_after_ms", "expire_on", "topic", "segment", "id", "expiry"]):
            self.tables.expire((tuple(row.values())[:-1] for row in part if row["expiry"]), self.written_at)

    def _read_back(self) -> None:
        """Compare the entries with what was written, as only this shows a deletion with a later time; raise
        GuardRefused if one differs.
        """
        rows = table(self.spark, self.tables.name, "metajournal", directJoinSetting="on")
        entries = rows.selectExpr(
            *STATE_KEY, *(f"{name} AS standing_{name}" for name in STATE), "writetime(offset) AS written"
        )
        differs = " AND ".join(f"{name} <=> standing_{name}" for name in STATE)
        wrong = (
            self.folds.where("moved")
            .select(*STATE_KEY, *STATE)
            .join(entries, [*STATE_KEY], "left")
            .where(f"NOT ({differs})")
        )
        if self.manifest.counts.purges:
            gone = self.folds.where("purged AND (NOT moved OR segment <> old_segment)")
            gone = gone.selectExpr("topic", "old_segment AS segment", "id").join(entries, [*STATE_KEY])
            wrong = wrong.select("id", "written").unionByName(
                gone.where("standing_seq_nr IS NOT NULL").select("id", "written")
            )
        if row := wrong.select("id", "written").first():
            raise self.times.outranked(
                f"the row of id {row['id']!r} in {self.tables.name}.metajournal", row["written"]
            )

    def _must_be_deleted(self, heads: Iterable[tuple[str, str, int, int]]) -> None:
        if row := self.tables.newest_write(heads, self.written_at):
            raise self.times.outranked(
                f"a deleted row of id {row[0]!r} in {self.tables.name}.journal", row[1]
            )

    def _delete_events(self) -> None:
        """Delete the events of purged ids, and those that a delete covers in a life that goes on."""
        for part in self._folds(DOOMED):
            doomed = [row for row in part if row["doomed_to"] and _last(row) - _first(row) < MOST_SEGMENTS]
            whole = [(r["id"], r["topic"], segment) for r in doomed for segment in _whole(r)]
            heads = [(r["id"], r["topic"], _last(r), r["doomed_to"]) for r in doomed if not r["purged"]]
            self.tables.delete_segments(whole, self.removed_at)
            self.tables.delete_events(heads, self.removed_at)
            self._must_be_deleted([*((*segment, HIGHEST) for segment in whole), *heads])
        self._delete_wide()

    def _delete_wide(self) -> None:
        """Delete the same events of ids whose sequence numbers have skipped so far that their segments can't
        be counted through.
        """
        span = (
            "(doomed_to - 1) div doomed_size - IF(purged, 0, coalesce(old_delete_to, 0) div "
            f"doomed_size) >= {MOST_SEGMENTS}"
        )
        wide = self.folds.where(f"doomed_to IS NOT NULL AND {span}").select(*DOOMED)
        if wide.isEmpty():
            return
        keys = table(self.spark, self.tables.name, "journal").select("topic", "id", "segment").distinct()
        for row in keys.join(F.broadcast(wide), ["topic", "id"]).toLocalIterator():
            last = segment_of(row["doomed_to"], row["doomed_size"])
            if row["segment"] < last or row["purged"]:
                self.tables.delete_segments([(row["id"], row["topic"], row["segment"])], self.removed_at)
            elif row["segment"] == last:
                self.tables.delete_events(
                    [(row["id"], row["topic"], last, row["doomed_to"])], self.removed_at
                )

    def _folds(self, columns: list[str]) -> Iterator[list[dict[str, Any]]]:
        for part in self.files.record_batches(f"{self.folder}/folds", AT_ONCE, columns):
            yield part.select(columns).to_pylist()

    def _append(self, rows: DataFrame, name: str, written_at: int, *, large: bool = False) -> None:
        append(rows, self.tables.name, name, written_at, large=large)


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def _last(row: dict[str, Any]) -> int:
    return segment_of(row["doomed_to"], row["doomed_size"])


def _first(row: dict[str, Any]) -> int:
    """Return the first segment to delete from: 0, unless there are many segments that earlier deletes may
    have emptied.
    """
    if row["purged"] or _last(row) < FEW_SEGMENTS:
        return 0
    return segment_of((row["old_delete_to"] or 0) + 1, row["doomed_size"])


def _whole(row: dict[str, Any]) -> range:
    """Return the segments of which all events are deleted."""
    return range(_first(row), _last(row) + 1 if row["purged"] else _last(row))
