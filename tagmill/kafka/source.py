"""Spark reads ranges of offsets, and its errors in Tagmill's words."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tagmill.errors import GuardRefused, StoreUnavailable
from tagmill.kafka.pieces import in_pieces, joined
from tagmill.kafka.ranges import Range
from tagmill.stores.kafka import LATEST, Kafka

RECORDS_PER_TASK = 200_000
# that Python gets at once, and what it gets in pieces where there is more of it: value, as Kafka calls it, payload in deduplication
RECORDS_AT_ONCE, PIECE_BYTES, LARGE = 1000, 64 * 1024, {"value", "payload"}
GONE = re.compile(r"OffsetOutOfRangeException|Some data may have been lost|offset was changed from|Cannot fetch offset")
UNANSWERED = re.compile(
    r"org\.apache\.kafka\.common\.(errors\.\w+|KafkaException)|Cannot fetch record for offset|TimeoutException"
)


def kafka_records(spark: SparkSession, kafka: Kafka, ranges: Sequence[Range]) -> DataFrame:
    """The records of these ranges, as Spark's Kafka source gives them, with headers; holes in the offsets are no matter.

    A timestamp is at most LATEST: a producer may send any, and what is later no datetime of Python's holds.
    """
    tasks = sum(-(-(one.end - one.first) // RECORDS_PER_TASK) for one in ranges)
    return (
        spark.read.format("kafka")
        .options(**kafka.spark_options(), includeHeaders="true", failOnDataLoss="true", minPartitions=str(max(1, tasks)))
        .options(assign=_assigned(ranges), startingOffsets=_offsets(ranges, "first"), endingOffsets=_offsets(ranges, "end"))
        .load()
        .withColumn("timestamp", F.least("timestamp", F.timestamp_seconds(F.lit(int(LATEST.timestamp())))))
    )


def in_python(
    records: DataFrame, work: Callable[[Iterable[Any]], Iterable[Any]], schema: StructType | str, at_once: int = RECORDS_AT_ONCE
) -> DataFrame:
    """What Python makes of records, over Arrow. From here on the session hands out so many rows at a time."""
    records.sparkSession.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(at_once))
    for large in LARGE.intersection(records.columns):
        return in_pieces(records, large, PIECE_BYTES).mapInArrow(partial(_whole, work, records.columns, large), schema)
    return records.mapInArrow(work, schema)


def _whole(
    work: Callable[[Iterable[Any]], Iterable[Any]], columns: Sequence[str], large: str, batches: Iterable[Any]
) -> Iterable[Any]:
    return work(joined(batches, columns, large))


@contextmanager
def explained(kafka: Kafka) -> Iterator[None]:
    """Raise GuardRefused where records went before Spark read them, StoreUnavailable where Kafka did not answer."""
    try:
        yield
    except Py4JJavaError as error:
        text = str(error)
        if GONE.search(text):
            raise GuardRefused(f"{kafka.where}: records went while they were read. Nothing was sealed; run it again") from None
        if found := UNANSWERED.search(text):
            raise StoreUnavailable(
                f"{kafka.where} did not answer Spark ({found[0].rpartition('.')[2]}). Nothing was sealed. Run the same command again"
            ) from None
        raise


def _assigned(ranges: Sequence[Range]) -> str:
    found: dict[str, list[int]] = {}
    for one in ranges:
        found.setdefault(one.topic, []).append(one.partition)
    return json.dumps(found)


def _offsets(ranges: Sequence[Range], end: str) -> str:
    found: dict[str, dict[str, Any]] = {}
    for one in ranges:
        found.setdefault(one.topic, {})[str(one.partition)] = getattr(one, end)
    return json.dumps(found)
