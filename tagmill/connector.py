"""Cassandra's tables as DataFrames, through the Spark Cassandra connector."""

from collections.abc import Mapping, Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from tenacity import RetryError, Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from tagmill.errors import StoreUnavailable

CASSANDRA = "org.apache.spark.sql.cassandra"
AWAITED_SECONDS = 60
# options of a table whose rows may have a megabyte each: how many Cassandra puts into an answer, and how many answers are under way
LARGE_ROWS = {"spark.cassandra.input.fetch.sizeInRows": "25", "spark.cassandra.concurrent.reads": "8"}


def table(spark: SparkSession, keyspace: str, name: str, **options: str) -> DataFrame:
    """A table; `directJoinSetting="on"` looks its rows up by the keys of what it is joined to."""
    return spark.read.format(CASSANDRA).options(keyspace=keyspace, table=name, **options).load()


def await_tables(spark: SparkSession, keyspace: str, columns: Mapping[str, Sequence[str]]) -> None:
    """Wait until the connector has heard of tables and columns that were just made: its own session learns of them by and by.

    Raises StoreUnavailable when it has not in AWAITED_SECONDS.
    """
    patience = Retrying(
        retry=retry_if_exception_type(AnalysisException), stop=stop_after_delay(AWAITED_SECONDS), wait=wait_fixed(0.3)
    )
    for name, wanted in columns.items():
        try:
            patience(_select, spark, keyspace, name, wanted)
        except RetryError:
            raise StoreUnavailable(
                f"Spark has not heard of {keyspace}.{name} ({', '.join(wanted)}) in {AWAITED_SECONDS} s. It is there; run the same "
                "command again"
            ) from None


def _select(spark: SparkSession, keyspace: str, name: str, columns: Sequence[str]) -> None:
    table(spark, keyspace, name).select(*columns)
