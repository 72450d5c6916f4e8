"""Read the new events of a Kafka Journal's tables as the source of a delivery, as rows of a batch.

metajournal names the ids that a record of the run's ranges, or a later one, has touched. The new events of an
id are its last ones, so they are searched from its end. Two writers of an id that are active at once (a fork)
leave new events below old ones, so the search passes some old ones (docs/decisions/0118). Delivered are the
events that the journal's own readers see: none up to delete_to, and none of an earlier life (an orphan that an
interrupted purge has left), whichever sequence numbers are skipped.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC
from functools import partial
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tagmill.cassandra.client import Cassandra, utc
from tagmill.config.kafka import KafkaJournalEventsSettings
from tagmill.config.settings import CassandraSettings
from tagmill.delivery.topics.model import TopicPlan
from tagmill.delivery.topics.reader_notes import Notes
from tagmill.delivery.topics.staged_files import Source, Work
from tagmill.delivery.topics.table_columns import JOURNAL
from tagmill.kafka.client import Partition
from tagmill.kafka_journal.fold import entry_segments, of_this_life, segment_of
from tagmill.kafka_journal.tables import EVENTS_AT_ONCE, KafkaJournalTables, uuid
from tagmill.spark.cassandra_table import CassandraTable

SCHEMA = pa.schema(
    {
        "kind": pa.string(), "tag": pa.string(), "id": pa.string(), "seq_nr": pa.int64(), "created_at": pa.int64(), "topic": pa.string(),
        "partition": pa.int32(), "offset": pa.int64(), "origin": pa.string(), "version": pa.string(), "metadata": pa.string(),
        "headers": pa.string(), "payload_type": pa.string(), "payload": pa.binary(),
    }
)  # fmt: skip
TOUCHED = ("topic", "id", "segment", "partition", "segment_size", "seq_nr", "delete_to", "record_id")
# What is read of an id: its entry, and its segments if they can't be counted through.
ENTRIES = pa.schema(
    {
        **{name: pa.string() for name in ("topic", "id", "record_id")},
        **{name: pa.int64() for name in ("segment", "seq_nr", "delete_to")},
        **{name: pa.int32() for name in ("partition", "segment_size")},
        "segments": pa.list_(pa.int64()),
    }
)
# Entries of metajournal that this process reads at most, and streams of touched ids that it reads at once.
MOST_ENTRIES, STREAMS = 50_000, 2
# Most ids have fewer than NEWEST new events: the first query fetches the positions of the newest events, the
# second the new events themselves. IDS_AT_ONCE ids are queried together.
NEWEST, IDS_AT_ONCE = 50, 100
# Old events that follow each other at which the search for new ones ends.
OLD_TO_PASS = 25
ROWS_AT_ONCE, BYTES_AT_ONCE = 2000, 16 * 1024 * 1024
# Sequence numbers may skip: if an id spans this many segments, the existing ones are looked up instead of
# counted through.
MOST_SEGMENTS = 1000


def staged(
    spark: SparkSession,
    cassandra: Cassandra,
    pipeline: KafkaJournalEventsSettings,
    plan: TopicPlan,
    keep: Any,
) -> Source:
    """Return the source of a plan's new events (SCHEMA), with a row for each tag of an event.

    The rows of an id are in the order of its events. `keep(rows, name)` writes rows to files, and returns
    them as read back from there.
    """
    tables = KafkaJournalTables(cassandra, pipeline.keyspace)
    touched = keep(_touched(spark, tables, plan), "touched")
    spread = _with_segments(spark, tables, touched).repartition(
        8 * spark.sparkContext.defaultParallelism, "topic", "id"
    )
    return Source(spread, _reading(cassandra.settings, pipeline, plan), SCHEMA, JOURNAL)


def staged_here(cassandra: Cassandra, pipeline: KafkaJournalEventsSettings, plan: TopicPlan) -> Source | None:
    """Return the source of a plan's few new events, which this process reads.

    None: the plan has more than `small_run_rows` records, metajournal has more than MOST_ENTRIES entries, or an
    id spans MOST_SEGMENTS.
    """
    if plan.records > pipeline.small_run_rows:
        return None
    rows = KafkaJournalTables(cassandra, pipeline.keyspace).entries(("offset", *TOUCHED))
    read, firsts = list(islice(rows, MOST_ENTRIES + 1)), _firsts(plan)
    touched = [_entry(row) for row in read if _is_touched(row, plan, firsts)]
    if len(read) > MOST_ENTRIES or any(_is_wide(entry) for entry in touched):
        return None
    size = max(IDS_AT_ONCE, -(-len(touched) // STREAMS))
    parts = [touched[begin : begin + size] for begin in range(0, len(touched), size)]
    streams = [[pa.RecordBatch.from_pylist(part, ENTRIES)] for part in parts]
    return Source(streams, _reading(cassandra.settings, pipeline, plan), SCHEMA, JOURNAL)


def _reading(cassandra: CassandraSettings, pipeline: KafkaJournalEventsSettings, plan: TopicPlan) -> Work:
    return partial(
        _rows, cassandra=cassandra, keyspace=pipeline.keyspace, plan=plan, tags=frozenset(pipeline.tags)
    )


def _is_touched(row: Any, plan: TopicPlan, firsts: Mapping[Partition, int]) -> bool:
    """Return whether _touched would return a row of metajournal (TOUCHED and `offset`)."""
    first = firsts.get((row.topic, row.partition))
    return (
        None not in (row.seq_nr, row.offset, first)
        and row.offset >= first
        and plan.only in (None, row.id)
        and row.id not in plan.apart.ids
    )


def _entry(row: Any) -> dict[str, Any]:
    entry = {name: getattr(row, name) for name in TOUCHED}
    return entry | {"record_id": str(row.record_id) if row.record_id else None, "segments": None}


def _is_wide(entry: dict[str, Any]) -> bool:
    first = (entry["delete_to"] or 0) // entry["segment_size"]
    return bool((entry["seq_nr"] - 1) // entry["segment_size"] - first >= MOST_SEGMENTS)


def _firsts(plan: TopicPlan) -> dict[Partition, int]:
    """Return, for each partition, the offset from which an id that was touched may have new events."""
    return {one.topic_partition: one.first for one in (*plan.ranges, *plan.begun)}


def _touched(spark: SparkSession, tables: KafkaJournalTables, plan: TopicPlan) -> DataFrame:
    """Return the entries (TOUCHED) that were last touched by a record of the plan, or by a later one."""
    partitions = [(*partition, first) for partition, first in _firsts(plan).items()]
    firsts = spark.createDataFrame(partitions, "topic string, partition int, first long")
    outdated = tables.outdated()
    columns = [name for name in TOUCHED if f"metajournal.{name}" not in outdated]
    stored = CassandraTable(tables.cassandra, tables.name, "metajournal", is_own=True).rows(
        spark, *columns, "offset"
    )
    if "record_id" not in columns:  # made by an earlier release
        stored = stored.withColumn("record_id", F.lit(None).cast("string"))
    entries = stored.where("seq_nr IS NOT NULL")
    if plan.only is not None:
        entries = entries.where(F.col("id") == plan.only)
    if plan.apart.ids:
        entries = entries.where(~F.col("id").isin(plan.apart.ids))
    return entries.join(F.broadcast(firsts), ["topic", "partition"]).where("offset >= first").select(*TOUCHED)


def _with_segments(spark: SparkSession, tables: KafkaJournalTables, touched: DataFrame) -> DataFrame:
    """Add the column `segments`: the existing segments of an id that spans MOST_SEGMENTS or more, null for
    other ids.
    """
    span = f"(seq_nr - 1) div segment_size - coalesce(delete_to, 0) div segment_size >= {MOST_SEGMENTS}"
    wide = touched.where(span).select("topic", "id").distinct()
    if wide.isEmpty():
        return touched.withColumn("segments", F.lit(None).cast("array<bigint>"))
    journal = CassandraTable(tables.cassandra, tables.name, "journal", is_own=True)
    keys = journal.rows(spark, "topic", "id", one="segment", per_partition=1)
    found = (
        keys.join(F.broadcast(wide), ["topic", "id"])
        .groupBy("topic", "id")
        .agg(F.collect_list("one").alias("segments"))
    )
    return touched.join(F.broadcast(found), ["topic", "id"], "left")


def _rows(
    batches: Iterable[pa.RecordBatch],
    _: Notes,
    cassandra: CassandraSettings,
    keyspace: str,
    plan: TopicPlan,
    tags: frozenset[str],
) -> Iterator[pa.RecordBatch]:
    entries = (row for batch in batches for row in batch.to_pylist())
    with Cassandra(cassandra) as connected:
        part, size = list[dict[str, Any]](), 0
        for row in Events(KafkaJournalTables(connected, keyspace), plan, tags).of(entries):
            part.append(row)
            size += len(row["payload"])
            if len(part) == ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
                yield pa.RecordBatch.from_pylist(part, SCHEMA)
                part, size = [], 0
        yield pa.RecordBatch.from_pylist(part, SCHEMA)


class Events:
    """Reads the new events of a plan's ids from the journal's tables."""

    def __init__(self, tables: KafkaJournalTables, plan: TopicPlan, tags: frozenset[str]) -> None:
        self.tables, self.tags, self.firsts = tables, tags, _firsts(plan)
        self.ranges = {one.topic_partition: one for one in plan.ranges}

    def of(self, entries: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the rows (SCHEMA) of each id's new events, the lowest sequence number first.

        In: entries (TOUCHED and `segments`).
        """
        while taken := list(islice(entries, IDS_AT_ONCE)):
            part = [entry for entry in taken if self._counts(entry)]
            asked = [
                (entry["id"], entry["topic"], _top(entry), entry["delete_to"] or 0, NEWEST) for entry in part
            ]
            few = list[tuple[dict[str, Any], list[Any]]]()
            for entry, newest in zip(part, self.tables.newest(asked), strict=True):
                new, is_ended = self._new(entry, newest)
                if is_ended or (len(newest) < NEWEST and not _lower(entry, _top(entry))):
                    few.append((entry, new))
                    continue
                for row in self._from(entry, *self._begin(entry)):
                    yield from self._tagged(entry, row)
            for entry, row in self._of_few(few):
                yield from self._tagged(entry, row)

    def _of_few(
        self, few: Iterable[tuple[dict[str, Any], list[Any]]]
    ) -> Iterator[tuple[dict[str, Any], Any]]:
        """Yield each entry with each of its new events.

        In: entries with the positions of these events, all in the highest segment.
        """
        for part in _together([one for one in few if one[1]]):
            asked = [(entry["id"], entry["topic"], _top(entry), new[-1].seq_nr - 1) for entry, new in part]
            for (entry, _), rows in zip(part, self.tables.above(asked), strict=True):
                yield from ((entry, row) for row in rows if _of_this_life(entry, row))

    def _counts(self, entry: dict[str, Any]) -> bool:
        """Return False for a row in an old segment of metajournal if the id also has one in its segment of
        today.
        """
        segment, _ = entry_segments(entry["id"])
        return (
            entry["segment"] == segment or self.tables.entry(entry["topic"], (segment,), entry["id"]) is None
        )

    def _begin(self, entry: dict[str, Any]) -> tuple[int, int]:
        """Return the segment and sequence number of the first new event: search backwards, segment by
        segment, up to OLD_TO_PASS old events.
        """
        begin, passed = (_top(entry), (entry["delete_to"] or 0) + 1), 0
        is_old = self._judge(entry)
        for segment in (_top(entry), *_lower(entry, _top(entry))):
            for row in self.tables.positions(entry["id"], entry["topic"], segment, entry["delete_to"] or 0):
                if not is_old(row):
                    begin, passed = (segment, row.seq_nr), 0
                elif (passed := passed + 1) == OLD_TO_PASS:
                    return begin
        return begin

    def _from(self, entry: dict[str, Any], segment: int, seq_nr: int) -> Iterator[Any]:
        later = [one for one in _lower(entry, _top(entry)) if one >= segment]
        rows = self.tables.events(entry["id"], entry["topic"], sorted({*later, _top(entry)}), seq_nr - 1)
        return (row for row in rows if _of_this_life(entry, row))

    def _new(self, entry: dict[str, Any], newest: Iterable[Any]) -> tuple[list[Any], bool]:
        """Return the positions down to the last new event, and whether OLD_TO_PASS old ones follow it."""
        new, passed, is_old = list[Any](), list[Any](), self._judge(entry)
        for row in newest:
            if not is_old(row):
                new, passed = [*new, *passed, row], []
            else:
                passed.append(row)
            if len(passed) == OLD_TO_PASS:
                return new, True
        return new, False

    def _judge(self, entry: dict[str, Any]) -> Callable[[Any], bool]:
        """Return a function that says of each row, from an id's end backwards, whether an earlier run has delivered
        it, and so those with lower numbers, which grow with the partition's offsets except in forks.

        A row of a partition that the id was in before its topic got more partitions can't say that, unless it is
        behind one of the partition of today that can.
        """
        behind_old = False

        def is_old(row: Any) -> bool:
            nonlocal behind_old
            first = self.firsts.get((entry["topic"], row.partition))
            is_read = first is None or row.offset < first
            if is_read and row.partition == entry["partition"] and _of_this_life(entry, row):
                behind_old = True
            return is_read and behind_old

        return is_old

    def _tagged(self, entry: dict[str, Any], row: Any) -> Iterator[dict[str, Any]]:
        found = self.ranges.get((entry["topic"], row.partition))
        if found is None or not found.first <= row.offset < found.end:
            return
        there = set(row.tags or ()) or {""}
        payload = row.payload_bin if row.payload_bin is not None else (row.payload_txt or "").encode()
        for tag in sorted(there & self.tags if self.tags else there):
            yield {
                "kind": "event",
                "tag": tag,
                "id": entry["id"],
                "seq_nr": row.seq_nr,
                "created_at": milliseconds_of(row.timestamp),
                "topic": entry["topic"],
                "partition": row.partition,
                "offset": row.offset,
                "origin": row.origin or "",
                "version": row.version or "",
                "metadata": row.metadata or "",
                "headers": json.dumps(dict(row.headers or {}), sort_keys=True),
                "payload_type": row.payload_type or "",
                "payload": bytes(payload),
            }


