"""A Kafka Journal's tables in Cassandra: create them under their lock, read entries and events by key, move
pointers, delete.
"""

import json
import time
from collections import namedtuple
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from itertools import groupby, islice
from operator import itemgetter
from typing import Any
from uuid import UUID

from cassandra import ConsistencyLevel
from cassandra.util import Duration

from tagmill.cassandra.client import Cassandra, utc
from tagmill.domain import identifiers
from tagmill.errors import ConfigurationError, LeaseTaken
from tagmill.kafka.client import Partition
from tagmill.ledger.schema import statements

TABLES = ("locks", "setting", "journal", "metajournal", "pointer2")
LOCK, SETTING, SETTING_VALUE = "tagmill-schema", "tagmill-schema", "1"
# Milliseconds of a day.
DAY_MS = 86_400_000
# Pointers of one logged batch: each has at most some 400 bytes, and Cassandra refuses batches of 50 KiB.
POINTERS_TOGETHER = 100
# Events of one page: each may have a megabyte.
EVENTS_AT_ONCE = 100
ENTRY = (
    "partition", "offset", "segment_size", "seq_nr", "delete_to", "created", "updated", "origin", "record_id", "expire_after", "expire_on",
)  # fmt: skip
POSITION = ("seq_nr", "partition", "offset", "meta_record_id")
EVENT = (
    "seq_nr", "timestamp", "partition", "offset", "origin", "version", "meta_record_id", "tags", "metadata", "payload_type", "payload_txt",
    "payload_bin", "headers",
)  # fmt: skip


# Columns that earlier releases of Kafka Journal do not have, with the types that its own migrations give
# them; absent ones read as null.
ADDED = {
    "journal": {"headers": "map<text, text>", "version": "text", "meta_record_id": "uuid"},
    "metajournal": {"record_id": "uuid"},
}
# Further columns that read as null where a table lacks them.
OPTIONAL = {"journal": {"origin", "metadata"}, "metajournal": {"origin", "expire_after", "expire_on"}}


@dataclass(frozen=True, slots=True)
class Pointer:
    """The offset of the last replicated record of a topic's partition, and its write time (`written`,
    microseconds).
    """

    offset: int
    created: datetime
    written: int


