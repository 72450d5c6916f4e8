"""Compare row by row, in the buckets whose sums differ, what the journal has, what the view makes of it, and
what ClickHouse got.

Rows are matched by tag, persistence_id and sequence_nr, and are equal if their hashes are. If rows are left
over on both sides, they differ; a row left over on one side is missing, extra, or there twice.
"""

from collections.abc import Iterator, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tagmill.audit.model import FINDING_SCHEMA, Kind
from tagmill.audit.staging import Scope, exploded
from tagmill.audit.totals import is_misplaced
from tagmill.domain.timeuuid import TICKS_PER_MILLISECOND
from tagmill.journal.flaws import Reason
from tagmill.journal.frames import CleanedOf, with_cleaned
from tagmill.spark.columns import number_by

EVENT = ["tag", "persistence_id", "sequence_nr"]
BUCKET = ["tag", "bucket"]
FINDING = [field.split()[0] for field in FINDING_SCHEMA.split(", ")]
_J = (
    "event_hash bigint, ticks bigint, bucket bigint, offset string, partition_nr bigint, writer_uuid "
    "string, flaw string, "
    "is_cleaned boolean"
)
_V = (
    "event_hash bigint, ticks bigint, bucket bigint, offset string, number bigint, writer_uuid string, "
    "timebucket bigint"
)
_C = (
    "event_hash bigint, ticks bigint, bucket bigint, offset string, number bigint, writer_uuid string, "
    "batch_id string"
)
# Condition of nearly all events: once on each side and equal, or rightly absent. They are left out before
# anything is computed.
_PLAIN = (
    "size(v) = 1 AND (size(j) = 1 AND j[0].event_hash = v[0].event_hash AND j[0].flaw IS NULL OR size(j) "
    "= 0 AND dead)"
    " AND (size(c) = 1 AND c[0].event_hash = v[0].event_hash AND c[0].number = v[0].number OR size(c) = 0"
    " AND (v[0].ticks > due OR v[0].ticks < expired))"
)


def compared(
    journal: DataFrame,
    view: DataFrame,
    clickhouse: DataFrame,
    deleted: DataFrame,
    holds: DataFrame,
    cleaned_of: CleanedOf,
    buckets: DataFrame,
    scope: Scope,
    *,
    quiet: bool = True,
) -> DataFrame:
    """Return all findings that a comparison of rows gives: columns FINDING, one row per finding,
    expected_number null.

    In: `journal`, `view` as staged; `clickhouse` destination_reader.ROWS of the buckets; `deleted`; `holds` tag,
    persistence_id of the open ones; `cleaned_of` of frames.cleaned; `buckets` tag, bucket. `quiet` is False
    if a delivery was at work meanwhile: rows that are not due may then have reached ClickHouse after the view
    was read.
    """
    chosen = F.broadcast(buckets.select(*BUCKET))
    judged = scope.judged()
    in_journal = (
        exploded(journal, deleted.limit(0))
        .where(judged & F.coalesce(F.col("flaw") != Reason.NO_TIME_UUID.value, F.lit(True)))
        .join(chosen, BUCKET)
    )
    in_journal = with_cleaned(in_journal, cleaned_of)
    in_view = view.where(judged & ~F.col("broken")).join(chosen, BUCKET)
    parties = (
        _party(in_journal, "j", _J)
        .unionByName(_party(in_view, "v", _V), allowMissingColumns=True)
        .unionByName(_party(clickhouse, "c", _C), allowMissingColumns=True)
    )
    events = parties.groupBy(*EVENT).agg(*(F.collect_list(name).alias(name) for name in "jvc"))
    events = (
        events.join(deleted, "persistence_id", "left")
        .join(F.broadcast(holds.withColumn("is_held", F.lit(True))), ["tag", "persistence_id"], "left")
        .withColumn("dead", F.coalesce(F.col("sequence_nr") <= F.col("deleted_to"), F.lit(False)))
        .withColumn("is_held", F.coalesce("is_held", F.lit(False)))
        .withColumn("expired", F.lit(scope.expired))
        .withColumn("may_lack_rows_to", F.lit(scope.expired_in_view))
        .withColumn("due", number_by("tag", scope.due))
    )
    return _findings(_matched(events.where(~F.expr(_PLAIN))), quiet)


