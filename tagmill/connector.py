"""Cassandra's tables as DataFrames, through the Spark Cassandra connector."""

from pyspark.sql import DataFrame, SparkSession

CASSANDRA = "org.apache.spark.sql.cassandra"


def table(spark: SparkSession, keyspace: str, name: str, **options: str) -> DataFrame:
    """A table; `directJoinSetting="on"` looks its rows up by the keys of what it is joined to."""
    return spark.read.format(CASSANDRA).options(keyspace=keyspace, table=name, **options).load()
