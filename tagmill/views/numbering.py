"""Decide up to which event each persistence_id is numbered, and with which numbers its runs begin, as the
plugin would number them.

The plugin numbers the events of one persistence_id and tag 1, 2, 3 … in the order of their sequence_nr
(TagWriter in akka-persistence-cassandra and pekko-persistence-cassandra). So an event's number is the sum of
three: the last number written, the count of events with the tag in earlier runs, and the event's place in its
own run (run_numbering.py).
"""

from collections.abc import Callable

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tagmill.journal.flaws import Reason

ID = "persistence_id"


def numberable_upto(runs: DataFrame, starting_points: DataFrame) -> DataFrame:
    """Return how far each persistence_id can be numbered: up to the event in front of the first one that has
    to wait.

    In: `runs` (run_numbering.RUNS); `starting_points` persistence_id, from_nr (bigint).
    Out, one row a persistence_id with events: from_nr, `upto` (its last event that may be numbered, else
    from_nr), `reason` (why it stops there; null: nothing is behind it).
    """
    earlier = Window.partitionBy(ID).orderBy("first", "last").rowsBetween(Window.unboundedPreceding, -1)
    placed = runs.join(starting_points.select(ID, "from_nr"), ID).withColumn(
        "before", F.greatest(F.max("last").over(earlier), "from_nr")
    )
    before, first = F.col("before"), F.col("first")
    edge = F.when(before >= first, _at(first - 1, Reason.TWO_WRITERS)).when(
        before < first - 1, _at(before, Reason.GAP)
    )
    inside = F.when(F.col("reason").isNotNull(), F.struct("upto", "reason"))
    stops = (
        placed.select(ID, "from_nr", "last", F.least(inside, edge).alias("stop"))
        .groupBy(ID)
        .agg(F.first("from_nr").alias("from_nr"), F.max("last").alias("last"), F.min("stop").alias("stop"))
    )
    return stops.select(
        ID,
        "from_nr",
        F.coalesce(F.col("stop.upto"), F.col("last")).alias("upto"),
        F.col("stop.reason").alias("reason"),
    )


def _at(upto: Column, reason: Reason) -> Column:
    return F.struct(upto.alias("upto"), F.lit(reason.value).alias("reason"))


def run_start_numbers(runs: DataFrame, ends: DataFrame, starting_points: DataFrame) -> DataFrame:
    """Return the number in front of each run's first row of a tag.

    In: `runs` (run_numbering.RUNS); `ends` as `numberable_upto` returns them; `starting_points` with progress
    (array of tag, number, sequence_nr, offset: the last one written).
    Out: file, run, upto, tag (null: the run has none), start. A run behind its persistence_id's end is left
    out.
    """
    last = starting_points.select(ID, F.explode("progress").alias("line")).select(
        ID, F.col("line.tag").alias("tag"), F.col("line.number").alias("number")
    )
    taken = runs.drop("upto").join(ends.select(ID, "upto"), ID).where("first <= upto")
    lines = taken.select("file", "run", ID, "first", "upto", F.explode_outer("tags").alias("line")).select(
        "file", "run", ID, "first", "upto", "line.tag", "line.rows"
    )
    earlier = Window.partitionBy(ID, "tag").orderBy("first").rowsBetween(Window.unboundedPreceding, -1)
    start = F.coalesce("number", F.lit(0)) + F.coalesce(F.sum("rows").over(earlier), F.lit(0))
    return lines.join(last, [ID, "tag"], "left").select("file", "run", "upto", "tag", start.alias("start"))


def records(reached: DataFrame, ends: DataFrame, starting_points: DataFrame) -> DataFrame:
    """Return the new record of each persistence_id that the build moves on or adopts.

    In: `reached` (run_numbering.REACHED); `ends` as `numberable_upto` returns them; `starting_points` with
    persistence_id, from_nr, partition_nr, scanned, progress, adopted.
    Out: persistence_id, sequence_nr, partition_nr, scanned, progress (sorted by tag), new (the tags whose
    progress moved).

    The sequence_nr of an adopted persistence_id without events to number is 0, since it isn't known in which
    partition the next one will be: the next build looks behind the deletions for it.
    """
    last = reached.groupBy(ID).agg(F.max_by("partition_nr", "sequence_nr").alias("reached"))
    lines = (
        reached.select(ID, F.explode("progress").alias("line"))
        .groupBy(ID, "line.tag")
        .agg(F.max_by("line", "line.sequence_nr").alias("line"))
    )
    moved = lines.groupBy(ID).agg(F.collect_list("line").alias("moved"))
    empty = F.expr("filter(progress, p -> false)")
    return (
        starting_points.join(last, ID, "left")
        .where("reached is not null or adopted")
        .join(ends.select(ID, "upto"), ID, "left")
        .join(moved, ID, "left")
        .withColumn("moved", F.coalesce("moved", empty))
        .withColumn("new", F.transform("moved", lambda line: line["tag"]))
        .select(
            ID,
            F.when(F.col("reached").isNotNull(), F.col("upto")).otherwise(0).alias("sequence_nr"),
            F.coalesce("reached", "partition_nr").alias("partition_nr"),
            "scanned",
            F.array_sort(
                F.concat(F.filter("progress", lambda line: ~F.array_contains("new", line["tag"])), "moved")
            ).alias("progress"),
            "new",
        )
    )


