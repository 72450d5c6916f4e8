"""Writes a sealed build into Cassandra: tag_views, then tag_write_progress, then our own record. All of it may be done again.

Every row is written with the build's own timestamp, so a builder that was frozen and wakes up after a later build can't take
anything back.
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tagmill import checkpoints
from tagmill.connector import CASSANDRA
from tagmill.stores.views import VIEW_COLUMNS
from tagmill.views.model import SLICE, Manifest, Tell
from tagmill.views.numbering import timebucket

ID = "persistence_id"
PARTITION = ["tag_name", "timebucket"]
# rows of a tag's bucket that one task writes, and of a task in all
ROWS_PER_PART, ROWS_PER_TASK = 100_000, 200_000
# an unlogged batch of one partition stays below batch_size_fail_threshold (50 KiB)
BATCHES = {
    "spark.cassandra.output.batch.size.bytes": "32768",
    "spark.cassandra.output.batch.grouping.key": "partition",
    "spark.cassandra.output.batch.grouping.buffer.size": "200",
    "spark.cassandra.output.concurrent.writes": "16",
}


def write(spark: SparkSession, manifest: Manifest, ledger_keyspace: str, url: str, tell: Tell) -> None:
    """Write everything that the manifest's files (below `url`) hold."""
    numbers = spark.read.parquet(f"{url}/numbers")
    if manifest.rows:
        tell(f"writing {manifest.rows} rows of tag_views")
        rows = view_rows(spark, spark.read.parquet(f"{url}/events/*"), numbers, manifest)
        _append(rows, manifest.journal, "tag_views", manifest.written_at)
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


def view_rows(spark: SparkSession, events: DataFrame, numbers: DataFrame, manifest: Manifest) -> DataFrame:
    """The rows of tag_views, in the order of its partitions. The payload is shuffled once, the numbers beside it.

    In: staged events (Reader) and `numbers` (numbering.numbered). A bucket with many rows is divided among tasks by persistence_id
    and slice.
    """
    tasks = max(2 * spark.sparkContext.defaultParallelism, -(-manifest.rows // ROWS_PER_TASK))
    divided = (
        numbers.groupBy(*PARTITION).count().where(F.col("count") > ROWS_PER_PART)
        .select(*PARTITION, F.ceil(F.col("count") / ROWS_PER_PART).alias("parts"))
    )  # fmt: skip
    large = divided if divided.take(1) else None
    together = PARTITION if large is None else [*PARTITION, "part"]
    columns = [name for name in VIEW_COLUMNS if manifest.meta or not name.startswith("meta")]
    payload = [
        name for name in columns if name not in ("tag_name", "timebucket", "timestamp", ID, "tag_pid_sequence_nr", "sequence_nr")
    ]
    tagged = events.where("tags is not null").select(
        ID, "sequence_nr", "timestamp", timebucket(manifest.bucket_size), F.explode("tags").alias("tag_name"), *payload
    )
    # the numbers of a task fit into its memory (ROWS_PER_TASK): looked up there, so that payloads are sorted by two keys, not by five
    rows = _parted(tagged, large, tasks).join(
        _parted(numbers.drop("timestamp", "ticks"), large, tasks).hint("shuffle_hash"), [*together, ID, "sequence_nr"]
    )
    return rows.select(*columns).sortWithinPartitions(*PARTITION)


def _parted(rows: DataFrame, large: DataFrame | None, tasks: int) -> DataFrame:
    if large is None:
        return rows.repartition(tasks, *PARTITION)
    piece = F.xxhash64(ID, F.expr(f"sequence_nr div {SLICE}"))
    return (
        rows.join(F.broadcast(large), PARTITION, "left")
        .withColumn("part", F.pmod(piece, F.coalesce("parts", F.lit(1))))
        .drop("parts")
        .repartition(tasks, *PARTITION, "part")
    )


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
