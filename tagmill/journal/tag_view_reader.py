"""Read a journal keyspace without Spark: the view's buckets, row counts, and the journal's events in a
gap.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import islice
from typing import Any

from tagmill.cassandra.client import READ_TOGETHER, READS_AT_ONCE, Cassandra
from tagmill.cassandra.schema import Table
from tagmill.domain.batches.layout import EventKey
from tagmill.domain.continuity.model import Gap
from tagmill.domain.journal_tables import JournalTables, event_tags, tag_columns
from tagmill.domain.timeuuid import GREGORIAN_TICKS, highest, lowest
from tagmill.errors import ConfigurationError
from tagmill.journal.partitions import partitions_before

# Counts under way at once: each reads its slice on the server, so more would crowd out the application's own
# reads.
COUNTS_AT_ONCE = 4
# Partitions that one query counts.
BUCKETS_COUNTED = 60
# Ticks (100 ns) since 1970 of the latest TimeUUID.
END_OF_TIME = 2**60 - 1 - GREGORIAN_TICKS
# Columns of the plugin's table tag_views that a run needs, with their CQL types.
VIEW_COLUMNS = {
    "tag_name": "text",
    "timebucket": "bigint",
    "timestamp": "timeuuid",
    "persistence_id": "text",
    "tag_pid_sequence_nr": "bigint",
    "writer_uuid": "text",
    "ser_id": "int",
    "ser_manifest": "text",
    "event_manifest": "text",
    "event": "blob",
    "sequence_nr": "bigint",
    "meta_ser_id": "int",
    "meta_ser_manifest": "text",
    "meta": "blob",
}


def view_columns(*, meta: bool) -> list[str]:
    """Return the columns of tag_views, with or without those of replicated events (meta)."""
    return [name for name in VIEW_COLUMNS if meta or not name.startswith("meta")]


def written_with(written_at: int, ttl_seconds: int | None) -> tuple[str, tuple[int, ...]]:
    """Return the clause of an INSERT that gives a row a write time (microseconds) and the application's TTL, if it has
    one, and the values to bind behind the row's.
    """
    if ttl_seconds is None:
        return "USING TIMESTAMP ?", (written_at,)
    return "USING TIMESTAMP ? AND TTL ?", (written_at, ttl_seconds)


# Empty partitions in a row that end a search: an atomic write lies in the partition of its highest number, so
# one may be skipped.
EMPTY_PARTITIONS_AT_END = 2
# Partitions that are searched for events where deletions may have emptied the first ones.
SEARCHED_PARTITIONS = 1024
# Partitions that the first query asks for (most persistence ids have one), and that any query asks for at
# most.
FIRST_PARTITIONS, MOST_PARTITIONS = 3, 64
# Number of persistence ids up to which each gets its own query, and partitions that are taken at once.
FEW, PARTITIONS_AT_ONCE = 4, 256
# Events of the journal in a page, with payloads (each may have megabytes) and without.
LARGE_ROWS_A_PAGE, ROWS_A_PAGE = 100, 5000
ROW_KEY = "timestamp, persistence_id, tag_pid_sequence_nr, sequence_nr, writer_uuid"


# Columns of messages in the order of JournalEvent's fields; plugins before 0.59 had no meta columns.
EVENT_COLUMNS = (
    "sequence_nr timestamp writer_uuid ser_id ser_manifest event_manifest event meta_ser_id "
    "meta_ser_manifest meta".split()
)


@dataclass(frozen=True, slots=True)
class JournalEvent:
    """The columns of a row of messages that tag_views needs."""

    sequence_nr: int
    offset: Any
    writer_uuid: str
    ser_id: int | None
    ser_manifest: str | None
    event_manifest: str | None
    event: bytes | None
    meta_ser_id: int | None
    meta_ser_manifest: str | None
    meta: bytes | None

    @property
    def size(self) -> int:
        """Bytes of the payload and its metadata."""
        return len(self.event or b"") + len(self.meta or b"")

    @property
    def key(self) -> "JournalKey":
        """The event without its payload."""
        return JournalKey(self.sequence_nr, self.offset, self.event is not None and self.ser_id is not None)


@dataclass(frozen=True, slots=True)
class JournalKey:
    """An event of messages without its payload. `is_whole`: it has a payload and a serializer id."""

    sequence_nr: int
    offset: Any
    is_whole: bool


@dataclass(frozen=True, slots=True)
class ViewRow:
    """The key of a row of the view, and its event's sequence_nr and writer."""

    tag: str
    timebucket: int
    timestamp: Any
    persistence_id: str
    number: int
    sequence_nr: int | None
    writer_uuid: str | None

    @property
    def event(self) -> EventKey:
        """What identifies the row's event in ClickHouse, where nulls are 0 and an empty text."""
        return self.tag, self.persistence_id, self.sequence_nr or 0, self.writer_uuid or ""


