"""Read ranges of offsets with Spark, and raise its errors as Tagmill's."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PythonException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tagmill.errors import ClientCertificateRefused, ConfigurationError, RecordsLost, StoreUnavailable
from tagmill.kafka.client import EARLIEST, LATEST, Kafka
from tagmill.kafka.offset_ranges import Range
from tagmill.kafka.worker_source import RECORDS_PER_TASK, records_by_workers

Made = TypeVar("Made")
GONE = re.compile(
    r"OffsetOutOfRangeException|Some data may have been lost|offset was changed from|Cannot fetch "
    r"offset|Offset out of range"
)
UNANSWERED = re.compile(
    r"org\.apache\.kafka\.common\.(errors\.\w+|KafkaException)|Cannot fetch record for "
    r"offset|TimeoutException"
)
# An error that one of Spark's Python workers raised as Tagmill's own.
KINDS = {
    kind.__name__: kind
    for kind in (StoreUnavailable, ConfigurationError, ClientCertificateRefused, RecordsLost)
}
UNREAD = re.compile(rf"tagmill\.errors\.(?P<kind>{'|'.join(KINDS)}): (?P<line>Kafka at .+)")
# Spark's error for milliseconds that are more than its microseconds can hold.
OVERFLOWN = "java.lang.ArithmeticException: long overflow"


def with_records(
    spark: SparkSession, kafka: Kafka, ranges: Sequence[Range], work: Callable[[DataFrame], Made]
) -> Made:
    """Return what `work` makes of the records of these ranges; if a timestamp overflows, `work` is called a
    second time.

    For the second call, Spark's Python workers read the records (records_by_workers).

    Raises RecordsLost: Kafka deleted records before they were read. StoreUnavailable: Kafka did not answer.
    """
    with explained(kafka):
        try:
            return work(kafka_records(spark, kafka, ranges))
        except Py4JJavaError as error:
            if OVERFLOWN not in str(error):
                raise
        return work(records_by_workers(spark, kafka.settings, ranges))


def kafka_records(spark: SparkSession, kafka: Kafka, ranges: Sequence[Range]) -> DataFrame:
    """Return the records of these ranges as Spark's Kafka source reads them, with headers; offsets without a
    record are allowed.

    Timestamps are limited to EARLIEST to LATEST: a producer may send any number, and not all fit a Python
    datetime. If one does not fit Spark's timestamp either, reading fails (OVERFLOWN), whichever columns are
    selected.
    """
    tasks = sum(-(-(one.end - one.first) // RECORDS_PER_TASK) for one in ranges)
    return (
        spark.read.format("kafka")
        .options(
            **kafka.spark_options(),
            includeHeaders="true",
            failOnDataLoss="true",
            minPartitions=str(max(1, tasks)),
        )
        .options(
            assign=_assigned(ranges),
            startingOffsets=_offsets(ranges, "first"),
            endingOffsets=_offsets(ranges, "end"),
        )
        .load()
        .withColumn("timestamp", F.greatest(F.least("timestamp", _moment(LATEST)), _moment(EARLIEST)))
    )


@contextmanager
def explained(kafka: Kafka) -> Iterator[None]:
    """Raise Spark's errors as Tagmill's.

    Raises:
        RecordsLost: Kafka deleted records before they were read.
        StoreUnavailable: Kafka did not answer.
        ConfigurationError: Kafka refused a request of a Python worker.
    """
    try:
        yield
    except (Py4JJavaError, PythonException) as error:
        text = str(error)
        if GONE.search(text):
            raise RecordsLost(
                f"{kafka.where}: records went while they were read. Nothing was sealed; run it again"
            ) from None
        if found := UNANSWERED.search(text):
            raise StoreUnavailable(
                f"{kafka.where} did not answer Spark ({found[0].rpartition('.')[2]}). Nothing was "
                "sealed. Run the same command again"
            ) from None
        if said := UNREAD.search(text):
            raise KINDS[said["kind"]](said["line"]) from None
        raise


def _moment(at: datetime) -> Column:
    return F.timestamp_seconds(F.lit(int(at.timestamp())))


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
