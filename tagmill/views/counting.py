"""Counts the staged events where they lie, file by file and without Spark (docs/decisions/0016).

Rows stand in Cassandra's order. A *run* is a stretch of them: one persistence_id, its sequence_nr going up by one. `find_runs` says what
runs there are; once numbering.starts has said with which number each begins, `number_rows` makes the rows of tag_views.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar, cast
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tagmill.buckets import BucketSize
from tagmill.rowgroups import fitting, write_groups
from tagmill.stores.files import RunFiles
from tagmill.stores.views import view_columns
from tagmill.timeuuid import TICKS_PER_MILLISECOND

Numbers = npt.NDArray[np.int64]
T = TypeVar("T")
ID = "persistence_id"
KEYS = [ID, "partition_nr", "sequence_nr", "timestamp", "ticks", "tags", "flaw"]
RUNS = pa.schema(
    {
        "file": pa.int32(), "run": pa.int64(), ID: pa.string(), "first": pa.int64(), "last": pa.int64(),
        "upto": pa.int64(), "reason": pa.string(), "tags": pa.list_(pa.struct({"tag": pa.string(), "rows": pa.int64()})),
    }
)  # fmt: skip
_LINE = pa.struct({"tag": pa.string(), "number": pa.int64(), "sequence_nr": pa.int64(), "offset": pa.string()})
REACHED = pa.schema({ID: pa.string(), "sequence_nr": pa.int64(), "partition_nr": pa.int64(), "progress": pa.list_(_LINE)})
_STARTS = pa.schema({"run": pa.int64(), "upto": pa.int64(), "tag": pa.string(), "start": pa.int64()})
_NUMBERED = ("tag_name", "timebucket", "tag_pid_sequence_nr")
# files that are worked on side by side; of each, one row group and so many bytes of new rows are in memory
AT_ONCE, PIECE = 2, 16 * 1024 * 1024
ROWS_AT_ONCE = 100_000
# of tag_views: its partitions, by tag and bucket, share so many slots evenly (Fibonacci hashing)
SLOTS, HASH, MINUTE = 32, 2_654_435_769, 60_000


@dataclass(slots=True)
class Sums:
    """What was numbered: rows of tag_views by tag, the earliest of each tag (ticks), and how many lie before the first time bucket."""

    rows: Counter[str] = field(default_factory=Counter)
    earliest: dict[str, int] = field(default_factory=dict)
    early: int = 0

    def add(self, other: "Sums") -> None:
        """Both together."""
        self.rows.update(other.rows)
        self.early += other.early
        for tag, ticks in other.earliest.items():
            self.earliest[tag] = min(ticks, self.earliest.get(tag, ticks))


def find_runs(files: RunFiles, staged: Sequence[str], target: str) -> None:
    """Write the runs of each staged file to a Parquet file of `target`: RUNS.

    `run` counts from 0 in each file. `upto` and `reason`: the last event in front of the run's first one with a flaw (null: it has none);
    `tags`: how many rows each tag has in front of that.
    """

    def of_file(index: int, name: str) -> None:
        with files.create(f"{target}/{index:06d}.parquet") as sink, pq.ParquetWriter(sink, RUNS, compression="zstd") as writer:
            for group in _groups(files, name, KEYS):
                writer.write_batch(group.runs(index))

    _each(of_file, staged)


def number_rows(files: RunFiles, staged: Sequence[str], folder: str, size: BucketSize, *, meta: bool, first_ticks: int) -> Sums:
    """Write of each staged file the rows of tag_views (below `folder`/rows) and how far its runs came (`folder`/reached, REACHED).

    In: what numbering.starts says, in `folder`/starts/file=N for the Nth file, sorted by run. Rows before `first_ticks` count as early.
    What is in memory at once is in the view's own order.
    """
    columns = view_columns(meta=meta)
    read = list(dict.fromkeys([*KEYS, *(name for name in columns if name not in _NUMBERED)]))

    def of_file(index: int, name: str) -> Sums:
        starts, sums = _starts(files, f"{folder}/starts/file={index}"), Sums()
        reached = f"{folder}/reached/{index:06d}.parquet"
        with files.create(reached) as sink, pq.ParquetWriter(sink, REACHED, compression="zstd") as writer:
            for part, group in enumerate(_groups(files, name, read)):
                numbered = _Numbered.of(group, starts, size)
                writer.write_batch(numbered.reached())
                numbered.write(files, f"{folder}/rows/{index:06d}-{part:06d}.parquet", columns)
                sums.add(numbered.sums(first_ticks))
        return sums

    total = Sums()
    for sums in _each(of_file, staged):
        total.add(sums)
    return total


def _each(work: Callable[[int, str], T], names: Sequence[str]) -> list[T]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(work, range(len(names)), names))


def _groups(files: RunFiles, name: str, columns: list[str]) -> Iterator["_Group"]:
    """A staged file, one row group at a time."""
    with files.open(name) as source:
        file, base = pq.ParquetFile(source), 0
        for part in range(file.num_row_groups):
            rows = file.read_row_group(part, columns=columns)
            if rows.num_rows:
                group = _Group.of(rows, base)
                yield group
                base += len(group.firsts)


def _starts(files: RunFiles, folder: str) -> pa.Table:
    """One file's run, upto, tag (null: the run has none) and start, sorted by run."""
    batches = files.record_batches(folder, ROWS_AT_ONCE, _STARTS.names)
    found = [pa.Table.from_batches([batch]).cast(_STARTS) for batch in batches]
    return pa.concat_tables([_STARTS.empty_table(), *found]).sort_by("run")


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows of one row group: the number of the first run in the file, of each row its run here, of each run its first row."""

    rows: pa.Table
    base: int
    run: Numbers
    firsts: Numbers

    @property
    def sequence_nr(self) -> Numbers:
        """Of each row."""
        return cast(Numbers, self.rows["sequence_nr"].to_numpy())

    @property
    def ticks(self) -> Numbers:
        """Of each row; 0 where the timestamp has no time."""
        return cast(Numbers, pc.fill_null(self.rows["ticks"], 0).to_numpy())

    def column(self, name: str, rows: Numbers) -> pa.Array:
        """Some rows of a column."""
        return self.rows[name].take(pa.array(rows)).combine_chunks()

    @classmethod
    def of(cls, rows: pa.Table, base: int) -> "_Group":
        owner = rows[ID].combine_chunks().dictionary_encode().indices.to_numpy()
        begins = np.ones(rows.num_rows, bool)
        begins[1:] = (np.diff(owner) != 0) | (np.diff(rows["sequence_nr"].to_numpy()) != 1)
        return cls(rows, base, np.cumsum(begins) - 1, np.flatnonzero(begins))

    def tagged(self, taken: npt.NDArray[np.bool_]) -> tuple[Numbers, Numbers, pa.Array]:
        """Of each tag of the rows taken: the row, and the tag's place among the names, which come last (at least one)."""
        tags = self.rows["tags"].combine_chunks()
        names = pc.list_flatten(tags).dictionary_encode()
        parents = pc.list_parent_indices(tags).to_numpy().astype(np.int64)
        kept = taken[parents]
        known = names.dictionary if len(names.dictionary) else pa.array([""])
        return parents[kept], names.indices.to_numpy().astype(np.int64)[kept], known

    def runs(self, file: int) -> pa.RecordBatch:
        """The runs (RUNS)."""
        count, number = self.rows.num_rows, self.sequence_nr
        flawed = self.rows["flaw"].is_valid().to_numpy()
        stop = np.minimum.reduceat(np.where(flawed, np.arange(count), count), self.firsts)
        stops = stop < count
        parents, codes, names = self.tagged(np.arange(count) < stop[self.run])
        keys, rows = np.unique(self.run[parents] * len(names) + codes, return_counts=True)
        runs, codes = np.divmod(keys, len(names))
        lines = pa.StructArray.from_arrays([names.take(pa.array(codes)), pa.array(rows)], ["tag", "rows"])
        at = np.minimum(stop, count - 1)
        columns = {
            "file": np.full(len(self.firsts), file, np.int32),
            "run": self.base + np.arange(len(self.firsts)),
            ID: self.column(ID, self.firsts),
            "first": number[self.firsts],
            "last": number[np.append(self.firsts[1:], count) - 1],
            "upto": pa.array(number[at] - 1, mask=~stops),
            "reason": pc.if_else(pa.array(stops), self.column("flaw", at), pa.scalar(None, pa.string())),
            "tags": pa.ListArray.from_arrays(_offsets(runs, len(self.firsts)), lines),
        }
        return _batch(columns, RUNS)


