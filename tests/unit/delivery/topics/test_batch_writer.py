"""Batches of a topic: bounded, of one month each, in Kafka's order; an error in writing a batch ends the
cutting.
"""

from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tagmill.delivery.topics.batch_writer import Cutter
from tagmill.errors import ConfigurationError
from tagmill.runs.storage import RunFiles

NOVEMBER, DECEMBER = 1_793_491_200_000, 1_796_083_200_000
COLUMNS = ["topic", "partition", "offset", "created_at", "unique_id", "shard", "row_checksum"]


def rows(offsets: range, month: int) -> pa.Table:
    count = len(offsets)
    return pa.table(
        {
            "topic": ["t"] * count,
            "partition": [0] * count,
            "offset": list(offsets),
            "created_at": [month] * count,
            "unique_id": [f"{999 - offset:032x}" for offset in offsets],
            "shard": [0] * count,
            "row_checksum": [1] * count,
        }
    )


def cutter(home: Path, writer: Executor) -> Cutter:
    return Cutter(RunFiles(f"file://{home}"), "batches", COLUMNS, 10, 1_000_000, writer)


def test_cutter_batches_by_month_sorted_by_id(tmp_path):
    """Batches have at most ten rows, of one month each, and are sorted by id."""
    with ThreadPoolExecutor(1) as writer:
        cut = cutter(tmp_path, writer)
        cut.add(rows(range(7), NOVEMBER))
        cut.add(pa.concat_tables([rows(range(7, 20), NOVEMBER), rows(range(20, 24), DECEMBER)]))
        batches = cut.end()
    found = [pq.read_table(tmp_path / batch.file) for batch in batches]
    assert [sorted(table["offset"].to_pylist()) for table in found] == [
        [*range(10)],
        [*range(10, 20)],
        [*range(20, 24)],
    ]
    assert [(batch.number, batch.rows, batch.checksum) for batch in batches] == [
        (1, 10, 10),
        (2, 10, 10),
        (3, 4, 4),
    ]
    assert [(batch.first_offset, batch.last_offset) for batch in batches] == [
        ("t/0/0", "t/0/9"),
        ("t/0/10", "t/0/19"),
        ("t/0/20", "t/0/23"),
    ]
    assert all(table["unique_id"].to_pylist() == sorted(table["unique_id"].to_pylist()) for table in found)


def test_cutter_raises_error_of_writing(tmp_path):
    """Raise the error that keeps a batch from being written; nothing was committed."""
    (tmp_path / "batches").write_text("a file where the folder should be")
    with ThreadPoolExecutor(1) as writer:
        cut = cutter(tmp_path, writer)
        cut.add(rows(range(10), NOVEMBER))
        with pytest.raises(ConfigurationError, match="Nothing was committed"):
            cut.end()
