"""Reads of a journal keyspace that need no Spark: which buckets there are, how many rows, what the journal knows of a hole."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from typing import Any

from tagmill.continuity.model import Hole
from tagmill.errors import ConfigurationError
from tagmill.journaltables import JournalTables, event_tags, tag_columns
from tagmill.stores.cassandra import Cassandra
from tagmill.stores.partitions import partitions_before
from tagmill.timeuuid import GREGORIAN_TICKS, highest, lowest

# a count reads its slice on the server: few at a time, so that the application's own reads are not crowded out
COUNTS_AT_ONCE = 4
# partitions that one query counts
BUCKETS_COUNTED = 60
END_OF_TIME = 2**60 - 1 - GREGORIAN_TICKS
# the plugin's tables: what a run needs of tag_views, with CQL types
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
    """Columns of tag_views, with or without those of replicated events."""
    return [name for name in VIEW_COLUMNS if meta or not name.startswith("meta")]


# an atomic write lies in the partition of its highest number, so a partition may be skipped; two empty ones in a row are the end
EMPTY_PARTITIONS_AT_END = 2
# where deletions have emptied partitions, events are looked for in so many
SEARCHED_PARTITIONS = 1024
# asked for in one query; most persistence ids have one partition
FIRST_PARTITIONS, MOST_PARTITIONS = 3, 64
# persistence ids that are looked for one by one; partitions that are taken at once
FEW, PARTITIONS_AT_ONCE = 4, 256
ROW_KEY = "timestamp, persistence_id, tag_pid_sequence_nr, sequence_nr"


# in the order of JournalEvent; plugins before 0.59 had no meta columns
EVENT_COLUMNS = (
    "sequence_nr timestamp writer_uuid ser_id ser_manifest event_manifest event meta_ser_id meta_ser_manifest meta".split()
)


@dataclass(frozen=True, slots=True)
class JournalEvent:
    """A row of messages, with what tag_views needs of it."""

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


@dataclass(frozen=True, slots=True)
class ViewRow:
    """The key of a row of the view, and its event's sequence_nr."""

    tag: str
    timebucket: int
    timestamp: Any
    persistence_id: str
    number: int
    sequence_nr: int | None


