"""Find the new events among the staged ones: the first of each id, unless the id is already known."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import TypeVar
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from tagmill.arrow import CODEC
from tagmill.cassandra.client import connected
from tagmill.config.settings import CassandraSettings
from tagmill.delivery.topics.staged_files import ADDRESS, StagedFile, addresses
from tagmill.ledger.dedup import Deduplication
from tagmill.runs.storage import RunFiles
from tagmill.spark.arrow_chunks import in_python

KEY = ["shard", "unique_id"]
# How many ids are compared in memory at once, and how many a worker looks up at once.
COMPARED_AT_ONCE, LOOKED_UP_AT_ONCE = 2_000_000, 20_000
HEX_DIGITS = 8
R = TypeVar("R", pa.RecordBatch, pa.Table)
FIRSTS = pa.schema({"shard": pa.int32(), "unique_id": pa.string(), ADDRESS: pa.int64()})


def write_firsts(files: RunFiles, staged: Sequence[StagedFile], folder: str) -> int:
    """Write each id of the staged events (KEY) with its first ADDRESS, and return the number of ids.

    Ids are hashes, so equal parts of their range hold about equally many.
    """
    parts = max(1, -(-sum(one.event for one in staged) // COMPARED_AT_ONCE))
    count = 0
    for part in range(parts):
        low, high = (f"{16**HEX_DIGITS * bound // parts:0{HEX_DIGITS}x}" for bound in (part, part + 1))
        ids = pa.concat_tables(_ids(files, staged, low, high if part + 1 < parts else "g"))
        # All rows of an id have the same shard, which `min` picks.
        found = (
            ids.group_by("unique_id")
            .aggregate([("shard", "min"), (ADDRESS, "min")])
            .rename_columns(["unique_id", "shard", ADDRESS])
        )
        with files.create(f"{folder}/{part:05d}.parquet") as sink:
            pq.write_table(found, sink, **CODEC)
        count += found.num_rows
    return count


def _ids(files: RunFiles, staged: Sequence[StagedFile], low: str, high: str) -> Iterator[pa.Table]:
    """Yield an empty table, then one for each file: its events' ids from `low` to below `high`, with their
    addresses.
    """
    yield FIRSTS.empty_table()
    for number, one in enumerate(staged):
        with files.open(one.name) as source:
            rows = pq.ParquetFile(source).read(columns=["kind", *KEY])
        rows = rows.append_column(ADDRESS, pa.array(addresses(number, rows.num_rows)))
        wanted = pc.and_(pc.equal(rows["kind"], "event"), pc.greater_equal(rows["unique_id"], low))
        yield rows.filter(pc.and_(wanted, pc.less(rows["unique_id"], high))).select([*KEY, ADDRESS])


def unknown(
    firsts: DataFrame,
    cassandra: CassandraSettings,
    ledger: str,
    pipeline: str,
    rule: str,
    since: datetime,
    written_to: int,
    given_up: Sequence[str] = (),
) -> DataFrame:
    """Return the ADDRESS of each id (KEY) that was not seen since `since`; batches that were given up don't
    count.

    `written_to`: see Deduplication.known.
    """
    ordered = firsts.select(*KEY, ADDRESS).repartition("shard").sortWithinPartitions(*KEY)
    look = partial(
        _look,
        cassandra=cassandra,
        ledger=ledger,
        pipeline=pipeline,
        rule=rule,
        since=since,
        written_to=written_to,
        given_up=frozenset(map(UUID, given_up)),
    )
    return in_python(ordered, look, f"{ADDRESS} long", at_once=LOOKED_UP_AT_ONCE)


def _look(
    batches: Iterable[pa.RecordBatch],
    cassandra: CassandraSettings,
    ledger: str,
    pipeline: str,
    rule: str,
    since: datetime,
    written_to: int,
    given_up: frozenset[UUID],
) -> Iterator[pa.RecordBatch]:
    ids = Deduplication(connected(cassandra), ledger, pipeline, rule)
    for batch in batches:
        yield _addresses(batch, ids, since, written_to, given_up)


def _addresses(rows: R, ids: Deduplication, since: datetime, written_to: int, given_up: frozenset[UUID]) -> R:
    """Return the ADDRESS of each row whose id is not known. In: KEY, ADDRESS."""
    asked = zip(rows["shard"].to_pylist(), rows["unique_id"].to_pylist(), strict=True)
    known = pa.array(ids.known(asked, since, written_to, given_up), pa.string())
    return rows.filter(pc.invert(pc.is_in(rows["unique_id"], known))).select([ADDRESS])


def write_unknown(
    files: RunFiles,
    firsts: str,
    folder: str,
    ids: Deduplication,
    since: datetime,
    written_to: int,
    given_up: Sequence[str] = (),
) -> None:
    """Write what `unknown` returns for the ids in the folder `firsts` to another folder, without Spark: all ids
    are in memory at once, so at most LOOKED_UP_AT_ONCE.
    """
    parts = map(pa.Table.from_batches, ([part] for part in files.record_batches(firsts, LOOKED_UP_AT_ONCE)))
    rows = pa.concat_tables([FIRSTS.empty_table(), *(part.select(FIRSTS.names) for part in parts)])
    rows = rows.sort_by([(name, "ascending") for name in KEY])
    new = _addresses(rows, ids, since, written_to, frozenset(map(UUID, given_up)))
    with files.create(f"{folder}/00000.parquet") as sink:
        pq.write_table(new, sink, **CODEC)
