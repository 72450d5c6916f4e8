"""Compare the standing rows of a view with those that the journal gives, to find what is wrong with them."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tagmill.domain.time_buckets import BucketSize
from tagmill.domain.timeuuid import TICKS_PER_MILLISECOND
from tagmill.journal.flaws import Reason
from tagmill.journal.frames import CleanedOf, with_cleaned
from tagmill.journal.tag_view_reader import view_columns
from tagmill.spark.columns import offset_ticks
from tagmill.views.model import VIEW_KEY, Difference

ID = "persistence_id"


def with_content(rows: DataFrame, *, meta: bool) -> DataFrame:
    """Return rows of tag_views as VIEW_KEY, sequence_nr and `content`, a hash of all columns outside the key;
    null differs from any value.

    Out: also `written` (microseconds), if the rows have it.
    """
    names = [name for name in view_columns(meta=meta) if name not in VIEW_KEY]
    content = F.xxhash64(*[part for name in names for part in (F.col(name), F.col(name).isNull())])
    return rows.select(*VIEW_KEY, "sequence_nr", content.alias("content"), *({"written"} & set(rows.columns)))


def compared(right: DataFrame, standing: DataFrame, cleaned_of: CleanedOf, size: BucketSize) -> DataFrame:
    """Compare the right rows with the standing ones, and return one line for each row that is in either.

    In: `right` and `standing` (with `written`) as with_content leaves them; `cleaned_of` of frames.cleaned:
    partitions that a cleanup took away; `size` of the view's buckets.
    Out: VIEW_KEY, sequence_nr, `what` (a Difference; REMOVED: the journal gives no such row, and `judged`
    says why), `written`.
    """
    key = list(VIEW_KEY)
    joined = right.withColumnsRenamed({"sequence_nr": "right_nr", "content": "right"}).join(
        standing, key, "full_outer"
    )
    # Unless smaller buckets were cleaned, the start of a row's timebucket shows whether the row was cleaned,
    # and costs less than its time.
    is_enough = all(of.milliseconds >= size.milliseconds for of in cleaned_of)
    ticks = F.col("timebucket") * TICKS_PER_MILLISECOND if is_enough else offset_ticks(F.col("timestamp"))
    joined = with_cleaned(joined.withColumn("ticks", ticks), cleaned_of, "tag_name")
    what = (
        F.when(F.col("right").isNull(), Difference.REMOVED.value)
        .when(F.col("content") == F.col("right"), Difference.SAME.value)
        .when(F.col("content").isNotNull(), Difference.CHANGED.value)
        .when(F.col("is_cleaned"), Difference.CLEANED.value)
        .otherwise(Difference.ADDED.value)
    )
    return joined.select(
        *key, F.coalesce("right_nr", "sequence_nr").alias("sequence_nr"), what.alias("what"), "written"
    )


def with_expired(lines: DataFrame, numbered: DataFrame, expired_to: int) -> DataFrame:
    """Change ADDED to CLEANED for rows that the application's TTL may have taken: they were numbered once.

    In: what compared returns; `numbered` tag_name, persistence_id, numbered_to (the last sequence_nr that was numbered);
    `expired_to`: PipelineSettings.expired_to.
    """
    is_expired = (
        (F.col("what") == Difference.ADDED.value)
        & (F.col("timebucket") * TICKS_PER_MILLISECOND < expired_to)
        & F.coalesce(F.col("sequence_nr") <= F.col("numbered_to"), F.lit(False))
    )
    what = F.when(is_expired, Difference.CLEANED.value).otherwise(F.col("what"))
    return lines.join(numbered, ["tag_name", ID], "left").select(
        *(what.alias(name) if name == "what" else name for name in lines.columns)
    )


def judged(lines: DataFrame, known: DataFrame) -> DataFrame:
    """Change REMOVED to UNKNOWN for rows of events that the journal doesn't know, since it can't say whether
    they are wrong.

    In: what compared returns; `known` persistence_id, sequence_nr: events of the journal that have tags.
    """
    none = F.col("what") == Difference.REMOVED.value
    of_event = known.select(ID, "sequence_nr", F.lit(True).alias("known"))
    alone = lines.where(none).join(of_event, [ID, "sequence_nr"], "left")
    what = F.when(F.col("known"), Difference.REMOVED.value).otherwise(Difference.UNKNOWN.value)
    return lines.where(~none).unionByName(alone.withColumn("what", what).drop("known"))


def number_taken(lines: DataFrame) -> DataFrame:
    """Return persistence ids with an UNKNOWN row that stays and has the number of a right row: readers would
    find the number twice.

    This happens when an event between others has lost its tags. In: what judged returns.
    Out: persistence_id, upto (in front of that event), reason.
    """
    number = ["tag_name", ID, "tag_pid_sequence_nr"]
    kept = lines.where((F.col("what") == Difference.UNKNOWN.value) & F.col("sequence_nr").isNotNull())
    kept = kept.select(*number, F.col("sequence_nr").alias("kept"))
    right = lines.where(
        F.col("what").isin(Difference.SAME.value, Difference.ADDED.value, Difference.CHANGED.value)
    )
    return (
        kept.join(right, number)
        .groupBy(ID)
        .agg((F.min("kept") - 1).alias("upto"), F.lit(Reason.NUMBER_TAKEN.value).alias("reason"))
    )


def but_ahead(ends: DataFrame, positions: DataFrame, latest: int) -> DataFrame:
    """Stop persistence ids in front of their first event if their progress was written later than `latest`
    (microseconds).

    A write to tag_write_progress, or a deletion from it or tag_scanning, would not replace that progress.
    In: `ends` as numbering.numberable_upto returns them; `positions` with `written` of frames.plugin_progress.
    Out: `ends`, with reason WRITTEN_AHEAD for those persistence ids.
    """
    ahead = positions.where(F.col("written") > latest).select(ID, F.lit(True).alias("ahead"))
    is_ahead = F.coalesce("ahead", F.lit(False))
    reason = F.when(is_ahead, F.lit(Reason.WRITTEN_AHEAD.value)).otherwise(F.col("reason")).alias("reason")
    upto = F.when(is_ahead, F.col("from_nr")).otherwise(F.col("upto")).alias("upto")
    changed = {"reason": reason, "upto": upto}
    return ends.join(ahead, ID, "left").select(*(changed.get(name, F.col(name)) for name in ends.columns))


def written_ahead(lines: DataFrame, latest: int) -> DataFrame:
    """Return persistence ids with a row to delete or change that was written later than `latest`
    (microseconds).

    Cassandra keeps what has the latest timestamp: neither a deletion nor a row with an earlier one replaces
    it.
    In: what judged returns. Out: persistence_id, upto (in front of that row's event), reason.
    """
    goes = F.col("what").isin(Difference.REMOVED.value, Difference.CHANGED.value) & (
        F.col("written") > latest
    )
    upto = (F.coalesce(F.min("sequence_nr"), F.lit(1)) - 1).alias("upto")
    return lines.where(goes).groupBy(ID).agg(upto, F.lit(Reason.WRITTEN_AHEAD.value).alias("reason"))
