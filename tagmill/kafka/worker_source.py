"""Read ranges of offsets as Arrow: by Spark's Python workers, or in this process."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from tagmill.config.kafka import KafkaSettings
from tagmill.kafka.client import Kafka, Span, headers_of, milliseconds
from tagmill.kafka.offset_ranges import Range

# The name is null where it stands for headers that can't be read (client.NAME_NOT_UTF8).
HEADERS = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
RECORDS = pa.schema(
    {
        "topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(), "timestamp": pa.timestamp("us", "UTC"), "key": pa.binary(),
        "value": pa.binary(), "headers": HEADERS,
    }
)  # fmt: skip
# Records that a task reads at most, and bytes of values in a batch, if it has more than one record.
RECORDS_PER_TASK, BYTES_AT_ONCE = 200_000, 4 * 1024 * 1024
# Makes batches of records (RECORDS) of one partition, in their order.
Work = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class RecordsByTasks:
    """The records of ranges, which Python tasks of Spark read; timestamps are KafkaRecord's."""

    spark: SparkSession
    settings: KafkaSettings
    ranges: Sequence[Range]

    def made(self, work: Work, schema: pa.Schema) -> DataFrame:
        """Return the rows (of `schema`) that `work` makes of each task's records, at most RECORDS_PER_TASK."""
        parts = [
            one.model_copy(update={"first": first, "end": min(one.end, first + RECORDS_PER_TASK)})
            for one in self.ranges
            for first in range(one.first, one.end, RECORDS_PER_TASK)
        ]
        tasks = self.spark.range(0, len(parts), numPartitions=max(1, len(parts)))
        task = partial(_made, settings=self.settings, parts=parts, work=work)
        return tasks.mapInArrow(task, from_arrow_schema(schema))


def _made(
    numbers: Iterable[pa.RecordBatch], settings: KafkaSettings, parts: Sequence[Range], work: Work
) -> Iterator[pa.RecordBatch]:
    with Kafka(settings) as kafka:
        for part in (parts[number] for batch in numbers for number in batch["id"].to_pylist()):
            yield from work(records(kafka, part))


def records(kafka: Kafka, part: Range) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range in their order (RECORDS); timestamps are KafkaRecord's.

    Raises as Kafka.messages does.
    """
    for messages in kafka.messages(part.topic, part.partition, Span(part.first, part.end)):
        batch = _batch(part, messages)
        ends = np.cumsum([len(message) for message in messages]) // BYTES_AT_ONCE
        cuts = [0, *(np.flatnonzero(np.diff(ends)) + 1).tolist(), batch.num_rows]
        for begin, end in pairwise(cuts):
            yield batch.slice(begin, end - begin)


def _batch(part: Range, messages: Sequence[Any]) -> pa.RecordBatch:
    count = len(messages)
    moments = np.fromiter(map(milliseconds, messages), np.int64, count) * 1000
    headers = [
        [{"key": name, "value": value} for name, value in pairs] if (pairs := headers_of(message)) else None
        for message in messages
    ]
    columns = {
        "topic": pa.repeat(part.topic, count),
        "partition": pa.repeat(pa.scalar(part.partition, pa.int32()), count),
        "offset": pa.array([message.offset() for message in messages], pa.int64()),
        "timestamp": pa.array(moments).cast(pa.timestamp("us", "UTC")),
        "key": pa.array([message.key() for message in messages], pa.binary()),
        "value": pa.array([message.value() for message in messages], pa.binary()),
        "headers": pa.array(headers, HEADERS) if any(headers) else pa.nulls(count, HEADERS),
    }
    return pa.RecordBatch.from_pydict(columns, RECORDS)
