"""The records of a topic's run in Spark, decoded for staged files.

Decoding is Python over Arrow batches: the payload stays as it came, and Avro and Protobuf have no expressions in this Spark.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tagmill.connector import LARGE_ROWS, table
from tagmill.kafkasettings import TopicSettings
from tagmill.stores.deadletters import NOT_KEPT
from tagmill.topics.alike import AlikeReader, arrow_type
from tagmill.topics.apart import Apart, Place, parts
from tagmill.topics.columns import layout
from tagmill.topics.events import Reader
from tagmill.topics.fields import Unfit
from tagmill.topics.notes import Notes, noted_names
from tagmill.topics.staged import INDEX_BITS, KINDS, PLACE, Source

EVENT, TOMBSTONE, UNREADABLE = KINDS
# columns that go through as Kafka has them, and what they are called there
AS_IT_CAME = {"topic": "topic", "partition": "partition", "offset": "offset", "payload": "value"}
# records, at most, that are read one by one where one of them is no event or not like the others
READ_ALONE = 128
HEADERS = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))


def schema_of(chosen: TopicSettings) -> pa.Schema:
    """One row a record: the columns of a batch; `shard`; `reason`, `key` and `headers` only of what can't be read.

    `kind`: event, tombstone or unreadable (whose payload is the record's value as it came).
    """
    found = {"kind": pa.string(), "shard": pa.int32(), "reason": pa.string(), "key": pa.binary(), "headers": HEADERS}
    for column in layout(chosen).columns:
        found[column.name] = arrow_type(column)
    return pa.schema({**found, "payload": pa.binary()})


def dead_letters(spark: SparkSession, ledger_keyspace: str, pipeline: str) -> DataFrame:
    """The dead letters of a pipeline whose content was kept, as tagmill.kafka.source.kafka_records has records."""
    places = table(spark, ledger_keyspace, "dead_letter_places").where(F.col("pipeline") == pipeline)
    letters = table(spark, ledger_keyspace, "dead_letters", directJoinSetting="on", **LARGE_ROWS)
    headers = F.transform("headers", lambda one: F.struct(one["0"].alias("key"), one["1"].alias("value")))
    found = places.join(letters, ["pipeline", "topic", "partition"]).where(~F.startswith("reason", F.lit(NOT_KEPT)))
    return found.withColumn("headers", headers)


def decoded(raw: DataFrame, chosen: TopicSettings, contents: Mapping[str, bytes], apart: Apart, largest: int) -> Source:
    """Rows as schema_of has them.

    In: tagmill.kafka.source.kafka_records; the schema files by version; what is set apart; how many bytes a row of Cassandra may have.
    """
    read = raw.select("topic", "partition", "offset", "timestamp", "key", "value", "headers")
    decode = partial(
        _decode, chosen=chosen, contents=dict(contents), reasons=apart.reasons, nulls=tuple(apart.columns), largest=largest
    )
    return Source(read, decode, schema_of(chosen), layout(chosen))


def _decode(
    batches: Iterable[pa.RecordBatch],
    notes: Notes,
    chosen: TopicSettings,
    contents: Mapping[str, bytes],
    reasons: Mapping[Place, str],
    nulls: Sequence[str],
    largest: int,
) -> Iterator[pa.RecordBatch]:
    reader, schema = Reader(chosen, contents, notes.list_fields), schema_of(chosen)
    alike, noted = AlikeReader(reader), noted_names(chosen)
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


def _too_large(batch: pa.RecordBatch, largest: int) -> dict[Place, str]:
    """Return which records are larger than Cassandra's deduplication can hold their payloads, and why each is not read."""
    sizes = pc.fill_null(pc.binary_length(batch["value"]), 0)
    large = pc.indices_nonzero(pc.greater(sizes, largest)).to_pylist()
    return {
        (batch["topic"][at].as_py(), batch["partition"][at].as_py(), batch["offset"][at].as_py()): (
            f"a value of {sizes[at]} bytes, more than Cassandra takes in one write ({largest})"
        )
        for at in large
    }


def _read_but(
    reader: Reader, alike: AlikeReader, batch: pa.RecordBatch, reasons: Mapping[Place, str]
) -> Iterator[tuple[pa.RecordBatch, dict[str, Any]]]:
    """Read the records, of those that are set apart only where they came from."""
    for part, reason in parts(batch, reasons):
        if reason is None:
            yield from _read(reader, alike, part)
        else:
            at_ms = max(part["timestamp"].cast(pa.int64())[0].as_py() // 1000, 0)
            rows = [_nothing_read(reader, UNREADABLE, reason, at_ms)]
            yield part, {**_named(reader, rows), **_beside(part, rows)}


def _read(reader: Reader, alike: AlikeReader, batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, dict[str, Any]]]:
    """Parts of the records, and their columns that are made: around what is out of the ordinary each record is read alone."""
    if not batch.num_rows:
        return
    # microseconds; below 0: the record has none
    moments = np.maximum(batch["timestamp"].cast(pa.int64()).to_numpy() // 1000, 0).tolist()
    values = batch["value"].to_pylist()
    if batch.num_rows <= READ_ALONE:
        rows = [_row(reader, value, at) for value, at in zip(values, moments, strict=True)]
        yield batch, {**_named(reader, rows), **_beside(batch, rows)}
        return
    try:
        made = alike.read(values, moments)
    except (ValueError, OverflowError):
        reader.nulled()  # they are read again
        half = batch.num_rows // 2
        yield from _read(reader, alike, batch.slice(0, half))
        yield from _read(reader, alike, batch.slice(half))
    else:
        yield batch, {"kind": pa.repeat(EVENT, batch.num_rows), **made}


def _row(reader: Reader, value: bytes | None, at_ms: int) -> tuple[Any, ...]:
    """Its kind, the reason, and the reader's values."""
    kind, reason = TOMBSTONE, None
    if value is not None:
        try:
            return (EVENT, None, *reader.read(value, at_ms))
        except Unfit as error:
            kind, reason = UNREADABLE, str(error)[:1000]
    return _nothing_read(reader, kind, reason, at_ms)


def _nothing_read(reader: Reader, kind: str, reason: str | None, at_ms: int) -> tuple[Any, ...]:
    return (kind, reason, *(at_ms if name == "created_at" else None for name in reader.names))


def _named(reader: Reader, rows: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
    """The columns that `_row` makes, by name."""
    return dict(zip(("kind", "reason", *reader.names), zip(*rows, strict=True), strict=True))


def _beside(batch: pa.RecordBatch, rows: Sequence[tuple[Any, ...]]) -> dict[str, Sequence[Any]]:
    """Key and headers, only of what can't be read."""
    keys: list[Any] = [None] * len(rows)
    headers = keys.copy()
    for index, (kind, *_) in enumerate(rows):
        if kind == UNREADABLE:
            keys[index], headers[index] = batch["key"][index].as_py(), batch["headers"][index].as_py() or []
    return {"key": keys, "headers": headers}


def placed(staged: DataFrame, names: Sequence[str], columns: Sequence[str]) -> DataFrame:
    """These columns, and PLACE. In: the staged files, and what they are called, in their order."""
    numbers = staged.sparkSession.createDataFrame(
        [(number, name.rpartition("/")[2]) for number, name in enumerate(names)], "number long, file string"
    )
    file, index = F.col("_metadata.file_name").alias("file"), F.col("_metadata.row_index").alias("row_index")
    place = F.shiftleft("number", INDEX_BITS).bitwiseOR(F.col("row_index")).alias(PLACE)
    return staged.select(*columns, file, index).join(F.broadcast(numbers), "file").select(*columns, place)
