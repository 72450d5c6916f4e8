"""Decode the records of a replication, then fold them, id by id, into what they change.

Both are Python over Arrow batches, in Spark's workers or in this process, not Spark expressions: a payload has to
stay as it was written, byte for byte, and the rules are those that a single id's query uses (docs/decisions/0019).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmill.cassandra.write_limits import BESIDE_CELL, LARGEST_NAME
from tagmill.kafka.partitioner import layout_of
from tagmill.kafka.set_apart import RecordPosition
from tagmill.kafka_journal import wire_format
from tagmill.kafka_journal.fold import Entry, Fold, Record, entry_segments
from tagmill.kafka_journal.tables import uuid

KEY = ["topic", "id"]
# Rows of FOLDED that are made into one batch.
ROWS_AT_ONCE = 1000
NOTHING: Mapping[RecordPosition, str] = {}
EVENT = pa.struct(
    {
        "seq_nr": pa.int64(), "tags": pa.list_(pa.string()), "payload_type": pa.string(), "payload_txt": pa.string(),
        "payload_bin": pa.binary(),
    }
)  # fmt: skip
# Attributes of an event that columns of EVENT with other names hold.
OF_EVENT = {"payload_txt": "text", "payload_bin": "data"}
HEADERS = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
MOMENT = pa.timestamp("us", "UTC")
# Columns of decoded records, one row a record. `kind`: append, delete, purge, mark, none (not a journal
# record) or broken. `layout`: see partitioner.layout_of. `first` and `to`: see fold.Record. reason, key, value and
# raw_headers: only of broken records.
STAGED = pa.schema(
    {
        "topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(), "timestamp": MOMENT, "kind": pa.string(), "id": pa.string(),
        "segment": pa.int64(), "old_segment": pa.int64(), "first": pa.int64(), "to": pa.int64(), "origin": pa.string(),
        "version": pa.string(), "layout": pa.int32(), "expire_after_ms": pa.int64(), "metadata": pa.string(),
        "headers": pa.map_(pa.string(), pa.string()), "events": pa.list_(EVENT), "warning": pa.string(), "reason": pa.string(),
        "key": pa.binary(), "value": pa.binary(), "raw_headers": HEADERS,
    }
)  # fmt: skip
# Bytes of an id, at most: Cassandra's limit of a partition key (65,535) without topic, segment and
# separators.
LONGEST_ID = 65_535 - 249 - 8 - 9
# Bytes of a key up to which what is made of it is kept for its next records.
CACHED_BYTES = 256
# Bytes of a record up to which Cassandra can hold its rows and names in any case.
ALWAYS_FITS = 8 * 1024
PAYLOAD = ("payload_type", "payload_txt", "payload_bin")
# Columns of a record that its fold needs.
FACTS = [
    "topic",
    "id",
    "partition",
    "offset",
    "timestamp",
    "kind",
    "first",
    "to",
    "origin",
    "expire_after_ms",
    "segment",
    "layout",
]
# Columns of an id's existing entry, with the names that they get next to the record's columns.
OLD_ENTRY = {
    "segment": "at", "partition": "e_partition", "offset": "e_offset", "segment_size": "e_segment_size", "seq_nr": "e_seq_nr",
    "delete_to": "e_delete_to", "created": "e_created", "updated": "e_updated", "origin": "e_origin", "record_id": "e_record_id",
    "expire_on": "e_expire_on", "written": "overwritten",
}  # fmt: skip
# Columns of a fold's outcome, one row an id: its entry afterwards (seq_nr null: none) and the entry's
# segment, what changes in it, which events are deleted (doomed), and which are not to be written. old_segment
# and overwritten (the write time in microseconds) are those of the entry that existed before.
FOLDED = pa.schema(
    {
        "topic": pa.string(), "id": pa.string(), "segment": pa.int64(), "old_segment": pa.int64(), "partitions": pa.list_(pa.int32()),
        "dropped": pa.struct({"turn": pa.int32(), "offset": pa.int64()}),
        "deletes": pa.list_(pa.struct({"at": pa.struct({"turn": pa.int32(), "offset": pa.int64()}), "to": pa.int64()})),
        "forks": pa.list_(pa.struct({"partition": pa.int32(), "offset": pa.int64(), "seq_nr": pa.int64()})),
        "existed": pa.bool_(), "purged": pa.bool_(), "moved": pa.bool_(), "doomed_to": pa.int64(), "doomed_size": pa.int32(),
        "old_delete_to": pa.int64(), "expiry": pa.bool_(),
        "partition": pa.int32(), "offset": pa.int64(), "segment_size": pa.int32(), "seq_nr": pa.int64(), "delete_to": pa.int64(),
        "created": MOMENT, "updated": MOMENT, "origin": pa.string(), "record_id": pa.string(), "expire_after_ms": pa.int64(),
        "expire_on": pa.date32(), "applied": pa.int64(), "overwritten": pa.int64(),
    }
)  # fmt: skip
# Columns of STAGED and FOLDED whose values repeat.
REPEATED = ("topic", "kind", "origin", "version")
# Columns of FOLDED that hold the entry afterwards.
AFTERWARDS = (
    "partition", "offset", "segment_size", "seq_nr", "delete_to", "created", "updated", "origin", "expire_after_ms", "expire_on",
)  # fmt: skip


class Incoming(NamedTuple):
    """A record as it came from Kafka; its timestamp is not read here."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str | None, bytes | None]]


