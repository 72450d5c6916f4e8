"""What a run of a topic stages: checksums by their rule, rows only in named files, and the first record of each
id.
"""

from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tagmill.config.kafka import COLUMN_TYPES, TopicColumn, TopicSettings
from tagmill.delivery.topics import dedup, staging
from tagmill.delivery.topics.staged_files import KINDS, Source, masks, stage
from tagmill.delivery.topics.table_columns import layout
from tagmill.errors import ConfigurationError
from tagmill.runs.storage import RunFiles
from tagmill.spark.errors import explained
from tests.support.checksums import MODULUS, checksum

TYPES = (*COLUMN_TYPES, "Decimal(38, 9)")
CHOSEN = TopicSettings(
    kind="topic", topics=["t"], format="json", destination="d",
    columns=[TopicColumn(name=f"c{at}_{null}", type=kind, nullable=null) for at, kind in enumerate(TYPES) for null in (True, False)],
)  # fmt: skip
SCHEMA = staging.schema_of(CHOSEN)


def value(random: Random, kind: pa.DataType):
    if pa.types.is_integer(kind):
        return random.choice([0, 1, -1, 2 ** (kind.bit_width - 1) - 1, -(2 ** (kind.bit_width - 1))])
    content = random.choice(["", "a", "Ä€😀", "x" * 31, "y" * 32, "z" * 500])
    return content.encode() + random.choice([b"", b"\x00\xff"]) if pa.types.is_binary(kind) else content


def events(count: int, ids: int) -> pa.Table:
    random, columns = Random(count), {column.name: column for column in layout(CHOSEN).columns}
    rows = []
    for number in range(count):
        row = {
            name: None
            if columns[name].nullable and random.random() < 0.3
            else value(random, SCHEMA.field(name).type)
            for name in columns
        }
        one = random.randrange(ids)
        row |= {
            "kind": "event",
            "topic": "t",
            "partition": 0,
            "offset": number,
            "unique_id": f"{one * (2**128 // ids):032x}",
            "shard": one % 7,
        }
        rows.append(row | ({"kind": random.choice(KINDS)} if number % 5 == 0 else {}))
    return pa.Table.from_pylist(rows, SCHEMA)


def staged_of(spark: SparkSession, rows: pa.Table, root: Path):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_table(rows, 1000)
    content = sink.getvalue().to_pybytes()
    source = Source(
        spark.range(0, 1, 1, 1), lambda *_: iter(pa.ipc.open_stream(content)), SCHEMA, layout(CHOSEN)
    )
    return source, stage(source, RunFiles(str(root)), "staged")


def test_checksums_are_those_of_rule(spark, tmp_path: Path) -> None:
    rows = events(400, 50)
    _, (one,) = staged_of(spark, rows, tmp_path)
    found = pq.read_table(tmp_path / one.name)
    assert found.drop_columns(["row_checksum"]).equals(rows)
    expected = [checksum(row, layout(CHOSEN).columns) for row in rows.to_pylist()]
    assert [value % MODULUS for value in found["row_checksum"].to_pylist()] == expected
    assert len(set(expected)) == 400


def test_large_payloads_lie_in_bounded_row_groups(spark, tmp_path: Path) -> None:
    rows = events(200, 200)
    rows = rows.set_column(rows.schema.get_field_index("payload"), "payload", pa.array([bytes(2**20)] * 200))
    _, (one,) = staged_of(spark, rows, tmp_path)
    found = pq.ParquetFile(tmp_path / one.name).metadata
    groups = [found.row_group(at).num_rows for at in range(found.num_row_groups)]
    assert sum(groups) == 200 and max(groups) <= 64


def test_of_each_id_the_first_event_is_told(spark, tmp_path: Path, monkeypatch) -> None:
    """Keep the first event of each id across files, as counting one by one does."""
    monkeypatch.setattr(dedup, "COMPARED_AT_ONCE", 300)
    files, staged = RunFiles(str(tmp_path)), []
    tables = [events(count, 40) for count in (700, 1100)]
    for table in tables:
        staged += staged_of(spark, table, tmp_path)[1]
    count = dedup.write_firsts(files, staged, "firsts")
    kept = masks(files, staged, "firsts")
    expected, seen = [], set()
    for table in tables:
        here = []
        for kind, one in zip(table["kind"].to_pylist(), table["unique_id"].to_pylist(), strict=True):
            here.append(kind == "event" and one not in seen)
            seen |= {one} if here[-1] else set()
        expected.append(np.array(here))
    assert count == len(seen) == sum(mask.sum() for mask in kept) == 40
    assert len(files.parquet("firsts")) > 3
    assert all((mask == wanted).all() for mask, wanted in zip(kept, expected, strict=True))
    for one, table in zip(staged, tables, strict=True):
        assert {kind: getattr(one, kind) for kind in KINDS} == {
            kind: table["kind"].to_pylist().count(kind) for kind in KINDS
        }


def test_staged_unwritable_folder_is_one_line(spark, tmp_path: Path) -> None:
    """Report a folder that can't be written in one line that says that nothing was committed."""
    (tmp_path / "staged").write_text("a file where the folder should be")
    with (
        pytest.raises(
            ConfigurationError,
            match="staged/.* can't be written: .*Nothing was committed. A file is in the way",
        ),
        explained("there"),
    ):
        staged_of(spark, events(10, 5), tmp_path)