def without_untagged(findings: DataFrame, journal: DataFrame) -> DataFrame:
    """Return the findings without rows of the view whose events have no tags in the journal.

    The journal may have lost the tags, and rebuilds keep such rows.
    """
    event = ["kind", "persistence_id", "sequence_nr"]
    untagged = (
        journal.where("tag_count = 0")
        .withColumn("kind", F.lit(Kind.EXTRA_IN_VIEW.value))
        .select(*event)
        .distinct()
    )
    return findings.join(untagged, event, "left_anti").select(*findings.columns)


def _party(rows: DataFrame, name: str, schema: str) -> DataFrame:
    return rows.select(*EVENT, F.struct(*(field.split()[0] for field in schema.split(", "))).alias(name))


def _matched(events: DataFrame) -> DataFrame:
    """Add the rows left over once equal rows are matched: ju, vu (journal, view), ru, cu (what should be
    delivered, ClickHouse).

    `r`, what should be delivered, comes from the journal, or from the view if the journal can't be read or
    has deleted the event.
    """
    as_in_journal = ", ".join(
        f"'{name}', "
        + (
            f"x.{name}"
            if f"{name} {kind}" in _V.split(", ")
            else f"CAST({'false' if name == 'is_cleaned' else 'null'} AS {kind})"
        )
        for name, kind in (field.split() for field in _J.split(", "))
    )
    return (
        events.withColumn("v", F.expr(_in_order("v", "IF(x.timebucket = x.bucket, 0, 1)")))
        .withColumn("c", F.expr(_in_order("c", "0")))
        .withColumn("sound", F.expr("size(j) > 0 AND NOT exists(j, x -> x.flaw IS NOT NULL)"))
        .withColumn("r", F.expr(f"IF(sound, j, transform(v, x -> named_struct({as_in_journal})))"))
        .withColumn("ju", F.expr(_unmatched("j", "v")))
        .withColumn("vu", F.expr(_surplus("v", "j")))
        .withColumn("ru", F.expr(_unmatched("r", "c")))
        .withColumn("cu", F.expr(_surplus("c", "r")))
    )


def _in_order(rows: str, first: str) -> str:
    """Return SQL that sorts rows: the row in its place, then the lower number, comes first, and of equal rows
    the first one counts.
    """
    by = f"transform({rows}, x -> named_struct('place', {first}, 'number', x.number, 'row', x))"
    return f"transform(array_sort({by}), x -> x.row)"


def _unmatched(rows: str, candidates: str) -> str:
    return f"filter({rows}, x -> NOT exists({candidates}, y -> y.event_hash = x.event_hash))"


def _surplus(rows: str, candidates: str) -> str:
    """Return SQL for rows that equal none of the others, or only one that an earlier row was matched with."""
    return (
        f"filter({rows}, (x, i) -> NOT exists({candidates}, y -> y.event_hash = x.event_hash)"
        f" OR exists(slice({rows}, 1, i), y -> y.event_hash = x.event_hash))"
    )


def _findings(events: DataFrame, quiet: bool) -> DataFrame:
    """Apply the rules, which docs/audit.md has as a table, and return the findings."""
    rules = ", ".join((*_view_rules(), *_clickhouse_rules(quiet)))
    found = events.select(*EVENT, F.explode(F.expr(f"concat({rules})")).alias("f")).select(*EVENT, "f.*")
    return found.withColumn("expected_number", F.lit(None).cast("bigint")).select(*FINDING)