def decoded(
    batches: Iterable[pa.RecordBatch],
    partitions: Mapping[str, int],
    largest: int,
    apart: Mapping[RecordPosition, str],
) -> Iterator[pa.RecordBatch]:
    """Decode records into STAGED, one row a record.

    In: topic, partition, offset, timestamp, key, value, headers; how many partitions each topic has; how many bytes a
    row of Cassandra may have; why records are set apart.
    """
    for batch in batches:
        rows = [decode(record, partitions[record.topic], largest, apart) for record in _incoming(batch)]
        columns = {name: batch[name] for name in ("topic", "partition", "offset", "timestamp")}
        columns["events"] = _events([row.get("events") for row in rows])
        for name in STAGED.names:
            if name not in columns:
                columns[name] = pa.array([row.get(name) for row in rows], STAGED.field(name).type)
        yield pa.RecordBatch.from_pydict(columns, STAGED)


def _incoming(batch: pa.RecordBatch) -> Iterator[Incoming]:
    """Yield the records of a batch."""
    names, values = (part.to_pylist() for part in batch["headers"].flatten().flatten())
    pairs = zip(names, values, strict=True)
    counts = pc.fill_null(pc.list_value_length(batch["headers"]), 0).to_pylist()
    headers = (list(islice(pairs, count)) for count in counts)
    columns = (batch[name].to_pylist() for name in ("topic", "partition", "offset", "key", "value"))
    return map(Incoming, *columns, headers)


def _events(of_rows: Sequence[Sequence[wire_format.Event] | None]) -> pa.Array:
    """Return the events of each row as lists of EVENT; None: the record has none."""
    flat = list(chain.from_iterable(filter(None, of_rows)))
    parts = [
        pa.array([getattr(event, OF_EVENT.get(field.name, field.name)) for event in flat], field.type)
        for field in EVENT
    ]
    ends = np.cumsum([0, *(len(events or ()) for events in of_rows)])
    absent = pa.array([events is None for events in of_rows])
    events = pa.StructArray.from_arrays(parts, fields=list(EVENT))
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), events, mask=absent)


def decode(
    record: Incoming, partitions: int, largest: int, apart: Mapping[RecordPosition, str] = NOTHING
) -> dict[str, Any]:
    """Decode one record into what STAGED has of it besides its place; what can't be decoded becomes a row of kind
    broken.

    In: how many partitions the topic has; how many bytes a row may have; why records are set apart.
    """
    key, value, headers = record.key, record.value, record.headers
    try:
        if apart and (reason := apart.get((record.topic, record.partition, record.offset))):
            raise wire_format.Undecodable(reason)
        named = [(name, content) for name, content in headers if name is not None]
        if len(named) < len(headers):
            raise wire_format.Undecodable("the name of a header is not UTF-8")
        action = wire_format.decode_action(
            next((content for name, content in named if name == wire_format.ACTION), None)
        )
        if action is None:
            return {"kind": "none"}
        if key is None:
            raise wire_format.Undecodable("a journal record without a key")
        if len(key) > LONGEST_ID:
            raise wire_format.Undecodable(f"an id of {len(key)} bytes, more than Cassandra's keys hold")
        of_key = (_cached_of_key if len(key) <= CACHED_BYTES else _of_key)(key, record.partition, partitions)
        read = {**of_key, **_facts(action), **_content(action, value, named)}
        if _size(value, *chain.from_iterable(headers)) > ALWAYS_FITS:
            _must_fit(read, largest)
        return read
    except (wire_format.Undecodable, UnicodeDecodeError) as error:
        raw = [{"key": name, "value": content} for name, content in headers]
        return {
            "kind": "broken",
            "reason": str(error)[:1000],
            "key": key,
            "value": value,
            "raw_headers": raw,
        }


def _must_fit(read: dict[str, Any], largest: int) -> None:
    """Raise Undecodable if Cassandra can't hold a row that is made from the record."""
    headers = read.get("headers", ())
    if any(_size(name) > LARGEST_NAME for name, _ in headers):
        raise wire_format.Undecodable(
            f"the name of a header has more than {LARGEST_NAME} bytes, and Cassandra holds no longer one"
        )
    shared = _size(read["id"], read["origin"], read["version"], read.get("metadata"))
    shared += sum(_size(*header) + BESIDE_CELL for header in headers)
    for event in read.get("events", [None]):
        of_event, tags = (f"event {event.seq_nr}: ", event.tags) if event else ("", [])
        if any(_size(tag) > LARGEST_NAME for tag in tags):
            raise wire_format.Undecodable(
                f"{of_event}a tag of more than {LARGEST_NAME} bytes, and Cassandra holds no longer one"
            )
        size = shared + sum(_size(tag) + BESIDE_CELL for tag in tags)
        size += _size(event.text, event.data) if event else 0
        if size > largest:
            raise wire_format.Undecodable(
                f"{of_event}a row of {size} bytes, and Cassandra takes {largest} in one write"
            )


