"""Run one step of bench/topics in a process of its own: python -m bench.topics_data STEP CONFIG ARGUMENT...

produce EVENTS | again [but-files] | raw [ids] | known IDS | exactly ROWS
"""

import io
import json
import random
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from tagmill.cassandra.bulk_writer import Target
from tagmill.cassandra.client import Cassandra
from tagmill.clickhouse.client import ClickHouse
from tagmill.config.settings import ClickHouseSettings, Settings
from tagmill.delivery.topics import destination_table
from tagmill.delivery.topics.seal import IN_FILES
from tagmill.kafka.client import Kafka
from tagmill.kafka.offset_ranges import partitions_of, unread
from tagmill.kafka.worker_source import RecordsByTasks
from tagmill.ledger import schema
from tagmill.ledger.sent_batches import DestinationBatches
from tagmill.runs.storage import RunFiles
from tagmill.spark.bulk_load import Part, load
from tagmill.spark.cassandra_table import CassandraTable
from tagmill.spark.session import session

PIPELINE, PARTITIONS, BYTES, TWICE_EVERY = "bench", 4, 300, 20
LEDGER = (
    "pipelines",
    "runs",
    "topic_offsets",
    "deduplication",
    "leases",
    "dead_letters",
    "dead_letter_places",
)
RAW_ROWS = 100_000


