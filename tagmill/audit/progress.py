"""Compare the ledger's progress with what was delivered."""

from collections.abc import Callable
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tagmill.audit.model import Kind
from tagmill.audit.row_comparison import finding
from tagmill.audit.totals import KEY
from tagmill.runs.storage import RunFiles
from tagmill.spark.materialize import materialize


class Delivered(NamedTuple):
    """The ledger's progress (staging.PROGRESS), and then what ClickHouse has (destination_reader.IDS)."""

    progress: DataFrame
    clickhouse: DataFrame


def confirmed(
    first: Delivered,
    judge: Callable[[DataFrame, DataFrame], DataFrame],
    read_again: Callable[[], Delivered],
    files: RunFiles,
    folder: str,
) -> DataFrame:
    """Return the findings of `judge` that both have, what was read first and what is read again.

    A run may have delivered between the two readings of the first, or have had a batch's rows away. Only the
    persistence ids found first count, with what is said of them the second time. Files go below `folder`.
    """
    found = materialize(judge(*first), files.url(f"{folder}/lagging"))
    if not files.has_rows(f"{folder}/lagging"):
        return found
    again = judge(*read_again())
    return materialize(again.join(found.select(*KEY), KEY, "left_semi"), files.url(f"{folder}/lagging-again"))


def progress_findings(
    progress: DataFrame,
    clickhouse: DataFrame,
    in_view: DataFrame,
    by_rows: DataFrame,
    *,
    expires: bool = False,
) -> DataFrame:
    """Return findings for progress that lags behind ClickHouse, is ahead of it or of every store, or calls
    delivered events missing.

    In: `progress` (staging.PROGRESS), read before `clickhouse` (destination_reader.IDS) and after the watermarks;
    `in_view`, numbers of the view's rows (tag, persistence_id, number), the highest at least; `by_rows`, findings of
    single rows. Rows that ClickHouse lacks or has too often are findings of their own. Only what neither journal nor
    view have any longer is judged by the figures alone, and only if no row of ClickHouse `expires`.
    """
    missing = (
        by_rows.where(F.col("kind") == Kind.MISSING_IN_CLICKHOUSE.value)
        .groupBy(*KEY)
        .agg(F.count("*").alias("found"))
    )
    last_in_view = in_view.groupBy(*KEY).agg(F.max("number").alias("in_view"))
    rows = (
        clickhouse.join(progress.withColumnRenamed("number", "done"), KEY, "full")
        .join(last_in_view, KEY, "left")
        .join(missing, KEY, "left")
        .where(F.col("done").isNotNull() | (F.col("last_due") > 0))
    )
    # A row that only ClickHouse has doesn't show that progress lags: it is a finding of its own.
    due = F.least(F.col("last_due"), F.coalesce("in_view", "last_due"))
    known = F.greatest(F.coalesce("last", F.lit(0)), F.coalesce("in_view", F.lit(0)))
    delivered = F.col("done") - F.col("missing")
    # A renumbering leaves fewer numbers than events; an event that was delivered under two numbers has a
    # finding of its own.
    there = F.coalesce(F.greatest("events", "numbers"), F.lit(0))
    said = (
        F.when(
            F.col("done").isNull() & F.col("in_view").isNotNull(),
            F.format_string("no progress, ClickHouse has number %d", "last_due"),
        )
        .when(
            F.col("done") < due,
            F.format_string("progress says number %d, ClickHouse has %d", "done", "last_due"),
        )
        .when(
            (F.col("done") > known) & F.lit(not expires),
            F.format_string("progress says number %d, nobody has more than %d", "done", known),
        )
        .when(
            (F.col("rows") == F.col("numbers"))
            & (F.col("last") == F.col("done"))
            & (F.col("numbers") > delivered),
            F.format_string(
                "progress says that %d numbers were never delivered, ClickHouse has %d of %d",
                "missing",
                "numbers",
                "done",
            ),
        )
        .when(
            (there + F.coalesce("found", F.lit(0)) < delivered) & F.lit(not expires),
            F.format_string(
                "progress says that %d events were delivered, ClickHouse has %d", delivered, there
            ),
        )
    )
    wrong = rows.withColumn("said", said).where("said IS NOT NULL")
    return finding(
        wrong, Kind.PROGRESS_DIFFERS, F.col("said"), keys=KEY, view_number="done", sequence_nr="sequence_nr"
    )
