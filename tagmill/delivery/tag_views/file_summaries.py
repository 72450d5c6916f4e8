"""Sum up a staged file by persistence_id.

The rows of a file are in Cassandra's order, so one stable sort by persistence_id shows whether its numbers go
up by one. Whoever writes a file sums it up, with its keys in memory (at most `batch_rows` rows): nothing is read again
or shuffled.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tagmill.delivery.tag_views.look_back import HOUR_MS
from tagmill.delivery.tag_views.model import Plan
from tagmill.domain.time_buckets import BucketSize
from tagmill.domain.timeuuid import TICKS_PER_MILLISECOND

Numbers = npt.NDArray[np.int64]
# By tag, the look-back window that a run leaves behind: (after, until, first timebucket), the first two in
# ticks.
Windows = Mapping[str, tuple[int, int, int]]

SUMMARY = pa.schema(
    {
        "unit": pa.int32(), "file": pa.string(), "tag": pa.string(), "persistence_id": pa.string(),
        "low": pa.int64(), "low_sequence_nr": pa.int64(), "low_ticks": pa.int64(),
        "high": pa.int64(), "high_sequence_nr": pa.int64(), "high_ticks": pa.int64(), "high_offset": pa.string(),
        "rows": pa.int64(), "size": pa.int64(), "checksum": pa.int64(), "window_rows": pa.int64(), "sound": pa.bool_(),
    }
)  # fmt: skip
_NUMBERS = ("tag_pid_sequence_nr", "sequence_nr", "event_time", "timebucket", "size", "row_checksum")
COLUMNS = ("unit", "tag", "persistence_id", "offset", "event_missing", "offset_broken", *_NUMBERS)


@dataclass(frozen=True, slots=True)
class FileTotal:
    """The totals of one staged file.

    `window_rows`: rows in the look-back window that the run leaves behind; `checksum` modulo 2^64.

    `hours`: its rows by hour (milliseconds), if they are new.
    """

    unit: int
    file: str
    tag: str
    is_new: bool
    rows: int
    size: int
    checksum: int
    first_ticks: int
    last_ticks: int
    window_rows: int
    hours: tuple[tuple[int, int], ...] = ()


def windows(plan: Plan, size: BucketSize) -> Windows:
    """Return, by tag, the look-back window that the run of a plan leaves behind."""
    return {
        tag: (span.window_from, span.until, size.start(max(span.window_from, 0)))
        for tag, span in plan.tags.items()
    }


def total_of(summaries: pa.RecordBatch, rows: pa.Table, new_units: set[int], size: BucketSize) -> FileTotal:
    """Return the totals of one staged file, from its summaries (SUMMARY) and its rows (COLUMNS)."""
    total = _total(summaries, new_units)
    return replace(total, hours=_hours(rows, size)) if total.is_new else total


def _hours(rows: pa.Table, size: BucketSize) -> tuple[tuple[int, int], ...]:
    """Return the rows of each hour of the view (milliseconds); a row outside its bucket counts at the edge of
    the bucket it lies in.
    """
    bucket = rows["timebucket"].to_numpy()
    lies = np.clip(
        rows["event_time"].to_numpy() // TICKS_PER_MILLISECOND, bucket, bucket + size.milliseconds - 1
    )
    begins, counts = np.unique(lies - lies % HOUR_MS, return_counts=True)
    return tuple(zip(begins.tolist(), counts.tolist(), strict=True))


def _total(groups: pa.RecordBatch, new_units: set[int]) -> FileTotal:
    unit, file, tag = (groups[name][0].as_py() for name in ("unit", "file", "tag"))
    sums: dict[str, Any] = {
        name: int(groups[name].to_numpy().sum()) for name in ("rows", "size", "checksum", "window_rows")
    }  # the checksum wraps
    first, last = (int(groups["low_ticks"].to_numpy().min()), int(groups["high_ticks"].to_numpy().max()))
    return FileTotal(unit, file, tag, unit in new_units, **sums, first_ticks=first, last_ticks=last, hours=())


def summary(rows: pa.Table, file: str, windows: Windows) -> pa.RecordBatch:
    """Return the summaries (SUMMARY) of one file's rows, one per persistence_id.

    In: COLUMNS, in the order of the file, of one unit and tag. low and high are the first and the last number with
    their sequence_nr and time (ticks), `high_offset` is the last one's offset, and `checksum` is modulo 2^64.
    `sound`: in the order of the file the numbers go up by one, sequence_nr and time with them, and every row
    has an event and a sound offset.
    """
    if not rows.num_rows:
        return pa.RecordBatch.from_pylist([], schema=SUMMARY)
    tag = rows["tag"][0].as_py()
    names = rows["persistence_id"].combine_chunks().dictionary_encode()
    owner = names.indices.to_numpy()
    order = np.argsort(owner, kind="stable")
    first = np.flatnonzero(np.diff(owner[order], prepend=-1))  # of each persistence_id, in sorted order
    last = np.append(first[1:], len(order)) - 1
    number, sequence_nr, ticks, bucket, size, checksum = (rows[name].to_numpy()[order] for name in _NUMBERS)
    damaged = (
        (rows["event_missing"].to_numpy() | rows["offset_broken"].to_numpy())[order]
        | (number < 1)
        | (sequence_nr < 1)
    )
    follows = np.ones(len(order), bool)
    follows[1:] = (np.diff(number) == 1) & (np.diff(sequence_nr) > 0) & (np.diff(ticks) >= 0)
    follows[first] = True
    after, until, first_bucket = windows[tag]
    in_window = (ticks > after) & (ticks <= until) & (bucket >= first_bucket)

    def total(values: Numbers) -> Numbers:
        return np.add.reduceat(values, first)  # wraps, as the checksum must

    count = len(first)
    columns = {
        "unit": np.full(count, rows["unit"][0].as_py(), np.int32),
        "file": [file] * count,
        "tag": [tag] * count,
        "persistence_id": names.dictionary.take(pa.array(owner[order[first]])),
        "low": np.minimum.reduceat(number, first),
        "low_sequence_nr": np.minimum.reduceat(sequence_nr, first),
        "low_ticks": np.minimum.reduceat(ticks, first),
        "high": np.maximum.reduceat(number, first),
        "high_sequence_nr": np.maximum.reduceat(sequence_nr, first),
        "high_ticks": np.maximum.reduceat(ticks, first),
        "high_offset": rows["offset"].combine_chunks().take(pa.array(order[last])),
        "rows": last - first + 1,
        "size": total(size.astype(np.int64)),
        "checksum": total(checksum),
        "window_rows": total(in_window.astype(np.int64)),
        "sound": np.logical_and.reduceat(follows & ~damaged, first),
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[field.name], field.type) for field in SUMMARY], schema=SUMMARY
    )
