"""A Kafka Journal's tables in Cassandra: made under their lock, entries and events by key, pointers, deletes."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any
from uuid import UUID

from cassandra import ConsistencyLevel
from cassandra.util import Duration

from tagmill import names
from tagmill.errors import LeaseTaken
from tagmill.stores.cassandra import Cassandra, utc
from tagmill.stores.kafka import Place
from tagmill.stores.schema import statements

TABLES = ("locks", "setting", "journal", "metajournal", "pointer2")
LOCK, SETTING, SETTING_VALUE = "tagmill-schema", "tagmill-schema", "1"
DAY_MS = 86_400_000
# each may have a megabyte
EVENTS_AT_ONCE = 100
ENTRY = (
    "partition", "offset", "segment_size", "seq_nr", "delete_to", "created", "updated", "origin", "record_id", "expire_after", "expire_on",
)  # fmt: skip
PLACE = ("seq_nr", "partition", "offset", "meta_record_id")
EVENT = (
    "seq_nr", "timestamp", "partition", "offset", "origin", "version", "meta_record_id", "tags", "metadata", "payload_type", "payload_txt",
    "payload_bin", "headers",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pointer:
    """The last record of a topic's partition that was replicated, and when that was written (microseconds)."""

    offset: int
    created: datetime
    written: int


