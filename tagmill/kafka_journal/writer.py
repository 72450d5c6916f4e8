"""Write a sealed replication to Cassandra.

All of it may be written again: each row has the replication's own timestamp.

The order is Kafka Journal's: a delete moves delete_to before its events are deleted, events are written
before the entry that counts them, and a purge deletes the entry last. An entry that goes on gets its expiry
first: with its new offset, its append counts as applied. A new entry gets it last, since Kafka Journal's readers
fail on a row that has nothing else. Deletions have a write time that is a
microsecond earlier than that of the rows.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from tagmill.kafka_journal.fold import segment_of
from tagmill.kafka_journal.model import Counts, Tell
from tagmill.kafka_journal.piece_files import PieceFiles
from tagmill.kafka_journal.records import DOOMED, MOST_SEGMENTS, Records
from tagmill.kafka_journal.tables import KafkaJournalTables
from tagmill.kafka_journal.write_times import WriteTimes
from tagmill.runs import checkpoints

# Below this many segments of an id, those that earlier deletes have emptied are deleted again, in case an
# unusual log left events there.
FEW_SEGMENTS = 1000
HIGHEST = 2**63 - 1
# Columns of FOLDED that say when an entry expires.
EXPIRY = ("expire_after_ms", "expire_on", "topic", "segment", "id")


class Writing:
    """Writes one sealed replication."""

    def __init__(
        self,
        records: Records,
        piece: PieceFiles,
        tables: KafkaJournalTables,
        counts: Counts,
        written_at: int,
        times: WriteTimes,
        tell: Tell,
    ) -> None:
        self.records, self.piece, self.tables, self.counts = records, piece, tables, counts
        self.times, self.tell = times, tell
        self.removed_at, self.written_at = written_at, written_at + 1

    def write(self) -> None:
        """Write everything but the pointers.

        Raises GuardRefused: a row is outranked by a later write. SealedFileDamaged: a file of the piece is gone.
        """
        counts = self.counts
        self.piece.require_whole(counts)
        if counts.deletes:
            self.records.write_delete_to(self.removed_at)
            checkpoints.reached("replicate.after_delete_to")
        if counts.deletes or counts.purges:
            self.tell("deleting events")
            self._delete_events()
            checkpoints.reached("replicate.after_deletes")
        if counts.appends:
            self.tell(f"writing {counts.events} events")
            self.records.write_events(self.written_at)
        checkpoints.reached("replicate.after_events")
        self.tell(f"writing the entries of {counts.ids} ids")
        self._write_entries()
        if wrong := self.records.differing():
            raise self.times.outranked(
                f"the row of id {wrong[0]!r} in {self.tables.name}.metajournal", wrong[1]
            )
        checkpoints.reached("replicate.after_entries")

    def _write_entries(self) -> None:
        if self.counts.purges:
            for part in self._folds(["topic", "old_segment", "id", "purged"]):
                purged = ((row["topic"], row["old_segment"], row["id"]) for row in part if row["purged"])
                self.tables.delete_entries(purged, self.removed_at)
            checkpoints.reached("replicate.after_purges")
        self._write_expiry(going_on=True)
        self.records.write_entries(self.written_at)
        checkpoints.reached("replicate.before_expiry")
        self._write_expiry(going_on=False)

    def _write_expiry(self, *, going_on: bool) -> None:
        """Write when entries expire, either those that existed and were not purged, or the new ones."""
        for part in self._folds([*EXPIRY, "expiry", "existed", "purged"]):
            chosen = (
                row for row in part if row["expiry"] and going_on == (row["existed"] and not row["purged"])
            )
            self.tables.expire((tuple(row[name] for name in EXPIRY) for row in chosen), self.written_at)

    def _must_be_deleted(self, heads: Iterable[tuple[str, str, int, int]]) -> None:
        if row := self.tables.newest_write(heads, self.written_at):
            raise self.times.outranked(
                f"a deleted row of id {row[0]!r} in {self.tables.name}.journal", row[1]
            )

    def _delete_events(self) -> None:
        """Delete the events of purged ids, and those that a delete covers in a life that goes on."""
        is_any_wide = False
        for part in self._folds(DOOMED):
            doomed = [row for row in part if row["doomed_to"]]
            counted = [row for row in doomed if _last(row) - _first(row) < MOST_SEGMENTS]
            is_any_wide |= len(counted) < len(doomed)
            whole = [(r["id"], r["topic"], segment) for r in counted for segment in _whole(r)]
            heads = [(r["id"], r["topic"], _last(r), r["doomed_to"]) for r in counted if not r["purged"]]
            self.tables.delete_segments(whole, self.removed_at)
            self.tables.delete_events(heads, self.removed_at)
            self._must_be_deleted([*((*segment, HIGHEST) for segment in whole), *heads])
        if is_any_wide:
            self.records.delete_wide(self.removed_at)

    def _folds(self, columns: list[str]) -> Iterator[list[dict[str, Any]]]:
        for part in self.piece.folds(columns):
            yield part.select(columns).to_pylist()


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
