"""Count and number staged events file by file, without Spark (docs/decisions/0016).

Rows are in Cassandra's order. A *run* is a streak of them: rows of one persistence_id whose sequence_nr goes
up by one. `find_runs` finds the runs. After numbering.run_start_numbers has found the number in front of
each, `number_rows` makes the rows of tag_views.
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

from tagmill.arrow import fitting
from tagmill.domain.time_buckets import BucketSize
from tagmill.domain.timeuuid import TICKS_PER_MILLISECOND
from tagmill.journal.tag_view_reader import view_columns
from tagmill.runs.parquet_files import write_groups
from tagmill.runs.storage import RunFiles

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
_LINE = pa.struct(
    {"tag": pa.string(), "number": pa.int64(), "sequence_nr": pa.int64(), "offset": pa.string()}
)
REACHED = pa.schema(
    {ID: pa.string(), "sequence_nr": pa.int64(), "partition_nr": pa.int64(), "progress": pa.list_(_LINE)}
)
STARTS = pa.schema({"run": pa.int64(), "upto": pa.int64(), "tag": pa.string(), "start": pa.int64()})
_NUMBERED = ("tag_name", "timebucket", "tag_pid_sequence_nr")
# AT_ONCE: files processed in parallel. PIECE: bytes of new rows that are in memory for each of them, in
# addition to one row group.
AT_ONCE, PIECE = 2, 16 * 1024 * 1024
ROWS_AT_ONCE = 100_000
# SLOTS: number of slots that share the partitions of tag_views evenly. HASH: factor of the Fibonacci hashing
# of tag and bucket. MINUTE: milliseconds, the unit in which a bucket is hashed.
SLOTS, HASH, MINUTE = 32, 2_654_435_769, 60_000


@dataclass(slots=True)
class Sums:
    """Totals of numbered rows: rows of tag_views by tag, the earliest of each tag (ticks), and rows before
    the first time bucket.
    """

    rows: Counter[str] = field(default_factory=Counter)
    earliest: dict[str, int] = field(default_factory=dict)
    early: int = 0

    def add(self, other: "Sums") -> None:
        """Add the totals of another file to these."""
        self.rows.update(other.rows)
        self.early += other.early
        for tag, ticks in other.earliest.items():
            self.earliest[tag] = min(ticks, self.earliest.get(tag, ticks))


def find_runs(files: RunFiles, staged: Sequence[str], target: str) -> None:
    """Write the runs of each staged file (RUNS) to a Parquet file in `target`.

    `run` counts from 0 in each file. `upto`: the sequence_nr in front of the run's first event with a flaw;
    `reason`: that flaw (both
    null: the run has no flaw). `tags`: how many rows each tag has in front of that event.
    """

    def of_file(index: int, name: str) -> None:
        with (
            files.create(f"{target}/{index:06d}.parquet") as sink,
            pq.ParquetWriter(sink, RUNS, compression="zstd") as writer,
        ):
            for group in _groups(files, name, KEYS):
                writer.write_batch(group.runs(index))

    _each(of_file, staged)


def number_rows(
    files: RunFiles, staged: Sequence[str], folder: str, size: BucketSize, *, meta: bool, first_ticks: int
) -> Sums:
    """Write the rows of tag_views (below `folder`/rows) and how far each run came (`folder`/reached, REACHED)
    for each staged file.

    In: what numbering.run_start_numbers returns, in `folder`/starts/file=N for the Nth file. Rows before
    `first_ticks` count as early. The rows of one row group are written by slot, tag and time. Returns the
    totals of all files.
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
    """Yield the row groups of a staged file that have rows, one in memory at a time."""
    with files.open(name) as source:
        file, base = pq.ParquetFile(source), 0
        for part in range(file.num_row_groups):
            rows = file.read_row_group(part, columns=columns)
            if rows.num_rows:
                group = _Group.of(rows, base)
                yield group
                base += len(group.firsts)


def _starts(files: RunFiles, folder: str) -> pa.Table:
    """Read what numbering.run_start_numbers says of one file, sorted by run: run, upto, tag (null: no tags),
    start.
    """
    batches = files.record_batches(folder, ROWS_AT_ONCE, STARTS.names)
    found = [pa.Table.from_batches([batch]).cast(STARTS) for batch in batches]
    return pa.concat_tables([STARTS.empty_table(), *found]).sort_by("run")


