"""Writes a sealed build into Cassandra: tag_views, then tag_write_progress, then our own record. All of it may be done again.

Every row is written with the build's own timestamp, so a builder that was frozen and wakes up after a later build can't take
anything back.
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tagmill import checkpoints
from tagmill.connector import CASSANDRA
from tagmill.views.model import Manifest, Tell

ID = "persistence_id"
# an unlogged batch of one partition stays below batch_size_fail_threshold (50 KiB)
BATCHES = {
    "spark.cassandra.output.batch.size.bytes": "32768",
    "spark.cassandra.output.batch.grouping.key": "partition",
    "spark.cassandra.output.batch.grouping.buffer.size": "200",
    "spark.cassandra.output.concurrent.writes": "16",
}


def write(spark: SparkSession, manifest: Manifest, ledger_keyspace: str, url: str, tell: Tell) -> None:
    """Write everything that the manifest's files (below `url`) hold."""
    if manifest.rows:
        tell(f"writing {manifest.rows} rows of tag_views")
        _append(spark.read.parquet(f"{url}/rows"), manifest.journal, "tag_views", manifest.written_at)
    checkpoints.reached("build.after_views")
    records = spark.read.parquet(f"{url}/records")
    tell(f"writing the progress of {manifest.moved} persistence ids")
    progress = records.select(ID, "new", F.explode("progress").alias("line")).where(F.array_contains("new", F.col("line.tag")))
    _append(
        progress.select(
            ID, F.col("line.tag").alias("tag"), F.col("line.offset").alias("offset"),
            F.col("line.sequence_nr").alias("sequence_nr"), F.col("line.number").alias("tag_pid_sequence_nr"),
        ),
        manifest.journal, "tag_write_progress", manifest.written_at,
    )  # fmt: skip
    checkpoints.reached("build.after_progress")
    _append(_as_records(records, manifest), ledger_keyspace, "view_progress", manifest.written_at)


def _as_records(records: DataFrame, manifest: Manifest) -> DataFrame:
    """Rows of view_progress."""
    maps = [
        F.expr(f"map_from_entries(transform(progress, line -> struct(line.tag, line.{field}))) AS {name}")
        for name, field in (("numbers", "number"), ("sequence_nrs", "sequence_nr"), ("offsets", "offset"))
    ]
    return records.select(
        F.lit(manifest.journal).alias("journal"), ID, "sequence_nr", "partition_nr", "scanned",
        F.lit(manifest.build).cast("bigint").alias("build"), *maps,
    )  # fmt: skip


def _append(rows: DataFrame, keyspace: str, table: str, written_at: int) -> None:
    options = {**BATCHES, "spark.cassandra.output.timestamp": str(written_at), "keyspace": keyspace, "table": table}
    rows.write.format(CASSANDRA).options(**options).mode("append").save()
