"""Loading rows of many files slot by slot: each row comes once, a partition's rows come together, few are in
memory at once.
"""

from itertools import groupby
from pathlib import Path
from random import Random
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tagmill.arrow import CODEC, row_groups
from tagmill.domain.timeuuid import lowest, ticks
from tagmill.runs.parquet_files import write_groups
from tagmill.runs.storage import RunFiles
from tagmill.spark import bulk_load
from tagmill.views.writer import in_order

SCHEMA = pa.schema(
    {"tag_name": pa.string(), "timebucket": pa.int64(), "timestamp": pa.string(), "n": pa.int64()}
)
SLOTS = 4


def written(root: Path, count: int) -> tuple[RunFiles, list[str], int]:
    """Write `count` files with rows of three tags and two buckets, grouped by slot.

    Return the files, their names and the number of rows. The last file has no slots.
    """
    files, names, number, random = RunFiles(str(root)), [], 0, Random(1)
    for file in range(count):
        groups: dict[int, list[dict]] = {slot: [] for slot in range(SLOTS)}
        for _ in range(50):
            tag, bucket = random.randrange(3), random.randrange(2)
            groups[(tag + bucket) % SLOTS].append(
                {
                    "tag_name": f"t{tag}",
                    "timebucket": bucket,
                    "timestamp": str(lowest(random.randrange(10**17))),
                    "n": number,
                }
            )
            number += 1
        tables = [(slot, pa.Table.from_pylist(rows, SCHEMA)) for slot, rows in groups.items() if rows]
        names.append(f"rows/{file}.parquet")
        with files.create(names[-1]) as sink:
            if file + 1 < count:
                write_groups(sink, SCHEMA, tables)
            else:
                pq.write_table(pa.concat_tables(rows for _, rows in tables), sink, **CODEC)
    return files, names, number


def keys(table: pa.Table) -> list[tuple[str, int]]:
    return list(zip(table["tag_name"].to_pylist(), table["timebucket"].to_pylist(), strict=True))


@pytest.mark.parametrize("shares", [1, 3, SLOTS])
def test_merged_rows_come_once_ordered_by_time(tmp_path: Path, shares: int) -> None:
    """Merge files so that each row comes once and a partition's rows come in order of time, in at most two
    pieces.
    """
    files, names, count = written(tmp_path, 5)
    seen, of_partition = [], dict[tuple[str, int], int]()
    for share in range(shares):
        for merged in bulk_load.merged_slots(files, names, range(share, SLOTS, shares)):
            table = merged.take(pa.array(in_order(merged)))
            seen += table["n"].to_pylist()
            for key, rows in groupby(
                zip(keys(table), table["timestamp"].to_pylist(), strict=True), lambda row: row[0]
            ):
                times = [ticks(UUID(time)) for _, time in rows]
                assert times == sorted(times)
                of_partition[key] = of_partition.get(key, 0) + 1
    assert sorted(seen) == list(range(count))
    # The file without slots may come as a piece of its own, so a partition comes in at most two pieces.
    assert len(of_partition) == 6 and max(of_partition.values()) <= 2


def test_merged_pieces_are_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge in pieces of limited size without losing a row."""
    files, names, count = written(tmp_path, 5)
    monkeypatch.setattr(bulk_load, "MERGED_BYTES", 1000)
    sizes = [(rows.num_rows, rows.nbytes) for rows in bulk_load.merged_slots(files, names, range(SLOTS))]
    assert sum(rows for rows, _ in sizes) == count
    assert len(sizes) > SLOTS and max(size for _, size in sizes) < 6000


def test_rows_are_grouped_by_their_bytes() -> None:
    rows = pa.record_batch({"v": [bytes(1000)] * 100})
    groups = list(row_groups(iter([rows] * 1000)))
    assert sum(group.num_rows for group in groups) == 100_000
    assert 1 < len(groups) < 5
    (large,) = row_groups([pa.record_batch({"v": [bytes(100_000_000)]})])
    assert large.num_rows == 1
    assert list(row_groups([])) == []
