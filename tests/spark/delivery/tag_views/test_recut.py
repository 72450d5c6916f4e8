"""The cuts of batches that Spark makes anew."""

from datetime import UTC, datetime

from pyspark.sql import SparkSession

from tagmill.delivery.tag_views.recut import placed
from tagmill.domain.timeuuid import from_datetime


def test_cut_ends_with_last_tick_of_month(spark: SparkSession) -> None:
    """A batch has rows of one month, to the last 100 nanoseconds of it."""
    february = from_datetime(datetime(2026, 2, 1, tzinfo=UTC))
    rows = [
        (0, "f", index, 0, 10, ticks, ticks, "a", index)
        for index, ticks in enumerate((february - 2, february - 1, february))
    ]
    columns = (
        "stream int, file string, row_index bigint, late int, size int, ticks bigint, order_ticks bigint"
    )
    frame = spark.createDataFrame(rows, f"{columns}, persistence_id string, tag_pid_sequence_nr bigint")
    cuts = {row.row_index: row.cut for row in placed(frame, 100, 10_000).collect()}
    assert cuts[0] == cuts[1] != cuts[2]