def produce(settings: Settings, events: str) -> None:
    """Create the tables, and a topic of JSON events."""
    schema.apply(settings)
    destination_table.apply(settings)
    servers = {"bootstrap.servers": ",".join(settings.kafka.bootstrap_servers)}
    admin = AdminClient(servers)
    for made in admin.create_topics([NewTopic(PIPELINE, PARTITIONS, 1)]).values():
        made.result(30)
    while len(admin.list_topics(PIPELINE, 30).topics[PIPELINE].partitions) < PARTITIONS:
        time.sleep(0.2)  # a broker tells of a new topic a little later
    producer, choice, product = Producer({**servers, "linger.ms": 50}), random.Random(1), 0  # noqa: S311
    for number in range(int(events)):
        if number % TWICE_EVERY:
            product += 1
        event = {
            "project": "bench",
            "event_type": "created",
            "product_id": product or 1,
            "price": product / 4,
            "note": "",
        }
        event["note"] = choice.randbytes((BYTES - len(json.dumps(event))) // 2).hex()
        _send(producer, number % PARTITIONS, json.dumps(event))
    producer.flush()


def _send(producer: Producer, partition: int, value: str) -> None:
    while True:
        try:
            producer.produce(PIPELINE, value, partition=partition)
            return
        except BufferError:
            producer.poll(1)


def again(settings: Settings, but: str = "") -> None:
    """Restore the state before the first delivery; with `but-files` the files of a run stay."""
    with Cassandra(settings.cassandra) as cassandra:
        for name in LEDGER:
            cassandra.execute(f"TRUNCATE {settings.cassandra.ledger_keyspace}.{name}")
    with ClickHouse(settings.clickhouse) as clickhouse:
        clickhouse.command("TRUNCATE TABLE bench")
        clickhouse.command(f"TRUNCATE TABLE {DestinationBatches(clickhouse, 'bench').table}")
        clickhouse.command("DROP TABLE IF EXISTS raw")
        clickhouse.command(
            "CREATE TABLE raw (topic String, partition Int32, offset Int64, value String) ENGINE = MergeTree "
            "ORDER BY (topic, partition, offset)"
        )
    if not but:
        shutil.rmtree(settings.storage.root, ignore_errors=True)


def raw(settings: Settings, ids: str = "") -> None:
    """Read the records in tasks of Spark and write them unchanged, 100,000 rows per insert, without deduplication or
    verification.

    With `ids`, also write the deduplication rows that a run has made, from its files.
    """
    spark = session(settings)
    with Kafka(settings.kafka) as kafka:
        ranges, _ = unread(
            PIPELINE,
            kafka.spans(partitions_of(kafka, PIPELINE, ["bench"], [])),
            {},
            accept_lost=False,
            go_on="",
        )
        insert = partial(_insert, settings=settings.clickhouse)
        inserted = RecordsByTasks(spark, settings.kafka, ranges).made(insert, pa.schema({"rows": pa.int64()}))
        print(inserted.groupBy().sum("rows").first())
    if ids:
        _load_ids(settings, spark)
    spark.stop()


def _load_ids(settings: Settings, spark: SparkSession) -> None:
    files, root = RunFiles(settings.storage.root), Path(settings.storage.root)
    beside = {
        "pipeline": PIPELINE,
        "rule": settings.topic(PIPELINE).rule,
        "seen_at": datetime.now(UTC),
        "run": 1,
        "batch_id": uuid4(),
    }
    parts = [Part(str(file.relative_to(root)), beside) for file in sorted(root.rglob("batch-*.parquet"))]
    print(
        load(
            lambda: spark,
            settings.cassandra,
            files,
            parts,
            Target(settings.cassandra.ledger_keyspace, "deduplication", 1),
            IN_FILES,
        )
    )


def _insert(batches: Iterable[pa.RecordBatch], settings: ClickHouseSettings) -> Iterator[pa.RecordBatch]:
    with ClickHouse(settings) as clickhouse:
        waiting: list[pa.RecordBatch] = []
        for batch in batches:
            waiting.append(batch)
            if sum(one.num_rows for one in waiting) >= RAW_ROWS:
                yield _sent(clickhouse, waiting)
                waiting = []
        if waiting:
            yield _sent(clickhouse, waiting)


def _sent(clickhouse: ClickHouse, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    table, sink = (
        pa.Table.from_batches(batches).select(["topic", "partition", "offset", "value"]),
        io.BytesIO(),
    )
    pq.write_table(table, sink, compression="zstd", compression_level=1)
    sink.seek(0)
    clickhouse.client.raw_insert("raw", insert_block=sink, fmt="Parquet")
    return pa.RecordBatch.from_pydict({"rows": [table.num_rows]})


def known(settings: Settings, ids: str) -> None:
    """Write deduplication rows for `ids` other events, spread over all shards."""
    from pyspark.sql import functions as F

    chosen, spark = settings.topic(PIPELINE), session(settings)
    digest = F.sha2(F.concat(F.lit("known "), F.col("id").cast("string")), 256)
    rows = spark.range(int(ids)).select(
        F.lit(PIPELINE).alias("pipeline"),
        F.lit(chosen.rule).alias("rule"),
        (F.conv(F.substring(digest, 33, 8), 16, 10).cast("bigint") % chosen.shards)
        .cast("int")
        .alias("shard"),
        F.substring(digest, 1, 32).alias("unique_id"),
        F.current_timestamp().alias("created_at"),
        F.current_timestamp().alias("seen_at"),
        F.lit("").alias("schema_version"),
        F.lit(b"x" * BYTES).alias("payload"),
        F.lit(0).cast("bigint").alias("run"),
    )
    with Cassandra(settings.cassandra) as cassandra:
        table = CassandraTable.of_ledger(cassandra, "deduplication")
        table.append(rows.repartition(64, "shard").sortWithinPartitions("shard", "unique_id"), 1)
    spark.stop()


def exactly(settings: Settings, rows: str) -> None:
    """Exit with an error unless the table has `rows` rows with as many distinct ids."""
    with ClickHouse(settings.clickhouse) as clickhouse:
        ((found, distinct),) = clickhouse.rows("SELECT count(), uniqExact(unique_id) FROM bench")
    if not int(found) == int(distinct) == int(rows):
        raise SystemExit(f"{found} rows, {distinct} ids; expected {rows}")


if __name__ == "__main__":
    globals()[sys.argv[1]](Settings.load(Path(sys.argv[2])), *sys.argv[3:])
