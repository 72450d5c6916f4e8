"""Check whether the journal is whole, and whether the view's numbers are those that the plugin would give.

Totals per persistence_id prove most of them; only the others are put in order.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tagmill.audit.model import Kind
from tagmill.audit.row_comparison import finding
from tagmill.audit.staging import ID, Scope, with_dead
from tagmill.audit.totals import KEY


def journal_findings(journal: DataFrame, broken: DataFrame, deleted: DataFrame, scope: Scope) -> DataFrame:
    """Return the findings journal_hole (one per gap, named by its first number) and two_writers (one per tag
    and number).

    In: `broken`, the persistence ids whose journal is_broken (totals.of_ids). Numbers missing before the first event are
    not a gap: they may have been deleted long ago.
    """
    events = with_dead(
        journal.where(F.col("ticks") <= scope.until).join(F.broadcast(broken), ID, "left_semi"), deleted
    )
    before = F.lag("sequence_nr").over(Window.partitionBy(ID).orderBy("sequence_nr", "offset"))
    placed = events.join(deleted, ID, "left").withColumn("before", before)
    missing = F.greatest(F.col("before"), F.coalesce("deleted_to", F.lit(0))) + 1
    gaps = placed.where(missing < F.col("sequence_nr")).withColumn("missing", missing)
    said = F.format_string(
        "sequence_nr %d to %d are missing in front of %d",
        F.col("missing"),
        F.col("sequence_nr") - 1,
        "sequence_nr",
    )
    named = gaps.select(
        ID, F.col("missing").alias("sequence_nr"), "partition_nr", "bucket", said.alias("said")
    )
    gap_findings = finding(
        named,
        Kind.JOURNAL_GAP,
        F.col("said"),
        keys=(ID, "sequence_nr"),
        timebucket="bucket",
        journal_partition_nr="partition_nr",
    )
    writers = F.format_string(
        "writers %s",
        F.array_join(F.array_sort(F.collect_list(F.concat_ws(" at ", "writer_uuid", "offset"))), ", "),
    )
    twice = (
        events.where(~F.col("dead"))
        .groupBy(ID, "sequence_nr")
        .agg(
            F.count("*").alias("rows"),
            F.flatten(F.collect_list("tags")).alias("tags"),
            F.max("bucket").alias("bucket"),
            F.max("writer_uuid").alias("writer_uuid"),
            F.max("offset").alias("offset"),
            F.max("partition_nr").alias("partition_nr"),
            writers.alias("said"),
        )
        .where("rows > 1")
        .withColumn("tag", F.explode_outer(F.array_distinct("tags")))
    )
    return gap_findings.unionByName(
        finding(
            twice,
            Kind.TWO_WRITERS,
            F.col("said"),
            timebucket="bucket",
            journal_offset="offset",
            journal_partition_nr="partition_nr",
        )
    )


def tagged_events(journal: DataFrame, scope: Scope) -> DataFrame:
    """Return what the journal has of each tag and persistence_id: tag, persistence_id, `rows`, and the `first` and `last` sequence_nr."""
    events = journal.where(_in_time(scope) & (F.size("tags") > 0)).select(
        ID, "sequence_nr", F.explode("tags").alias("tag")
    )
    return events.groupBy(*KEY).agg(
        F.count("*").alias("rows"),
        F.min("sequence_nr").alias("first"),
        F.max("sequence_nr").alias("last"),
    )


def unproven(in_view: DataFrame, in_journal: DataFrame) -> DataFrame:
    """Return the persistence ids whose numbers totals don't prove.

    In: `in_view` of totals.of_numbers; `in_journal` of tagged_events. Out: persistence_id.

    The numbers of a tag are proven if
    - the view has as many rows as the journal, from the same first to the same last sequence_nr,
    - every sequence_nr between them has the tag,
    - number and sequence_nr go up together, and the first number is 1.
    The last two follow from the view alone (`is_open`).
    """
    of_journal = in_journal.select(
        *KEY, *(F.col(name).alias(f"j_{name}") for name in ("rows", "first", "last"))
    )
    is_same = (
        (F.col("rows") == F.col("j_rows"))
        & (F.col("first") == F.col("j_first"))
        & (F.col("last") == F.col("j_last"))
    )
    return (
        in_view.where("rows > 0")
        .join(of_journal, KEY)
        .where(F.col("is_open") | ~is_same)
        .select(ID)
        .distinct()
    )


def expected(
    journal: DataFrame, view: DataFrame, deleted: DataFrame, ids: DataFrame, progress: DataFrame, scope: Scope
) -> DataFrame:
    """Return the numbers that the plugin would give. Out: tag, persistence_id, sequence_nr, expected.

    In: `ids`, the persistence ids wanted, without those that have findings in the journal. `progress`: their
    tag_write_progress, as tag, persistence_id, number, reached (the sequence_nr).

    The numbers begin where most rows of the view say if earlier events are gone, or their tags (migrated from
    tag1 to tag3, and the columns dropped). Lost tags show as rows of the view before the first tagged event,
    or as more numbers than events.
    """
    events = with_dead(journal.where(_in_time(scope)).join(ids, ID, "left_semi"), deleted)
    complete = events.groupBy(ID).agg((F.min("sequence_nr") == 1).alias("complete"))
    tagged = events.where(~F.col("dead") & (F.size("tags") > 0)).select(
        ID, "sequence_nr", F.explode("tags").alias("tag")
    )
    ranks = tagged.withColumn("rank", F.row_number().over(Window.partitionBy(*KEY).orderBy("sequence_nr")))
    living = with_dead(events.groupBy(ID).agg(F.min("sequence_nr").alias("sequence_nr")), deleted)
    whole = complete.join(living.select(ID, "dead"), ID).select(
        ID, (F.col("complete") & ~F.col("dead")).alias("whole")
    )
    rows = view.where(~F.col("broken")).join(ids, ID, "left_semi").select(*KEY, "sequence_nr", "number")
    bases = (
        ranks.join(rows, [*KEY, "sequence_nr"])
        .groupBy(*KEY)
        .agg(F.mode(F.col("number") - F.col("rank")).alias("base"))
    )
    first = tagged.groupBy(ID).agg(F.min("sequence_nr").alias("first_tagged"))
    untagged = (
        rows.join(first, ID)
        .where("sequence_nr < first_tagged")
        .select(ID, F.lit(True).alias("untagged"))
        .distinct()
    )
    in_journal = tagged.groupBy(*KEY).agg(F.count("*").alias("events"), F.max("sequence_nr").alias("last"))
    more = (
        progress.join(in_journal, KEY)
        .where("number > events and reached <= last")
        .select(ID, F.lit(True).alias("untagged"))
    )
    untagged = untagged.union(more).distinct()
    based = ranks.join(whole, ID).join(bases, KEY, "left").join(untagged, ID, "left")
    base = F.when(F.col("whole") & F.col("untagged").isNull(), 0).otherwise(F.col("base"))
    return based.select(*KEY, "sequence_nr", (F.col("rank") + base).alias("expected")).where(
        "expected IS NOT NULL"
    )


def wrong_numbers(view: DataFrame, expected: DataFrame, scope: Scope) -> DataFrame:
    """Return findings for events of which no row of the view has the expected number.

    In: `expected` as that function returns it.
    """
    rows = view.where(scope.judged() & ~F.col("broken")).join(expected, [*KEY, "sequence_nr"])
    row = F.struct("number", "offset", "timebucket", "bucket", "writer_uuid")
    wrong = (
        rows.groupBy(*KEY, "sequence_nr")
        .agg(
            F.bool_or(F.col("number") == F.col("expected")).alias("right"),
            F.min(row).alias("row"),
            F.first("expected").alias("expected"),
        )
        .where("NOT right")
        .select(*KEY, "sequence_nr", "expected", "row.*")
    )
    return finding(
        wrong,
        Kind.WRONG_NUMBER,
        F.format_string("number %d, the plugin would give %d", "number", "expected"),
        timebucket="bucket",
        view_timebucket="timebucket",
        view_offset="offset",
        view_number="number",
        expected_number="expected",
    )


def _in_time(scope: Scope) -> Column:
    return F.col("ticks") <= scope.until
