"""Cut the new rows of the staged files into batches: in Kafka's order, of bounded size, one ClickHouse
partition (month) each.
"""

import io
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from uuid import NAMESPACE_OID, uuid4, uuid5

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tagmill.arrow import CODEC, fitting
from tagmill.domain.documents import Batch
from tagmill.runs.storage import RunFiles

BESIDE = ("shard", "row_checksum")
PAGE_BYTES = 1024 * 1024


@dataclass
class _Month:
    """Rows of one month that are not in a batch yet."""

    parts: list[pa.Table] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0


@dataclass
class Cutter:
    """Writes batches of `columns` (row_checksum is one) below `folder`, in the order in which `add` gets the
    rows.

    Within a batch of a topic, rows are sorted by id. However many months there are, at most three batches are
    in memory: `writer` (a pool of one thread) writes one while the next ones are filled.
    """

    files: RunFiles
    folder: str
    columns: Sequence[str]
    batch_rows: int
    batch_bytes: int
    writer: Executor
    batches: list[Batch] = field(default_factory=list)
    _months: dict[int, _Month] = field(default_factory=dict)
    _writing: Future[None] | None = None

    def add(self, rows: pa.Table) -> None:
        """Add rows, and write the batches that become full; if all months together exceed a batch's bytes,
        write the largest.
        """
        moments = pc.cast(rows["created_at"], pa.timestamp("ms", "UTC"))
        months = pc.add(pc.multiply(pc.year(moments), 100), pc.month(moments))
        different = pc.unique(months).to_pylist()
        for month in different:
            waiting = self._months.setdefault(month, _Month())
            part = rows.filter(pc.equal(months, month)) if len(different) > 1 else rows
            waiting.parts.append(part)
            waiting.rows += part.num_rows
            waiting.bytes += part.nbytes
            while waiting.rows >= self.batch_rows or waiting.bytes >= self.batch_bytes:
                fitting = max(1, waiting.rows * self.batch_bytes // max(1, waiting.bytes))
                self._flush(waiting, min(self.batch_rows, waiting.rows, fitting))
        while sum(waiting.bytes for waiting in self._months.values()) > self.batch_bytes:
            largest = max(self._months.values(), key=lambda waiting: waiting.bytes)
            self._flush(largest, largest.rows)

    def end(self) -> list[Batch]:
        """Write the remaining rows, a batch for each month, and return all batches."""
        for month in sorted(self._months):
            if self._months[month].rows:
                self._flush(self._months[month], self._months[month].rows)
        self._written()
        return self.batches

    def _flush(self, waiting: _Month, rows: int) -> None:
        table = pa.concat_tables(waiting.parts)
        batch, rest = table.slice(0, rows), table.slice(rows)
        waiting.parts, waiting.rows = ([rest] if rest.num_rows else []), rest.num_rows
        waiting.bytes = rest.nbytes if rest.num_rows else 0
        found, ends = batch.select(self.columns), (_place(batch, 0), _place(batch, rows - 1))
        if "shard" in self.columns:
            # Sorted as deduplication stores ids: they are written to Cassandra in the order of this file, and
            # this order is the fastest.
            found = found.sort_by([("shard", "ascending"), ("unique_id", "ascending")])
        self._written()
        self._writing = self.writer.submit(self._write, found, *ends)

    def _written(self) -> None:
        """Wait for the batch that is being written; raise its error if it could not be written."""
        if self._writing is not None:
            self._writing.result()

    def _write(self, rows: pa.Table, first: str, last: str) -> None:
        number, sink = len(self.batches) + 1, io.BytesIO()
        # A reader has a whole page in memory, and the writer checks a page's size only every
        # `write_batch_size` rows.
        together = min(1024, fitting(rows, PAGE_BYTES))
        pq.write_table(rows, sink, write_batch_size=together, **CODEC)
        content, file = sink.getvalue(), f"{self.folder}/batch-{number:05d}.parquet"
        sha256 = self.files.write(file, content)
        checksum = int(np.add.reduce(rows["row_checksum"].to_numpy().astype(np.int64)).astype(np.uint64))
        self.batches.append(
            Batch(
                number=number,
                batch_id=str(uuid5(NAMESPACE_OID, f"{file}/{uuid4()}")),
                tag="",
                file=file,
                rows=rows.num_rows,
                bytes=len(content),
                sha256=sha256,
                checksum=checksum,
                first_offset=first,
                last_offset=last,
            )
        )


def _place(rows: pa.Table, at: int) -> str:
    """Return a row's place in Kafka, as topic/partition/offset."""
    return "/".join(str(rows[name][at].as_py()) for name in ("topic", "partition", "offset"))


def chosen_rows(
    staged: pq.ParquetFile, columns: Sequence[str], mask: npt.NDArray[np.bool_] | None
) -> Iterator[pa.Table]:
    """Yield the rows of a staged file that `mask` marks, or all if it is None, one row group at a time."""
    base = 0
    for group in range(staged.num_row_groups):
        end = base + staged.metadata.row_group(group).num_rows
        if mask is None:
            yield staged.read_row_group(group, columns=list(columns))
        elif mask[base:end].any():
            yield staged.read_row_group(group, columns=list(columns)).filter(pa.array(mask[base:end]))
        base = end