class KafkaJournalTables:
    """The tables of one keyspace."""

    def __init__(self, cassandra: Cassandra, keyspace: str) -> None:
        self.cassandra, self.name, self.keyspace = cassandra, keyspace, names.cql(keyspace)

    def there(self) -> bool:
        """Whether all of them exist."""
        known = self.cassandra.tables(self.name) or {}
        return all(table in known for table in TABLES)

    def create(self, replication: Mapping[str, str], *, owner: str, lock_seconds: int) -> None:
        """Make what is missing, one replicator at a time: the others wait for the lock in `locks`, which expires by itself.

        Raises LeaseTaken: another one has had it for longer than it lasts.
        """
        values = {"keyspace": self.keyspace, "replication": json.dumps(dict(replication)).replace('"', "'")}
        made = list(statements("kafkajournal", values))
        for statement in made[:2]:  # keyspace and locks
            self.cassandra.execute(statement)
        self._lock(owner, lock_seconds)
        for statement in made[2:]:
            self.cassandra.execute(statement)
        self.cassandra.execute(
            f"INSERT INTO {self.keyspace}.setting (key, value, timestamp, origin) VALUES (?, ?, ?, 'tagmill')",
            SETTING, SETTING_VALUE, self.cassandra.now(),
        )  # fmt: skip
        self.cassandra.transact(
            f"DELETE FROM {self.keyspace}.locks WHERE id = ? IF metadata = ?", LOCK, owner, landed=lambda: True
        )

    def pointers(self, places: Sequence[Place]) -> dict[Place, Pointer]:
        """Of those places that have one."""
        found = self.cassandra.execute_many(
            f"SELECT offset, created, WRITETIME(offset) AS written FROM {self.keyspace}.pointer2 WHERE topic = ? AND partition = ?",
            places,
        )
        return {
            place: Pointer(rows[0].offset, utc(rows[0].created) or self.cassandra.now(), rows[0].written)
            for place, rows in zip(places, found, strict=True)
            if rows and rows[0].offset is not None
        }

    def point(self, pointers: Iterable[tuple[Place, Pointer]]) -> None:
        """Move pointers; never back behind one with a later write time."""
        now = self.cassandra.now()
        self.cassandra.write_many(
            f"INSERT INTO {self.keyspace}.pointer2 (topic, partition, offset, created, updated) VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ?",
            ((*place, one.offset, one.created, now, one.written) for place, one in pointers),
        )

    def entry(self, topic: str, segments: Iterable[int], key: str) -> Any | None:
        """The row of metajournal (ENTRY), in the first of these segments that has one."""
        for segment in segments:
            rows = self.cassandra.execute(
                f"SELECT {', '.join(ENTRY)} FROM {self.keyspace}.metajournal WHERE topic = ? AND segment = ? AND id = ?",
                topic,
                segment,
                key,
            )
            if rows and rows[0].seq_nr is not None:
                return rows[0]
        return None

    def events(self, key: str, topic: str, segments: Iterable[int], after: int) -> Iterator[Any]:
        """Rows of journal (EVENT) with a higher seq_nr than `after`, in their order."""
        for segment in segments:
            yield from self.cassandra.stream(
                f"SELECT {', '.join(EVENT)} FROM {self.keyspace}.journal WHERE id = ? AND topic = ? AND segment = ? AND seq_nr > ?",
                key, topic, segment, after, page=EVENTS_AT_ONCE,
            )  # fmt: skip

    def filled(self, key: str, topic: str, segments: Iterable[int], after: int) -> Iterator[int]:
        """Those of these segments, of which there are not too many, that have a row above `after`, in their order."""
        segments = list(segments)
        found = self.cassandra.execute_many(
            f"SELECT seq_nr FROM {self.keyspace}.journal WHERE id = ? AND topic = ? AND segment = ? AND seq_nr > ? LIMIT 1",
            [(key, topic, segment, after) for segment in segments],
        )
        return (segment for segment, rows in zip(segments, found, strict=True) if rows)

    def newest(self, asked: Iterable[tuple[str, str, int, int, int]]) -> Iterator[list[Any]]:
        """Rows of journal (PLACE), the highest seq_nr first. In: id, topic, segment, the seq_nr below them, how many at most."""
        return self.cassandra.execute_many(
            f"SELECT {', '.join(PLACE)} FROM {self.keyspace}.journal WHERE id = ? AND topic = ? AND segment = ? AND seq_nr > ?"
            " ORDER BY seq_nr DESC LIMIT ?",
            asked, concurrency=32,
        )  # fmt: skip

    def above(self, asked: Iterable[tuple[str, str, int, int]]) -> Iterator[list[Any]]:
        """Rows of journal (EVENT), in their order: all of them may be in memory at once. In: id, topic, segment, the seq_nr below them."""
        return self.cassandra.execute_many(
            f"SELECT {', '.join(EVENT)} FROM {self.keyspace}.journal WHERE id = ? AND topic = ? AND segment = ? AND seq_nr > ?",
            asked,
        )

    def places(self, key: str, topic: str, segment: int, after: int) -> Iterator[Any]:
        """Of one segment's rows above `after`, PLACE, the highest seq_nr first."""
        return self.cassandra.stream(
            f"SELECT {', '.join(PLACE)} FROM {self.keyspace}.journal"
            " WHERE id = ? AND topic = ? AND segment = ? AND seq_nr > ? ORDER BY seq_nr DESC",
            key, topic, segment, after, page=500,
        )  # fmt: skip

    def reach(self) -> dict[Place, int]:
        """The offset of the last record that is replicated, of every partition that has one."""
        rows = self.cassandra.stream(f"SELECT topic, partition, offset FROM {self.keyspace}.pointer2")
        return {(row.topic, row.partition): row.offset for row in rows if row.offset is not None}

    def delete_segments(self, segments: Iterable[tuple[str, str, int]], written_at: int) -> None:
        """Delete all rows of (id, topic, segment)."""
        self.cassandra.write_many(
            f"DELETE FROM {self.keyspace}.journal USING TIMESTAMP ? WHERE id = ? AND topic = ? AND segment = ?",
            ((written_at, *one) for one in segments),
        )

    def delete_events(self, heads: Iterable[tuple[str, str, int, int]], written_at: int) -> None:
        """Delete the rows of (id, topic, segment) up to a seq_nr."""
        self.cassandra.write_many(
            f"DELETE FROM {self.keyspace}.journal USING TIMESTAMP ? WHERE id = ? AND topic = ? AND segment = ? AND seq_nr <= ?",
            ((written_at, *one) for one in heads),
        )

    def newest_write(self, heads: Iterable[tuple[str, str, int, int]], later_than: int) -> tuple[str, int] | None:
        """Return the id and write time of a row of (id, topic, segment) up to a seq_nr that was written later; None: there is none."""
        heads = list(heads)
        found = self.cassandra.execute_many(
            f"SELECT WRITETIME(offset) AS written FROM {self.keyspace}.journal"
            " WHERE id = ? AND topic = ? AND segment = ? AND seq_nr <= ? LIMIT 1",
            heads,
        )
        written = ((head[0], rows[0].written or 0) for head, rows in zip(heads, found, strict=True) if rows)
        return next((one for one in written if one[1] > later_than), None)

    def delete_entries(self, entries: Iterable[tuple[str, int, str]], written_at: int) -> None:
        """Delete rows of metajournal by (topic, segment, id)."""
        self.cassandra.write_many(
            f"DELETE FROM {self.keyspace}.metajournal USING TIMESTAMP ? WHERE topic = ? AND segment = ? AND id = ?",
            ((written_at, *one) for one in entries),
        )

    def expire(self, entries: Iterable[tuple[int | None, date | None, str, int, str]], written_at: int) -> None:
        """Set when entries expire: milliseconds after the append (None: never), the day, and (topic, segment, id)."""
        self.cassandra.write_many(
            f"UPDATE {self.keyspace}.metajournal USING TIMESTAMP ? SET expire_after = ?, expire_on = ?"
            " WHERE topic = ? AND segment = ? AND id = ?",
            ((written_at, duration(after), day, *key) for after, day, *key in entries),
        )

    def _lock(self, owner: str, seconds: int) -> None:
        end = time.monotonic() + seconds + 5
        while not self.cassandra.transact(
            f"INSERT INTO {self.keyspace}.locks (id, expiry_ms, timestamp, metadata) VALUES (?, ?, ?, ?) IF NOT EXISTS USING TTL ?",
            LOCK, seconds * 1000, self.cassandra.now(), owner, seconds, landed=lambda: self._holder() == owner,
        ):  # fmt: skip
            if time.monotonic() > end:
                raise LeaseTaken(
                    f"keyspace {self.name}: {self._holder()} has been creating its tables for more than {seconds} s (row {LOCK} of locks). "
                    "Nothing was done; try again later"
                )
            time.sleep(0.5)

    def _holder(self) -> str | None:
        rows = self.cassandra.execute(
            f"SELECT metadata FROM {self.keyspace}.locks WHERE id = ?", LOCK, consistency=ConsistencyLevel.SERIAL
        )
        return rows[0].metadata if rows else None


def duration(milliseconds: int | None) -> Duration | None:
    """As Cassandra's type: whole days as days, what is left as nanoseconds."""
    if milliseconds is None:
        return None
    days, rest = divmod(milliseconds, DAY_MS)
    return Duration(0, days, rest * 1_000_000)


def milliseconds(found: Duration | None) -> int | None:
    """The other way round."""
    return None if found is None else int(found.days) * DAY_MS + int(found.nanoseconds) // 1_000_000


def uuid(value: Any) -> UUID | None:
    """A uuid as the driver or as Spark gives it; entries of old releases have null in place of one."""
    return value if value is None or isinstance(value, UUID) else UUID(str(value))