class Views:
    """The tag views and messages of one journal keyspace, read at the application's consistency."""

    def __init__(self, cassandra: Cassandra, tables: JournalTables) -> None:
        self.cassandra = cassandra.application
        self.tables = tables
        self.keyspace = tables.keyspace
        self.view_table = tables.view
        self.view = tables.cql(tables.view)
        self.messages = tables.cql(tables.messages)

    @cached_property
    def _known_tables(self) -> Mapping[str, Table]:
        """Return the keyspace's tables as they are when a reader first needs them, not anew for each persistence_id."""
        return self.cassandra.tables(self.keyspace) or {}

    def columns(self) -> dict[str, str]:
        """Return the columns of the view with their CQL types; raises ConfigurationError if keyspace or table
        is missing.
        """
        tables = self.cassandra.tables(self.keyspace)
        if tables is None:
            raise ConfigurationError(
                f"keyspace {self.keyspace} does not exist in {self.cassandra.where}. Nothing was read; "
                "check the pipeline's keyspace"
            )
        missing = [table for table in (self.view_table, self.tables.messages) if table not in tables]
        if missing:
            raise ConfigurationError(
                f"keyspace {self.keyspace} has no table {' and '.join(missing)}. Nothing was read; is it "
                "the journal's keyspace?"
            )
        return dict(tables[self.view_table].columns)

    def buckets(self, tags: Iterable[str]) -> dict[str, list[int]]:
        """Return the timebuckets of each tag, sorted, from a token scan of the distinct partitions."""
        found: dict[str, list[int]] = {tag: [] for tag in tags}
        for tag, bucket in self.partitions():
            if tag in found:
                found[tag].append(bucket)
        return {tag: sorted(buckets) for tag, buckets in found.items()}

    def partitions(self) -> Iterator[tuple[str, int]]:
        """Yield (tag, timebucket) of every partition of the view, in no particular order, page by page."""
        for row in self.cassandra.stream(f"SELECT DISTINCT tag_name, timebucket FROM {self.view}"):
            yield row.tag_name, row.timebucket

    def tags(self) -> list[dict[str, Any]]:
        """Return all tags with the number of their timebuckets, the first and the last (milliseconds)."""
        found: dict[str, list[int]] = {}
        for tag, bucket in self.partitions():
            count, first, last = found.get(tag, [0, bucket, bucket])
            found[tag] = [count + 1, min(first, bucket), max(last, bucket)]
        return [
            {"tag": tag, "timebuckets": n, "first": first, "last": last}
            for tag, (n, first, last) in sorted(found.items())
        ]

    def progress_of(self, persistence_id: str) -> list[dict[str, Any]]:
        """Return the rows of tag_write_progress of one persistence_id, sorted by tag."""
        fields = "tag, tag_pid_sequence_nr, sequence_nr, offset"
        rows = self.cassandra.execute(
            f"SELECT {fields} FROM {self.tables.cql('tag_write_progress')} WHERE persistence_id = ?",
            persistence_id,
        )
        return sorted((row._asdict() for row in rows), key=lambda line: line["tag"])

    def has_events(self, persistence_id: str) -> bool:
        """Return whether a persistence_id has events in the journal, or had some that were deleted."""
        there = self._known_tables
        deleted_to = self.deleted_to(persistence_id) if self.tables.metadata in there else 0
        return bool(
            deleted_to or partitions_of(self.cassandra, self.messages, persistence_id, 0, SEARCHED_PARTITIONS)
        )

    def of_ids(self, persistence_ids: Collection[str]) -> Iterator[ViewRow]:
        """Yield all view rows of persistence ids, partition by partition; this reads the whole view.

        Up to FEW ids are filtered on the server, each in a query of its own; for more the keys of all rows
        are read and filtered here.
        """
        remaining = self.partitions()
        while group := list(islice(remaining, PARTITIONS_AT_ONCE)):
            yield from (
                self._few(group, persistence_ids)
                if len(persistence_ids) <= FEW
                else self._many(group, persistence_ids)
            )

    def _few(self, partitions: list[tuple[str, int]], persistence_ids: Iterable[str]) -> Iterator[ViewRow]:
        keys = [(tag, bucket, one) for one in persistence_ids for tag, bucket in partitions]
        results = self.cassandra.execute_many(
            f"SELECT {ROW_KEY} FROM {self.view} WHERE tag_name = ? AND timebucket = ? AND persistence_id "
            "= ? ALLOW FILTERING",
            keys,
            concurrency=COUNTS_AT_ONCE,
        )
        for (tag, bucket, _), rows in zip(keys, results, strict=True):
            yield from (ViewRow(tag, bucket, *row) for row in rows)

    def _many(self, partitions: list[tuple[str, int]], persistence_ids: Collection[str]) -> Iterator[ViewRow]:
        for tag, bucket in partitions:
            yield from (row for row in self.rows(tag, bucket) if row.persistence_id in persistence_ids)

    def rows(self, tag: str, timebucket: int) -> Iterator[ViewRow]:
        """Yield the rows of a partition of the view, page by page."""
        for row in self.cassandra.stream(
            f"SELECT {ROW_KEY} FROM {self.view} WHERE tag_name = ? AND timebucket = ?", tag, timebucket
        ):
            yield ViewRow(tag, timebucket, *row)

    def written(self, keys: Iterable[tuple[str, int]]) -> Iterator[tuple[int, int]]:
        """Yield for each partition (tag, timebucket) its rows and its newest write time in microseconds, both
        computed on the server.
        """
        results = self.cassandra.execute_many(
            "SELECT count(*) AS rows, max(writetime(sequence_nr)) AS newest_row, max(writetime(event)) "
            "AS newest_event"
            f" FROM {self.view} WHERE tag_name = ? AND timebucket = ?",
            keys,
            concurrency=COUNTS_AT_ONCE,
        )
        return (
            (found[0].rows, max(found[0].newest_row or 0, found[0].newest_event or 0)) for found in results
        )

    def delete_partition(self, tag: str, timebucket: int, up_to: int) -> None:
        """Delete what was written to a partition up to the moment `up_to` (microseconds); later rows stay."""
        self.cassandra.write_many(
            f"DELETE FROM {self.view} USING TIMESTAMP ? WHERE tag_name = ? AND timebucket = ?",
            [(up_to, tag, timebucket)],
        )

    def count(
        self, parts: Iterable[tuple[str, int, int | None, int | None]]
    ) -> Iterator[tuple[int, int | None]]:
        """Yield the rows and their smallest remaining TTL (seconds) of each part (tag, timebucket, after,
        until).

        `after` (exclusive) and `until` (inclusive) are in ticks.
        """
        results = self.cassandra.execute_many(
            f"SELECT count(*) AS rows, min(ttl(event)) AS ttl FROM {self.view}"
            " WHERE tag_name = ? AND timebucket = ? AND timestamp > ? AND timestamp <= ?",
            ((tag, bucket, *bounds(after, until)) for tag, bucket, after, until in parts),
            concurrency=COUNTS_AT_ONCE,
        )
        return ((rows[0].rows, rows[0].ttl) for rows in results)

    def existing(self, tag: str, timebuckets: Sequence[int]) -> set[int]:
        """Return those of some partitions of a tag that have rows; one query looks for some of them."""
        results = self.cassandra.execute_many(
            f"SELECT DISTINCT tag_name, timebucket FROM {self.view} WHERE tag_name = ? AND timebucket IN ?",
            ((tag, group) for group in _grouped(timebuckets, READ_TOGETHER)),
            concurrency=READS_AT_ONCE,
        )
        return {row.timebucket for rows in results for row in rows}

    def count_whole(self, tag: str, timebuckets: Sequence[int]) -> dict[int, int]:
        """Return the number of rows of each whole partition of a tag, 0 for an absent one; one query counts
        BUCKETS_COUNTED.
        """
        results = self.cassandra.execute_many(
            f"SELECT timebucket, count(*) AS rows FROM {self.view} WHERE tag_name = ? AND timebucket IN "
            "? GROUP BY tag_name, timebucket",
            ((tag, group) for group in _grouped(timebuckets, BUCKETS_COUNTED)),
            concurrency=COUNTS_AT_ONCE,
        )
        return dict.fromkeys(timebuckets, 0) | {row.timebucket: row.rows for rows in results for row in rows}

    def fingerprint(self, tag: str, persistence_id: str, buckets: Iterable[int]) -> str:
        """Return a digest of the rows of one persistence_id in some buckets; it changes if a row comes, goes
        or gets its event.
        """
        digest = sha256()
        for bucket in buckets:
            for row in self.cassandra.execute(
                f"SELECT timestamp, tag_pid_sequence_nr, sequence_nr, writer_uuid, ser_id FROM {self.view}"
                " WHERE tag_name = ? AND timebucket = ? AND persistence_id = ? ALLOW FILTERING",
                tag,
                bucket,
                persistence_id,
            ):
                digest.update(repr((bucket, *row)).encode())
        return digest.hexdigest()[:16]

    def numbers(
        self, tag: str, persistence_id: str, buckets: Iterable[int]
    ) -> Iterator[tuple[int, int | None, Any, str]]:
        """Yield (number, sequence_nr, offset, writer_uuid) of the rows of one persistence_id in some buckets."""
        for bucket in buckets:
            for row in self.cassandra.execute(
                f"SELECT timestamp, tag_pid_sequence_nr, sequence_nr, writer_uuid FROM {self.view}"
                " WHERE tag_name = ? AND timebucket = ? AND persistence_id = ? ALLOW FILTERING",
                tag,
                bucket,
                persistence_id,
            ):
                yield row.tag_pid_sequence_nr, row.sequence_nr, row.timestamp, row.writer_uuid or ""

    def sequence_nrs(self, keys: Iterable[tuple[str, int, Any, str, int]]) -> Iterator[int | None]:
        """Yield the sequence_nr of each primary key (tag, timebucket, timestamp, persistence_id, number);
        None: no row has it.
        """
        results = self.cassandra.execute_many(
            f"SELECT sequence_nr FROM {self.view} WHERE tag_name = ? AND timebucket = ? AND timestamp = ?"
            " AND persistence_id = ? AND tag_pid_sequence_nr = ?",
            keys,
        )
        return (rows[0].sequence_nr if rows else None for rows in results)

    def numbers_at(self, tag: str, bucket: int, offset: Any, persistence_id: str) -> list[tuple[int, int]]:
        """Return (number, sequence_nr) of the rows of one persistence_id at one offset."""
        rows = self.cassandra.execute(
            f"SELECT tag_pid_sequence_nr, sequence_nr FROM {self.view}"
            " WHERE tag_name = ? AND timebucket = ? AND timestamp = ? AND persistence_id = ?",
            tag,
            bucket,
            offset,
            persistence_id,
        )
        return [(row.tag_pid_sequence_nr, row.sequence_nr) for row in rows]

    def deleted_to(self, persistence_id: str) -> int:
        """Return metadata.deleted_to, the sequence_nr up to which events were deleted; 0 if none was."""
        metadata = self.tables.cql(self.tables.metadata)
        rows = self.cassandra.execute(
            f"SELECT deleted_to FROM {metadata} WHERE persistence_id = ?", persistence_id
        )
        return int(rows[0].deleted_to or 0) if rows else 0

    def journal_events(
        self, tag: str, persistence_id: str, gap: Gap, limit: int, max_bytes: int | None = None
    ) -> list[JournalEvent]:
        """Return the journal's events with a tag strictly between the neighbours of a gap, in order; at most
        `limit`, and none after the one with which their payloads have more than `max_bytes`.
        """
        there = self._known_tables[self.tables.messages].columns
        found, size = list[JournalEvent](), 0
        for row in self._tagged(
            tag, persistence_id, gap, [name for name in EVENT_COLUMNS if name in there], LARGE_ROWS_A_PAGE
        ):
            values: list[Any] = [getattr(row, name, None) for name in EVENT_COLUMNS]
            found.append(JournalEvent(*values))
            size += found[-1].size
            if len(found) == limit or (max_bytes is not None and size > max_bytes):
                break
        return sorted(found, key=lambda event: event.sequence_nr)

    def journal_keys(self, tag: str, persistence_id: str, gap: Gap, limit: int) -> list[JournalKey]:
        """Return what `journal_events` returns, without payloads."""
        columns = ["sequence_nr", "timestamp", "ser_id", "WRITETIME(event) AS written"]
        rows = islice(self._tagged(tag, persistence_id, gap, columns, ROWS_A_PAGE), limit)
        keys = (
            JournalKey(row.sequence_nr, row.timestamp, row.written is not None and row.ser_id is not None)
            for row in rows
        )
        return sorted(keys, key=lambda key: key.sequence_nr)

    def _tagged(
        self, tag: str, persistence_id: str, gap: Gap, columns: Sequence[str], page: int
    ) -> Iterator[Any]:
        """Yield these columns of the events with a tag strictly between the neighbours of a gap."""
        there = self._known_tables[self.tables.messages].columns
        for partition in partitions_before(
            self.cassandra, self.messages, persistence_id, gap.before_sequence_nr
        ):
            rows = self.cassandra.stream(
                f"SELECT {', '.join([*columns, *tag_columns(there)])} FROM {self.messages}"
                " WHERE persistence_id = ? AND partition_nr = ? AND sequence_nr > ? AND sequence_nr < ?",
                persistence_id,
                partition,
                gap.after_sequence_nr,
                gap.before_sequence_nr,
                page=page,
            )
            yield from (row for row in rows if tag in event_tags(row))


