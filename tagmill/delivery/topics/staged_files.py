"""Stage a run's rows in files: each Python task writes the rows that it makes to one file, and reports what
is in it.

Decoded rows don't go back through the JVM only to be written. A task that is tried again writes another file,
and a file that no successful task reports is never read.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from tagmill.arrow import row_groups
from tagmill.delivery.arrow_checksum import row_checksums
from tagmill.delivery.topics.reader_notes import NULLED, Notes
from tagmill.domain.batches.layout import Layout
from tagmill.kafka.worker_source import RecordsByTasks
from tagmill.runs.parquet_files import write_file
from tagmill.runs.storage import RunFiles
from tagmill.spark.arrow_chunks import in_python

Work = Callable[[Iterable[pa.RecordBatch], Notes], Iterator[pa.RecordBatch]]
Mask = npt.NDArray[np.bool_]
KINDS = ("event", "tombstone", "unreadable")
FILES = pa.schema(
    {
        **{"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(), "name": pa.string()},
        **dict.fromkeys(KINDS, pa.int64()),
        **{"nulled": pa.list_(NULLED), "matched": pa.list_(pa.string()), "paths": pa.list_(pa.string())},
    }
)
# A staged row's address: the number of its file in Kafka's order, and in the low INDEX_BITS bits the row's
# index in that file.
ADDRESS, INDEX_BITS = "address", 32
ADDRESSES_AT_ONCE, ROWS_AT_ONCE = 1_000_000, 1000
# Streams of few rows that are read at once.
STREAMS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Source:
    """Rows, and `work`, which turns them into the rows of a batch in Python and notes what it reads.

    Few rows come by this process, as one stream of batches for each file; others are in Spark, or its tasks read them.
    `schema` is that of the rows that `work` makes, in which `kind` is one of KINDS.
    """

    rows: DataFrame | RecordsByTasks | Sequence[Iterable[pa.RecordBatch]]
    work: Work
    schema: pa.Schema
    layout: Layout

    @property
    def staged_schema(self) -> pa.Schema:
        """The schema of the staged files: `schema` and, as the last column, `row_checksum`."""
        return self.schema.append(pa.field("row_checksum", pa.int64()))


@dataclass(frozen=True, slots=True, order=True)
class StagedFile:
    """A staged file: the place in Kafka of its first row, how many rows of each kind it has, and the notes of
    its task.
    """

    topic: str
    partition: int
    offset: int
    name: str
    event: int
    tombstone: int
    unreadable: int
    nulled: list[dict[str, Any]] = field(compare=False)
    matched: list[str] = field(compare=False)
    paths: list[str] = field(compare=False)

    @property
    def rows(self) -> int:
        """The number of rows of all kinds."""
        return self.event + self.tombstone + self.unreadable


def stage(source: Source, files: RunFiles, folder: str) -> list[StagedFile]:
    """Write the rows that the source makes to files in a folder, and return the files in Kafka's order."""
    write = partial(_write, source.work, source.staged_schema, source.layout, files, folder)
    if isinstance(source.rows, DataFrame | RecordsByTasks):
        made = (
            source.rows.made(write, FILES)
            if isinstance(source.rows, RecordsByTasks)
            else in_python(source.rows, write, from_arrow_schema(FILES))
        )
        return sorted(StagedFile(**line.asDict(recursive=True)) for line in made.collect())
    with ThreadPoolExecutor(STREAMS_AT_ONCE) as pool:
        written = chain.from_iterable(pool.map(lambda batches: list(write(batches)), source.rows))
        return sorted(StagedFile(**line) for lines in written for line in lines.to_pylist())


def _write(
    work: Work,
    schema: pa.Schema,
    layout: Layout,
    files: RunFiles,
    folder: str,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    begins, kinds, notes = list[dict[str, Any]](), dict.fromkeys(KINDS, 0), Notes()

    def counted() -> Iterator[pa.Table]:
        for group in row_groups(_summed(work(batches, notes), schema, layout)):
            begins.append({column: group[column][0].as_py() for column in ("topic", "partition", "offset")})
            for found in group["kind"].value_counts().to_pylist():
                kinds[found["values"]] += found["counts"]
            yield group

    name = write_file(
        files,
        folder,
        schema,
        counted(),
        ["kind", *(column.name for column in layout.columns if column.repeats)],
    )
    if name:
        yield pa.RecordBatch.from_pylist([{**begins[0], "name": name, **kinds, **notes.as_row()}], FILES)


def _summed(batches: Iterable[pa.RecordBatch], schema: pa.Schema, layout: Layout) -> Iterator[pa.RecordBatch]:
    """Yield the rows with their checksums as the last column."""
    for batch in batches:
        checksums = pa.array(row_checksums(batch, layout.columns).view(np.int64))
        yield pa.RecordBatch.from_arrays([*batch.columns, checksums], schema=schema)


def addresses(file: int, rows: int) -> npt.NDArray[np.int64]:
    """Return the ADDRESS of each row of a file, by the file's number and its number of rows."""
    return cast(npt.NDArray[np.int64], (np.int64(file) << INDEX_BITS) + np.arange(rows))


def masks(files: RunFiles, staged: Sequence[StagedFile], folder: str) -> list[Mask]:
    """Return a mask for each staged file: the rows whose ADDRESS is in the files of a folder."""
    found = [np.zeros(one.rows, bool) for one in staged]
    for batch in files.record_batches(folder, ADDRESSES_AT_ONCE, [ADDRESS]):
        addresses = np.sort(batch[ADDRESS].to_numpy())
        numbers = addresses >> INDEX_BITS
        for number in np.unique(numbers):
            first, last = np.searchsorted(numbers, (number, number + 1))
            found[number][addresses[first:last] & ((1 << INDEX_BITS) - 1)] = True
    return found


def write_kind(
    files: RunFiles, staged: Sequence[StagedFile], kind: str, schema: pa.Schema, folder: str
) -> None:
    """Write the columns of `schema` of the rows of one kind (KINDS) to a file in a folder, if there are any."""

    def rows() -> Iterator[pa.RecordBatch]:
        for one in staged:
            if getattr(one, kind):
                with files.open(one.name) as source:
                    for batch in pq.ParquetFile(source).iter_batches(
                        ROWS_AT_ONCE, columns=["kind", *schema.names]
                    ):
                        yield batch.filter(pc.equal(batch["kind"], kind)).select(schema.names).cast(schema)

    write_file(files, folder, schema, row_groups(rows()), [])
