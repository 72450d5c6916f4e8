"""Append rows to a table of Cassandra with a timestamp."""

from pyspark.sql import DataFrame

from tagmill.spark.connector import CASSANDRA

# Options of the connector that keep an unlogged batch of one partition below Cassandra's
# batch_size_fail_threshold (50 KiB).
BATCHES = {
    "spark.cassandra.output.batch.size.bytes": "32768",
    "spark.cassandra.output.batch.grouping.key": "partition",
    "spark.cassandra.output.batch.grouping.buffer.size": "200",
    "spark.cassandra.output.concurrent.writes": "16",
}


def append(rows: DataFrame, keyspace: str, table: str, written_at: int, *, large: bool = False) -> None:
    """Write rows with the given timestamp (microseconds), in BATCHES.

    `large`: a row may have a megabyte; such rows have to be sorted by partition, since fewer batches are
    filled at once.
    """
    few = {"spark.cassandra.output.batch.grouping.buffer.size": "10"} if large else {}
    options = {
        **BATCHES,
        **few,
        "spark.cassandra.output.timestamp": str(written_at),
        "keyspace": keyspace,
        "table": table,
    }
    rows.write.format(CASSANDRA).options(**options).mode("append").save()