def _view_rules() -> Iterator[str]:
    """Yield the rules that compare the view with the journal; what is deleted there, or cleaned here, may be
    missing, and what the application's TTL may have taken after it was delivered.
    """
    paired, left = "i < least(size(ju), size(vu))", "i >= least(size(ju), size(vu))"
    differs, twice = (
        _difference("x", "ju[i]", "tag_views", "journal"),
        "concat('the event is there ', size(v), ' times')",
    )
    unknown, missing = "'the journal has no such event with this tag'", "'tag_views has no row of this event'"
    # Of two events with one sequence_nr the plugin, too, delivers only one. They have a finding of their own.
    one_is_there = "size(j) > 1 AND size(v) > 0"
    yield _each("vu", "size(j) = 0 AND NOT dead", "true", Kind.EXTRA_IN_VIEW, unknown, v="x")
    yield _each("vu", "sound AND NOT dead", paired, Kind.DIFFERS_IN_VIEW, differs, v="x", j="ju[i]")
    yield _each("vu", "size(j) > 0 AND NOT dead", left, Kind.DUPLICATED_IN_VIEW, twice, v="x", j="j[0]")
    delivered = "(size(c) > 0 OR x.ticks < expired)"
    there = f"{left} AND NOT x.is_cleaned AND NOT (x.ticks < may_lack_rows_to AND {delivered})"
    yield _each("ju", "NOT dead", f"{there} AND x.flaw IS NOT NULL", Kind.UNREADABLE, _flaw("x.flaw"), j="x")
    yield _each(
        "ju",
        f"NOT dead AND NOT ({one_is_there})",
        f"{there} AND x.flaw IS NULL",
        Kind.MISSING_IN_VIEW,
        missing,
        j="x",
    )


def _clickhouse_rules(quiet: bool) -> Iterator[str]:
    """Yield the rules that compare ClickHouse with what should be delivered."""
    paired, left = "i < least(size(ru), size(cu))", "i >= least(size(ru), size(cu))"
    unknown, twice = (
        "'neither journal nor tag_views have this event'",
        "concat('the event is there ', size(c), ' times')",
    )
    number = "concat('number ', x.number, ' in ClickHouse, ', v[0].number, ' in tag_views')"
    other_number = (
        "NOT exists(cu, y -> y = x) AND exists(v, y -> y.event_hash = x.event_hash)"
        " AND NOT exists(v, y -> y.event_hash = x.event_hash AND y.number = x.number)"
    )
    one_is_there, due = "size(j) > 1 AND size(c) > 0", f"{left} AND x.ticks <= due AND x.ticks >= expired"
    held, missing = "'waits behind an open hold: tagmill holds'", "'ClickHouse has no row of this event'"
    difference = _difference("x", "ru[i]", "ClickHouse", "journal")
    known_by_now = "true" if quiet else "x.ticks <= due"
    yield _each("cu", "size(r) = 0 AND NOT dead", known_by_now, Kind.EXTRA_IN_CLICKHOUSE, unknown, c="x")
    yield _each(
        "cu", "size(r) > 0", paired, Kind.DIFFERS_IN_CLICKHOUSE, difference, c="x", r="ru[i]", v="v[0]"
    )
    yield _each("cu", "size(r) > 0", left, Kind.DUPLICATED_IN_CLICKHOUSE, twice, c="x", r="r[0]")
    # An event that is deleted in the journal and cleaned in the view: only ClickHouse shows how often it was
    # delivered.
    again = "exists(slice(c, 1, i), y -> y.event_hash = x.event_hash)"
    yield _each("c", "size(r) = 0 AND dead", again, Kind.DUPLICATED_IN_CLICKHOUSE, twice, c="x")
    yield _each("c", "true", other_number, Kind.DIFFERS_IN_CLICKHOUSE, number, c="x", v="v[0]")
    yield _each("ru", f"is_held AND NOT ({one_is_there})", due, Kind.HELD, held, r="x", v="v[0]")
    yield _each(
        "ru",
        f"NOT is_held AND NOT ({one_is_there})",
        due,
        Kind.MISSING_IN_CLICKHOUSE,
        missing,
        r="x",
        v="v[0]",
    )


def _each(
    rows: str,
    if_event: str,
    if_row: str,
    kind: Kind,
    detail: str,
    *,
    j: str = "",
    v: str = "",
    c: str = "",
    r: str = "",
) -> str:
    """Return SQL for one finding per row (x, at i) of an array whose event and row meet the conditions.

    j, v, c, r: the rows that the finding names.
    """
    own = j or r or v or c
    named = [c, v, own] if "clickhouse" in kind.value else [v, own]
    writers = ", ".join(f"{row}.writer_uuid" for row in named if row)
    chosen = f"IF({if_event}, transform({rows}, (x, i) -> IF({if_row}, {{0}}, null)), array())"
    finding = (
        f"named_struct('kind', '{kind.value}', 'writer_uuid', coalesce({writers}),"
        f" 'timebucket', {own}.bucket, 'view_timebucket', {_field(v, 'timebucket', 'bigint')},"
        f" 'view_offset', {_field(v, 'offset', 'string')}, 'view_number', {_field(v, 'number', 'bigint')},"
        f" 'journal_offset', {_field(j or r, 'offset', 'string')}, 'journal_partition_nr', "
        f"{_field(j or r, 'partition_nr', 'bigint')},"
        f" 'batch_id', {_field(c, 'batch_id', 'string')}, 'detail', {detail})"
    )
    return f"filter({chosen.format(finding)}, x -> x IS NOT NULL)"


