"""Compute what the actions of one id do to its entry in metajournal and its rows in journal, as Kafka Journal
stores them. Pure.

| action | without an entry | with one |
|---|---|---|
| Append | creates it: seq_nr of the last event, delete_to before the first one (null: 1 is the first) | updates seq_nr |
| Delete | creates it: seq_nr and delete_to are the Delete's | sets delete_to, at most seq_nr, deletes the events up to it |
| Purge | nothing | deletes the events, then the entry |
| Mark | nothing | nothing |

Actions before the last Purge among the folded records are dropped, and events before a Delete that covers
them are never written. seq_nr may skip numbers. Neither it nor delete_to ever goes back. Kafka Journal's
readers begin in the segment of delete_to + 1 and end behind the first segment without a row, so a life that
begins with a high sequence number needs delete_to.
"""

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from uuid import UUID, uuid5

# Segments of metajournal over which ids are spread: in today's rows, and in older rows.
SEGMENTS, OLD_SEGMENTS = 10_000, 100
RECORD_IDS = UUID("7f0bd1a2-55c5-4d3e-9a0e-6f6a2f0c8f11")


@dataclass(frozen=True, slots=True)
class Entry:
    """An id's row in metajournal.

    `delete_to` None: nothing was deleted; `expire_after_ms` and `expire_on` None: never.

    `record_id` None: a release of Kafka Journal that knew no record ids made the entry, and later ones add
    none. All rows belong to it.
    """

    partition: int
    offset: int
    segment_size: int
    seq_nr: int
    delete_to: int | None
    created: datetime
    updated: datetime
    origin: str | None
    record_id: UUID | None
    expire_after_ms: int | None = None
    expire_on: date | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """One journal record of an id, without its events.

    `kind`: append, delete, purge or mark. `first` and `to`: the lowest and the highest seq_nr of an append;
    a delete has only the `to` that it names.
    """

    kind: str
    topic: str
    partition: int
    offset: int
    timestamp: datetime
    first: int = 0
    to: int = 0
    origin: str | None = None
    expire_after_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Fork:
    """The place of an append whose first sequence number, `seq_nr`, the id had reached before: another writer
    has gone on meanwhile. Kafka Journal keeps the events of both.
    """

    partition: int
    offset: int
    seq_nr: int


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """The position of a record among those of its id.

    `turn` counts the id's partitions: one, unless the topic got more.
    """

    turn: int
    offset: int


class Fold:
    """Applies the actions of one id, one after the other, to its existing entry.

    It takes the records of each partition in the order of their offsets, one partition after the other.
    """

    def __init__(self, entry: Entry | None, segment_size: int) -> None:
        self.before, self.entry, self.segment_size = entry, entry, segment_size
        self.partitions: list[int] = []
        self.purged = self.appended = False
        # Events at or before this position are not written: they are purged, or were written before.
        self.dropped: Position | None = None
        # Deletes of the id's current life, each with a higher position and a lower bound than the one before
        # it.
        self.deletes: list[tuple[Position, int]] = []
        # Forks in the id's current life.
        self.forks: list[Fork] = []

    def add(self, record: Record) -> bool:
        """Apply the next record; return False if it was applied before and changes nothing."""
        if not self.partitions or self.partitions[-1] != record.partition:
            self.partitions.append(record.partition)
        at = Position(len(self.partitions) - 1, record.offset)
        if self._applied(record):
            # Records before it, in a partition that the id was in earlier, were applied as well: a purge, too.
            self.entry, self.purged, self.appended, self.dropped = self.before, False, False, at
            self.deletes.clear()
            self.forks.clear()
            return False
        if record.kind == "append":
            self._append(record)
        elif record.kind == "delete":
            self._delete(record, at)
        elif record.kind == "purge":
            self._purge(at)
        return True

    @property
    def cut_to(self) -> int:
        """The sequence number up to which the existing events of a life that goes on are deleted; 0: none."""
        if self.purged or not self.before or not self.deletes:
            return 0
        return min(self.deletes[0][1], self.before.seq_nr)

    def _applied(self, record: Record) -> bool:
        return (
            self.before is not None
            and self.before.partition == record.partition
            and record.offset <= self.before.offset
        )

    def _append(self, record: Record) -> None:
        if self.entry and record.first <= self.entry.seq_nr:
            self.forks.append(Fork(record.partition, record.offset, record.first))
        entry = self.entry or self._created(record, record.first - 1 or None)
        after, self.appended = record.expire_after_ms, True
        self.entry = replace(
            entry,
            partition=record.partition,
            offset=record.offset,
            updated=record.timestamp,
            seq_nr=max(entry.seq_nr, record.to),
            expire_after_ms=after,
            expire_on=expire_on(record.timestamp, after) if after is not None else None,
        )

    def _delete(self, record: Record, at: Position) -> None:
        entry = self.entry or self._created(record, record.to)
        to = min(record.to, entry.seq_nr)
        self.entry = replace(
            entry,
            partition=record.partition,
            offset=record.offset,
            updated=record.timestamp,
            delete_to=max(entry.delete_to or 0, to),
        )
        while self.deletes and self.deletes[-1][1] <= to:
            self.deletes.pop()
        self.deletes.append((at, to))

    def _created(self, record: Record, delete_to: int | None) -> Entry:
        return Entry(
            record.partition,
            record.offset,
            self.segment_size,
            record.to,
            delete_to,
            record.timestamp,
            record.timestamp,
            record.origin,
            record_id(record.topic, record.partition, record.offset),
        )

    def _purge(self, at: Position) -> None:
        self.entry, self.purged, self.dropped = None, True, at
        self.deletes.clear()
        self.forks.clear()


def expire_on(timestamp: datetime, after_ms: int) -> date:
    """Return the day (UTC) on which an append's expireAfter ends; the last possible date if it ends later
    than that.
    """
    try:
        return (timestamp.astimezone(UTC) + timedelta(milliseconds=after_ms)).date()
    except OverflowError:
        return date.max


def record_id(topic: str, partition: int, offset: int) -> UUID:
    """Return the id of an entry and of the rows of its life, made from the record that created it: every
    replication makes the same.
    """
    return uuid5(RECORD_IDS, f"{topic}/{partition}/{offset}")


def of_this_life(record_id: UUID | None, meta_record_id: UUID | None) -> bool:
    """Return whether a row of journal belongs to the entry with this record_id; as for Kafka Journal's
    readers, a null fits any.
    """
    return record_id is None or meta_record_id in (None, record_id)


def segment_of(seq_nr: int, segment_size: int) -> int:
    """Return the segment of `journal` that holds an event."""
    return (seq_nr - 1) // segment_size


def java_hash(text: str) -> int:
    """Return Java's String.hashCode of a text: a signed 32-bit number over its UTF-16 units."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


def entry_segments(key: str) -> tuple[int, int]:
    """Return the two segments of metajournal that may hold an id's entry: today's, and that of older rows."""
    value = abs(java_hash(key.lower()))
    return value % SEGMENTS, value % OLD_SEGMENTS
