"""Write rows that can't stay in their staged file into files of their own: ordered streams, cut into batches.

A stream is one staged file without its suspects, or the judged suspects of one tag. Payloads are moved only
for these.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tagmill.domain.batches.cutting import cut
from tagmill.domain.batches.layout import NAMES
from tagmill.domain.timeuuid import TICKS_PER_SECOND

if TYPE_CHECKING:
    import pandas as pd

PLACED_SCHEMA = "stream int, file string, row_index bigint, late int, position bigint, cut int"


def placed(rows: DataFrame, max_rows: int, max_bytes: int) -> DataFrame:
    """Give each row its place in its stream and its batch.

    In: stream int, file, row_index, late, ticks, size, and the order: order_ticks, persistence_id,
    tag_pid_sequence_nr.
    Out: PLACED_SCHEMA; key (file, row_index).
    """
    # In integers: a double takes the last tick of a month for the first one of the next.
    seconds = F.expr(f"ticks div {TICKS_PER_SECOND}")
    month = F.date_format(F.timestamp_seconds(seconds), "yyyyMM").cast("int")
    narrow = rows.select(
        "stream",
        "file",
        "row_index",
        "late",
        "size",
        month.alias("month"),
        "order_ticks",
        "persistence_id",
        "tag_pid_sequence_nr",
    )
    return narrow.groupBy("stream").applyInPandas(_place(max_rows, max_bytes), PLACED_SCHEMA)


def write(places: DataFrame, payload: DataFrame, target: str, batches: int) -> None:
    """Write every batch as one file, in order, to target/stream=S/cut=C/.

    In: `places` as of `placed`; `payload`: file, row_index and all that a sealed file has.
    """
    whole = (
        payload.drop("late").join(places, ["file", "row_index"]).repartition(max(1, batches), "stream", "cut")
    )
    ordered = whole.sortWithinPartitions("stream", "cut", "position")
    ordered.select(*NAMES, "row_checksum", "stream", "cut").write.mode("overwrite").partitionBy(
        "stream", "cut"
    ).parquet(target)


def _place(max_rows: int, max_bytes: int) -> "Callable[[pd.DataFrame], pd.DataFrame]":
    def place(stream: "pd.DataFrame") -> "pd.DataFrame":
        ordered = stream.sort_values(
            ["order_ticks", "persistence_id", "tag_pid_sequence_nr"], kind="stable"
        ).reset_index(drop=True)
        ordered["cut"] = list(
            cut(zip(ordered["size"].tolist(), ordered["month"].tolist(), strict=True), max_rows, max_bytes)
        )
        ordered["position"] = ordered.index
        # Columns are objects because pandas' own string type comes back from Arrow in chunks, which Spark 3.5
        # can't take.
        return ordered[["stream", "file", "row_index", "late", "position", "cut"]].astype({"file": object})

    return place