@dataclass(frozen=True, slots=True)
class _Group:
    """The rows of one row group.

    `base`: the number of its first run in the file; `run`: the run of each row, counted from 0 here;
    `firsts`: the first row of each run.
    """

    rows: pa.Table
    base: int
    run: Numbers
    firsts: Numbers

    @property
    def sequence_nr(self) -> Numbers:
        """The sequence_nr of each row."""
        return cast(Numbers, self.rows["sequence_nr"].to_numpy())

    @property
    def ticks(self) -> Numbers:
        """The ticks of each row; 0 where the timestamp has no time."""
        return cast(Numbers, pc.fill_null(self.rows["ticks"], 0).to_numpy())

    def column(self, name: str, rows: Numbers) -> pa.Array:
        """Return the values of a column in the given rows."""
        return self.rows[name].take(pa.array(rows)).combine_chunks()

    @classmethod
    def of(cls, rows: pa.Table, base: int) -> "_Group":
        owner = rows[ID].combine_chunks().dictionary_encode().indices.to_numpy()
        begins = np.ones(rows.num_rows, bool)
        begins[1:] = (np.diff(owner) != 0) | (np.diff(rows["sequence_nr"].to_numpy()) != 1)
        return cls(rows, base, np.cumsum(begins) - 1, np.flatnonzero(begins))

    def tagged(self, taken: npt.NDArray[np.bool_]) -> tuple[Numbers, Numbers, pa.Array]:
        """Return three arrays: for each tag of the rows taken, its row and its index in the names; then the
        names (at least one).
        """
        tags = self.rows["tags"].combine_chunks()
        names = pc.list_flatten(tags).dictionary_encode()
        parents = pc.list_parent_indices(tags).to_numpy().astype(np.int64)
        kept = taken[parents]
        known = names.dictionary if len(names.dictionary) else pa.array([""])
        return parents[kept], names.indices.to_numpy().astype(np.int64)[kept], known

    def runs(self, file: int) -> pa.RecordBatch:
        """Return the runs of this row group (RUNS); `file` is the index of its file."""
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
    """The rows of tag_views that a row group gives, sorted by run and tag.

    `parent`: the event's row; `code`: the tag's index in `names`.
    """

    group: _Group
    upto: Numbers  # the last sequence_nr taken of each run; 0: none
    parent: Numbers
    code: Numbers
    names: pa.Array
    bucket: Numbers
    number: Numbers
    firsts: Numbers  # the first row here of each run and tag

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
        start = starts["start"].to_numpy()[has][
            sorter[np.searchsorted(known_keys, keys[firsts], sorter=sorter)]
        ]
        ticks = group.ticks[parent]
        bucket = (ticks - ticks % size.ticks) // TICKS_PER_MILLISECOND
        return cls(group, upto, parent, code, names, bucket, np.repeat(start, lengths) + place, firsts)

    def reached(self) -> pa.RecordBatch:
        """Return how far each run came (REACHED), without the runs of which nothing is taken."""
        sequence_nr = self.group.sequence_nr
        taken = np.add.reduceat(
            (sequence_nr <= self.upto[self.group.run]).astype(np.int64), self.group.firsts
        )
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
        # A run that has tags here also has rows taken, so it is always found among `runs`, and both are in
        # the same order.
        place = np.searchsorted(runs, self.group.run[parent])
        columns = {name: self.group.column(name, last) for name in (ID, "sequence_nr", "partition_nr")}
        return _batch(
            {**columns, "progress": pa.ListArray.from_arrays(_offsets(place, len(runs)), lines)}, REACHED
        )

    def write(self, files: RunFiles, name: str, columns: list[str]) -> None:
        """Write the rows of tag_views by slot, tag and time; write no file when there are none."""
        if len(self.parent):
            with files.create(name) as sink:
                write_groups(sink, self._rows(self.parent[:0], columns).schema, self._in_slots(columns))

    def _in_slots(self, columns: list[str]) -> Iterator[tuple[int, pa.Table]]:
        """Yield the rows slot by slot, in pieces.

        All rows of a partition of tag_views have one slot, the same in every file.
        """
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
        """Return the totals of these rows; rows before `first_ticks` count as early."""
        ticks = self.group.ticks[self.parent]
        rows, earliest = (
            np.bincount(self.code, minlength=len(self.names)),
            np.full(len(self.names), np.iinfo(np.int64).max),
        )
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
    """Return where the lines of each owner begin, as offsets of an Arrow list; `owner` gives the owner of
    each line, in ascending order.
    """
    return pa.array(np.searchsorted(owner, np.arange(owners + 1)), pa.int32())


def _batch(columns: dict[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    """Make a record batch of the schema from Arrow and NumPy arrays."""
    arrays = (
        values if isinstance(values := columns[name], pa.Array) else pa.array(values) for name in schema.names
    )
    return pa.RecordBatch.from_arrays(
        [array.cast(kind) for array, kind in zip(arrays, schema.types, strict=True)], schema=schema
    )
