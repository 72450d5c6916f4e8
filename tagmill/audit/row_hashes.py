"""What an audit keeps of rows of messages and of tag_views, as Arrow: narrow keys, and hashes for all other columns.

The hash of a row is that of a batch's row (tagmill.domain.batches.layout), over the columns that the journal
knows. Its sums are the same wherever the same rows are, in journal, view or ClickHouse; another value of any
column changes them.
"""

from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tagmill.arrow import schema_of
from tagmill.delivery.arrow_checksum import hashes_of_numbers, row_checksums
from tagmill.delivery.tag_views.staged_rows import event_columns, row_bytes
from tagmill.domain.batches import layout
from tagmill.domain.time_buckets import BucketSize
from tagmill.domain.timeuuid import FUTURE_TICKS, TICKS_PER_MILLISECOND
from tagmill.journal.event_batches import event_tags, rows_of_events
from tagmill.journal.flaws import Reason

# partition_nr and sequence_nr: of an event; tags: those of the pipeline, tag_count: the number of all; flaw: a Reason,
# or null; written: write time in microseconds, 0 if it has none. Events without tags of the pipeline have no hash.
JOURNAL = pa.schema(
    [
        *schema_of(
            "persistence_id string, partition_nr bigint, sequence_nr bigint, offset string, ticks bigint, "
            "bucket bigint, writer_uuid string"
        ),
        pa.field("tags", pa.list_(pa.string())),
        *schema_of("tag_count int, event_hash bigint, flaw string, written bigint"),
    ]
)
# bucket: of the row's time; timebucket: where it lies; size in bytes; event_hash: as the journal's; row_hash: with
# the number; broken: its time can't be read; written: as above.
VIEW = schema_of(
    "tag string, persistence_id string, sequence_nr bigint, number bigint, offset string, ticks bigint, bucket bigint, "
    "timebucket bigint, writer_uuid string, size int, event_hash bigint, row_hash bigint, broken boolean, "
    "written bigint"
)
_PAYLOAD = schema_of(
    "writer_uuid string, ser_id int, ser_manifest string, event_manifest string, event binary, meta_ser_id int, "
    "meta_ser_manifest string, meta binary"
)


def of_messages(rows: pa.RecordBatch, tags: Collection[str], until: int, size: BucketSize) -> pa.RecordBatch:
    """Return what an audit keeps of the events among rows of messages, with `written` (JOURNAL).

    `tags`: of the pipeline; `until`: ticks up to which the audit judges; `size`: of its buckets.
    """
    rows = _with_payload(rows_of_events(rows))
    columns = event_columns(rows, until + FUTURE_TICKS)
    tags_of_events = event_tags(rows)
    all_tags, wanted = _counts(tags_of_events), _only(tags_of_events, tags)
    tagged = _counts(wanted) > 0
    columns |= {
        "ticks": columns["event_time"],
        "bucket": _buckets(columns["event_time"], size),
        "tags": wanted,
        "tag_count": pa.array(all_tags),
        "event_hash": _event_hashes(columns, tagged),
        "flaw": _flaws(rows, columns, (all_tags > 0) & (_counts(rows["tags"]) == 0)),
        "written": pc.fill_null(rows["written"], 0),
    }
    return _batch(columns, JOURNAL)


def of_view(rows: pa.RecordBatch, tags: Collection[str], until: int, size: BucketSize) -> pa.RecordBatch:
    """Return what an audit keeps of rows of tag_views with a tag of the pipeline (VIEW); arguments as above."""
    rows = _with_payload(rows.filter(pc.is_in(rows["tag_name"], pa.array(tags, pa.string()))))
    columns = event_columns(rows, until + FUTURE_TICKS)
    event_hash = _event_hashes(columns, np.ones(rows.num_rows, bool))
    columns |= {
        "tag": rows["tag_name"],
        "number": rows["tag_pid_sequence_nr"],
        "ticks": columns["event_time"],
        "bucket": _buckets(columns["event_time"], size),
        "size": pc.add(row_bytes(rows, ("event", "meta", "persistence_id", "tag_name")), 100),
        "event_hash": event_hash,
        "row_hash": _with_numbers(event_hash, rows["tag_pid_sequence_nr"]),
        "broken": columns["offset_broken"],
        "written": pc.fill_null(rows["written"], 0),
    }
    return _batch(columns, VIEW)


def _batch(columns: dict[str, pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [columns[field.name].cast(field.type) for field in schema], schema=schema
    )


def _with_payload(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with all columns of an event; those that the table does not have are null."""
    there = {name: rows[name] for name in rows.schema.names}
    none = {field.name: pa.nulls(rows.num_rows, field.type) for field in _PAYLOAD if field.name not in there}
    return pa.RecordBatch.from_pydict(there | none)


def _event_hashes(columns: dict[str, pa.Array], wanted: npt.NDArray[np.bool_]) -> pa.Array:
    """Return the hash of each wanted row over the columns that the journal knows (layout.EVENT); null for others."""
    rows = pa.RecordBatch.from_pydict({column.name: columns[column.name] for column in layout.EVENT})
    if wanted.all():
        return pa.array(row_checksums(rows, layout.EVENT).view(np.int64))
    hashes = np.zeros(rows.num_rows, np.int64)
    hashes[wanted] = row_checksums(rows.filter(pa.array(wanted)), layout.EVENT).view(np.int64)
    return pa.array(hashes, mask=~wanted)


def _with_numbers(event_hash: pa.Array, numbers: pa.Array) -> pa.Array:
    """Return the hash of each row with its number, as destination_reader.ROW_HASH computes it in ClickHouse."""
    folded = event_hash.to_numpy().view(np.uint64) * np.uint64(layout.FACTOR) + numbers.to_numpy().view(
        np.uint64
    )
    return pa.array(hashes_of_numbers(folded).view(np.int64))


def _buckets(ticks: pa.Array, size: BucketSize) -> pa.Array:
    """Return the buckets of these times, in milliseconds since 1970, as frames.bucket does."""
    times = ticks.to_numpy()
    return pa.array((times - times % size.ticks) // TICKS_PER_MILLISECOND)


def _counts(lists: pa.Array) -> npt.NDArray[np.int32]:
    counts: npt.NDArray[np.int32] = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(
        zero_copy_only=False
    )
    return counts


def _only(lists: pa.Array, values: Collection[str]) -> pa.Array:
    """Return each list without all but these values."""
    within = pc.is_in(lists.flatten(), pa.array(values, pa.string())).to_numpy(zero_copy_only=False)
    ends = np.append(0, np.cumsum(within))[np.append(0, np.cumsum(_counts(lists)))]
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), lists.flatten().filter(pa.array(within)))


def _flaws(
    rows: pa.RecordBatch, columns: dict[str, pa.Array], old_tags_only: npt.NDArray[np.bool_]
) -> pa.Array:
    """Return the flaw of each event (a Reason, or null)."""
    unread = np.zeros(rows.num_rows, bool)
    if "message" in rows.schema.names:  # the column that plugins before 0.10 used
        unread = pc.and_(rows["event"].is_null(), rows["message"].is_valid()).to_numpy(zero_copy_only=False)
    reasons = {
        Reason.NO_TIME_UUID: columns["offset_broken"].to_numpy(zero_copy_only=False),
        Reason.OLD_TAGS: old_tags_only,
        Reason.BEFORE_0_10: unread,
        Reason.NO_EVENT: columns["event_missing"].to_numpy(zero_copy_only=False),
    }
    place = np.select(list(reasons.values()), np.arange(len(reasons)), -1)
    return pa.array([reason.value for reason in reasons]).take(pa.array(place, mask=place < 0))