def partitions_of(
    cassandra: Cassandra,
    messages: str,
    persistence_id: str,
    deleted_to: int,
    empty_at_end: int = EMPTY_PARTITIONS_AT_END,
) -> list[int]:
    """Return the partition_nrs of a journal's messages table (quoted) that have events of a persistence_id,
    in order.

    Partitions follow each other, except where an atomic write has skipped one. Deletions may have emptied the
    first ones, at most as many as events were deleted. The search ends after `empty_at_end` empty partitions
    in a row.
    """
    found: list[int] = []
    begin, size = 0, FIRST_PARTITIONS
    searched = min(deleted_to, SEARCHED_PARTITIONS) + empty_at_end
    while begin <= (found[-1] + empty_at_end if found else searched):
        rows = cassandra.execute(
            f"SELECT partition_nr, sequence_nr FROM {messages} WHERE persistence_id = ? AND partition_nr "
            "IN ? PER PARTITION LIMIT 1",
            persistence_id,
            list(range(begin, begin + size)),
        )
        # A partition of the oldest schema may have a static column and no event.
        found.extend(sorted(row.partition_nr for row in rows if row.sequence_nr is not None))
        begin, size = begin + size, min(8 * size, MOST_PARTITIONS)
    return found


def bounds(after: int | None, until: int | None) -> tuple[Any, Any]:
    """Return the TimeUUIDs for `timestamp > ?

    AND timestamp <= ?` between two ticks; None: without a bound on that side.
    """
    return highest(after) if after is not None else lowest(-GREGORIAN_TICKS), highest(
        until if until is not None else END_OF_TIME
    )


def _grouped(timebuckets: Sequence[int], size: int) -> Iterator[list[int]]:
    """Yield the timebuckets in lists of `size`; the last one may be shorter."""
    for first in range(0, len(timebuckets), size):
        yield list(timebuckets[first : first + size])
