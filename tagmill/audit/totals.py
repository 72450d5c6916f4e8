"""Add up the staged rows of an audit: by persistence_id, by tag and persistence_id, and by partition of the view.

Most of what an audit proves follows from these totals, so that each staged row is read once for all of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tagmill.audit.staging import ID, Scope
from tagmill.journal.flaws import Reason
from tagmill.spark.materialize import materialize

KEY = ["tag", ID]
PARTITION = ["tag", "timebucket"]
MOST_TAGS = 10


@dataclass(frozen=True, slots=True)
class Totals:
    """The totals of what an audit has staged (of_ids, of_numbers, of_partitions)."""

    ids: DataFrame
    numbers: DataFrame
    partitions: DataFrame

    @classmethod
    def written(cls, events: DataFrame, view: DataFrame, scope: Scope, before: int, url: str) -> Totals:
        """Write the totals of staged rows below a URL, and read them back."""
        return cls(
            materialize(of_ids(events, scope, before), f"{url}/ids"),
            materialize(of_numbers(view, scope, before), f"{url}/numbers"),
            materialize(of_partitions(view, scope), f"{url}/partitions"),
        )


def of_ids(events: DataFrame, scope: Scope, before: int = 0) -> DataFrame:
    """Return one row per persistence_id of the journal.

    Out: persistence_id; of the events up to the scope's `until` their number `rows`, the `first` and `last` sequence_nr, how
    often they have a tag of the pipeline (`tagged`), and whether their sequence_nrs are not each there once, from the first to
    the last (`is_broken`); of all events their number `events`, the `lowest` and `highest` sequence_nr, the `earliest` readable
    time (ticks), how many are `unreadable`, how `many` have more than MOST_TAGS tags, and the `most` tags; of those before
    `before` (ticks) how many are `covered`, the highest `partition_nr` and the newest write (`written`); the `next` sequence_nr
    is the lowest of the others.

    Events later than the audit's `until` don't break a journal: a scan may see an event and not the one before it.
    """
    in_time, is_covered = F.col("ticks") <= scope.until, F.col("ticks") < before
    number, ticks = F.col("sequence_nr"), F.col("ticks")
    sums = events.groupBy(ID).agg(
        F.count_if(in_time).alias("rows"),
        F.min(F.when(in_time, number)).alias("first"),
        F.max(F.when(in_time, number)).alias("last"),
        F.sum(F.when(in_time, number)).alias("sum"),
        F.sum(F.when(in_time, number * number)).alias("squares"),
        F.sum(F.when(in_time & (F.size("tags") > 0), F.size("tags")).otherwise(0)).alias("tagged"),
        F.min(number).alias("lowest"),
        F.max(number).alias("highest"),
        F.min(F.when(ticks >= 0, ticks)).alias("earliest"),
        F.count_if(F.col("flaw") == Reason.NO_TIME_UUID.value).alias("unreadable"),
        F.count_if(F.col("tag_count") > MOST_TAGS).alias("many"),
        F.max("tag_count").alias("most"),
        F.count("*").alias("events"),
        F.count_if(is_covered).alias("covered"),
        F.max(F.when(is_covered, F.col("partition_nr"))).alias("partition_nr"),
        F.max(F.when(is_covered, F.col("written"))).alias("written"),
        F.min(F.when(~is_covered, number)).alias("next"),
    )
    return sums.withColumn("is_broken", (F.col("rows") > 0) & ~_is_whole()).drop("sum", "squares")


def _is_whole() -> Column:
    """Return whether a streak has the number, sum and sum of squares that follow from its ends, so no row is moved."""
    before, last = F.col("first") - 1, F.col("last")
    return (
        (F.col("rows") == last - before)
        & (F.col("sum") == _sum_to(last) - _sum_to(before))
        & (F.col("squares") == _squares_to(last) - _squares_to(before))
    )


def _sum_to(n: Column) -> Column:
    """Return 1 + 2 + … + n, modulo 2^64; the even factor is halved before the multiplication."""
    return F.when(n % 2 == 0, F.shiftright(n, 1) * (n + 1)).otherwise(n * F.shiftright(n + 1, 1))


def _squares_to(n: Column) -> Column:
    """Return 1 + 4 + … + n², modulo 2^64."""
    half, odd = _sum_to(n), 2 * n + 1
    return F.when(odd % 3 == 0, half * F.call_function("div", odd, F.lit(3))).otherwise(
        F.call_function("div", half, F.lit(3)) * odd
    )


def of_numbers(view: DataFrame, scope: Scope, before: int = 0) -> DataFrame:
    """Return one row per tag and persistence_id of the view.

    Out: tag, persistence_id; of the rows up to the scope's `until` whose time can be read their number `rows`, the `first`
    and `last` sequence_nr, the `low` and `high` difference between sequence_nr and number, and whether these leave it open that
    their numbers are right (`is_open`; see numbers.unproven); the highest `number` of all rows, and of those before `before`
    (ticks; `covered`).
    """
    is_judged = (F.col("ticks") <= scope.until) & ~F.col("broken")
    sequence_nr, offset = F.col("sequence_nr"), F.col("sequence_nr") - F.col("number")
    sums = view.groupBy(*KEY).agg(
        F.count_if(is_judged).alias("rows"),
        F.min(F.when(is_judged, sequence_nr)).alias("first"),
        F.max(F.when(is_judged, sequence_nr)).alias("last"),
        F.min(F.when(is_judged, offset)).alias("low"),
        F.max(F.when(is_judged, offset)).alias("high"),
        F.max("number").alias("number"),
        F.max(F.when(F.col("ticks") < before, F.col("number"))).alias("covered"),
    )
    is_whole = F.col("rows") == F.col("last") - F.col("first") + 1
    go_together = (F.col("low") == F.col("high")) & (F.col("low") == F.col("first") - 1)
    return sums.withColumn("is_open", (F.col("rows") > 0) & ~(is_whole & go_together))


def of_partitions(view: DataFrame, scope: Scope) -> DataFrame:
    """Return one row per partition of the view.

    Out: tag, timebucket; its `rows`, `bytes` and newest write (`written`); how many rows are `unreadable`, and how many
    `misplaced`, in another timebucket than that of their time; `proven`: an audit that agrees proves all of them.
    """
    is_judged = scope.judged() & ~F.col("broken")
    return view.groupBy(*PARTITION).agg(
        F.count("*").alias("rows"),
        F.sum("size").alias("bytes"),
        F.max("written").alias("written"),
        F.count_if("broken").alias("unreadable"),
        F.count_if(is_misplaced(scope)).alias("misplaced"),
        F.bool_and(is_judged & scope.is_due()).alias("proven"),
    )


def is_misplaced(scope: Scope) -> Column:
    """Return, over a row of the view, whether it is judged and in another timebucket than that of its time."""
    return scope.judged() & ~F.col("broken") & (F.col("timebucket") != F.col("bucket"))