class KafkaJournalTables:
    """The tables of a Kafka Journal in one keyspace."""

    def __init__(self, cassandra: Cassandra, keyspace: str) -> None:
        self.cassandra, self.name, self.keyspace = cassandra, keyspace, identifiers.cql(keyspace)

    def there(self) -> bool:
        """Return whether all tables exist; raises ConfigurationError if one lacks a column that every release
        of Kafka Journal has.
        """
        known = self.cassandra.tables(self.name) or {}
        wanted = {
            "journal": {"id", "topic", "segment", *EVENT},
            "metajournal": {"id", "topic", "segment", *ENTRY},
        }
        for table, columns in wanted.items():
            needed = columns - ADDED[table].keys() - OPTIONAL[table]
            if table in known and (missing := sorted(needed - known[table].columns.keys())):
                raise ConfigurationError(
                    f"{self.cassandra.where}: table {self.name}.{table} has no column "
                    f"{', '.join(missing)}. Nothing was read or written; "
                    "is it the keyspace of a Kafka Journal?"
                )
        return all(table in known for table in TABLES)

    def outdated(self) -> list[str]:
        """Return the columns, as table.column, that are absent because an earlier release of Kafka Journal
        created the tables.
        """
        return [
            f"{table}.{name}"
            for table, names_of in ADDED.items()
            for name in names_of
            if name not in self._columns(table)
        ]

    def require_writable(self) -> None:
        """Raise ConfigurationError if a table lacks a column that replications write and that `create` does
        not add.
        """
        written = {
            "journal": {*EVENT},
            "metajournal": {*ENTRY, "created_date"},
            "pointer2": {"offset", "created", "updated"},
        }
        missing = [
            f"{table}.{name}"
            for table, columns in written.items()
            if (known := self._columns(table))
            for name in sorted(columns - known - ADDED.get(table, {}).keys())
        ]
        if missing:
            raise ConfigurationError(
                f"{self.cassandra.where}: keyspace {self.name} has no column {', '.join(missing)}. "
                "Nothing was written. Add it as "
                "today's release of Kafka Journal has it"
            )

    def _columns(self, table: str) -> set[str]:
        found = (self.cassandra.tables(self.name) or {}).get(table)
        return set(found.columns) if found else set()

    def _select(self, columns: Sequence[str], table: str) -> str:
        """Return "SELECT … FROM" a table, with those of the columns that the table has."""
        found = self._columns(table)
        return f"SELECT {', '.join(name for name in columns if name in found)} FROM {self.keyspace}.{table}"

    def _whole(self, rows: Iterable[Any], columns: Sequence[str], table: str) -> Iterable[Any]:
        """Return the rows with all of the columns; one that the table lacks is None."""
        if set(columns) <= self._columns(table):
            return rows
        whole = namedtuple("whole", columns)  # type: ignore[misc]
        return (whole(*(getattr(row, name, None) for name in columns)) for row in rows)

    def create(self, replication: Mapping[str, str], *, owner: str, lock_seconds: int) -> None:
        """Create what is missing, one replicator at a time: the others wait for the lock in `locks`, which
        expires by itself.

        Raises LeaseTaken: another replicator has had the lock for longer than it lasts.
        """
        values = {"keyspace": self.keyspace, "replication": json.dumps(dict(replication)).replace('"', "'")}
        made = list(statements("kafkajournal", values))
        for statement in made[:2]:  # keyspace and locks
            self.cassandra.execute(statement)
        self._lock(owner, lock_seconds)
        for statement in made[2:]:
            self.cassandra.execute(statement)
        for column in self.outdated():
            table, name = column.split(".")
            self.cassandra.execute(f"ALTER TABLE {self.keyspace}.{table} ADD {name} {ADDED[table][name]}")
        self.cassandra.execute(
            f"INSERT INTO {self.keyspace}.setting (key, value, timestamp, origin) VALUES (?, ?, ?, "
            "'tagmill')",
            SETTING,
            SETTING_VALUE,
            self.cassandra.now(),
        )
        self.cassandra.transact(
            f"DELETE FROM {self.keyspace}.locks WHERE id = ? IF metadata = ?",
            LOCK,
            owner,
            landed=lambda: True,
        )

    def pointers(self, partitions: Sequence[Partition]) -> dict[Partition, Pointer]:
        """Return the pointers of these partitions; a partition without one is left out."""
        found = self.cassandra.execute_many(
            f"SELECT offset, created, WRITETIME(offset) AS written FROM {self.keyspace}.pointer2 WHERE "
            "topic = ? AND partition = ?",
            partitions,
        )
        return {
            partition: Pointer(rows[0].offset, utc(rows[0].created) or self.cassandra.now(), rows[0].written)
            for partition, rows in zip(partitions, found, strict=True)
            if rows and rows[0].offset is not None
        }

    def point(self, pointers: Iterable[tuple[Partition, Pointer]]) -> None:
        """Move pointers, except those that have a later write time already.

        Those of a topic move all or none: one that is left behind would let a purge be read again alone, and end
        the life that its id has in another partition.
        """
        now = self.cassandra.now()
        insert = (
            f"INSERT INTO {self.keyspace}.pointer2 (topic, partition, offset, created, updated) VALUES "
            "(?, ?, ?, ?, ?) USING TIMESTAMP ?; "
        )
        for _, of_topic in groupby(sorted(pointers, key=itemgetter(0)), lambda one: one[0][0]):
            while some := list(islice(of_topic, POINTERS_TOGETHER)):
                values = [
                    value
                    for partition, one in some
                    for value in (*partition, one.offset, one.created, now, one.written)
                ]
                self.cassandra.write_many(f"BEGIN BATCH {insert * len(some)}APPLY BATCH", [tuple(values)])

    def entries(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield these columns of all rows of metajournal, page by page."""
        rows = self.cassandra.stream(self._select(columns, "metajournal"))
        yield from self._whole(rows, columns, "metajournal")

    def entries_of(self, keys: Iterable[tuple[str, int, str]]) -> Iterator[Any | None]:
        """Yield for each (topic, segment, id) its row of metajournal (ENTRY, and `written`, its write time in
        microseconds), or None; the tables must have all columns.
        """
        found = self.cassandra.execute_many(
            f"SELECT {', '.join(ENTRY)}, WRITETIME(offset) AS written FROM {self.keyspace}.metajournal"
            " WHERE topic = ? AND segment = ? AND id = ?",
            keys,
        )
        return (rows[0] if rows else None for rows in found)

    def entry(self, topic: str, segments: Iterable[int], key: str) -> Any | None:
        """Return a key's row of metajournal (ENTRY) from the first of these segments that has one; None: none
        has.
        """
        for segment in segments:
            rows = self.cassandra.execute(
                f"{self._select(ENTRY, 'metajournal')} WHERE topic = ? AND segment = ? AND id = ?",
                topic,
                segment,
                key,
            )
            if rows and rows[0].seq_nr is not None:
                return next(iter(self._whole(rows, ENTRY, "metajournal")))
        return None

    def events(self, key: str, topic: str, segments: Iterable[int], after: int) -> Iterator[Any]:
        """Yield a key's rows of journal (EVENT) with a seq_nr above `after`, in their order."""
        for segment in segments:
            rows = self.cassandra.stream(
                f"{self._select(EVENT, 'journal')} WHERE id = ? AND topic = ? AND segment = ? AND seq_nr > ?",
                key,
                topic,
                segment,
                after,
                page=EVENTS_AT_ONCE,
            )
            yield from self._whole(rows, EVENT, "journal")

    def filled(self, key: str, topic: str, segments: Iterable[int], after: int) -> Iterator[int]:
        """Yield, in order, those of these segments that have a row above `after`; pass few, since each is
        queried.
        """
        segments = list(segments)
        found = self.cassandra.execute_many(
            f"SELECT seq_nr FROM {self.keyspace}.journal WHERE id = ? AND topic = ? AND segment = ? AND "
            "seq_nr > ? LIMIT 1",
            [(key, topic, segment, after) for segment in segments],
        )
        return (segment for segment, rows in zip(segments, found, strict=True) if rows)

    def newest(self, asked: Iterable[tuple[str, str, int, int, int]]) -> Iterator[list[Any]]:
        """Yield for each query its rows of journal (POSITION), the highest seq_nr first.

        Each query has the id, the topic, the segment, the seq_nr above which to read, and the number of rows
        at most.
        """
        found = self.cassandra.execute_many(
            f"{self._select(POSITION, 'journal')} WHERE id = ? AND topic = ? AND segment = ? AND seq_nr > ?"
            " ORDER BY seq_nr DESC LIMIT ?",
            asked,
            concurrency=32,
        )
        return (list(self._whole(rows, POSITION, "journal")) for rows in found)

    def above(self, asked: Iterable[tuple[str, str, int, int]]) -> Iterator[list[Any]]:
        """Yield for each query its rows of journal (EVENT), in their order; all rows may be in memory at
        once.

        Each query has the id, the topic, the segment, and the seq_nr above which to read.
        """
        found = self.cassandra.execute_many(
            f"{self._select(EVENT, 'journal')} WHERE id = ? AND topic = ? AND segment = ? AND seq_nr > ?",
            asked,
        )
        return (list(self._whole(rows, EVENT, "journal")) for rows in found)

    def positions(self, key: str, topic: str, segment: int, after: int) -> Iterator[Any]:
        """Yield POSITION of one segment's rows with a seq_nr above `after`, the highest seq_nr first."""
        rows = self.cassandra.stream(
            f"{self._select(POSITION, 'journal')} WHERE id = ? AND topic = ? AND segment = ? AND seq_nr > ? "
            "ORDER BY seq_nr DESC",
            key,
            topic,
            segment,
            after,
            page=500,
        )
        return iter(self._whole(rows, POSITION, "journal"))

    def reach(self) -> dict[Partition, int]:
        """Return the offset of the last replicated record of every partition that has one."""
        rows = self.cassandra.stream(f"SELECT topic, partition, offset FROM {self.keyspace}.pointer2")
        return {(row.topic, row.partition): row.offset for row in rows if row.offset is not None}

    def begun(self) -> dict[str, str]:
        """Return the earliest moment (ISO 8601, UTC) at which a partition of each topic was first pointed at.

        Topics whose pointers have no such moment are left out.
        """
        rows = self.cassandra.stream(f"SELECT topic, created FROM {self.keyspace}.pointer2")
        begun = dict[str, str]()
        for row in rows:
            if at := utc(row.created):
                text = at.isoformat(timespec="milliseconds")
                begun[row.topic] = min(begun.get(row.topic, text), text)
        return begun

    def delete_segments(self, segments: Iterable[tuple[str, str, int]], written_at: int) -> None:
        """Delete all rows of journal in segments (id, topic, segment) up to the write time `written_at`."""
        self.cassandra.write_many(
            f"DELETE FROM {self.keyspace}.journal USING TIMESTAMP ? WHERE id = ? AND topic = ? AND "
            "segment = ?",
            ((written_at, *one) for one in segments),
        )

    def delete_events(self, heads: Iterable[tuple[str, str, int, int]], written_at: int) -> None:
        """Delete the rows of journal in (id, topic, segment) up to a seq_nr and up to the write time
        `written_at`.
        """
        self.cassandra.write_many(
            f"DELETE FROM {self.keyspace}.journal USING TIMESTAMP ? WHERE id = ? AND topic = ? AND "
            "segment = ? AND seq_nr <= ?",
            ((written_at, *one) for one in heads),
        )

    def newest_write(
        self, heads: Iterable[tuple[str, str, int, int]], later_than: int
    ) -> tuple[str, int] | None:
        """Return id and write time of a row written after `later_than`; None: there is none.

        Looks at the first row of each head (id, topic, segment, seq_nr), up to its seq_nr.
        """
        heads = list(heads)
        found = self.cassandra.execute_many(
            f"SELECT WRITETIME(offset) AS written FROM {self.keyspace}.journal"
            " WHERE id = ? AND topic = ? AND segment = ? AND seq_nr <= ? LIMIT 1",
            heads,
        )
        written = ((head[0], rows[0].written or 0) for head, rows in zip(heads, found, strict=True) if rows)
        return next((one for one in written if one[1] > later_than), None)

    def delete_entries(self, entries: Iterable[tuple[str, int, str]], written_at: int) -> None:
        """Delete rows of metajournal by (topic, segment, id), up to the write time `written_at`."""
        self.cassandra.write_many(
            f"DELETE FROM {self.keyspace}.metajournal USING TIMESTAMP ? WHERE topic = ? AND segment = ? "
            "AND id = ?",
            ((written_at, *one) for one in entries),
        )

    def expire(
        self, entries: Iterable[tuple[int | None, date | None, str, int, str]], written_at: int
    ) -> None:
        """Set when entries expire.

        Each has the milliseconds after the append (None: never), the day, and (topic, segment, id).
        """
        self.cassandra.write_many(
            f"UPDATE {self.keyspace}.metajournal USING TIMESTAMP ? SET expire_after = ?, expire_on = ?"
            " WHERE topic = ? AND segment = ? AND id = ?",
            ((written_at, duration(after), day, *key) for after, day, *key in entries),
        )

    def _lock(self, owner: str, seconds: int) -> None:
        end = time.monotonic() + seconds + 5
        while not self.cassandra.transact(
            f"INSERT INTO {self.keyspace}.locks (id, expiry_ms, timestamp, metadata) VALUES (?, ?, ?, ?) "
            "IF NOT EXISTS USING TTL ?",
            LOCK,
            seconds * 1000,
            self.cassandra.now(),
            owner,
            seconds,
            landed=lambda: self._holder() == owner,
        ):
            if time.monotonic() > end:
                raise LeaseTaken(
                    f"keyspace {self.name}: {self._holder()} has been creating its tables for more than "
                    f"{seconds} s (row {LOCK} of locks). "
                    "Nothing was done; try again later"
                )
            time.sleep(0.5)

    def _holder(self) -> str | None:
        rows = self.cassandra.execute(
            f"SELECT metadata FROM {self.keyspace}.locks WHERE id = ?",
            LOCK,
            consistency=ConsistencyLevel.SERIAL,
        )
        return rows[0].metadata if rows else None


def duration(milliseconds: int | None) -> Duration | None:
    """Convert milliseconds to Cassandra's duration, with whole days as days and the rest as nanoseconds."""
    if milliseconds is None:
        return None
    days, rest = divmod(milliseconds, DAY_MS)
    return Duration(0, days, rest * 1_000_000)


def milliseconds(duration: Duration | None) -> int | None:
    """Convert a duration of Cassandra's, without months, to milliseconds; the inverse of `duration`."""
    return None if duration is None else int(duration.days) * DAY_MS + int(duration.nanoseconds) // 1_000_000


def uuid(value: Any) -> UUID | None:
    """Convert a uuid of the driver or of Spark to a UUID; None, which entries of old releases have, stays
    None.
    """
    return value if value is None or isinstance(value, UUID) else UUID(str(value))
