"""What the staged files hold: each file's key columns are read once, in a task of its own, and summed up by persistence_id.

The rows of a file stand in Cassandra's order, so one stable sort by persistence_id shows whether each goes up by one; nothing is
shuffled but the summaries. A file has at most `batch_rows` rows: that many keys are in a worker's memory.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from tagmill.buckets import BucketSize
from tagmill.delivery.model import Plan
from tagmill.stores.files import RunFiles

Numbers = npt.NDArray[np.int64]
# tag -> (after, until, first timebucket): rows in the window that the run leaves behind
Windows = Mapping[str, tuple[int, int, int]]

SUMMARY_SCHEMA = (
    "unit int, file string, tag string, persistence_id string, low bigint, low_sequence_nr bigint, low_ticks bigint, high bigint, "
    "high_sequence_nr bigint, high_ticks bigint, high_offset string, rows bigint, size bigint, checksum bigint, window_rows bigint, "
    "sound boolean"
)
_ARROW = {"int": pa.int32(), "bigint": pa.int64(), "string": pa.string(), "boolean": pa.bool_()}
_ARROW_SCHEMA = pa.schema([(name, _ARROW[kind]) for name, kind in (part.split() for part in SUMMARY_SCHEMA.split(", "))])
_NUMBERS = ("tag_pid_sequence_nr", "sequence_nr", "event_time", "timebucket", "size", "row_checksum")
COLUMNS = ("unit", "tag", "persistence_id", "offset", "event_missing", "offset_broken", *_NUMBERS)


def windows(plan: Plan, size: BucketSize) -> Windows:
    """The look-back window of each tag of a plan."""
    return {tag: (span.window_from, span.until, size.start(max(span.window_from, 0))) for tag, span in plan.tags.items()}


def summaries(spark: SparkSession, files: RunFiles, folder: str, windows: Windows) -> DataFrame:
    """One row a staged file and persistence_id: SUMMARY_SCHEMA.

    low and high are the first and the last number with their sequence_nr and time (ticks), `high_offset` the last one's offset;
    `checksum` is modulo 2^64. `sound`: in the order of the file the numbers go up by one, sequence_nr and time with them, and
    every row has an event and a sound offset.
    """
    found = [name for name in files.names(folder) if name.endswith(".parquet")]
    numbers = spark.range(0, len(found), 1, max(len(found), 1))
    return numbers.mapInArrow(_task(files.root, folder, found, windows), SUMMARY_SCHEMA)


def _task(root: str, folder: str, found: list[str], windows: Windows) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def summarise(batches: Iterable[Any]) -> Iterator[Any]:
        files = RunFiles(root)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with files.open(f"{folder}/{found[number]}") as source:
                    yield summary(pq.read_table(source, columns=list(COLUMNS)), found[number], windows)

    return summarise


def summary(rows: pa.Table, file: str, windows: Windows) -> pa.RecordBatch:
    """The summaries of one file's rows (COLUMNS, in the order of the file; one unit and tag): see `summaries`."""
    if not rows.num_rows:
        return pa.RecordBatch.from_pylist([], schema=_ARROW_SCHEMA)
    tag = rows["tag"][0].as_py()
    names = rows["persistence_id"].combine_chunks().dictionary_encode()
    owner = names.indices.to_numpy()
    order = np.argsort(owner, kind="stable")
    first = np.flatnonzero(np.diff(owner[order], prepend=-1))  # of each persistence_id, in sorted order
    last = np.append(first[1:], len(order)) - 1
    number, sequence_nr, ticks, bucket, size, checksum = (rows[name].to_numpy()[order] for name in _NUMBERS)
    damaged = (rows["event_missing"].to_numpy() | rows["offset_broken"].to_numpy())[order] | (number < 1) | (sequence_nr < 1)
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
        [pa.array(columns[field.name], field.type) for field in _ARROW_SCHEMA], schema=_ARROW_SCHEMA
    )