def _field(row: str, name: str, kind: str) -> str:
    return f"{row}.{name}" if row else f"CAST(null AS {kind})"


def _difference(row: str, right: str, row_store: str, right_store: str) -> str:
    """Return SQL for a sentence that says what of a row is not as it should be."""
    here_at, there_at = moment(f"{row}.ticks"), moment(f"{right}.ticks")
    return (
        f"CASE WHEN {here_at} <> {there_at} THEN concat('its time is ', {here_at}, ', in the {right_store} ', "
        f"{there_at})"
        f" WHEN {row}.offset <> {right}.offset THEN concat('its offset is ', {row}.offset, ', in the "
        f"{right_store} ', {right}.offset)"
        f" WHEN {row}.writer_uuid <> {right}.writer_uuid THEN 'another writer_uuid than in the {right_store}'"
        f" ELSE 'another payload in {row_store} than in the {right_store}' END"
    )


def moment(ticks: str) -> str:
    """Return SQL for ticks as a date-time in UTC, to the millisecond."""
    return (
        f"date_format(timestamp_millis({ticks} div {TICKS_PER_MILLISECOND}), "
        "\"yyyy-MM-dd'T'HH:mm:ss.SSS'Z'\")"
    )


def _flaw(name: str) -> str:
    cases = " ".join(f"WHEN '{reason.value}' THEN '{reason.text}'" for reason in Reason)
    return f"CASE {name} {cases} END"


def misplaced(view: DataFrame, scope: Scope) -> DataFrame:
    """Return findings for rows of the view in a timebucket that their time isn't in."""
    rows = view.where(is_misplaced(scope))
    said = F.expr(f"concat('its time is ', {moment('ticks')})")
    return finding(
        rows,
        Kind.MISPLACED,
        said,
        timebucket="bucket",
        view_timebucket="timebucket",
        view_offset="offset",
        view_number="number",
    )


def unreadable(journal: DataFrame, view: DataFrame, scope: Scope) -> DataFrame:
    """Return findings for events and rows whose time can't be read, so that they belong to no bucket."""
    events = journal.where(F.col("flaw") == Reason.NO_TIME_UUID.value).withColumn("tag", F.explode("tags"))
    named = finding(
        events,
        Kind.UNREADABLE,
        F.lit(Reason.NO_TIME_UUID.text),
        journal_offset="offset",
        journal_partition_nr="partition_nr",
    )
    rows = view.where("broken")
    in_view = finding(
        rows,
        Kind.UNREADABLE,
        F.lit("in tag_views: " + Reason.NO_TIME_UUID.text),
        view_timebucket="timebucket",
        view_offset="offset",
        view_number="number",
    )
    return named.unionByName(in_view)


def no_findings(spark: SparkSession) -> DataFrame:
    """Return no findings; the optimizer knows that there are none."""
    return spark.createDataFrame([], FINDING_SCHEMA)


def finding(
    rows: DataFrame,
    kind: Kind,
    detail: Column,
    *,
    keys: Sequence[str] = (*EVENT, "writer_uuid"),
    **columns: str,
) -> DataFrame:
    """Return rows as findings of one kind.

    `columns` names, for columns of FINDING, the column of the rows that they take; the other columns are
    null.
    """
    types = dict(field.split() for field in FINDING_SCHEMA.split(", "))
    values = {"kind": F.lit(kind.value), "detail": detail} | {name: F.col(name) for name in keys}
    values |= {name: F.col(source) for name, source in columns.items()}
    return rows.select(*(values.get(name, F.lit(None)).cast(types[name]).alias(name) for name in FINDING))
