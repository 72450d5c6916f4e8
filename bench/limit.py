"""Measure the limit of a delivery: scan the same partitions and columns into Parquet with the same codec, and
insert the files.

The limit does without plan, continuity, gate, checksums, ledger and verification, and inserts into one table
without projections. It runs in a process of its own: python -m bench.limit CONFIG PIPELINE FOLDER
"""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import clickhouse_connect
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from bench.connector import session, table
from tagmill.cassandra.client import Cassandra
from tagmill.clickhouse.client import INSERT_SETTINGS
from tagmill.config.settings import Settings
from tagmill.delivery.tag_views.model import ScanUnit, Slice
from tagmill.journal.tag_view_reader import VIEW_COLUMNS, Views

TYPES = {
    "text": "String",
    "bigint": "Int64",
    "timeuuid": "String",
    "int": "Nullable(Int32)",
    "blob": "String",
}
BUCKETS_A_FILE = 12


def main(config: str, pipeline: str, folder: str) -> None:
    """Scan the view, insert the files, and print the seconds of both."""
    settings = Settings.load(config)
    chosen = settings.pipeline(pipeline)
    with Cassandra(settings.cassandra) as cassandra:
        buckets = Views(cassandra, chosen.journal).buckets(chosen.tags)
    units = []
    for tag, found in buckets.items():
        for at in range(0, len(found), BUCKETS_A_FILE):
            slices = [Slice(timebucket=bucket) for bucket in found[at : at + BUCKETS_A_FILE]]
            units.append(ScanUnit(number=len(units), tag=tag, kind="new", slices=slices))
    spark = session(settings, name="limit")
    begun = time.monotonic()
    view = table(spark, chosen.keyspace, chosen.view_table, directJoinSetting="on")
    _whole(view, units).select(*VIEW_COLUMNS).write.mode("overwrite").parquet(folder)
    scanned = time.monotonic()
    target = f"{chosen.destination}_limit"
    columns = ", ".join(
        f"`{name}` {TYPES[kind] if not name.startswith('meta') else 'Nullable(String)'}"
        for name, kind in VIEW_COLUMNS.items()
    )
    client = _client(settings)
    client.command(f"DROP TABLE IF EXISTS {target} SYNC")
    client.command(
        f"CREATE TABLE {target} ({columns}) ENGINE = MergeTree ORDER BY (tag_name, persistence_id, "
        "sequence_nr)"
    )

    def insert(file: Path) -> None:
        _client(settings).raw_insert(
            target, insert_block=file.read_bytes(), fmt="Parquet", settings=INSERT_SETTINGS
        )

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(insert, sorted(Path(folder).glob("*.parquet"))))
    print(
        f"rows {client.command(f'SELECT count() FROM {target}')} scan {scanned - begun:.1f} insert "
        f"{time.monotonic() - scanned:.1f}",
        flush=True,
    )
    client.command(f"DROP TABLE {target} SYNC")
    spark.stop()


def _whole(view: DataFrame, units: list[ScanUnit]) -> DataFrame:
    """Read whole partitions by direct join: one task per unit, its buckets one after the other in time."""
    keys = json.dumps([[part.timebucket for part in unit.slices] for unit in units])
    identities = json.dumps([[str(unit.number), unit.tag] for unit in units])
    index = (F.col("id") + 1).cast("int")
    units_frame = view.sparkSession.range(0, len(units), 1, len(units)).select(
        F.element_at(F.element_at(F.from_json(F.lit(identities), "array<array<string>>"), index), 1)
        .cast("int")
        .alias("unit"),
        F.element_at(F.element_at(F.from_json(F.lit(identities), "array<array<string>>"), index), 2).alias(
            "tag_name"
        ),
        F.explode(F.element_at(F.from_json(F.lit(keys), "array<array<bigint>>"), index)).alias("timebucket"),
    )
    return units_frame.join(view, ["tag_name", "timebucket"]).select("unit", *VIEW_COLUMNS)


def _client(settings: Settings) -> "clickhouse_connect.driver.client.Client":
    return clickhouse_connect.get_client(
        host=settings.clickhouse.host, port=settings.clickhouse.port, autogenerate_session_id=False
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
