"""The Spark-Cassandra connector, which Tagmill does not use: what benchmarks compare it with, and write data by."""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from local.jars import fetch
from local.layout import ROOT
from tagmill.config.settings import Settings
from tagmill.spark import session as sessions

CASSANDRA = "org.apache.spark.sql.cassandra"
# What keeps an unlogged batch of one partition below Cassandra's batch_size_fail_threshold (50 KiB).
BATCHES = {
    "spark.cassandra.output.batch.size.bytes": "32768",
    "spark.cassandra.output.batch.grouping.key": "partition",
    "spark.cassandra.output.batch.grouping.buffer.size": "200",
    "spark.cassandra.output.concurrent.writes": "16",
}


def session(settings: Settings, *, name: str = "bench") -> SparkSession:
    """Start a session with the connector, whose jars are fetched once."""
    cassandra, jars = settings.cassandra, ROOT / "build" / "jars"
    fetch(jars, ("connector",))
    conf = {
        "spark.jars": ",".join(str(jar) for jar in sorted(Path(jars / "connector").glob("*.jar"))),
        "spark.sql.extensions": "com.datastax.spark.connector.CassandraSparkExtensions",
        "spark.cassandra.connection.host": ",".join(cassandra.hosts),
        "spark.cassandra.connection.port": str(cassandra.port),
        "spark.cassandra.output.consistency.level": "LOCAL_QUORUM",
        "spark.cassandra.input.fetch.sizeInRows": "5000",
    }
    spark = settings.spark.model_copy(update={"conf": {**settings.spark.conf, **conf}})
    return sessions.session(settings.model_copy(update={"spark": spark}), name=name)


def table(spark: SparkSession, keyspace: str, name: str, **options: str) -> DataFrame:
    """Return a table as a DataFrame; with `directJoinSetting="on"`, a join looks up its rows by their keys."""
    return spark.read.format(CASSANDRA).options(keyspace=keyspace, table=name, **options).load()