def _together(
    few: Iterable[tuple[dict[str, Any], list[Any]]],
) -> Iterator[list[tuple[dict[str, Any], list[Any]]]]:
    """Yield the entries in parts that have EVENTS_AT_ONCE new events at most."""
    part, size = list[tuple[dict[str, Any], list[Any]]](), 0
    for one in few:
        if part and size + len(one[1]) > EVENTS_AT_ONCE:
            yield part
            part, size = [], 0
        part.append(one)
        size += len(one[1])
    if part:
        yield part


def _top(entry: dict[str, Any]) -> int:
    return segment_of(entry["seq_nr"], entry["segment_size"])


def _lower(entry: dict[str, Any], than: int) -> Sequence[int]:
    """Return the segments below `than`, the highest first, down to that of the first sequence number that is
    not deleted.
    """
    first = segment_of((entry["delete_to"] or 0) + 1, entry["segment_size"])
    if entry["segments"] is None:
        return range(than - 1, first - 1, -1)
    return sorted((one for one in entry["segments"] if first <= one < than), reverse=True)


def _of_this_life(entry: dict[str, Any], row: Any) -> bool:
    return of_this_life(uuid(entry["record_id"]), row.meta_record_id)


def milliseconds_of(moment: Any) -> int:
    """Return a moment of Cassandra's driver in milliseconds since 1970; 0 for none."""
    # Cassandra has whole milliseconds, and the driver's floats are off by a microsecond, either way, far from
    # 1970.
    found = utc(moment)
    return 0 if found is None else round(found.astimezone(UTC).timestamp() * 1000)