def cap_at_recorded(ends: DataFrame, limits: DataFrame, *, cut: bool) -> DataFrame:
    """Restrict ends to what was numbered before: drop reasons to wait behind the limit; with `cut`, end at
    the limit.

    In: `ends` as `numberable_upto` returns them; `limits` persistence_id, `limit` (the last sequence_nr that
    was numbered, null: not known), `elsewhere` (another writer has numbered since: then nothing may be
    numbered, and the reason is ELSEWHERE).
    """
    far = F.coalesce(F.col("upto") >= F.col("limit"), F.lit(False))
    upto, reason = F.least("upto", "limit") if cut else F.col("upto"), F.when(~far, F.col("reason"))
    return ends.join(limits, ID).select(
        ID,
        "from_nr",
        F.when(F.col("elsewhere"), F.col("from_nr")).otherwise(F.greatest(upto, "from_nr")).alias("upto"),
        F.when(F.col("elsewhere"), Reason.ELSEWHERE.value).otherwise(reason).alias("reason"),
    )


def first_surviving(positions: DataFrame, runs: DataFrame) -> DataFrame:
    """Add `from_nr`, the sequence_nr up to which all events are deleted, to the positions of persistence ids
    with events.

    If any event was numbered, those in front of the first event in the journal count as deleted, too. In:
    `positions` as for `starting_numbers`.
    """
    first = runs.groupBy(ID).agg(F.min("first").alias("first"))
    gone = F.when(F.size("base") > 0, F.col("first") - 1).otherwise(0)
    return positions.join(first, ID).withColumn("from_nr", F.greatest("deleted_to", gone))


def starting_numbers(
    positions: DataFrame,
    runs: DataFrame,
    events: DataFrame,
    standing: DataFrame,
    keep: Callable[[DataFrame], DataFrame],
) -> DataFrame:
    """Return the `starting_points` from which a rebuild gives surviving events the numbers that they had.

    In: `positions` persistence_id, deleted_to, scanned, `base` (PROGRESS: the last numbers given); `runs`;
    `events` persistence_id, sequence_nr, tags; `standing` persistence_id, tag, sequence_nr, number: the rows
    of the view. `keep(rows)` computes rows once.
    Out: persistence_id, from_nr, partition_nr (0), scanned, progress, adopted (false).

    In `progress`, the line of a tag has the number in front of its first event: counted back from `base`,
    else as most of the view's rows say. The line of a tag that no event has is that of `base`. Counting back
    includes events that have lost the tag if the numbers of the other rows show that they were counted.
    """
    there = first_surviving(positions, runs)
    # Lines without a number or a sequence_nr can't be counted back from.
    lines = (
        there.select(ID, F.explode("base").alias("line"))
        .select(ID, "line.*")
        .dropna(subset=["number", "sequence_nr"])
    )
    # Rows in front of the first tagged event are of deleted events, or of events whose tags were in columns
    # that are dropped.
    first = events.groupBy(ID).agg(F.min("sequence_nr").alias("first_tagged"))
    earlier = standing.join(first, ID).where("sequence_nr < first_tagged").select(ID).distinct()
    earlier = earlier.withColumn("earlier", F.lit(True))
    of_more = beyond_the_journal(lines, runs).select(ID).distinct().withColumn("of_more", F.lit(True))
    # Most journals have lost no event. Spark then knows that there is nothing to count back from.
    short = keep(
        there.join(earlier, ID, "left")
        .join(of_more, ID, "left")
        .where("from_nr > 0 or earlier or of_more")
        .select(ID, "from_nr", F.expr("from_nr > 0 or earlier is not null").alias("certain"))
    )
    starts = _starts_behind(short, runs, events, lines, standing)
    has_events = _tagged(runs).select(ID, "tag").withColumn("has", F.lit(True))
    number = F.when(F.col("has"), F.coalesce("start", F.lit(0).cast("bigint"))).otherwise(F.col("number"))
    progress = (
        lines.join(starts, [ID, "tag"], "full_outer")
        .join(has_events, [ID, "tag"], "left")
        .withColumn("number", number)
        .groupBy(ID)
        .agg(
            F.array_sort(F.collect_list(F.struct("tag", "number", "sequence_nr", "offset"))).alias("progress")
        )
    )
    return there.join(progress, ID, "left").select(
        ID,
        "from_nr",
        F.lit(0).cast("bigint").alias("partition_nr"),
        "scanned",
        F.coalesce("progress", F.expr("filter(base, line -> false)")).alias("progress"),
        F.lit(False).alias("adopted"),
    )


