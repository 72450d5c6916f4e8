"""Rows of messages as Arrow: which of them are events, and the tags of each."""

import pyarrow as pa
import pyarrow.compute as pc

from tagmill.domain.journal_tables import OLD_TAGS


def rows_of_events(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows that are events, as frames.all_events does."""
    events = pc.fill_null(pc.greater(rows["sequence_nr"], 0), False)
    return rows if pc.all(events).as_py() else rows.filter(events)


def event_tags(rows: pa.RecordBatch) -> pa.Array:
    """Return the tags of each event as the plugin sees them (journal_tables.event_tags); null or empty: none."""
    old = [name for name in OLD_TAGS if rows.schema.get_field_index(name) >= 0]
    if all(rows[name].null_count == rows.num_rows for name in old):
        return rows["tags"]
    lines = zip(rows["tags"].to_pylist(), *(rows[name].to_pylist() for name in old), strict=True)
    every = [{*(tags or ()), *(tag for tag in others if tag is not None)} for tags, *others in lines]
    return pa.array([sorted(tags) for tags in every], pa.list_(pa.string()))
