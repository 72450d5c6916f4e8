"""Report on a pipeline: how much is delivered, held, and in ClickHouse, and whether ledger and ClickHouse
agree row for row.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from tagmill.clickhouse.client import ClickHouse
from tagmill.config.settings import Settings
from tagmill.config.tag_views import PipelineSettings
from tagmill.delivery.batch_verification import (
    Finding,
    differences,
    parted,
    runs_with_new,
    stored,
    unfinished_of,
)
from tagmill.delivery.destination_retention import ExpiredRows, Expiry
from tagmill.delivery.pipeline_facts import (
    UNTOLD,
    OpenRows,
    collect,
    contents,
    now,
    record_checks,
    rows_of,
)
from tagmill.delivery.tag_views.future_watermarks import watermarks_ahead
from tagmill.delivery.tag_views.look_back import part_of
from tagmill.delivery.tag_views.run_files import read_manifest
from tagmill.domain import clock, identifiers
from tagmill.domain.timeuuid import from_datetime
from tagmill.domain.verdict import Facts, judged
from tagmill.errors import ConfigurationError, about_pipeline
from tagmill.journal.tag_view_reader import Views
from tagmill.ledger.cleanups import CleanupLog
from tagmill.ledger.erasures import Erasures
from tagmill.ledger.preconditions import check_view
from tagmill.ledger.progress import Watermark
from tagmill.ledger.runs import Ledger
from tagmill.ledger.same_tables import changed_tables
from tagmill.ledger.view_builds import Builds
from tagmill.runs import checkpoints
from tagmill.runs.ledger_comparison import destination_ahead
from tagmill.runs.workspace import Workspace, open_workspace

# Timebuckets from a watermark on whose rows are counted; more of them are waiting only behind a long pause.
BUCKETS_AHEAD = 1000
# Part of the view: tag, timebucket, after and until (ticks, as for Views.count).
Part = tuple[str, int, int | None, int | None]


@about_pipeline
def tag_table(
    settings: Settings, pipeline: str, *, count_view: bool = True, verify: bool = True
) -> list[dict[str, Any]]:
    """Return one line per tag with its counts, its verdict and the verdict's level.

    Columns: tag, in_view (rows old enough to be read) and cleaned (None if not counted), delivered, held,
    batches, clickhouse_rows, expired, verdict, level. `count_view` counts the view's rows on the server, and those that cleanups have
    deleted of it. `verify` reads every row in ClickHouse again (see `check`), and records the result in the
    ledger.
    """
    chosen = settings.pipeline(pipeline)
    with open_workspace(settings, pipeline) as workspace, workspace.clickhouse() as clickhouse:
        ledger = workspace.ledger
        clickhouse.check_destination(chosen.destination)
        if count_view:
            check_view(ledger.cassandra, settings, pipeline)
        _must_have_view(ledger, pipeline, chosen)
        at = now(ledger)
        # The view is counted first, since that takes longest: what is compared with ClickHouse is read next to it.
        until = _until(workspace)
        before = ledger.delivered.watermarks(pipeline)
        ends = _ends(chosen, before, until)
        buckets = _rows_by_bucket(workspace, ends) if count_view else {}
        in_view = {tag: sum(rows.values()) for tag, rows in buckets.items()}
        beyond = _beyond(workspace, clickhouse, buckets, ends)
        cleaned = _cleaned(workspace) if count_view else {}
        unread = _unread(workspace, ledger.delivered.watermarks(pipeline), until)
        marks = ledger.delivered.watermarks(pipeline)
        known = collect(workspace, clickhouse, chosen.destination)
        held, overdue = _held(ledger, pipeline, chosen)
        checked = contents(clickhouse, chosen.destination) if verify else UNTOLD
        checkpoints.reached("status.read")
        stored_rows = clickhouse.rows(
            f"SELECT toString(`tag`), count() FROM {identifiers.sql(chosen.destination)} GROUP BY `tag`"
        )
        there = {tag: int(rows) for tag, rows in stored_rows}
        # In this order, a run that was open while ClickHouse counted is in one of the two.
        later = rows_of(ledger, ledger.open_run(pipeline)), ledger.delivered.watermarks(pipeline)
        if verify:
            findings = list(check(workspace, clickhouse))
        else:
            findings = [*against_the_world(workspace, clickhouse), *wrong_times(workspace)]
            if any(mark.delivered > there.get(tag, 0) for tag, mark in marks.items()):
                findings += unfinished(workspace)  # only then, because it reads the batches of every run
        differing, at_work = parted(findings)
        wrong, changing = (
            {tag: tuple(one.text for one in some if one.tag in (tag, "")) for tag in chosen.tags}
            for some in (differing, at_work)
        )
        if verify:
            record_checks(workspace, wrong, changing, at, known, checked)
        obstacles = tuple(clickhouse.ttl_warnings(chosen.destination, chosen.destination_retention_days))
        bounds = _bounds(chosen.tags, (known.open_rows, marks), later, changing=at_work)
        expired = ExpiredRows.declared(workspace, clickhouse).by_tag(
            {tag: (least, there.get(tag, 0)) for tag, (least, _) in bounds.items()}
        )
        table = []
        for tag in chosen.tags:
            mark = marks.get(tag)
            line: dict[str, Any] = {"tag": tag, "in_view": in_view.get(tag), "cleaned": cleaned.get(tag)}
            line |= {"delivered": mark.delivered if mark else 0, "held": held[tag]}
            line |= {"batches": mark.batches if mark else 0, "clickhouse_rows": there.get(tag, 0)}
            line["expired"] = expired.get(tag, 0)
            # ClickHouse has lost these: they are not what no run has delivered.
            lacking = max(0, bounds[tag][0] - line["expired"] - line["clickhouse_rows"])
            facts = Facts(
                **known.of_tag(tag, verified=at if verify else None),
                delivered=line["delivered"],
                pushed=bounds[tag][0] - line["delivered"],
                sealed=bounds[tag][1] - bounds[tag][0],
                expired=line["expired"],
                obstacles=obstacles,
                stored=line["clickhouse_rows"],
                at_source=in_view[tag] + cleaned[tag] if count_view else None,
                delivered_before=before[tag].delivered if tag in before else 0,
                unread=unread[tag],
                undelivered=beyond[tag][0] - lacking if count_view else 0,
                lost=beyond[tag][1] - cleaned[tag] if count_view else 0,
                held=held[tag],
                overdue=tuple(overdue[tag]),
                differences=wrong[tag],
                changing=changing[tag],
            )
            table.append(judged(line, facts))
        return table


def _bounds(
    tags: Sequence[str],
    *readings: tuple[OpenRows, Mapping[str, Watermark]],
    changing: Iterable[Finding],
) -> dict[str, tuple[int, int]]:
    """Return by tag how many rows ClickHouse had at least and at most between two readings of the ledger.

    Rows of batches that are changing may be there or not.
    """
    found = {}
    for tag in tags:
        at_work = sum(finding.rows for finding in changing if finding.tag == tag)
        marks = [(rows, known.get(tag)) for rows, known in readings]
        least, most = zip(
            *(
                rows.bounds(tag, mark.delivered if mark else 0, mark.run if mark else 0)
                for rows, mark in marks
            ),
            strict=True,
        )
        found[tag] = min(least) - at_work, max(most)
    return found


def _must_have_view(ledger: Ledger, pipeline: str, configured: PipelineSettings) -> None:
    """Raise ConfigurationError if the view does not exist: no run of the pipeline would succeed."""
    if configured.view_table not in (ledger.cassandra.tables(configured.keyspace) or {}):
        raise ConfigurationError(
            f"pipeline {pipeline}: {ledger.cassandra.where} has no table "
            f"{configured.keyspace}.{configured.view_table}. Nothing was read. "
            "Correct keyspace or view_table, or let the application create it",
            pipeline=pipeline,
        )


def _held(
    ledger: Ledger, pipeline: str, configured: PipelineSettings
) -> tuple[dict[str, int], dict[str, list[str]]]:
    """Return by tag how many rows are held, and a sentence on a hold that is older than
    max_hold_age_seconds.
    """
    held, overdue = dict.fromkeys(configured.tags, 0), {tag: list[str]() for tag in configured.tags}
    today = clock.earliest(ledger.cassandra.clocks)
    for hold in ledger.delivered.holds(pipeline, configured.tags):
        held[hold.tag] += hold.held_rows
        if (today - hold.since).total_seconds() > configured.max_hold_age_seconds and not overdue[hold.tag]:
            text = (
                f"{hold.persistence_id!r} is held since run {hold.since_run} for {hold.reason}: "
                "longer than max_hold_age_seconds"
            )
            overdue[hold.tag].append(text)
    return held, overdue


def _until(workspace: Workspace) -> int:
    """Return the tick up to which the view's rows are old enough to be read, and written by the builds of the view."""
    chosen = workspace.pipeline
    delay = timedelta(seconds=chosen.eventual_consistency_delay_seconds)
    until = from_datetime(clock.earliest(workspace.cassandra.clocks) - delay)
    if workspace.settings.builder(chosen.keyspace) is None:
        return until
    newest = workspace.journal_store(Builds).newest()
    return until if newest is None or newest.built_to is None else min(until, newest.built_to)