@dataclass(frozen=True, slots=True)
class _Numbered:
    """The rows of tag_views that a group gives: `parent` the event's row, `code` the tag's place among `names`, sorted by run and tag."""

    group: _Group
    upto: Numbers  # of each run, 0: none of it
    parent: Numbers
    code: Numbers
    names: pa.Array
    bucket: Numbers
    number: Numbers
    firsts: Numbers  # of each run and tag, its first row here

    @classmethod
    def of(cls, group: _Group, starts: pa.Table, size: BucketSize) -> "_Numbered":
        first, last = np.searchsorted(starts["run"].to_numpy(), [group.base, group.base + len(group.firsts)])
        starts = starts.slice(first, last - first)
        run = starts["run"].to_numpy() - group.base
        upto = np.zeros(len(group.firsts), np.int64)
        upto[run] = starts["upto"].to_numpy()
        parent, code, names = group.tagged(group.sequence_nr <= upto[group.run])
        keys = group.run[parent] * len(names) + code
        order = np.argsort(keys, kind="stable")
        parent, code, keys = parent[order], code[order], keys[order]
        firsts = np.flatnonzero(np.diff(keys, prepend=-1))
        lengths = np.diff(firsts, append=len(keys))
        place = np.arange(1, len(keys) + 1) - np.repeat(firsts, lengths)
        known = pc.index_in(starts["tag"], names).combine_chunks()
        has = known.is_valid().to_numpy(zero_copy_only=False)
        known_keys = run[has] * len(names) + known.drop_null().to_numpy()
        sorter = np.argsort(known_keys)
        start = starts["start"].to_numpy()[has][sorter[np.searchsorted(known_keys, keys[firsts], sorter=sorter)]]
        ticks = group.ticks[parent]
        bucket = (ticks - ticks % size.ticks) // TICKS_PER_MILLISECOND
        return cls(group, upto, parent, code, names, bucket, np.repeat(start, lengths) + place, firsts)

    def reached(self) -> pa.RecordBatch:
        """How far each run came (REACHED); those of which nothing is taken are left out."""
        sequence_nr = self.group.sequence_nr
        taken = np.add.reduceat((sequence_nr <= self.upto[self.group.run]).astype(np.int64), self.group.firsts)
        runs = np.flatnonzero(taken)
        last = self.group.firsts[runs] + taken[runs] - 1
        of_tags = np.append(self.firsts[1:], len(self.parent)) - 1 if len(self.firsts) else self.firsts
        parent = self.parent[of_tags]
        lines = pa.StructArray.from_arrays(
            [
                self.names.take(pa.array(self.code[of_tags])),
                pa.array(self.number[of_tags]),
                pa.array(sequence_nr[parent]),
                self.group.column("timestamp", parent),
            ],
            fields=list(_LINE),
        )
        # a run with tags has rows taken, so its place among all runs and among those kept come in the same order
        place = np.searchsorted(runs, self.group.run[parent])
        columns = {name: self.group.column(name, last) for name in (ID, "sequence_nr", "partition_nr")}
        return _batch({**columns, "progress": pa.ListArray.from_arrays(_offsets(place, len(runs)), lines)}, REACHED)

    def write(self, files: RunFiles, name: str, columns: list[str]) -> None:
        """Write the rows of tag_views, by tag and time, those of each slot together; no file when there is none."""
        if len(self.parent):
            with files.create(name) as sink:
                write_groups(sink, self._rows(self.parent[:0], columns).schema, self._in_slots(columns))

    def _in_slots(self, columns: list[str]) -> Iterator[tuple[int, pa.Table]]:
        """All rows of a partition of tag_views have one slot, the same in every file."""
        tags = np.array([crc32(name.encode()) for name in self.names.to_pylist()], np.int64)
        slot = (self.bucket // MINUTE + tags[self.code]) * HASH % 2**32 * SLOTS >> 32
        order = np.lexsort((self.group.ticks[self.parent], self.code, slot))
        at_once = fitting(self.group.rows, PIECE)
        bounds = np.searchsorted(slot[order], np.arange(SLOTS + 1)).tolist()
        for number, (first, end) in enumerate(pairwise(bounds)):
            for begin in range(first, end, at_once):
                yield number, self._rows(order[begin : min(begin + at_once, end)], columns)

    def _rows(self, order: Numbers, columns: list[str]) -> pa.Table:
        events = self.group.rows.take(pa.array(self.parent[order]))
        given = {
            "tag_name": self.names.take(pa.array(self.code[order])),
            "timebucket": pa.array(self.bucket[order]),
            "tag_pid_sequence_nr": pa.array(self.number[order]),
        }
        return pa.table({name: given[name] if name in given else events[name] for name in columns})

    def sums(self, first_ticks: int) -> Sums:
        """What this is."""
        ticks = self.group.ticks[self.parent]
        rows, earliest = np.bincount(self.code, minlength=len(self.names)), np.full(len(self.names), np.iinfo(np.int64).max)
        np.minimum.at(earliest, self.code, ticks)
        tags = [
            (name, int(count), int(first))
            for name, count, first in zip(self.names.to_pylist(), rows, earliest, strict=True)
            if count
        ]
        return Sums(
            Counter({name: count for name, count, _ in tags}),
            {name: first for name, _, first in tags},
            int((ticks < first_ticks).sum()),
        )


def _offsets(owner: Numbers, owners: int) -> pa.Array:
    """Where the lines of each owner begin in a list; `owner` of each line goes up."""
    return pa.array(np.searchsorted(owner, np.arange(owners + 1)), pa.int32())


def _batch(columns: dict[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    """Of Arrow's and NumPy's arrays."""
    arrays = (values if isinstance(values := columns[name], pa.Array) else pa.array(values) for name in schema.names)
    return pa.RecordBatch.from_arrays([array.cast(kind) for array, kind in zip(arrays, schema.types, strict=True)], schema=schema)
