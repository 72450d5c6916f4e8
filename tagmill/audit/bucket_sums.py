"""Add up the four parties per tag and bucket: equal sums mean equal rows, so only the other buckets are
compared row by row.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tagmill.audit.staging import Scope, exploded, with_dead
from tagmill.journal.frames import CleanedOf, cleaned_buckets, with_cleaned

BUCKET = ["tag", "bucket"]


def bucket_sums(
    journal: DataFrame,
    view: DataFrame,
    clickhouse: DataFrame,
    deleted: DataFrame,
    cleaned_of: CleanedOf,
    scope: Scope,
) -> DataFrame:
    """Return one row per tag and bucket in which any party has rows.

    In: as staging and destination_reader.Stored.sums leave them. Out: tag, bucket; the rows journal, view, clickhouse,
    deleted, pending, cleaned as model.Line says; differs. Events at or below deleted_to may be gone from the
    journal: journal and view are compared without them, and without what was cleaned of a bucket in smaller
    ones. Where the application's TTL may have taken rows of the view, all events have to be in ClickHouse.
    """
    smaller = {
        size: starts for size, starts in cleaned_of.items() if size.milliseconds < scope.size.milliseconds
    }
    in_journal = with_cleaned(exploded(journal, deleted).where(scope.judged() & _in_time()), smaller)
    in_view = with_cleaned(with_dead(view, deleted).where(scope.judged() & ~F.col("broken")), smaller)
    lines = (
        _sums(in_journal, "j", "event_hash", scope)
        .join(_sums(in_view, "v", "row_hash", scope), BUCKET, "full")
        .join(
            clickhouse.withColumnsRenamed({name: f"c_{name}" for name in ("rows", "event_sum", "row_sum")}),
            BUCKET,
            "full",
        )
        .join(cleaned_buckets(cleaned_of, scope.size).withColumn("is_cleaned", F.lit(True)), BUCKET, "left")
        .na.fill(0)
        .na.fill(False)
    )
    with_journal = (F.col("j_left") == F.col("v_left")) & (F.col("j_sum") == F.col("v_sum"))
    expired = scope.is_expired_bucket()
    with_view = expired | (F.col("v_reached") == F.col("c_rows")) & (
        F.col("v_reached_sum") == F.col("c_row_sum")
    )
    cleaned_away = expired | (F.col("j_reached") == F.col("c_rows")) & (
        F.col("j_reached_sum") == F.col("c_event_sum")
    )
    lacks_rows = scope.may_lack_rows() & (F.col("v_living") < F.col("j_living"))
    agrees = F.when(lacks_rows, cleaned_away & (F.col("j_reached") == F.col("j_rows")))
    agrees = agrees.when(F.col("partly"), cleaned_away & with_journal).when(F.col("is_cleaned"), cleaned_away)
    agrees = agrees.otherwise(with_journal & with_view)
    gone = F.greatest(F.col("v_rows") - F.col("v_living") - F.col("j_rows") + F.col("j_living"), F.lit(0))
    # Rows between due and watermark that ClickHouse does not have came late, and the next run delivers them.
    late = F.least(
        F.col("v_reached") - F.col("v_due"), F.greatest(F.col("v_reached") - F.col("c_rows"), F.lit(0))
    )
    late = F.when(expired, 0).otherwise(late)
    pending = F.when(F.col("is_cleaned"), 0).otherwise(F.col("v_rows") - F.col("v_reached") + late)
    away = (
        F.when(lacks_rows, F.greatest(F.col("j_rows") + gone - F.col("v_rows"), F.lit(0)))
        .when(F.col("partly"), F.col("j_living") - F.col("j_left"))
        .when(F.col("is_cleaned"), F.col("j_rows"))
        .otherwise(0)
    )
    return lines.select(
        *BUCKET,
        F.col("j_rows").alias("journal"),
        F.col("v_rows").alias("view"),
        F.col("c_rows").alias("clickhouse"),
        gone.alias("deleted"),
        pending.alias("pending"),
        away.alias("cleaned"),
        (~agrees).alias("differs"),
    )


def _sums(rows: DataFrame, party: str, reached_hash: str, scope: Scope) -> DataFrame:
    """Return one row per tag and bucket with row counts of a party, and sums.

    Rows that are counted:
    - all;
    - those that live (not deleted); of these, those that were not cleaned, with their sum;
    - those that are due;
    - those up to the watermark, with the sum of reached_hash.
    """
    living, reached = ~F.col("dead"), scope.is_reached()
    left = living & ~F.col("is_cleaned")
    return rows.groupBy(*BUCKET).agg(
        F.count("*").alias(f"{party}_rows"),
        F.count_if(living).alias(f"{party}_living"),
        F.count_if(left).alias(f"{party}_left"),
        F.sum(F.when(left, F.col("event_hash"))).alias(f"{party}_sum"),
        F.count_if(scope.is_due()).alias(f"{party}_due"),
        F.count_if(reached).alias(f"{party}_reached"),
        F.sum(F.when(reached, F.col(reached_hash))).alias(f"{party}_reached_sum"),
    )


def _in_time() -> Column:
    return F.coalesce(F.col("flaw") != "no_time_uuid", F.lit(True))