def _ends(pipeline: PipelineSettings, marks: Mapping[str, Watermark], until: int) -> dict[str, int]:
    """Return by tag the tick up to which rows are counted: `until`, or the watermark behind it, as a longer delay may
    begin after rows were delivered.
    """
    return {tag: max(until, marks[tag].ticks) if tag in marks else until for tag in pipeline.tags}


def _rows_by_bucket(workspace: Workspace, ends: Mapping[str, int]) -> dict[str, dict[int, int]]:
    """Return by tag and timebucket how many rows the view has from the tag's start to its end."""
    chosen = workspace.pipeline
    buckets = Views(workspace.cassandra, chosen.journal).buckets(chosen.tags)
    parts: list[Part] = [
        (tag, bucket, part.after, part.until)
        for tag in buckets
        for bucket in buckets[tag]
        if (part := part_of(chosen.bucket_size, bucket, chosen.start_ticks(tag) - 1, ends[tag]))
    ]
    return _counted(workspace, parts)


def _beyond(
    workspace: Workspace,
    clickhouse: ClickHouse,
    in_view: Mapping[str, Mapping[int, int]],
    ends: Mapping[str, int],
) -> dict[str, tuple[int, int]]:
    """Return by tag how many rows the view has beyond ClickHouse, and ClickHouse beyond the view, each bucket on its own.

    Rows of the view that lie in a wrong bucket may account for a row of either, so both are less by those. Buckets
    that the destination's retention may have emptied are left out.
    """
    chosen, beyond = workspace.pipeline, {}
    expiry = Expiry.declared(chosen, clickhouse) if in_view else None
    for tag, counted in in_view.items():
        more, elsewhere = dict(counted), 0
        found = clickhouse.rows_by_bucket(
            chosen.destination, tag, chosen.bucket_size.milliseconds, chosen.start_ticks(tag) - 1, ends[tag]
        )
        for bucket, rows, moved in found:
            more[bucket] = more.get(bucket, 0) - rows
            elsewhere += moved
        kept = [rows for bucket, rows in more.items() if expiry is None or bucket >= expiry.cutoff_ms]
        left = sum(rows for rows in kept if rows > 0)
        beyond[tag] = left - elsewhere, left - sum(kept) - elsewhere
    return beyond


