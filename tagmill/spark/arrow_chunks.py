"""Send large records to Python in pieces: Spark limits a batch only by its rows, and a task without memory
for one waits for ever.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

# Records that Python gets at once, bytes of a piece, and the columns that are sent in pieces if they have
# more bytes: value as in Kafka, payload as in deduplication, event as in messages.
RECORDS_AT_ONCE, PIECE_BYTES, LARGE = 1000, 64 * 1024, {"value", "payload", "event"}
LEFT, AT = "left", "piece_at"


def in_python(
    records: DataFrame,
    work: Callable[[Iterable[Any]], Iterable[Any]],
    schema: StructType | str,
    at_once: int = RECORDS_AT_ONCE,
) -> DataFrame:
    """Return what the Python function `work` makes of records, over Arrow; from here on, the session hands
    out `at_once` rows at a time.
    """
    records.sparkSession.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(at_once))
    for large in LARGE.intersection(records.columns):
        return in_pieces(records, large, PIECE_BYTES).mapInArrow(
            partial(_whole, work, records.columns, large), schema
        )
    return records.mapInArrow(work, schema)


def _whole(
    work: Callable[[Iterable[Any]], Iterable[Any]], columns: Sequence[str], large: str, batches: Iterable[Any]
) -> Iterable[Any]:
    return work(joined(batches, columns, large))


def in_pieces(records: DataFrame, large: str, size: int) -> DataFrame:
    """Cut records with more than `size` bytes in the column `large` into a row for each piece.

    LEFT: the record's pieces to come.
    """
    begins = F.expr(
        f"explode(IF(length({large}) > {size}, sequence(1, length({large}), {size}), array(1))) AS {AT}"
    )
    left = F.expr(f"coalesce(int((length({large}) - {AT}) div {size}), 0) AS {LEFT}")
    piece = F.expr(f"substring({large}, {AT}, {size}) AS {large}")
    others = [name for name in records.columns if name != large]
    return records.select("*", begins).select(*others, left, piece)


def joined(batches: Iterable[pa.RecordBatch], columns: Sequence[str], large: str) -> Iterator[pa.RecordBatch]:
    """Yield the records of in_pieces, put together again, with these columns and in their order; a cut record
    is a batch of its own.
    """
    pieces = list[bytes]()
    for batch in batches:
        left, begin = batch[LEFT].to_numpy(), 0
        for at, more in enumerate(left.tolist()) if pieces or left.any() else ():
            if not more and not pieces:
                continue
            if begin < at:
                yield batch.slice(begin, at - begin).select(columns)
            pieces.append(batch[large][at].as_py())
            begin = at + 1
            if not more:
                yield _with(batch.slice(at, 1).select(columns), large, b"".join(pieces))
                pieces = []
        yield batch.slice(begin).select(columns)


def _with(record: pa.RecordBatch, large: str, content: bytes) -> pa.RecordBatch:
    schema = record.schema
    found = [
        pa.array([content], field.type) if field.name == large else record[field.name] for field in schema
    ]
    return pa.RecordBatch.from_arrays(found, schema=schema)
