"""Stage, fold and write few records in this process, as ManyRecords does with Spark.

Records are read, decoded and written some at once; what their folds need of them is in memory.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from itertools import islice
from operator import itemgetter
from typing import Any

import pyarrow as pa

from tagmill.arrow import row_groups
from tagmill.cassandra.bulk_writer import Target, write_rows
from tagmill.cassandra.client import utc
from tagmill.kafka.client import Kafka
from tagmill.kafka.offset_ranges import Range
from tagmill.kafka.partitioner import HOME
from tagmill.kafka.worker_source import records
from tagmill.kafka_journal.fold import segment_of
from tagmill.kafka_journal.model import JOURNAL_KINDS
from tagmill.kafka_journal.piece_files import BYTES_AT_ONCE, ROWS_AT_ONCE, SEQ_NR, PieceFiles
from tagmill.kafka_journal.records import ENTRY, STATE, STATE_KEY, Decode, Records
from tagmill.kafka_journal.staging import (
    EVENT,
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
from tagmill.runs.parquet_files import write_file

# Partitions that are read at once: each has a row group, and what its consumer has fetched, in memory.
STREAMS_AT_ONCE = 4
# Columns of STAGED that are folded and, of an append, that its rows of journal are made from; columns of its fold.
OF_APPEND = [
    "kind",
    *KEY,
    "partition",
    "offset",
    "timestamp",
    "origin",
    "version",
    "metadata",
    "headers",
    "events",
]
OF_RECORD = [*FACTS, "old_segment"]
OF_FOLD = [*KEY, "moved", "partitions", "dropped", "deletes", "forks", "segment_size", "record_id"]
# Columns of a record that say which rows of journal it has.
OF_ROWS = [*KEY, "kind", "partition", "offset", "timestamp", SEQ_NR]
# Columns of journal.
EVENTS = pa.schema(
    [
        *(STAGED.field(name) for name in ("id", "topic", "segment", "partition", "offset", "timestamp")),
        *(STAGED.field(name) for name in ("origin", "version", "metadata", "headers")),
        *(EVENT.field(name) for name in ("seq_nr", "tags", *PAYLOAD)),
        pa.field("meta_record_id", pa.string()),
    ]
)
# The order of its partitions and of the rows in each.
ROW_ORDER = itemgetter("topic", "id", "segment", "seq_nr")
# Columns of an id without an existing entry.
NO_ENTRY = dict.fromkeys(OLD_ENTRY.values())
# Half of a millisecond: the driver's moments in the far future are some microseconds off.
HALF = timedelta(microseconds=500)


class FewRecords:
    """Records that this process reads and writes.

    `many` returns the same piece's records as Spark reads them; it is called only for ids that span many segments.
    """

    def __init__(self, tables: KafkaJournalTables, piece: PieceFiles, many: Callable[[], Records]) -> None:
        self.tables, self.piece, self.many = tables, piece, many

    def stage(self, kafka: Kafka, ranges: Sequence[Range], decode: Decode) -> None:
        """See Records."""

        def write(part: Range) -> None:
            self._write_file(self.piece.records_folder, STAGED, decode(records(kafka, part)))

        with ThreadPoolExecutor(STREAMS_AT_ONCE) as pool:
            deque(pool.map(write, ranges), maxlen=0)

    def fold(self, segment_size: int) -> None:
        """See Records."""
        facts = [
            row
            for batch in self.piece.records(OF_RECORD)
            for row in batch.to_pylist()
            if row["kind"] in JOURNAL_KINDS
        ]
        known = in_order(facts, self._old_entries(facts))
        folds = in_batches(outcomes(known, segment_size), FOLDED)
        self._write_file(self.piece.folds_folder, FOLDED, folds)

    def write_delete_to(self, written_at: int) -> None:
        """See Records."""
        columns = ["topic", "segment", "id", "delete_to"]
        of_change = ["moved", "existed", "purged", "old_delete_to"]
        changed = (
            row
            for row in self._folds([*columns, *of_change])
            if row["moved"]
            and row["existed"]
            and not row["purged"]
            and row["delete_to"] != row["old_delete_to"]
        )
        self._write("metajournal", written_at, changed, pa.schema([FOLDED.field(name) for name in columns]))

    def write_events(self, written_at: int) -> None:
        """See Records."""
        folds = {_key(row): row for row in self._folds(OF_FOLD) if row["moved"]}
        last = self._last_appends({key: fold for key, fold in folds.items() if fold.get("forks")})
        made = (
            event
            for batch in self.piece.records(OF_APPEND)
            for row in batch.to_pylist()
            if row["kind"] == "append" and _key(row) in folds
            for event in event_rows(row, folds[_key(row)])
            if last.get(_row_key(event), _at(event, folds[_key(row)])) == _at(event, folds[_key(row)])
        )
        self._write("journal", written_at, made, EVENTS)

    def _last_appends(
        self, forked: Mapping[tuple[str, str], Mapping[str, Any]]
    ) -> dict[tuple[Any, ...], tuple[int, int]]:
        """Return the position of the last append of each row of journal, by the row's key; only of forked ids.

        Rows of one key would be written with the same time, so that Cassandra mixed their columns.
        """
        last = dict[tuple[Any, ...], tuple[int, int]]()
        for batch in self.piece.records(OF_ROWS) if forked else ():
            for row in batch.to_pylist():
                if row["kind"] == "append" and (fold := forked.get(_key(row))):
                    for event in row["events"]:
                        key = _row_key({**row, "seq_nr": event["seq_nr"]})
                        last[key] = max(_at(row, fold), last.get(key, _at(row, fold)))
        return last

    def write_entries(self, written_at: int) -> None:
        """See Records."""
        moved = (
            {**row, "created_date": row["created"] and row["created"].date()}
            for row in self._folds([*ENTRY, "moved"])
            if row["moved"]
        )
        schema = pa.schema([FOLDED.field(name) for name in ENTRY]).append(
            pa.field("created_date", pa.date32())
        )
        self._write("metajournal", written_at, moved, schema)

    def differing(self) -> tuple[str, int | None] | None:
        """See Records."""
        folds = list(self._folds([*STATE_KEY, *STATE, "old_segment", "moved", "purged"]))
        moved = [row for row in folds if row["moved"]]
        for row, now in zip(moved, self._entries(moved, "segment"), strict=True):
            if any(row[name] != getattr(now, name, None) for name in STATE):
                return row["id"], now and now.written
        gone = [
            row
            for row in folds
            if row["purged"] and (not row["moved"] or row["segment"] != row["old_segment"])
        ]
        for row, now in zip(gone, self._entries(gone, "old_segment"), strict=True):
            if now is not None and now.seq_nr is not None:
                return row["id"], now.written
        return None

    def delete_wide(self, written_at: int) -> None:
        """See Records."""
        self.many().delete_wide(written_at)

    def _old_entries(self, facts: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
        """Return the existing entries (OLD_ENTRY): those in today's segments, else those in segments of older rows."""
        left = list({_key(row): row for row in facts}.values())
        found = dict[tuple[str, str], dict[str, Any]]()
        for segment in ("segment", "old_segment"):
            for row, entry in zip(left, self._entries(left, segment), strict=True):
                if entry is not None and entry.seq_nr is not None:
                    found[_key(row)] = _as_columns(entry, row[segment])
            left = [row for row in left if _key(row) not in found]
        return found

    def _entries(self, asked: Sequence[Mapping[str, Any]], segment: str) -> Iterator[Any | None]:
        return self.tables.entries_of((row["topic"], row[segment], row["id"]) for row in asked)

    def _folds(self, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        return (row for batch in self.piece.folds(columns) for row in batch.to_pylist())

    def _write(self, table: str, written_at: int, made: Iterator[dict[str, Any]], schema: pa.Schema) -> None:
        target = Target(self.tables.name, table, written_at)
        write_rows(self.tables.cassandra, target, some_at_once(made, schema))

    def _write_file(self, folder: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        repeated = [name for name in REPEATED if name in schema.names]
        write_file(self.piece.files, folder, schema, row_groups(batches), repeated)


def in_order(
    facts: list[dict[str, Any]], entries: Mapping[tuple[str, str], Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Add to records the existing entries of their ids, and sort the records as many_records.folded does."""
    home, first = dict[tuple[str, str], int](), dict[tuple[tuple[str, str], int], datetime]()
    for row in facts:
        key, partition = _key(row), row["partition"]
        home[key] = max(home.get(key, 0), row["layout"])
        first[key, partition] = min(first.get((key, partition), row["timestamp"]), row["timestamp"])

    def turn(row: Mapping[str, Any]) -> tuple[Any, ...]:
        key = _key(row)
        by = row["layout"] if home[key] == HOME else first[key, row["partition"]]
        return (*key, by, row["partition"], row["offset"])

    return [{**row, **entries.get(_key(row), NO_ENTRY)} for row in sorted(facts, key=turn)]


def event_rows(row: Mapping[str, Any], fold: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows of journal (EVENTS) that are written of an append, as many_records.rows does.

    In: OF_APPEND, and OF_FOLD of its id, whose entry changes.
    """
    at = _at(row, fold)
    if fold["dropped"] is not None and at <= _position(fold["dropped"]):
        return
    # Of all deletes behind a record, the first one has the highest bound.
    deleted_to = next((delete["to"] for delete in fold["deletes"] if _position(delete["at"]) > at), 0)
    shared = {name: row[name] for name in EVENTS.names if name in row}
    for event in row["events"]:
        if event["seq_nr"] > deleted_to:
            yield {
                **shared,
                "segment": segment_of(event["seq_nr"], fold["segment_size"]),
                "seq_nr": event["seq_nr"],
                "meta_record_id": fold["record_id"],
                "tags": sorted(set(event["tags"])),
                **{name: event[name] for name in PAYLOAD},
            }


def some_at_once(rows: Iterator[dict[str, Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield rows in batches of at most ROWS_AT_ONCE, and of about BYTES_AT_ONCE; rows of a partition follow each
    other.
    """
    while some := list(islice(_up_to(rows, BYTES_AT_ONCE), ROWS_AT_ONCE)):
        if schema is EVENTS:
            some.sort(key=ROW_ORDER)
        yield pa.RecordBatch.from_pylist(some, schema)


def _up_to(rows: Iterator[dict[str, Any]], size: int) -> Iterator[dict[str, Any]]:
    """Yield rows until they have this many bytes together."""
    for row in rows:
        yield row
        size -= _bytes(row)
        if size <= 0:
            return


def _bytes(row: Mapping[str, Any]) -> int:
    texts = [*row.values(), *(part for header in row.get("headers") or () for part in header)]
    return sum(len(text) for text in texts if isinstance(text, str | bytes))


def _key(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["topic"], row["id"]


def _row_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return *_key(row), row["seq_nr"], row["timestamp"]


def _at(row: Mapping[str, Any], fold: Mapping[str, Any]) -> tuple[int, int]:
    """Return the position of a record, or of a row of journal, among those of its id."""
    return fold["partitions"].index(row["partition"]), row["offset"]


def _position(at: Mapping[str, int]) -> tuple[int, int]:
    return at["turn"], at["offset"]


def _as_columns(entry: Any, segment: int) -> dict[str, Any]:
    """Return an existing entry as the columns that a record gets (OLD_ENTRY)."""
    found = {**entry._asdict(), "segment": segment}
    found["created"], found["updated"] = _moment(entry.created), _moment(entry.updated)
    found["expire_on"] = entry.expire_on and entry.expire_on.date()
    return {alias: found[name] for name, alias in OLD_ENTRY.items()}


def _moment(at: datetime | None) -> datetime | None:
    """Return a moment of the driver, to the millisecond that Cassandra holds."""
    if at is None:
        return None
    near = at + HALF
    return utc(near.replace(microsecond=near.microsecond // 1000 * 1000))