class Views:
    """One journal keyspace."""

    def __init__(self, cassandra: Cassandra, tables: JournalTables) -> None:
        self.cassandra = cassandra.application
        self.tables = tables
        self.keyspace = tables.keyspace
        self.view_table = tables.view
        self.view = tables.cql(tables.view)
        self.messages = tables.cql(tables.messages)

    def columns(self) -> dict[str, str]:
        """Columns of the view with their CQL types; raises ConfigurationError when keyspace or table is missing."""
        metadata = self.cassandra.cluster.metadata.keyspaces.get(self.keyspace)
        if metadata is None:
            raise ConfigurationError(
                f"keyspace {self.keyspace} does not exist in {self.cassandra.where}. Nothing was read; check the pipeline's keyspace"
            )
        missing = [table for table in (self.view_table, self.tables.messages) if table not in metadata.tables]
        if missing:
            raise ConfigurationError(
                f"keyspace {self.keyspace} has no table {' and '.join(missing)}. Nothing was read; is it the journal's keyspace?"
            )
        return {name: column.cql_type for name, column in metadata.tables[self.view_table].columns.items()}

    def buckets(self, tags: Iterable[str]) -> dict[str, list[int]]:
        """The timebuckets of each tag, by a token scan of the distinct partitions."""
        found: dict[str, list[int]] = {tag: [] for tag in tags}
        for tag, bucket in self.partitions():
            if tag in found:
                found[tag].append(bucket)
        return {tag: sorted(buckets) for tag, buckets in found.items()}

    def partitions(self) -> Iterator[tuple[str, int]]:
        """(tag, timebucket) of every partition, in no order, page by page."""
        for row in self.cassandra.stream(f"SELECT DISTINCT tag_name, timebucket FROM {self.view}"):
            yield row.tag_name, row.timebucket

    def tags(self) -> list[dict[str, Any]]:
        """All tags with their timebuckets: how many, the first and the last (milliseconds)."""
        found: dict[str, list[int]] = {}
        for tag, bucket in self.partitions():
            count, first, last = found.get(tag, [0, bucket, bucket])
            found[tag] = [count + 1, min(first, bucket), max(last, bucket)]
        return [{"tag": tag, "timebuckets": n, "first": first, "last": last} for tag, (n, first, last) in sorted(found.items())]

    def progress_of(self, persistence_id: str) -> list[dict[str, Any]]:
        """The lines of tag_write_progress of one persistence_id, by tag."""
        fields = "tag, tag_pid_sequence_nr, sequence_nr, offset"
        rows = self.cassandra.execute(
            f"SELECT {fields} FROM {self.tables.cql('tag_write_progress')} WHERE persistence_id = ?", persistence_id
        )
        return sorted((row._asdict() for row in rows), key=lambda line: line["tag"])

    def has_events(self, persistence_id: str) -> bool:
        """Whether there are events of a persistence_id, or were and are deleted."""
        there = self.cassandra.cluster.metadata.keyspaces[self.keyspace].tables
        deleted_to = self.deleted_to(persistence_id) if self.tables.metadata in there else 0
        return bool(deleted_to or partitions_of(self.cassandra, self.messages, persistence_id, 0, SEARCHED_PARTITIONS))

    def of_ids(self, persistence_ids: Collection[str]) -> Iterator[ViewRow]:
        """All rows of persistence ids, wherever they lie: partition by partition, so this reads the view from end to end.

        A few are looked for on the server, each in a query of its own; of many the keys of all rows come here.
        """
        remaining = self.partitions()
        while group := list(islice(remaining, PARTITIONS_AT_ONCE)):
            yield from self._few(group, persistence_ids) if len(persistence_ids) <= FEW else self._many(group, persistence_ids)

    def _few(self, partitions: list[tuple[str, int]], persistence_ids: Iterable[str]) -> Iterator[ViewRow]:
        keys = [(tag, bucket, one) for one in persistence_ids for tag, bucket in partitions]
        results = self.cassandra.execute_many(
            f"SELECT {ROW_KEY} FROM {self.view} WHERE tag_name = ? AND timebucket = ? AND persistence_id = ? ALLOW FILTERING",
            keys, concurrency=COUNTS_AT_ONCE,
        )  # fmt: skip
        for (tag, bucket, _), rows in zip(keys, results, strict=True):
            yield from (ViewRow(tag, bucket, *row) for row in rows)

    def _many(self, partitions: list[tuple[str, int]], persistence_ids: Collection[str]) -> Iterator[ViewRow]:
        for tag, bucket in partitions:
            yield from (row for row in self.rows(tag, bucket) if row.persistence_id in persistence_ids)

    def rows(self, tag: str, timebucket: int) -> Iterator[ViewRow]:
        """The rows of a partition, page by page."""
        for row in self.cassandra.stream(
            f"SELECT {ROW_KEY} FROM {self.view} WHERE tag_name = ? AND timebucket = ?", tag, timebucket
        ):
            yield ViewRow(tag, timebucket, *row)

    def written(self, keys: Iterable[tuple[str, int]]) -> Iterator[tuple[int, int]]:
        """Rows of whole partitions (tag, timebucket), and the newest write of one of them in microseconds; counted on the server."""
        results = self.cassandra.execute_many(
            "SELECT count(*) AS rows, max(writetime(sequence_nr)) AS newest_row, max(writetime(event)) AS newest_event"
            f" FROM {self.view} WHERE tag_name = ? AND timebucket = ?", keys, concurrency=COUNTS_AT_ONCE,
        )  # fmt: skip
        return ((found[0].rows, max(found[0].newest_row or 0, found[0].newest_event or 0)) for found in results)

    def delete_partition(self, tag: str, timebucket: int, up_to: int) -> None:
        """Delete what was written to a partition up to a moment, in microseconds; later rows stay."""
        self.cassandra.write_many(
            f"DELETE FROM {self.view} USING TIMESTAMP ? WHERE tag_name = ? AND timebucket = ?",
            [(up_to, tag, timebucket)],
        )

    def count(self, parts: Iterable[tuple[str, int, int | None, int | None]]) -> Iterator[tuple[int, int | None]]:
        """Rows, and their smallest remaining TTL in seconds, of (tag, timebucket, after, until): ticks, after exclusive."""
        results = self.cassandra.execute_many(
            f"SELECT count(*) AS rows, min(ttl(event)) AS ttl FROM {self.view}"
            " WHERE tag_name = ? AND timebucket = ? AND timestamp > ? AND timestamp <= ?",
            ((tag, bucket, *bounds(after, until)) for tag, bucket, after, until in parts),
            concurrency=COUNTS_AT_ONCE,
        )
        return ((rows[0].rows, rows[0].ttl) for rows in results)

    def count_whole(self, tag: str, timebuckets: Sequence[int]) -> dict[int, int]:
        """Return the rows of whole partitions of a tag, also of those without any; many are counted in one query."""
        groups = [list(timebuckets[i : i + BUCKETS_COUNTED]) for i in range(0, len(timebuckets), BUCKETS_COUNTED)]
        results = self.cassandra.execute_many(
            f"SELECT timebucket, count(*) AS rows FROM {self.view} WHERE tag_name = ? AND timebucket IN ? GROUP BY tag_name, timebucket",
            ((tag, group) for group in groups),
            concurrency=COUNTS_AT_ONCE,
        )
        return dict.fromkeys(timebuckets, 0) | {row.timebucket: row.rows for rows in results for row in rows}

    def fingerprint(self, tag: str, persistence_id: str, buckets: Iterable[int]) -> str:
        """A digest of the key columns of one persistence_id in some buckets: changes when a row comes, goes or gets its event."""
        digest = sha256()
        for bucket in buckets:
            for row in self.cassandra.execute(
                f"SELECT timestamp, tag_pid_sequence_nr, sequence_nr, writer_uuid, ser_id FROM {self.view}"
                " WHERE tag_name = ? AND timebucket = ? AND persistence_id = ? ALLOW FILTERING", tag, bucket, persistence_id,
            ):  # fmt: skip
                digest.update(repr((bucket, *row)).encode())
        return digest.hexdigest()[:16]

    def numbers(self, tag: str, persistence_id: str, buckets: Iterable[int]) -> Iterator[tuple[int, int, Any]]:
        """(number, sequence_nr, offset) of one persistence_id in some buckets."""
        for bucket in buckets:
            for row in self.cassandra.execute(
                f"SELECT timestamp, tag_pid_sequence_nr, sequence_nr FROM {self.view}"
                " WHERE tag_name = ? AND timebucket = ? AND persistence_id = ? ALLOW FILTERING", tag, bucket, persistence_id,
            ):  # fmt: skip
                yield row.tag_pid_sequence_nr, row.sequence_nr, row.timestamp

    def sequence_nrs(self, keys: Iterable[tuple[str, int, Any, str, int]]) -> Iterator[int | None]:
        """sequence_nr of the rows with these primary keys (tag, timebucket, timestamp, persistence_id, number); None: no such row."""
        results = self.cassandra.execute_many(
            f"SELECT sequence_nr FROM {self.view} WHERE tag_name = ? AND timebucket = ? AND timestamp = ?"
            " AND persistence_id = ? AND tag_pid_sequence_nr = ?",
            keys,
        )
        return (rows[0].sequence_nr if rows else None for rows in results)

    def numbers_at(self, tag: str, bucket: int, offset: Any, persistence_id: str) -> list[tuple[int, int]]:
        """(number, sequence_nr) of the rows of one persistence_id at one offset."""
        rows = self.cassandra.execute(
            f"SELECT tag_pid_sequence_nr, sequence_nr FROM {self.view}"
            " WHERE tag_name = ? AND timebucket = ? AND timestamp = ? AND persistence_id = ?", tag, bucket, offset, persistence_id,
        )  # fmt: skip
        return [(row.tag_pid_sequence_nr, row.sequence_nr) for row in rows]

    def deleted_to(self, persistence_id: str) -> int:
        """metadata.deleted_to, 0 if nothing was deleted."""
        metadata = self.tables.cql(self.tables.metadata)
        rows = self.cassandra.execute(f"SELECT deleted_to FROM {metadata} WHERE persistence_id = ?", persistence_id)
        return int(rows[0].deleted_to or 0) if rows else 0

    def journal_events(self, tag: str, persistence_id: str, hole: Hole, limit: int) -> list[JournalEvent]:
        """The journal's events with a tag strictly between a hole's neighbours, in order; at most `limit`."""
        found: list[JournalEvent] = []
        for partition in partitions_before(self.cassandra, self.messages, persistence_id, hole.before_sequence_nr):
            if len(found) == limit:
                break
            found.extend(self._tagged(tag, persistence_id, partition, hole, limit - len(found)))
        return sorted(found, key=lambda event: event.sequence_nr)

    def _tagged(self, tag: str, persistence_id: str, partition: int, hole: Hole, limit: int) -> Iterator[JournalEvent]:
        there = self.cassandra.cluster.metadata.keyspaces[self.keyspace].tables[self.tables.messages].columns
        read = [*(name for name in EVENT_COLUMNS if name in there), *tag_columns(there)]
        taken = 0
        for row in self.cassandra.stream(
            f"SELECT {', '.join(read)} FROM {self.messages}"
            " WHERE persistence_id = ? AND partition_nr = ? AND sequence_nr > ? AND sequence_nr < ?",
            persistence_id, partition, hole.after_sequence_nr, hole.before_sequence_nr,
        ):  # fmt: skip
            if tag in event_tags(row) and taken < limit:
                taken += 1
                values: list[Any] = [getattr(row, name, None) for name in EVENT_COLUMNS]
                yield JournalEvent(*values)


