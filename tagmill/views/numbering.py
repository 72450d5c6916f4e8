"""Which of the staged events are numbered now, and with which number: what the plugin would give, computed in slices.

The plugin numbers the events of one persistence_id and tag 1, 2, 3 … in the order of their sequence_nr (TagWriter in
akka-persistence-cassandra and pekko-persistence-cassandra). So a number is the last one written, plus how many events with the tag lie in
the slices before, plus the place in the event's own slice: no window is longer than a slice.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tagmill.buckets import BucketSize
from tagmill.timeuuid import TICKS_PER_MILLISECOND
from tagmill.views.model import SLICE, Reason

ID = "persistence_id"


def ends(events: DataFrame, stands: DataFrame, slice_size: int = SLICE) -> DataFrame:
    """Where each persistence_id stands once the events up to the first one that has to wait are built.

    In: `events` persistence_id, partition_nr, sequence_nr, timestamp, ticks, tags, flaw (a Reason or null), in any order;
    `stands` persistence_id, from_nr, both bigint.
    Out, one row a persistence_id with events: from_nr, `upto` (its last event that may be numbered, else from_nr), `reason` (why it stops
    there; null: nothing is behind it).
    """
    in_order = Window.partitionBy(ID, "slice").orderBy("sequence_nr", "timestamp")
    marked = events.select(ID, _slice(slice_size), "sequence_nr", "timestamp", "flaw").withColumn(
        "before", F.lag("sequence_nr").over(in_order)
    )
    slices = marked.groupBy(ID, "slice").agg(
        F.min("sequence_nr").alias("first"), F.max("sequence_nr").alias("last"), F.min(_stop()).alias("stop")
    )
    chain = Window.partitionBy(ID).orderBy("slice")
    chained = slices.join(stands.select(ID, "from_nr"), ID).withColumn("before", F.coalesce(F.lag("last").over(chain), "from_nr"))
    edge = F.when(F.col("before") < F.col("first") - 1, _at(F.col("before"), F.lit(Reason.HOLE.value)))
    firsts = chained.select(ID, "from_nr", "last", F.least("stop", edge).alias("stop")).groupBy(ID).agg(
        F.first("from_nr").alias("from_nr"), F.max("last").alias("last"), F.min("stop").alias("stop")
    )  # fmt: skip
    return firsts.select(
        ID, "from_nr", F.coalesce(F.col("stop.upto"), F.col("last")).alias("upto"), F.col("stop.reason").alias("reason")
    )


def accepted(events: DataFrame, ends: DataFrame, slice_size: int = SLICE) -> DataFrame:
    """The events that may be numbered: persistence_id, slice, sequence_nr, timestamp, ticks, tags."""
    sliced = events.select(ID, _slice(slice_size), "sequence_nr", "timestamp", "ticks", "tags")
    # by slice, not by persistence_id: a long one is joined in many tasks
    upto = sliced.select(ID, "slice").distinct().join(ends.select(ID, "upto"), ID)
    return sliced.join(upto, [ID, "slice"]).where("sequence_nr <= upto").drop("upto")


def _slice(size: int) -> Column:
    return F.expr(f"sequence_nr div {size}").alias("slice")


def _stop() -> Column:
    """(upto, reason) where an event can't follow the one before it in its slice; null where it can."""
    before, number = F.col("before"), F.col("sequence_nr")
    return (
        F.when(before == number, _at(number - 1, F.lit(Reason.TWO_WRITERS.value)))
        .when(before < number - 1, _at(before, F.lit(Reason.HOLE.value)))
        .when(F.col("flaw").isNotNull(), _at(number - 1, F.col("flaw")))
    )


def _at(upto: Column, reason: Column) -> Column:
    return F.struct(upto.alias("upto"), reason.alias("reason"))


def timebucket(size: BucketSize) -> Column:
    """The bucket (bigint, milliseconds since 1970) of `ticks`; in whole numbers, which a double couldn't hold."""
    return F.expr(f"(ticks - pmod(ticks, {size.ticks})) div {TICKS_PER_MILLISECOND}").alias("timebucket")


