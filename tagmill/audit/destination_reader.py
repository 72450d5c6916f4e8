"""Read what ClickHouse holds: sums per bucket, computed on the server, and rows of the buckets that differ,
both streamed to Parquet.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tagmill.audit.staging import Scope
from tagmill.clickhouse.client import ClickHouse
from tagmill.domain import identifiers
from tagmill.domain.batches import layout
from tagmill.domain.time_buckets import first_ticks
from tagmill.runs.storage import RunFiles

# Buckets in one query: chDB, the local engine, refuses a bound array of more than about 1 KB.
BUCKETS_AT_ONCE = 50
TICKS = next(column for column in layout.COLUMNS if column.name == "event_time").stored.format("`event_time`")
EVENT_HASH = layout.row_checksum_sql(layout.EVENT)
ROW_HASH = f"xxHash64({EVENT_HASH} * {layout.FACTOR} + toUInt64(`tag_pid_sequence_nr`))"
# Settings with which ClickHouse writes Parquet files that Spark can read.
PARQUET = {"output_format_parquet_string_as_string": 1, "output_format_parquet_compression_method": "lz4"}

SUMS = "tag string, bucket bigint, rows bigint, event_sum bigint, row_sum bigint"
IDS = (
    "tag string, persistence_id string, rows bigint, numbers bigint, events bigint, first bigint, last bigint, "
    "last_due bigint"
)
ROWS = (
    "tag string, persistence_id string, sequence_nr bigint, number bigint, ticks bigint, offset string, "
    "writer_uuid string, "
    "batch_id string, bucket bigint, event_hash bigint, row_hash bigint"
)


class Stored:
    """The destination of one pipeline, as one audit reads it; files go below `folder`."""

    def __init__(
        self,
        spark: SparkSession,
        clickhouse: ClickHouse,
        table: str,
        files: RunFiles,
        folder: str,
        scope: Scope,
    ) -> None:
        self.spark = spark
        self.clickhouse = clickhouse
        self.table = identifiers.sql(table)
        self.files = files
        self.folder = folder
        self.scope = scope
        size = scope.size
        self.bucket = f"intDiv({TICKS}, {size.ticks}) * {size.milliseconds}"

    def sums(self) -> DataFrame:
        """Return one row per tag and bucket of what may be delivered. Out: SUMS."""
        select = (
            f"toString(`tag`) AS tag_, {self.bucket} AS bucket, toInt64(count()) AS rows, "
            f"reinterpretAsInt64(sum({EVENT_HASH})) AS event_sum, reinterpretAsInt64(sum({ROW_HASH})) AS "
            "row_sum"
        )
        return self._read("sums", SUMS, select, "GROUP BY tag_, bucket", self._each_tag())

    def ids(self, name: str, since: int | None = None) -> DataFrame:
        """Return rows, distinct numbers and events, the first and last number and the last that is due, by tag and
        persistence_id: of all times, or from `since` (ticks) on. Out: IDS.
        """
        limit = "" if since is None else f"AND {TICKS} >= {{since:Int64}} "
        bound = {} if since is None else {"since": since}
        select = (
            "toString(`tag`) AS tag_, `persistence_id`, toInt64(count()) AS rows, "
            "toInt64(uniqExact(`tag_pid_sequence_nr`)) AS numbers, "
            "toInt64(uniqExact(`sequence_nr`, `writer_uuid`)) AS events, "
            "min(`tag_pid_sequence_nr`) AS first, max(`tag_pid_sequence_nr`) AS last, "
            f"maxIf(`tag_pid_sequence_nr`, {TICKS} <= {{due:Int64}}) AS last_due"
        )
        tail = f"{limit}GROUP BY tag_, `persistence_id`"
        asked = ({**one, **bound} for one in self._each_tag())
        return self._read(name, IDS, select, tail, asked, all_times=True)

    def rows(self, name: str, buckets: DataFrame) -> DataFrame:
        """Return the rows of some buckets, up to the watermark. In: tag, bucket. Out: ROWS."""
        select = (
            "toString(`tag`) AS tag_, `persistence_id`, `sequence_nr`, `tag_pid_sequence_nr` AS number, "
            f"{TICKS} AS ticks, "
            "toString(`offset`) AS offset_, `writer_uuid`, toString(`batch_id`) AS batch_id, "
            f"{self.bucket} AS bucket, "
            f"reinterpretAsInt64({EVENT_HASH}) AS event_hash, reinterpretAsInt64({ROW_HASH}) AS row_hash"
        )
        return self._read(
            name, ROWS, select, "AND has({buckets:Array(Int64)}, " + self.bucket + ")", self._chunks(buckets)
        )

    def _each_tag(self) -> Iterator[dict[str, Any]]:
        return ({"tag": tag} for tag in self.scope.tags)

    def _chunks(self, buckets: DataFrame) -> Iterator[dict[str, Any]]:
        wanted = buckets.select("tag", "bucket").distinct().orderBy("tag", "bucket").toLocalIterator()
        for tag, lines in groupby(wanted, lambda line: line["tag"]):
            numbers = (line["bucket"] for line in lines)
            while chunk := list(islice(numbers, BUCKETS_AT_ONCE)):
                first, behind = first_ticks(chunk[0]), first_ticks(chunk[-1]) + self.scope.size.ticks
                yield {
                    "tag": tag,
                    "buckets": chunk,
                    "start": max(self.scope.start[tag], first),
                    "reached": min(self.scope.reached[tag], behind - 1),
                }

    def _read(
        self,
        name: str,
        schema: str,
        select: str,
        tail: str,
        asked: Iterable[dict[str, Any]],
        *,
        all_times: bool = False,
    ) -> DataFrame:
        """Run a query for each set of parameters, one Parquet file each; return the rows with the columns of
        the schema.
        """
        bound = "`tag` = {tag:String}"
        if not all_times:
            bound += f" AND {TICKS} >= {{start:Int64}} AND {TICKS} <= {{reached:Int64}}"
        written = False
        for number, parameters in enumerate(asked):
            tag = parameters["tag"]
            times = {
                "start": self.scope.start[tag],
                "due": self.scope.due[tag],
                "reached": self.scope.reached[tag],
            }
            query = f"SELECT {select} FROM {self.table} WHERE {bound} {tail}"
            with self.files.create(f"{self.folder}/{name}/part-{number:05d}.parquet") as sink:
                self.clickhouse.save(query, {**times, **parameters}, sink, PARQUET)
            written = True
        fields = schema.split(", ")
        if not written:
            return self.spark.createDataFrame([], schema)
        found = self.spark.read.parquet(self.files.url(f"{self.folder}/{name}"))
        return found.toDF(*(field.split()[0] for field in fields)).selectExpr(
            *(f"cast({field.split()[0]} AS {field.split()[1]}) AS {field.split()[0]}" for field in fields)
        )
