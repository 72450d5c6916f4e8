"""Read the rows of a run into memory, and stage them in files as tagmill.delivery.tag_views.staging does with Spark."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, groupby

import numpy as np
import pyarrow as pa

from tagmill.cassandra.paging import Pages
from tagmill.delivery.tag_views.model import Plan, ScanUnit, Slice
from tagmill.delivery.tag_views.staged_rows import as_batch_rows
from tagmill.delivery.tag_views.suspects import KEY_COLUMNS
from tagmill.domain.timeuuid import FUTURE_TICKS, from_datetime
from tagmill.journal.tag_view_reader import BUCKETS_COUNTED, VIEW_COLUMNS, Views, bounds
from tagmill.runs.parquet_files import write_table
from tagmill.runs.storage import RunFiles

# Bytes of rows that this process reads for one run at most; queries that are under way at once.
MAX_BYTES, QUERIES_AT_ONCE = 64 * 1024 * 1024, 4


class _TooMuchError(Exception):
    """More rows or bytes than this process reads."""


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A staged file and its rows (STAGED), which are of one unit and tag; only new rows are written to it."""

    name: str
    unit: int
    tag: str
    is_new: bool
    rows: pa.Table

    def rows_with_place(self) -> pa.Table:
        """Return the key columns of the rows, as suspects.keys_of does."""
        count = self.rows.num_rows
        keys = self.rows.select(KEY_COLUMNS)
        for name, values in (
            ("file", pa.repeat(self.name, count)),
            ("row_index", pa.array(np.arange(count))),
            ("is_new", pa.repeat(self.is_new, count)),
        ):
            keys = keys.append_column(name, values)
        return keys


def stage(
    views: Views, plan: Plan, files: RunFiles, folder: str, rows: int, batch_rows: int
) -> list[StagedFile] | None:
    """Read the rows of a plan, and write the new ones to files below `folder`; ordered by unit.

    Args:
        views: reads the tag views.
        plan: one that reads few rows.
        files: of the run.
        folder: relative to their root.
        rows: that are read at most.
        batch_rows: that a file has at most.

    Returns None if there are more rows or bytes than this process reads.
    """
    latest = from_datetime(plan.planned_at) + FUTURE_TICKS
    staged = list[StagedFile]()
    try:
        for unit, found in _read(views, plan, rows):
            made = as_batch_rows(found, unit.number, unit.tag, latest)
            for number, begin in enumerate(range(0, made.num_rows, batch_rows)):
                part, name = made.slice(begin, batch_rows), f"part-{unit.number:05d}-{number:05d}.parquet"
                if is_new := unit.kind == "new":  # rows that are read again reach no batch by their file
                    write_table(files, f"{folder}/{name}", part)
                staged.append(StagedFile(name, unit.number, unit.tag, is_new, part))
    except _TooMuchError:
        return None
    return staged


def _read(views: Views, plan: Plan, rows: int) -> Iterator[tuple[ScanUnit, pa.Table]]:
    """Yield the rows of each unit that has any, its slices one after the other."""
    budget = {"rows": rows, "bytes": MAX_BYTES}
    selected = ", ".join(name for name in VIEW_COLUMNS if name != "tag_name")
    of_buckets = f"SELECT {selected} FROM {views.view} WHERE tag_name = ? AND timebucket "

    def read(tag: str, part: list[Slice]) -> list[pa.RecordBatch]:
        found, (first, *more) = [], part
        if more:
            pages = reader.of(f"{of_buckets}IN ?", tag, [one.timebucket for one in part])
        else:
            between = bounds(first.after, first.until)
            query = f"{of_buckets}= ? AND timestamp > ? AND timestamp <= ?"
            pages = reader.of(query, tag, first.timebucket, *between)
        for page in pages:
            budget["rows"] -= page.num_rows
            budget["bytes"] -= page.nbytes
            if min(budget.values()) < 0:
                raise _TooMuchError
            found.append(page)
        return found

    parts = [(unit, part) for unit in plan.units for part in _read_together(unit)]
    with Pages(views.cassandra) as reader, ThreadPoolExecutor(QUERIES_AT_ONCE) as pool:
        answers = pool.map(read, [unit.tag for unit, _ in parts], [part for _, part in parts])
        of_parts = zip(parts, answers, strict=True)
        for _, of_unit in groupby(of_parts, key=lambda answer: answer[0][0].number):
            of_slices = list(of_unit)
            if batches := list(chain.from_iterable(found for _, found in of_slices)):
                unit, rows_of_unit = of_slices[0][0][0], pa.Table.from_batches(batches)
                # Cassandra answers for several partitions in an order of its own; within each, rows stay in theirs.
                in_time = np.argsort(rows_of_unit["timebucket"].to_numpy(), kind="stable")
                yield unit, rows_of_unit.take(pa.array(in_time))


def _read_together(unit: ScanUnit) -> Iterator[list[Slice]]:
    """Yield the slices of a unit by queries: whole partitions together, each other part alone."""
    for whole, of_kind in groupby(unit.slices, key=lambda part: part.whole):
        parts, together = list(of_kind), BUCKETS_COUNTED if whole else 1
        for begin in range(0, len(parts), together):
            yield parts[begin : begin + together]