def numbered(taken: DataFrame, stands: DataFrame, size: BucketSize) -> DataFrame:
    """One row an event and tag, with its number.

    In: `taken` of `accepted`; `stands` persistence_id and progress (array of tag, number, sequence_nr, offset: the last one written).
    Out: persistence_id, sequence_nr, tag_name, timebucket (bigint, milliseconds since 1970), timestamp, ticks, tag_pid_sequence_nr.
    Events of a tag at or below its last sequence_nr have their number already (an adopted view) and are left out.
    """
    last = stands.select(ID, F.explode("progress").alias("line")).select(
        ID, F.col("line.tag").alias("tag_name"), F.col("line.number").alias("number"), F.col("line.sequence_nr").alias("tag_nr")
    )
    tagged = taken.select(ID, "slice", "sequence_nr", "timestamp", "ticks", F.explode("tags").alias("tag_name"))
    new = tagged.join(last, [ID, "tag_name"], "left").where("tag_nr is null or sequence_nr > tag_nr")
    here = Window.partitionBy(ID, "slice", "tag_name").orderBy("sequence_nr")
    before = Window.partitionBy(ID, "tag_name").orderBy("slice").rowsBetween(Window.unboundedPreceding, -1)
    starts = (
        new.groupBy(ID, "slice", "tag_name")
        .agg(F.count("*").alias("rows"), F.first("number").alias("number"))
        .select(
            ID, "slice", "tag_name",
            (F.coalesce("number", F.lit(0)) + F.coalesce(F.sum("rows").over(before), F.lit(0))).alias("start"),
        )
    )  # fmt: skip
    return (
        new.withColumn("place", F.row_number().over(here))
        .join(starts, [ID, "slice", "tag_name"])
        .select(
            ID, "sequence_nr", "tag_name", timebucket(size), "timestamp", "ticks",
            (F.col("start") + F.col("place")).alias("tag_pid_sequence_nr"),
        )
    )  # fmt: skip


def records(events: DataFrame, numbers: DataFrame, ends: DataFrame, stands: DataFrame) -> DataFrame:
    """Where each persistence_id stands after the build: those that moved, or were adopted.

    In: `events`, `ends` and `numbers` as above; `stands` with persistence_id, from_nr, partition_nr, scanned, progress, adopted.
    Out: persistence_id, sequence_nr, partition_nr, scanned, progress (sorted by tag), new (the tags whose progress moved).
    """
    last = ends.select(ID, F.col("upto").alias("sequence_nr"))
    places = (
        events.select(ID, "sequence_nr", F.col("partition_nr").alias("place")).join(last, [ID, "sequence_nr"]).drop("sequence_nr")
    )
    line = F.struct(
        F.col("tag_name").alias("tag"),
        F.col("tag_pid_sequence_nr").alias("number"),
        "sequence_nr",
        F.col("timestamp").alias("offset"),
    )
    lines = numbers.groupBy(ID, "tag_name").agg(F.max_by(line, "sequence_nr").alias("line"))
    moved = lines.groupBy(ID).agg(F.collect_list("line").alias("moved"))
    empty = F.expr("filter(progress, p -> false)")
    return (
        stands.join(places, ID, "left")
        .where("place is not null or adopted")
        .join(ends.select(ID, "upto"), ID, "left")
        .join(moved, ID, "left")
        .withColumn("moved", F.coalesce("moved", empty))
        .withColumn("new", F.transform("moved", lambda line: line["tag"]))
        .select(
            ID,
            F.coalesce("upto", "from_nr").alias("sequence_nr"),
            F.coalesce("place", "partition_nr").alias("partition_nr"),
            "scanned",
            F.array_sort(F.concat(F.filter("progress", lambda line: ~F.array_contains("new", line["tag"])), "moved")).alias(
                "progress"
            ),
            "new",
        )
    )
