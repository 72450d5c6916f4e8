"""Cut a backlog into pieces in which no id's older records come behind newer ones of another partition.

When a topic gets more partitions, ids move to others: a Purge that is left in an id's old partition must not
be applied after records of the id's new life in the new partition.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from tagmill.kafka.client import Kafka, Partition
from tagmill.kafka.offset_ranges import Range
from tagmill.kafka.partitioner import HOME, layout_of
from tagmill.kafka.worker_source import RECORDS, RecordsByTasks

# The longest range is divided into this many parts. Moves from one partition to another whose later records
# begin in the same part are joined into one.
PARTS = 64
KEYS = pa.schema([RECORDS.field(name) for name in ("topic", "partition", "offset", "timestamp", "key")])
MOVES = pa.schema(
    {
        "topic": pa.string(),
        "earlier": pa.int32(),
        "last": pa.int64(),
        "later": pa.int32(),
        "first": pa.int64(),
    }
)


@dataclass(frozen=True, slots=True)
class Move:
    """Ids moved within a topic: records of `later` from offset `first` on follow those of `earlier` up to
    offset `last`.
    """

    topic: str
    earlier: int
    last: int
    later: int
    first: int


def find_moves(
    spark: SparkSession, kafka: Kafka, ranges: Sequence[Range], partitions: Mapping[str, int]
) -> list[Move]:
    """Return the moves of ids among the records of these ranges, all of which are read.

    In: how many partitions each topic has.
    """
    several = [one for one in ranges if partitions[one.topic] > 1]
    if not several:
        return []
    step = max(1, max(one.end - one.first for one in several) // PARTS)
    return _moves(RecordsByTasks(spark, kafka.settings, several).made(_keys, KEYS), partitions, step)


def _keys(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return (batch.select(KEYS.names) for batch in batches)


def _moves(raw: DataFrame, partitions: Mapping[str, int], step: int) -> list[Move]:
    keyed = raw.where("key IS NOT NULL").groupBy("topic", "key", "partition")
    of_ids = keyed.agg(
        F.min("offset").alias("first"), F.max("offset").alias("last"), F.min("timestamp").alias("since")
    )
    ids = of_ids.groupBy("topic", "key").agg(
        F.collect_list(F.struct("partition", "first", "last", "since")).alias("stays")
    )
    moved = ids.where("size(stays) > 1").mapInArrow(
        partial(_in_turn, partitions=partitions), from_arrow_schema(MOVES)
    )
    part = (F.col("first") / step).cast("bigint").alias("part")
    grouped = moved.groupBy("topic", "earlier", "later", part).agg(
        F.max("last").alias("last"), F.min("first").alias("first")
    )
    return [Move(row.topic, row.earlier, row.last, row.later, row.first) for row in grouped.collect()]


def _in_turn(batches: Iterable[pa.RecordBatch], partitions: Mapping[str, int]) -> Iterator[pa.RecordBatch]:
    """Yield MOVES: a row for each partition of an id that follows another one."""
    for batch in batches:
        found: list[dict[str, Any]] = []
        for row in batch.to_pylist():
            turns = in_turn(row["key"], row["stays"], partitions[row["topic"]])
            found += (
                {
                    "topic": row["topic"],
                    "earlier": earlier["partition"],
                    "last": earlier["last"],
                    "later": later["partition"],
                    "first": later["first"],
                }
                for earlier, later in pairwise(turns)
            )
        yield pa.RecordBatch.from_pylist(found, MOVES)


def in_turn(key: bytes, stays: Sequence[dict[str, Any]], partitions: int) -> list[dict[str, Any]]:
    """Return an id's partitions in the order in which it was in them.

    By Kafka's default partitioner, if it has put the id into one of them today; else by the first timestamp
    in each. In: partition, since.
    """
    layouts = {stay["partition"]: layout_of(key, stay["partition"], partitions) for stay in stays}
    if HOME in layouts.values():
        return sorted(stays, key=lambda stay: (layouts[stay["partition"]], stay["partition"]))
    return sorted(stays, key=lambda stay: (stay["since"], stay["partition"]))


def cut(pieces: Sequence[Range], moves: Sequence[Move], pointed: Collection[Partition]) -> list[Range]:
    """Shorten pieces so that they end before the later records of a move whose earlier records are behind
    them.

    If that leaves no record, lengthen them instead, until they have these earlier records.

    `pointed`: the partitions that have a pointer.
    """
    begins = {one.topic_partition: one.first for one in pieces}
    ends = _shortened({one.topic_partition: one.end for one in pieces}, begins, moves)
    if ends == begins and any(one.end > one.first for one in pieces):
        ends = _lengthened({one.topic_partition: one.end for one in pieces}, moves)
    cuts = [one.model_copy(update={"end": ends[one.topic_partition]}) for one in pieces]
    # A range that had no record from the start stays: it notes that the records before it are lost. So does the first
    # range of a partition: without a pointer, this one would count as new in its topic, and the records that were
    # gone before the first replication as lost.
    return [
        one
        for one, whole in zip(cuts, pieces, strict=True)
        if one.end > one.first
        or whole.end == whole.first
        or (one.first and one.topic_partition not in pointed)
    ]


def _open(ends: Mapping[Partition, int], moves: Iterable[Move]) -> list[Move]:
    """Return the moves that have a later record before these ends, and an earlier record behind them."""
    return [
        one
        for one in moves
        if ends.get((one.topic, one.later), 0) > one.first
        and ends.get((one.topic, one.earlier), one.last + 1) <= one.last
    ]


def _shortened(
    ends: dict[Partition, int], begins: Mapping[Partition, int], moves: Sequence[Move]
) -> dict[Partition, int]:
    before: dict[Partition, int] = {}
    while before != ends:
        before = dict(ends)
        for one in _open(ends, moves):
            partition = one.topic, one.later
            ends[partition] = max(begins[partition], min(ends[partition], one.first))
    return ends


def _lengthened(ends: dict[Partition, int], moves: Sequence[Move]) -> dict[Partition, int]:
    while still := _open(ends, moves):
        for one in still:
            partition = one.topic, one.earlier
            ends[partition] = max(ends[partition], one.last + 1)
    return ends