def _unread(workspace: Workspace, marks: Mapping[str, Watermark], until: int) -> dict[str, int]:
    """Return by tag how many rows of the view up to `until` are behind its watermark, where no closed run has
    read.

    Counts them in the first BUCKETS_AHEAD timebuckets. A tag without a watermark was never delivered.
    """
    chosen = workspace.pipeline
    size = chosen.bucket_size
    parts: list[Part] = []
    for tag in marks.keys() & set(chosen.tags):
        buckets = range(size.start(marks[tag].ticks), size.start(until) + 1, size.milliseconds)
        parts += [(tag, bucket, marks[tag].ticks, until) for bucket in buckets[:BUCKETS_AHEAD]]
    return {tag: sum(rows.values()) for tag, rows in _counted(workspace, parts).items()}


def _counted(workspace: Workspace, parts: Sequence[Part]) -> dict[str, dict[int, int]]:
    """Return by tag and timebucket how many rows of the view these parts have, one a timebucket."""
    counted: dict[str, dict[int, int]] = {tag: {} for tag in workspace.pipeline.tags}
    counts = Views(workspace.cassandra, workspace.pipeline.journal).count(parts)
    for (tag, bucket, *_), (rows, _) in zip(parts, counts, strict=True):
        counted[tag][bucket] = rows
    return counted