def partitions_of(
    cassandra: Cassandra, messages: str, persistence_id: str, deleted_to: int, empty_at_end: int = EMPTY_PARTITIONS_AT_END
) -> list[int]:
    """The partition_nrs of a journal's table of messages (quoted) that have events of a persistence_id, in order.

    Events lie one partition behind another, but for one that an atomic write has skipped; the first ones may have been emptied, not
    more of them than events were deleted. So many empty ones in a row are the end.
    """
    found: list[int] = []
    begin, size = 0, FIRST_PARTITIONS
    searched = min(deleted_to, SEARCHED_PARTITIONS) + empty_at_end
    while begin <= (found[-1] + empty_at_end if found else searched):
        rows = cassandra.execute(
            f"SELECT partition_nr, sequence_nr FROM {messages} WHERE persistence_id = ? AND partition_nr IN ? PER PARTITION LIMIT 1",
            persistence_id, list(range(begin, begin + size)),
        )  # fmt: skip
        # a partition of the oldest schema may have a static column and no event
        found.extend(sorted(row.partition_nr for row in rows if row.sequence_nr is not None))
        begin, size = begin + size, min(8 * size, MOST_PARTITIONS)
    return found


def bounds(after: int | None, until: int | None) -> tuple[Any, Any]:
    """TimeUUIDs for `timestamp > ? AND timestamp <= ?`."""
    return highest(after) if after is not None else lowest(-GREGORIAN_TICKS), highest(until if until is not None else END_OF_TIME)