def _size(*values: str | bytes | None) -> int:
    """Return the total size of these values in bytes, text in UTF-8."""
    return sum(len(value.encode() if isinstance(value, str) else value) for value in values if value)


def _of_key(key: bytes, partition: int, partitions: int) -> dict[str, Any]:
    name = key.decode()
    segment, old_segment = entry_segments(name)
    layout = layout_of(key, partition, partitions)
    return {"id": name, "segment": segment, "old_segment": old_segment, "layout": layout}


_cached_of_key = lru_cache(10_000)(_of_key)


def _facts(action: wire_format.Action) -> dict[str, Any]:
    return {
        "kind": wire_format.kind_of(action),
        "origin": action.origin,
        "version": action.version,
        "to": action.to if isinstance(action, wire_format.Delete) else None,
    }


def _content(
    action: wire_format.Action, value: bytes | None, headers: Iterable[tuple[str, bytes | None]]
) -> dict[str, Any]:
    if not isinstance(action, wire_format.Append):
        return {}
    found = wire_format.decode_events(action, value)
    others = {name: _text(content) for name, content in headers if name != wire_format.ACTION}
    return {
        "first": found.first,
        "to": found.last,
        "expire_after_ms": found.expire_after_ms,
        "metadata": wire_format.row_metadata(action, found),
        "headers": list(others.items()),
        "warning": found.warning,
        "events": found.events,
    }


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "backslashreplace")


def outcomes(records: Iterable[dict[str, Any]], segment_size: int) -> Iterator[dict[str, Any]]:
    """Fold records (FACTS and OLD_ENTRY) into rows of FOLDED.

    The records of an id follow each other, in the order of its partitions (in_turn of pieces.py) and their offsets.
    """
    for _, of_id in groupby(records, itemgetter(*KEY)):
        first = next(of_id)
        fold, applied = Fold(_entry(first), segment_size), 0
        for row in chain((first,), of_id):
            applied += not fold.add(_record(row))
        yield _outcome(first, fold, applied)


def in_batches(rows: Iterable[dict[str, Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield rows in batches of at most ROWS_AT_ONCE."""
    left = iter(rows)
    while some := list(islice(left, ROWS_AT_ONCE)):
        yield pa.RecordBatch.from_pylist(some, schema)


def _entry(row: dict[str, Any]) -> Entry | None:
    if row["e_seq_nr"] is None:
        return None
    return Entry(
        row["e_partition"],
        row["e_offset"],
        row["e_segment_size"],
        row["e_seq_nr"],
        row["e_delete_to"],
        row["e_created"],
        row["e_updated"],
        row["e_origin"],
        uuid(row["e_record_id"]),
        None,
        row["e_expire_on"],
    )


def _record(row: dict[str, Any]) -> Record:
    return Record(
        row["kind"],
        row["topic"],
        row["partition"],
        row["offset"],
        row["timestamp"],
        row["first"] or 0,
        row["to"] or 0,
        row["origin"],
        row["expire_after_ms"],
    )


def _outcome(row: dict[str, Any], fold: Fold, applied: int) -> dict[str, Any]:
    before, after = fold.before, fold.entry
    doomed_to = before.seq_nr if before and fold.purged else fold.cut_to
    found: dict[str, Any] = {
        "topic": row["topic"],
        "id": row["id"],
        "old_segment": row["at"],
        "segment": row["segment"] if before is None or fold.purged else row["at"],
        "partitions": fold.partitions,
        "dropped": fold.dropped and _position(fold.dropped),
        "deletes": [{"at": _position(at), "to": to} for at, to in fold.deletes],
        "forks": [asdict(fork) for fork in fold.forks],
        "existed": before is not None,
        "purged": before is not None and fold.purged,
        "moved": after is not None and after != before,
        "doomed_to": doomed_to or None,
        "doomed_size": before.segment_size if before else None,
        "old_delete_to": before.delete_to if before else None,
        "applied": applied,
        "overwritten": row["overwritten"],
    }
    if after is not None:
        found |= {name: getattr(after, name) for name in AFTERWARDS}
        found["record_id"] = str(after.record_id) if after.record_id else None
        expired = before is not None and not fold.purged and before.expire_on is not None
        found["expiry"] = fold.appended and (expired or after.expire_on is not None)
    return found


def _position(at: Any) -> dict[str, int]:
    return {"turn": at.turn, "offset": at.offset}
