"""Batch rows as Arrow's columns: those of rows of tag_views, as a run stages them."""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmill.arrow import schema_of
from tagmill.cassandra import uuids
from tagmill.delivery.arrow_checksum import row_checksums
from tagmill.domain.batches import layout

STAGED = schema_of(
    "unit int, tag string, persistence_id string, sequence_nr bigint, tag_pid_sequence_nr bigint, event_time bigint, "
    "offset string, timebucket bigint, writer_uuid string, ser_id int, ser_manifest string, event_manifest string, "
    "event binary, meta_ser_id int, meta_ser_manifest string, meta binary, late int, event_missing boolean, "
    "offset_broken boolean, size int, row_checksum bigint"
)
# What stands for null in columns that have none in a batch.
_INSTEAD_OF_NULL = {"sequence_nr": 0, "ser_id": 0, "event": b""} | dict.fromkeys(
    ("writer_uuid", "ser_manifest", "event_manifest"), ""
)


def as_batch_rows(rows: pa.Table, unit: int, tag: str, latest_ticks: int) -> pa.Table:
    """Return the rows of a unit and tag, at least one, in their order, as rows of batches with checksums (STAGED).

    In: the columns of tag_views but the tag. `size` has the bytes of payload and keys.
    """
    # More than 2 GiB of a column do not fit into one batch.
    batches = rows.combine_chunks().to_batches()
    return pa.concat_tables(_as_batch_rows(batch, unit, tag, latest_ticks) for batch in batches)


def _as_batch_rows(batch: pa.RecordBatch, unit: int, tag: str, latest_ticks: int) -> pa.Table:
    count, columns = batch.num_rows, event_columns(batch, latest_ticks)
    fixed = len(tag.encode()) + 100
    columns |= {
        "unit": pa.repeat(unit, count),
        "tag": pa.repeat(tag, count),
        "late": pa.repeat(0, count),
        "size": pc.add(row_bytes(batch), fixed),
        "row_checksum": pa.nulls(count, pa.int64()),
    }
    made = pa.RecordBatch.from_arrays(
        [columns[field.name].cast(field.type) for field in STAGED], schema=STAGED
    )
    return with_checksums(made)


def event_columns(rows: pa.RecordBatch, latest_ticks: int) -> dict[str, pa.Array]:
    """Return the columns of rows of tag_views or messages with an event's time and offset, and what stands for null.

    `event_missing`: there is no event, or no serializer; `offset_broken`: the offset's time can't be read, or is
    behind `latest_ticks`.
    """
    offsets = uuids.of_binary(rows["timestamp"])
    ticks = uuids.ticks(offsets)
    columns = {name: rows[name] for name in rows.schema.names} | {
        "event_time": pa.array(ticks),
        "offset": uuids.text(offsets),
        "event_missing": pc.or_(rows["event"].is_null(), rows["ser_id"].is_null()),
        "offset_broken": pa.array((uuids.versions(offsets) != 1) | (ticks < 0) | (ticks > latest_ticks)),
    }
    return columns | {name: pc.fill_null(columns[name], value) for name, value in _INSTEAD_OF_NULL.items()}


def row_bytes(rows: pa.RecordBatch, names: Iterable[str] = ("event", "meta", "persistence_id")) -> pa.Array:
    """Return the bytes of these columns of each row."""
    first, *others = (pc.fill_null(pc.binary_length(rows[name]), 0) for name in names)
    for sizes in others:
        first = pc.add(first, sizes)
    return first


def with_checksums(rows: pa.RecordBatch) -> pa.Table:
    """Return rows (STAGED) with their checksums computed anew."""
    checksums = pa.array(row_checksums(rows, layout.COLUMNS).view(np.int64))
    at = STAGED.get_field_index("row_checksum")
    return pa.Table.from_batches([rows]).set_column(at, STAGED.field(at), checksums)
