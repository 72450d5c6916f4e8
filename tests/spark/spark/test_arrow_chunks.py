"""Records of any size pass through Python unchanged, and never many large ones at once."""

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from tagmill.spark.arrow_chunks import PIECE_BYTES, in_python

SIZES = [
    5,
    PIECE_BYTES,
    PIECE_BYTES + 1,
    None,
    0,
    3 * PIECE_BYTES,
    10 * PIECE_BYTES + 7,
    1,
    2,
    2 * PIECE_BYTES,
]


def told(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = [{**row, "at_once": batch.num_rows, "bytes": batch.nbytes} for row in batch.to_pylist()]
        yield pa.RecordBatch.from_pylist(
            rows, batch.schema.append(pa.field("at_once", pa.int64())).append(pa.field("bytes", pa.int64()))
        )


def test_in_python_keeps_records_and_bounds_pieces(spark: SparkSession) -> None:
    """Records of any size pass through Python unchanged, in pieces of limited rows and bytes."""
    contents = [None if size is None else bytes([at]) * size for at, size in enumerate(SIZES)]
    rows = spark.createDataFrame(list(enumerate(contents)), "number int, value binary").coalesce(1)
    for at_once in (1, 3, 1000):
        made = in_python(
            rows, told, "number int, value binary, at_once long, bytes long", at_once=at_once
        ).collect()
        assert [(row["number"], row["value"] and bytes(row["value"])) for row in made] == list(
            enumerate(contents)
        )
        assert max(row["at_once"] for row in made) <= at_once
        assert max(row["bytes"] for row in made) < 10 * PIECE_BYTES + 100