def _cleaned(workspace: Workspace) -> dict[str, int]:
    """Return by tag how many rows cleanups have deleted of buckets that this pipeline was to deliver, less
    those erased since.
    """
    chosen = workspace.pipeline
    cleaned = CleanupLog(workspace.cassandra, workspace.ledger_keyspace, chosen.keyspace, chosen.view)
    erasures = workspace.journal_store(Erasures)
    return {
        tag: max(0, cleaned.total(tag, chosen.start_ticks(tag)) - erasures.unseen(workspace.name, tag))
        for tag in chosen.tags
    }


def against_the_world(workspace: Workspace, clickhouse: ClickHouse) -> Iterator[Finding]:
    """Yield why the ledger can't be trusted: ClickHouse has more than it knows, or the journal's tables were
    created again.
    """
    pipeline = workspace.name
    if ahead := destination_ahead(workspace, clickhouse):
        yield Finding("", f"{ahead}. Look: tagmill ledger restore --pipeline {pipeline} --dry-run")
    for table in changed_tables(workspace.settings, workspace.cassandra, pipeline):
        yield Finding(
            "",
            f"{table} was created again since its events were delivered: its numbers may be of another life",
        )


def check(workspace: Workspace, clickhouse: ClickHouse) -> Iterator[Finding]:
    """Yield everything in which ledger and ClickHouse disagree.

    Reads each batch's rows and checksum again from the stored columns. Also yields batches that the ledger
    doesn't know, events that ClickHouse has twice, clocks that differ, and watermarks in the future.
    """
    chosen = workspace.pipeline
    yield from against_the_world(workspace, clickhouse)
    batches, unknown = stored(workspace, clickhouse, chosen.destination, read_manifest)
    yield from differences(workspace.name, batches)
    for batch_id in unknown:
        yield Finding(
            "", f"batch {batch_id} is in {chosen.destination}, and no run of pipeline {workspace.name} has it"
        )
    yield from _twice(clickhouse, chosen.destination)
    yield from wrong_times(workspace)


def wrong_times(workspace: Workspace) -> Iterator[Finding]:
    """Yield clocks that differ and watermarks in the future: no run delivers rows from before such a
    watermark.
    """
    pipeline = workspace.name
    clocks = workspace.cassandra.clocks
    if differing := clock.difference(clocks, workspace.settings.cassandra.max_clock_difference_seconds):
        yield Finding("", differing)
    marks = workspace.ledger.delivered.watermarks(pipeline)
    for tag, seconds in watermarks_ahead(workspace.settings, pipeline, marks, clock.earliest(clocks)).items():
        yield Finding(
            tag,
            f"its watermark is {seconds:.0f} s in the future, written by a run whose clock was wrong. "
            "The next run brings it back: "
            f"tagmill run deliver --pipeline {pipeline}",
        )


def unfinished(workspace: Workspace) -> Iterator[Finding]:
    """Yield the batches that are NEW although their run isn't open, from the ledger alone.

    A batch that becomes NEW meanwhile may be missing.
    """
    ledger = workspace.ledger
    for number in runs_with_new(ledger, workspace.ledger_keyspace, workspace.name, serial=False):
        yield from unfinished_of(ledger, workspace.name, number)


def _twice(clickhouse: ClickHouse, table: str) -> Iterator[Finding]:
    rows = clickhouse.rows(
        "SELECT toString(`tag`), countIf(n > 1), anyIf(`persistence_id`, n > 1) FROM ("
        "SELECT `tag`, `persistence_id`, `sequence_nr`, `writer_uuid`, count() AS n FROM "
        f"{identifiers.sql(table)} "
        "GROUP BY `tag`, `persistence_id`, `sequence_nr`, `writer_uuid`) GROUP BY `tag`",
        settings={"optimize_aggregation_in_order": 1},
    )
    for tag, count, example in rows:
        if count:
            yield Finding(tag, f"{count} events are there more than once, for example of {example!r}")
