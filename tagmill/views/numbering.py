"""Up to which event each persistence_id is numbered now, and with which numbers its runs begin: what the plugin would give.

The plugin numbers the events of one persistence_id and tag 1, 2, 3 … in the order of their sequence_nr (TagWriter in
akka-persistence-cassandra and pekko-persistence-cassandra). So a number is the last one written, plus how many events with the tag earlier
runs have, plus the place in the event's own run (counting.py).
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tagmill.views.model import Reason

ID = "persistence_id"


def ends(runs: DataFrame, stands: DataFrame) -> DataFrame:
    """Where each persistence_id stands once the events up to the first one that has to wait are built.

    In: `runs` (counting.RUNS); `stands` persistence_id, from_nr (bigint).
    Out, one row a persistence_id with events: from_nr, `upto` (its last event that may be numbered, else from_nr), `reason` (why it stops
    there; null: nothing is behind it).
    """
    earlier = Window.partitionBy(ID).orderBy("first", "last").rowsBetween(Window.unboundedPreceding, -1)
    placed = runs.join(stands.select(ID, "from_nr"), ID).withColumn("before", F.greatest(F.max("last").over(earlier), "from_nr"))
    before, first = F.col("before"), F.col("first")
    edge = F.when(before >= first, _at(first - 1, Reason.TWO_WRITERS)).when(before < first - 1, _at(before, Reason.HOLE))
    inside = F.when(F.col("reason").isNotNull(), F.struct("upto", "reason"))
    stops = placed.select(ID, "from_nr", "last", F.least(inside, edge).alias("stop")).groupBy(ID).agg(
        F.first("from_nr").alias("from_nr"), F.max("last").alias("last"), F.min("stop").alias("stop")
    )  # fmt: skip
    return stops.select(
        ID, "from_nr", F.coalesce(F.col("stop.upto"), F.col("last")).alias("upto"), F.col("stop.reason").alias("reason")
    )


def _at(upto: Column, reason: Reason) -> Column:
    return F.struct(upto.alias("upto"), F.lit(reason.value).alias("reason"))


def starts(runs: DataFrame, ends: DataFrame, stands: DataFrame) -> DataFrame:
    """The number in front of each run's first row of a tag.

    In: as above; `stands` with progress (array of tag, number, sequence_nr, offset: the last one written).
    Out: file, run, upto, tag (null: the run has none), start. A run behind its persistence_id's end isn't there.
    """
    last = stands.select(ID, F.explode("progress").alias("line")).select(
        ID, F.col("line.tag").alias("tag"), F.col("line.number").alias("number")
    )
    taken = runs.drop("upto").join(ends.select(ID, "upto"), ID).where("first <= upto")
    lines = taken.select("file", "run", ID, "first", "upto", F.explode_outer("tags").alias("line")).select(
        "file", "run", ID, "first", "upto", "line.tag", "line.rows"
    )
    earlier = Window.partitionBy(ID, "tag").orderBy("first").rowsBetween(Window.unboundedPreceding, -1)
    start = F.coalesce("number", F.lit(0)) + F.coalesce(F.sum("rows").over(earlier), F.lit(0))
    return lines.join(last, [ID, "tag"], "left").select("file", "run", "upto", "tag", start.alias("start"))


def records(reached: DataFrame, ends: DataFrame, stands: DataFrame) -> DataFrame:
    """Where each persistence_id stands after the build: those that moved, or were adopted.

    In: `reached` (counting.REACHED), `ends` as above; `stands` with persistence_id, from_nr, partition_nr, scanned, progress, adopted.
    Out: persistence_id, sequence_nr, partition_nr, scanned, progress (sorted by tag), new (the tags whose progress moved).
    """
    places = reached.groupBy(ID).agg(F.max_by("partition_nr", "sequence_nr").alias("place"))
    lines = reached.select(ID, F.explode("progress").alias("line")).groupBy(ID, "line.tag").agg(
        F.max_by("line", "line.sequence_nr").alias("line")
    )  # fmt: skip
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
