"""Write a sealed build into Cassandra: tag_views, then tag_write_progress, then Tagmill's own record.

All of it may be repeated.

A rebuild deletes wrong rows first, with a timestamp that is a microsecond older than that of the rows written
after.

Every row is written with the build's own timestamp, so a builder that was frozen and resumes after a later
build can't overwrite newer rows.
"""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tagmill.cassandra import uuids
from tagmill.cassandra.bulk_writer import Target, write_rows
from tagmill.cassandra.client import PARTITIONS_TOGETHER, Cassandra
from tagmill.domain import identifiers
from tagmill.journal.frames import NOT_SCANNED
from tagmill.runs import checkpoints
from tagmill.runs.progress import Tell
from tagmill.runs.storage import RunFiles
from tagmill.spark.bulk_load import are_few, load_merged
from tagmill.spark.cassandra_table import CassandraTable
from tagmill.views.model import VIEW_KEY, Manifest
from tagmill.views.run_numbering import SLOTS

ID = "persistence_id"
ROWS_AT_ONCE = 10_000
# The value, among view_progress.sequence_nrs, of a tag whose view was deleted; it has none among the numbers.
FORGOTTEN = 0
# Columns of tag_write_progress, and those of view_progress that differ from row to row.
PROGRESS = pa.schema(
    {
        **{name: pa.string() for name in (ID, "tag", "offset")},
        **{name: pa.int64() for name in ("sequence_nr", "tag_pid_sequence_nr")},
    }
)
RECORDS = pa.schema(
    {
        ID: pa.string(),
        **{name: pa.int64() for name in ("sequence_nr", "partition_nr", "scanned")},
        **{name: pa.map_(pa.string(), pa.int64()) for name in ("numbers", "sequence_nrs")},
        "offsets": pa.map_(pa.string(), pa.string()),
    }
)


def write(
    spark: Callable[[], SparkSession], cassandra: Cassandra, files: RunFiles, manifest: Manifest, tell: Tell
) -> None:
    """Write everything that the manifest's files hold, deletions first."""
    if manifest.removed:
        tell(f"deleting {manifest.removed} rows of {manifest.view_table}")
        _delete(cassandra, files, manifest, "removed", manifest.view_table, VIEW_KEY)
    if manifest.forgotten:
        tell(f"deleting {manifest.forgotten} lines of tag_write_progress")
        _delete(cassandra, files, manifest, "forgotten", "tag_write_progress", (ID, "tag"))
        if "tag_scanning" in (cassandra.tables(manifest.journal) or ()):
            # Without tag_write_progress, a recovery would number only the events behind a remaining
            # tag_scanning.
            _delete(cassandra, files, manifest, "forgotten", "tag_scanning", (ID,))
    if manifest.rows:
        tell(f"writing {manifest.rows} rows of {manifest.view_table}")
        to = Target(manifest.journal, manifest.view_table, manifest.written_at, manifest.ttl_seconds)
        of_view = files.parquet(f"{manifest.folder}/{manifest.rows_in}")
        load_merged(spark, cassandra.settings, files, of_view, to, SLOTS, in_order, own=cassandra)
    checkpoints.reached("build.after_views")
    tell(f"writing the progress of {manifest.moved} persistence ids")
    if are_few(files, files.parquet(f"{manifest.folder}/records")):
        _write_few_records(cassandra, files, manifest)
    else:
        _write_records(spark(), cassandra, files, manifest)


def _write_records(spark: SparkSession, cassandra: Cassandra, files: RunFiles, manifest: Manifest) -> None:
    """Write the plugin's progress and, if builds record it, Tagmill's own, with Spark."""
    records = spark.read.parquet(files.url(f"{manifest.folder}/records"))
    progress = records.select(ID, "new", F.explode("progress").alias("line")).where(
        F.array_contains("new", F.col("line.tag"))
    )
    lines = progress.select(
        ID,
        F.col("line.tag").alias("tag"),
        F.col("line.offset").alias("offset"),
        F.col("line.sequence_nr").alias("sequence_nr"),
        F.col("line.number").alias("tag_pid_sequence_nr"),
    )
    CassandraTable(cassandra, manifest.journal, "tag_write_progress").append(lines, manifest.written_at)
    checkpoints.reached("build.after_progress")
    if manifest.recorded:
        ours = CassandraTable.of_ledger(cassandra, "view_progress")
        ours.append(_as_records(records, manifest), manifest.written_at)


