"""Decode the records of a topic's run in Spark, for staged files.

Decoding is Python over Arrow batches: so the payload stays as it came, and this Spark has no expressions for
Avro and Protobuf.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tagmill.cassandra.client import Cassandra
from tagmill.config.kafka import TopicSettings
from tagmill.delivery.topics.fields import InvalidRecord
from tagmill.delivery.topics.reader_notes import Notes, noted_names
from tagmill.delivery.topics.record_decoder import RecordDecoder
from tagmill.delivery.topics.staged_files import ADDRESS, INDEX_BITS, KINDS, Source
from tagmill.delivery.topics.table_columns import layout
from tagmill.delivery.topics.vectorized_decoder import VectorizedDecoder, arrow_type
from tagmill.kafka.set_apart import Apart, RecordPosition, parts
from tagmill.kafka.worker_source import HEADERS, RECORDS, RecordsByTasks
from tagmill.ledger.dead_letters import NOT_KEPT
from tagmill.spark.cassandra_table import CassandraTable

EVENT, TOMBSTONE, UNREADABLE = KINDS
# Columns that are kept as they came, with their names in Kafka's records.
AS_IT_CAME = {"topic": "topic", "partition": "partition", "offset": "offset", "payload": "value"}
# Batches of at most this many records are read record by record. A larger batch is read in bulk, and halved
# if a record is irregular.
READ_ALONE = 128


def schema_of(pipeline: TopicSettings) -> pa.Schema:
    """Return the schema of decoded records, one row a record: the columns of a batch and some more.

    `kind`: event, tombstone or unreadable (whose payload is the record's value as it came). `shard`: of the
    id. `reason`, `key` and `headers`: only of records that can't be read.
    """
    found = {
        "kind": pa.string(),
        "shard": pa.int32(),
        "reason": pa.string(),
        "key": pa.binary(),
        "headers": HEADERS,
    }
    for column in layout(pipeline).columns:
        found[column.name] = arrow_type(column)
    return pa.schema({**found, "payload": pa.binary()})


def dead_letters(spark: SparkSession, cassandra: Cassandra, pipeline: str) -> DataFrame:
    """Return a pipeline's dead letters whose content was kept, with the columns of worker_source.RECORDS."""
    partitions = CassandraTable.of_ledger(cassandra, "dead_letter_places").rows_of(
        spark.createDataFrame([(pipeline,)], "pipeline string"), ["pipeline"], "topic", "partition"
    )
    found = CassandraTable.of_ledger(cassandra, "dead_letters").rows_of(
        partitions,
        ["pipeline", "topic", "partition"],
        "offset",
        "timestamp",
        "reason",
        "key",
        "value",
        "headers",
    )
    headers = F.transform("headers", lambda one: F.struct(one["0"].alias("key"), one["1"].alias("value")))
    return found.where(~F.startswith("reason", F.lit(NOT_KEPT))).withColumn("headers", headers)


def decoded(
    raw: DataFrame | RecordsByTasks | Sequence[Iterable[pa.RecordBatch]],
    pipeline: TopicSettings,
    contents: Mapping[str, bytes],
    apart: Apart,
    largest: int,
) -> Source:
    """Return the source that decodes a topic's records into rows (schema_of).

    In: records (worker_source.RECORDS), or batches of them for each file; the schema files by version;
    what is set apart; how many bytes a row of Cassandra may have.
    """
    read = raw.select(*RECORDS.names) if isinstance(raw, DataFrame) else raw
    decode = partial(
        decode_batches,
        pipeline=pipeline,
        contents=dict(contents),
        reasons=apart.reasons,
        nulls=tuple(apart.columns),
        largest=largest,
    )
    return Source(read, decode, schema_of(pipeline), layout(pipeline))


def decode_batches(
    batches: Iterable[pa.RecordBatch],
    notes: Notes,
    pipeline: TopicSettings,
    contents: Mapping[str, bytes],
    reasons: Mapping[RecordPosition, str],
    nulls: Sequence[str],
    largest: int,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of each batch of records (schema_of), by a worker."""
    reader, schema = RecordDecoder(pipeline, contents, notes.list_fields), schema_of(pipeline)
    alike, noted = VectorizedDecoder(reader), noted_names(pipeline)
    for batch in batches:
        for part, made in _read_but(reader, alike, batch, {**reasons, **_too_large(batch, largest)}):
            notes.nulled.update(pair for pair in reader.nulled() if pair[0] not in nulls)
            made |= {name: part[there] for name, there in AS_IT_CAME.items()}
            missing = [field for field in schema if field.name in nulls or field.name not in made]
            rows = pa.RecordBatch.from_pydict(
                made | {field.name: pa.nulls(part.num_rows, field.type) for field in missing}, schema
            )
            notes.match(rows, noted)
            yield rows


def _too_large(batch: pa.RecordBatch, largest: int) -> dict[RecordPosition, str]:
    """Return the records whose values are too large for a row of deduplication, each with the reason why it
    is not read.
    """
    sizes = pc.fill_null(pc.binary_length(batch["value"]), 0)
    large = pc.indices_nonzero(pc.greater(sizes, largest)).to_pylist()
    return {
        (batch["topic"][at].as_py(), batch["partition"][at].as_py(), batch["offset"][at].as_py()): (
            f"a value of {sizes[at]} bytes, more than Cassandra takes in one write ({largest})"
        )
        for at in large
    }


def _read_but(
    reader: RecordDecoder,
    alike: VectorizedDecoder,
    batch: pa.RecordBatch,
    reasons: Mapping[RecordPosition, str],
) -> Iterator[tuple[pa.RecordBatch, dict[str, Any]]]:
    """Read the records, but make each one that has a reason in `reasons` an unreadable one without decoding
    it.
    """
    for part, reason in parts(batch, reasons):
        if reason is None:
            yield from _read(reader, alike, part)
        else:
            at_ms = max(part["timestamp"].cast(pa.int64())[0].as_py() // 1000, 0)
            rows = [_nothing_read(reader, UNREADABLE, reason, at_ms)]
            yield part, {**_named(reader, rows), **_beside(part, rows)}


def _read(
    reader: RecordDecoder, alike: VectorizedDecoder, batch: pa.RecordBatch
) -> Iterator[tuple[pa.RecordBatch, dict[str, Any]]]:
    """Yield the records in parts, each with the columns made from it; around an irregular record, each record
    is read alone.
    """
    if not batch.num_rows:
        return
    # Spark's timestamps are in microseconds. One below 0 means that the record has none.
    moments = np.maximum(batch["timestamp"].cast(pa.int64()).to_numpy() // 1000, 0).tolist()
    values = batch["value"].to_pylist()
    if batch.num_rows <= READ_ALONE:
        rows = [_row(reader, value, at) for value, at in zip(values, moments, strict=True)]
        yield batch, {**_named(reader, rows), **_beside(batch, rows)}
        return
    try:
        made = alike.read(values, moments)
    except (ValueError, OverflowError):
        reader.nulled()  # forgets the values that became null: the halves are read again
        half = batch.num_rows // 2
        yield from _read(reader, alike, batch.slice(0, half))
        yield from _read(reader, alike, batch.slice(half))
    else:
        yield batch, {"kind": pa.repeat(EVENT, batch.num_rows), **made}


def _row(reader: RecordDecoder, value: bytes | None, at_ms: int) -> tuple[Any, ...]:
    """Return a record's kind, the reason why it can't be read, and the values of `reader.names`."""
    kind, reason = TOMBSTONE, None
    if value is not None:
        try:
            return (EVENT, None, *reader.read(value, at_ms))
        except InvalidRecord as error:
            kind, reason = UNREADABLE, str(error)[:1000]
    return _nothing_read(reader, kind, reason, at_ms)


def _nothing_read(reader: RecordDecoder, kind: str, reason: str | None, at_ms: int) -> tuple[Any, ...]:
    return (kind, reason, *(at_ms if name == "created_at" else None for name in reader.names))


def _named(reader: RecordDecoder, rows: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
    """Turn rows of `_row` into columns by name."""
    return dict(zip(("kind", "reason", *reader.names), zip(*rows, strict=True), strict=True))


def _beside(batch: pa.RecordBatch, rows: Sequence[tuple[Any, ...]]) -> dict[str, Sequence[Any]]:
    """Return the columns `key` and `headers`, which are null but for records that can't be read."""
    keys: list[Any] = [None] * len(rows)
    headers = keys.copy()
    for index, (kind, *_) in enumerate(rows):
        if kind == UNREADABLE:
            keys[index], headers[index] = batch["key"][index].as_py(), batch["headers"][index].as_py() or []
    return {"key": keys, "headers": headers}


def placed(staged: DataFrame, names: Sequence[str], columns: Sequence[str]) -> DataFrame:
    """Select columns of staged rows, and add their ADDRESS.

    In: the rows of the staged files, and the files' names in their order.
    """
    numbers = staged.sparkSession.createDataFrame(
        [(number, name.rpartition("/")[2]) for number, name in enumerate(names)], "number long, file string"
    )
    file, index = F.col("_metadata.file_name").alias("file"), F.col("_metadata.row_index").alias("row_index")
    address = F.shiftleft("number", INDEX_BITS).bitwiseOR(F.col("row_index")).alias(ADDRESS)
    return staged.select(*columns, file, index).join(F.broadcast(numbers), "file").select(*columns, address)
