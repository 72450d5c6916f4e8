"""Read ranges of offsets in Python: in Spark's workers, since its own source fails on timestamps above what its
microseconds hold, or in this process.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from tagmill.config.kafka import KafkaSettings
from tagmill.kafka.client import Kafka, KafkaRecord, Span
from tagmill.kafka.offset_ranges import Range

RECORDS = pa.schema(
    {
        "topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(), "timestamp": pa.timestamp("us", "UTC"), "key": pa.binary(),
        "value": pa.binary(), "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
    }
)  # fmt: skip
# Records that a task reads at most; records and bytes of values that it hands to Spark at once, at most.
RECORDS_PER_TASK, ROWS_AT_ONCE, BYTES_AT_ONCE = 200_000, 1000, 4 * 1024 * 1024


def records_by_workers(spark: SparkSession, settings: KafkaSettings, ranges: Sequence[Range]) -> DataFrame:
    """Return the records of these ranges with the columns of RECORDS, each partition's in order; timestamps
    are KafkaRecord's.
    """
    parts = [
        one.model_copy(update={"first": first, "end": min(one.end, first + RECORDS_PER_TASK)})
        for one in ranges
        for first in range(one.first, one.end, RECORDS_PER_TASK)
    ]
    work = partial(_read, settings=settings, parts=parts)
    return spark.range(0, len(parts), numPartitions=max(1, len(parts))).mapInArrow(
        work, from_arrow_schema(RECORDS)
    )


def _read(
    numbers: Iterable[pa.RecordBatch], settings: KafkaSettings, parts: Sequence[Range]
) -> Iterator[pa.RecordBatch]:
    with Kafka(settings) as kafka:
        for part in (parts[number] for batch in numbers for number in batch["id"].to_pylist()):
            yield from records(kafka, part)


def records(kafka: Kafka, part: Range) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range in their order (RECORDS); timestamps are KafkaRecord's.

    Raises as Kafka.read does.
    """
    waiting, size = list[KafkaRecord](), 0
    for record in kafka.read(part.topic, part.partition, Span(part.first, part.end)):
        waiting.append(record)
        size += len(record.value or b"")
        if len(waiting) == ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
            yield _batch(waiting)
            waiting, size = [], 0
    yield _batch(waiting)


def _batch(records: Sequence[KafkaRecord]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([_row(one) for one in records], RECORDS)


def _row(record: KafkaRecord) -> dict[str, object]:
    headers = [
        {"key": name, "value": value} for name, value in record.headers
    ] or None  # As in Spark, null means no headers.
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": record.key,
        "value": record.value,
        "headers": headers,
    }
