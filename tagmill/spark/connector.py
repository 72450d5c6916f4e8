"""Read Cassandra's tables as DataFrames, through the Spark Cassandra connector."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from tenacity import RetryError, Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from tagmill.errors import StoreUnavailable

CASSANDRA = "org.apache.spark.sql.cassandra"
AWAITED_SECONDS = 60
# Options to read a table whose rows may have a megabyte each: rows in one answer of Cassandra, and answers
# that are under way at once.
LARGE_ROWS = {"spark.cassandra.input.fetch.sizeInRows": "25", "spark.cassandra.concurrent.reads": "8"}


def table(spark: SparkSession, keyspace: str, name: str, **options: str) -> DataFrame:
    """Return a table as a DataFrame; with `directJoinSetting="on"`, a join looks up its rows by their
    keys.
    """
    return spark.read.format(CASSANDRA).options(keyspace=keyspace, table=name, **options).load()


def native_connector(spark: SparkSession) -> Any:
    """Return the JVM's connector with the session's settings, for the connector's Java API.

    The Java API itself only sees the settings of the context, which has no login and no stores of TLS.
    """
    conf = spark.sparkContext._jsc.sc().getConf()  # noqa: SLF001 - a copy
    session: Any = spark._jsparkSession  # noqa: SLF001 - pyspark can't list the settings of a session
    for key, value in dict(session.sessionState().conf().settings()).items():
        if key.startswith("spark.cassandra."):
            conf.set(key, value)
    jvm: Any = spark._jvm  # noqa: SLF001 - pyspark has no other way to the Java API
    return jvm.com.datastax.spark.connector.cql.CassandraConnector.apply(conf)


def await_tables(spark: SparkSession, keyspace: str, columns: Mapping[str, Sequence[str]]) -> None:
    """Wait until the connector knows tables and columns that were just created: its own session learns of
    them with a delay.

    Raises StoreUnavailable if it doesn't know them after AWAITED_SECONDS.
    """
    patience = Retrying(
        retry=retry_if_exception_type(AnalysisException),
        stop=stop_after_delay(AWAITED_SECONDS),
        wait=wait_fixed(0.3),
    )
    for name, wanted in columns.items():
        try:
            patience(_select, spark, keyspace, name, wanted)
        except RetryError:
            raise StoreUnavailable(
                f"Spark has not heard of {keyspace}.{name} ({', '.join(wanted)}) in {AWAITED_SECONDS} s. "
                "It is there; run the same "
                "command again"
            ) from None


def _select(spark: SparkSession, keyspace: str, name: str, columns: Sequence[str]) -> None:
    table(spark, keyspace, name).select(*columns)


# A task holds a page of each partition that it reads concurrently; the connector's defaults, 512 partitions
# of 5000 rows, wouldn't fit.
BY_PARTITION = {"spark.cassandra.concurrent.reads": "32", "spark.cassandra.input.fetch.sizeInRows": "1000"}