def _write_few_records(cassandra: Cassandra, files: RunFiles, manifest: Manifest) -> None:
    """Write what _write_records does, by this process's own connection."""

    def write(
        keyspace: str, table: str, rows: list[dict[str, Any]], schema: pa.Schema, **shared: Any
    ) -> None:
        target, batch = Target(keyspace, table, manifest.written_at), pa.RecordBatch.from_pylist(rows, schema)
        write_rows(cassandra, target, [batch], shared, mixed=PARTITIONS_TOGETHER)

    parts = files.record_batches(f"{manifest.folder}/records", ROWS_AT_ONCE)
    records = [record for part in parts for record in part.to_pylist()]
    progress = [
        {ID: record[ID], **line, "tag_pid_sequence_nr": line["number"]}
        for record in records
        for line in record["progress"]
        if line["tag"] in record["new"]
    ]
    write(manifest.journal, "tag_write_progress", progress, PROGRESS)
    checkpoints.reached("build.after_progress")
    if manifest.recorded:
        fields = ("number", "sequence_nr", "offset")
        ours = [
            record
            | {"scanned": NOT_SCANNED if record["scanned"] is None else record["scanned"]}
            | {f"{name}s": [(line["tag"], line[name]) for line in record["progress"]] for name in fields}
            for record in records
        ]
        for row in ours:
            row["sequence_nrs"] += [(tag, FORGOTTEN) for tag in row.get("forgotten", ())]
        shared = {"journal": manifest.journal, "build": manifest.build}
        write(cassandra.settings.ledger_keyspace, "view_progress", ours, RECORDS, **shared)


def in_order(rows: pa.Table) -> npt.NDArray[np.int64]:
    """Return the indices that sort the view's rows by tag, timebucket and time, as their table does."""
    tags = rows["tag_name"].combine_chunks().dictionary_encode().indices.to_numpy()
    times = uuids.ticks(uuids.of_text(rows["timestamp"].combine_chunks()))
    return np.lexsort((times, rows["timebucket"].to_numpy(), tags))


def _delete(
    cassandra: Cassandra, files: RunFiles, manifest: Manifest, folder: str, table: str, key: Sequence[str]
) -> None:
    where = " AND ".join(f"{name} = ?" for name in key)
    statement = f"DELETE FROM {identifiers.cql(manifest.journal)}.{table} USING TIMESTAMP ? WHERE {where}"
    for part in files.record_batches(f"{manifest.folder}/{folder}", ROWS_AT_ONCE, list(key)):
        rows = part.to_pylist()
        cassandra.write_many(
            statement,
            (
                (manifest.written_at - 1, *(UUID(row[n]) if n == "timestamp" else row[n] for n in key))
                for row in rows
            ),
        )


def _as_records(records: DataFrame, manifest: Manifest) -> DataFrame:
    """Return the records of a build as rows of view_progress."""
    maps = {
        f"{field}s": F.expr(f"map_from_entries(transform(progress, line -> struct(line.tag, line.{field})))")
        for field in ("number", "sequence_nr", "offset")
    }
    if "forgotten" in records.columns:
        values = F.array_repeat(F.lit(FORGOTTEN).cast("bigint"), F.size("forgotten"))
        maps["sequence_nrs"] = F.map_concat(maps["sequence_nrs"], F.map_from_arrays("forgotten", values))
    return records.select(
        F.lit(manifest.journal).alias("journal"),
        ID,
        "sequence_nr",
        "partition_nr",
        F.coalesce("scanned", F.lit(NOT_SCANNED)).alias("scanned"),
        F.lit(manifest.build).cast("bigint").alias("build"),
        *(entries.alias(name) for name, entries in maps.items()),
    )