def beyond_the_journal(lines: DataFrame, runs: DataFrame) -> DataFrame:
    """Return the lines of tag_write_progress that count more events with the tag than the journal has:
    earlier events, or tags, are gone.

    Lines that know of an event behind the last run with the tag are left out: what they count may be missing
    there, not in front.
    In: persistence_id, tag, number, sequence_nr; run_numbering.RUNS. Out: persistence_id, tag.
    """
    return (
        lines.join(_tagged(runs), [ID, "tag"])
        .where("number > rows and sequence_nr <= last")
        .select(ID, "tag")
    )


def _tagged(runs: DataFrame) -> DataFrame:
    """Return persistence_id, tag, `rows` (how many events have the tag), `last` (the end of the last run that
    has it).
    """
    of_runs = runs.select(ID, "last", F.explode("tags").alias("line")).select(
        ID, "last", "line.tag", "line.rows"
    )
    return of_runs.groupBy(ID, "tag").agg(F.sum("rows").alias("rows"), F.max("last").alias("last"))


def _starts_behind(
    short: DataFrame, runs: DataFrame, events: DataFrame, lines: DataFrame, standing: DataFrame
) -> DataFrame:
    """Return the number in front of a tag's first event, where earlier events are gone.

    Out: persistence_id, tag, start.

    In: `short` persistence_id, from_nr, `certain` (not only tag_write_progress says that events are gone).
    Where it isn't certain, the rows of the view count more than tag_write_progress.
    """
    living = (
        events.join(short.select(ID, "from_nr"), ID)
        .where("sequence_nr > from_nr")
        .select(ID, "sequence_nr", "tags")
    )
    tagged = living.select(ID, "sequence_nr", F.explode("tags").alias("tag"))
    # Rows of tags that their events have lost: the events had them when they were numbered.
    taken_off = (
        standing.join(living, [ID, "sequence_nr"], "left_semi")
        .join(tagged, [ID, "tag", "sequence_nr"], "left_anti")
        .select(ID, "sequence_nr", "tag")
        .distinct()
    )
    in_order = Window.partitionBy(ID, "tag").orderBy("sequence_nr")
    ranks = (
        tagged.withColumn("has", F.lit(1))
        .unionByName(taken_off.withColumn("has", F.lit(0)))
        .withColumn("rank", F.sum("has").over(in_order))
        .withColumn("rank_then", F.row_number().over(in_order))
    )
    counted = _counted_back(ranks, lines, short, runs)
    number, has = F.col("number"), F.col("has") == 1
    seen = (
        ranks.join(standing, [ID, "tag", "sequence_nr"])
        .join(counted, [ID, "tag"], "left")
        .groupBy(ID, "tag")
        .agg(
            F.mode(F.when(has, number - F.col("rank"))).alias("most"),
            F.count_if(has & (number - F.col("rank") == F.col("now"))).alias("fit_now"),
            F.count_if(number - F.col("rank_then") == F.col("then")).alias("fit_then"),
        )
    )
    by_view = F.when(F.col("most").isNotNull(), F.greatest("most", F.lit(0)))
    start = (
        F.when((F.col("then") < F.col("now")) & (F.col("fit_then") > F.col("fit_now")), F.col("then"))
        .when(F.col("certain"), F.col("now"))
        .otherwise(F.coalesce(by_view, F.col("now")))
    )
    return (
        counted.join(seen, [ID, "tag"], "full_outer")
        .select(ID, "tag", start.alias("start"))
        .where("start IS NOT NULL")
    )


def _counted_back(ranks: DataFrame, lines: DataFrame, short: DataFrame, runs: DataFrame) -> DataFrame:
    """Count back from tag_write_progress to the number in front of a tag's first event.

    In: `ranks` persistence_id, tag, sequence_nr, has (0: the event has lost the tag).
    Out: persistence_id, tag, certain, `now` (the number if only events that have the tag were numbered),
    `then` (the number if those that have lost it were, too).
    """
    last = lines.select(ID, "tag", "number", F.col("sequence_nr").alias("reached"))
    ends = _tagged(runs).select(ID, "tag", F.col("last").alias("end"))
    numbered = ranks.join(last, [ID, "tag"]).join(short.select(ID, "certain"), ID).join(ends, [ID, "tag"])
    before = F.col("sequence_nr") <= F.col("reached")
    counts = numbered.groupBy(
        ID, "tag", "number", "certain", (F.col("reached") > F.col("end")).alias("ahead")
    ).agg(F.count_if(before & (F.col("has") == 1)).alias("now"), F.count_if(before).alias("then"))
    # A line that is ahead counts events behind the journal's end, and doesn't say how many. Without other
    # evidence, counting starts at 0.
    nothing = F.col("ahead") & ~F.col("certain")
    return counts.select(
        ID,
        "tag",
        (F.col("certain") & ~F.col("ahead")).alias("certain"),
        *(
            F.when(nothing, 0).otherwise(F.greatest(F.col("number") - F.col(name), F.lit(0))).alias(name)
            for name in ("now", "then")
        ),
    )
