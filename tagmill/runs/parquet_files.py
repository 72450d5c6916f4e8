"""Write Parquet files in row groups of bounded size: a reader of the file has a whole row group in memory."""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import BinaryIO
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from tagmill.arrow import CODEC, GROUP_BYTES
from tagmill.runs.storage import RunFiles

# Options for Spark's writer, which checks a row group's size for the first time after this many rows: each
# may have 5 MB.
BY_SPARK = {"parquet.block.size": str(GROUP_BYTES), "parquet.page.size.row.check.min": "10"}
SLOTS = "slots"


def write_file(
    files: RunFiles,
    folder: str,
    schema: pa.Schema,
    groups: Iterator[pa.Table],
    repeated: Sequence[str],
    prefix: str = "",
) -> str | None:
    """Write a file of row groups under a name that no other attempt has, and return the name; None if there
    are none.

    `repeated`: columns whose values are the same in many rows; `prefix`: of the name. Raises StoreUnavailable.
    """
    first = next(groups, None)
    if first is None:
        return None
    name = f"{folder}/{prefix}{uuid4().hex}.parquet"
    with (
        files.create(name) as sink,
        pq.ParquetWriter(sink, schema, **CODEC, use_dictionary=list(repeated)) as writer,
    ):
        for group in chain((first,), groups):
            writer.write_table(group, group.num_rows)
    return name


def write_table(files: RunFiles, name: str, rows: pa.Table) -> None:
    """Write few rows to a file of this name. Raises StoreUnavailable."""
    with files.create(name) as sink:
        pq.write_table(rows, sink, **CODEC)


def write_groups(sink: BinaryIO, schema: pa.Schema, groups: Iterable[tuple[int, pa.Table]]) -> None:
    """Write a file of row groups, none of them empty, with the slot of each: a slot's rows in many files are
    read together.
    """
    slots = list[int]()
    with pq.ParquetWriter(sink, schema, **CODEC) as writer:
        for slot, rows in groups:
            writer.write_table(rows, rows.num_rows)
            slots.append(slot)
        writer.add_key_value_metadata({SLOTS: json.dumps(slots)})


def slots_of(file: pq.ParquetFile) -> Sequence[int] | None:
    """Return the slot of each row group; None if the file was written without slots."""
    said = (file.metadata.metadata or {}).get(SLOTS.encode())
    return json.loads(said) if said else None
