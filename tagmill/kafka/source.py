"""Spark reads ranges of offsets, and its errors in Tagmill's words."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tagmill.errors import GuardRefused, StoreUnavailable
from tagmill.kafka.ranges import Range
from tagmill.stores.kafka import LATEST, Kafka

RECORDS_PER_TASK = 200_000
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
