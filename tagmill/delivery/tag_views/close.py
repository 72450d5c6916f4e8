"""Close a run: turn what was delivered into progress, holds and watermarks, and write events found in the
journal into the view.

Everything is written with the run's write time and from the committed files, so closing again writes the
same. If something does not read back as written, the close stops and the run stays SEALED.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tagmill.delivery.closing import read_back
from tagmill.delivery.tag_views.look_back import read_hours
from tagmill.delivery.tag_views.model import HourRows, Manifest, Plan, TagOutcome, Withdrawn
from tagmill.delivery.tag_views.run_files import read_manifest, read_plan
from tagmill.domain import identifiers
from tagmill.domain.batches.states import BatchState, RunState, may_close
from tagmill.domain.continuity.model import Gap
from tagmill.domain.timeuuid import from_datetime
from tagmill.errors import TransientError
from tagmill.journal.tag_view_reader import view_columns, written_with
from tagmill.ledger.hour_counts import HourCount, HourCounts, hour_counts
from tagmill.ledger.progress import HoldRow, Watermark
from tagmill.ledger.progress_rows import ROWS_AT_ONCE
from tagmill.ledger.progress_rows import SCHEMA as PROGRESS
from tagmill.ledger.runs import BatchRow, RunRow
from tagmill.ledger.view_builds import Builds
from tagmill.runs import checkpoints
from tagmill.runs.storage import RunFiles
from tagmill.runs.workspace import Workspace


def close(workspace: Workspace, run: int, fence: int) -> Manifest:
    """Close a run whose batches are all in ClickHouse or VOIDED; leave a closed run as it is."""
    ledger, name = workspace.ledger, workspace.name
    files = workspace.files
    row = ledger.current(name, run, fence)
    manifest = read_manifest(files, row)
    if row.state == RunState.CLOSED:
        files.remove_attempts(name, run, but=manifest.attempt)
        return manifest
    batches = ledger.batches(name, run)
    if not may_close([batch.state for batch in batches]) or len(batches) != len(manifest.batches):
        raise TransientError(
            f"run {run} of pipeline {name} has batches that are not in ClickHouse yet. Nothing was "
            "closed; push first",
            pipeline=name,
            run=run,
        )
    voided = {batch.number for batch in batches if batch.state == BatchState.VOIDED}
    void_tags = {batch.tag for batch in manifest.batches if batch.number in voided}
    if workspace.pipeline.repair_view:
        _repair(workspace, manifest)
    checkpoints.reached("close.before_progress")
    plan = read_plan(files, row) if row.plan_file else None
    with read_back(ledger, name, run, fence):
        ledger.delivered.write_progress_rows(name, run, _progress(files, manifest, voided, void_tags))
        checkpoints.reached("close.after_progress")
        write_holds(workspace, manifest, void_tags)
        _move_watermarks(workspace, manifest, batches, void_tags, plan)
        _note_build(workspace, row, plan, [tag for tag in manifest.tags if tag not in void_tags])
    checkpoints.reached("close.before_end")
    ledger.finish_run(name, run, fence, RunState.SEALED, RunState.CLOSED)
    files.remove_attempts(name, run, but=manifest.attempt)
    return manifest


def _note_hours(
    counts: HourCounts,
    manifest: Manifest,
    tags: Iterable[str],
    again: Mapping[str, Sequence[HourRows]],
    planned_at: datetime,
) -> None:
    """Write how many rows a run accounts for in each hour of some tags; `again`: what its plan has counted.

    This happens before the watermarks move, so that a close that was killed does it again. A run that brought
    a watermark back from the future has read hours a second time, so its new rows are not added.
    """
    run, read = manifest.run, dict[str, dict[int, int]]()
    counts.write(
        (tag, HourCount(hour.begin, hour.rows, run, planned_at))
        for tag in tags
        for hour in again.get(tag, [])
    )
    for tag in tags:
        done = manifest.tags[tag]
        if done.hours and done.back_from is None:
            read[tag] = {hour.begin: hour.rows for hour in done.hours}
    known_of = counts.of({tag: min(hours) for tag, hours in read.items()})
    counts.write(
        (tag, count)
        for (tag, hours), known in zip(read.items(), known_of, strict=True)
        for count in read_hours(hours, known, run, planned_at)
    )


def _note_build(workspace: Workspace, row: RunRow, plan: Plan | None, tags: list[str]) -> None:
    """Note that the run has delivered what builds up to `plan.build` wrote late, except what it leaves to the
    next run.
    """
    if plan is not None and plan.build is not None:
        workspace.journal_store(Builds).has_seen(row.pipeline, row.run, plan.build, tags, plan.late_left)


def _progress(
    files: RunFiles, manifest: Manifest, voided: set[int], void_tags: set[str]
) -> Iterator[pa.Table]:
    """Yield the final progress of each persistence_id as tables of the ledger's columns; for a tag with void batches,
    the last one before the first of these.
    """
    for rows in _progress_rows(files, manifest):
        final = pc.field("last") & ~pc.field("tag").isin(pa.array(sorted(void_tags), pa.string()))
        yield _in_ledger(rows.filter(final))
    if void_tags:
        yield _in_ledger(_before_void(files, manifest, voided, void_tags))


def _before_void(files: RunFiles, manifest: Manifest, voided: set[int], void_tags: set[str]) -> pa.Table:
    """Return the last progress rows before the first void batch of each tag that has one."""
    first_void = {
        tag: min(b.number for b in manifest.batches if b.tag == tag and b.number in voided)
        for tag in void_tags
    }
    rows = (row for some in _progress_rows(files, manifest) for row in some.to_pylist())
    schema = pa.schema(
        [(n, pa.string()) for n in ("tag", "persistence_id", "offset", "missing")]
        + [(n, pa.int64()) for n in ("number", "sequence_nr")]
    )
    best = [{k: row[k] for k in schema.names} for row in last_before_void(rows, first_void)]
    return pa.Table.from_pylist(best, schema=schema)


def last_before_void(rows: Iterable[dict[str, Any]], first_void: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the last progress row of each persistence_id before the first void batch (by tag).

    Batches are voided from the end of a tag, so nothing after the first void one is delivered. Batch 0 of a
    row is none: such progress comes only with the whole run.
    """
    best: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        key = (row["tag"], row["persistence_id"])
        if (
            row["tag"] in first_void
            and 0 < row["batch"] < first_void[row["tag"]]
            and (key not in best or row["number"] > best[key]["number"])
        ):
            best[key] = row
    return list(best.values())


def _progress_rows(files: RunFiles, manifest: Manifest) -> Iterator[pa.Table]:
    """Yield the rows of the run's progress files, whose digests are checked, some thousand at a time."""
    for file, sha256 in manifest.sha256.items():
        if file.startswith(f"{manifest.progress_file}/"):
            with files.open_sealed(file, sha256) as source:
                for rows in pq.ParquetFile(source).iter_batches(ROWS_AT_ONCE):
                    yield pa.Table.from_batches([rows])


def _in_ledger(rows: pa.Table) -> pa.Table:
    """Return rows of a progress file as the ledger has them: an empty offset is none, and no gaps are an empty text."""
    offsets = rows["offset"]
    return pa.table(
        {
            "tag": rows["tag"],
            "persistence_id": rows["persistence_id"],
            "tag_pid_sequence_nr": rows["number"],
            "sequence_nr": rows["sequence_nr"],
            "offset": pc.if_else(pc.equal(offsets, ""), None, offsets),
            "missing": pc.fill_null(rows["missing"], ""),
        },
        PROGRESS,
    )


def write_holds(workspace: Workspace, manifest: Manifest, void_tags: set[str]) -> None:
    """Write the holds that a run opened, continued or ended, except those of tags with void batches: a later
    run judges them again.
    """
    ledger = workspace.ledger
    with workspace.files.open_sealed(manifest.holds_file, manifest.sha256[manifest.holds_file]) as source:
        rows = [row for row in pq.read_table(source).to_pylist() if row["tag"] not in void_tags]
    ledger.delivered.write_holds(
        manifest.pipeline, manifest.run, (hold_row(row) for row in rows if not row["ended"])
    )
    ledger.delivered.end_holds(
        manifest.pipeline, manifest.run, ((row["tag"], row["persistence_id"]) for row in rows if row["ended"])
    )


def hold_row(row: dict[str, Any]) -> HoldRow:
    """Return a row of a holds file as the ledger has it."""
    gap = Gap(row["first_missing"], row["last_missing"], row["after_sequence_nr"], row["before_sequence_nr"])
    return HoldRow(
        row["tag"],
        row["persistence_id"],
        row["reason"],
        gap,
        row["from_ticks"],
        row["held_rows"],
        row["since_run"],
        row["since"],
        row["seen"],
    )


def _repair(workspace: Workspace, manifest: Manifest) -> None:
    """Insert the rows that were missing in tag_views, as the plugin would have written them.

    Their write time is that of the seal: what was deleted since, such as by an erasure, stays deleted.
    """
    with workspace.files.open_sealed(manifest.repairs_file, manifest.sha256[manifest.repairs_file]) as source:
        rows = pq.read_table(source).to_pylist()
    if not rows:
        return
    pipeline = workspace.pipeline
    view = identifiers.cql_table(pipeline.keyspace, pipeline.view_table)
    written_at = from_datetime(manifest.sealed_at) // 10  # microseconds
    using, times = written_with(written_at, pipeline.cleanup.application_ttl_seconds)
    checkpoints.reached("close.before_repair")
    # Rows without meta leave these columns unset: writing null would create tombstones.
    for with_meta in (True, False):
        columns = view_columns(meta=with_meta)
        marks = ", ".join("?" for _ in columns)
        workspace.cassandra.write_many(
            f"INSERT INTO {view} ({', '.join(columns)}) VALUES ({marks}) {using}",
            (
                (*(UUID(row[c]) if c == "timestamp" else row[c] for c in columns), *times)
                for row in rows
                if (row["meta"] is not None) == with_meta
            ),
        )


def _move_watermarks(
    workspace: Workspace, manifest: Manifest, batches: list[BatchRow], void_tags: set[str], plan: Plan | None
) -> None:
    """Move each tag's watermark to the end of the run's range, and count what was delivered.

    All hours are noted first, then all watermarks are written.
    """
    ledger = workspace.ledger
    now, pipeline = workspace.cassandra.now(), workspace.pipeline
    counts = hour_counts(workspace.settings, workspace.cassandra, manifest.pipeline)
    marks, written = ledger.delivered.watermarks(manifest.pipeline), list[Watermark]()
    moving = list[str]()
    of_tags: dict[str, list[BatchRow]] = {}
    for batch in batches:
        if batch.state == BatchState.IN_CLICKHOUSE:
            of_tags.setdefault(batch.tag, []).append(batch)
    for tag, done in manifest.tags.items():
        known = marks.get(tag)
        mark = known or _nothing_yet(tag, pipeline.start_ticks(tag) - 1, now)
        if mark.run >= manifest.run:  # an interrupted close of this run has moved it
            continue
        there = of_tags.get(tag, [])
        gone = [batch for batch in manifest.withdrawn if batch.tag == tag]
        counted = counting(mark, manifest.run, there, gone)
        if manifest.moves_watermark and tag not in void_tags and may_move(known, done):
            moving.append(tag)
            written.append(moved(counted, done, now))
        elif there or gone:
            written.append(counted)
    again, planned_at = (plan.look_back, plan.planned_at) if plan else ({}, now)
    _note_hours(counts, manifest, moving, again, planned_at)
    checkpoints.reached("close.before_watermarks")
    ledger.delivered.write_watermarks(manifest.pipeline, written)


def count_delivered(workspace: Workspace, run: int, delivered: list[BatchRow]) -> None:
    """Count the delivered batches of a run that is given up; watermarks stay, so that the next run reads its
    range again.
    """
    ledger, name = workspace.ledger, workspace.name
    marks = ledger.delivered.watermarks(name)
    for tag in {batch.tag for batch in delivered}:
        first = workspace.pipeline.start_ticks(tag) - 1
        mark = marks.get(tag) or _nothing_yet(tag, first, workspace.cassandra.now())
        if mark.run < run:
            of_tag = [batch for batch in delivered if batch.tag == tag]
            ledger.delivered.write_watermark(name, counting(mark, run, of_tag))


def _nothing_yet(tag: str, ticks: int, now: datetime) -> Watermark:
    return Watermark(
        tag, ticks, 0, window_from=ticks, window_rows=0, long_look_at=now, delivered=0, batches=0
    )


def may_move(known: Watermark | None, done: TagOutcome) -> bool:
    """Return whether a run may move a tag's watermark to the end of its range.

    A watermark moves forward only, and only if the run's range began at or before it. A watermark in the
    future moves back if the run began at the tick that was proven instead.
    """
    return known is None or known.ticks == done.back_from or done.after <= known.ticks <= done.until


def counting(
    mark: Watermark, run: int, delivered: Sequence[BatchRow], withdrawn: Sequence[Withdrawn] = ()
) -> Watermark:
    """Return a watermark, at its tick, that counts what a run has delivered and withdrawn."""
    return replace(
        mark,
        run=run,
        delivered=mark.delivered + sum(b.rows for b in delivered) - sum(b.rows for b in withdrawn),
        batches=mark.batches + len(delivered) - len(withdrawn),
    )


def moved(mark: Watermark, done: TagOutcome, now: datetime) -> Watermark:
    """Return a watermark at the end of a run's range, with the look-back window that the run leaves."""
    return replace(
        mark,
        ticks=done.until,
        window_from=done.window_from,
        window_rows=done.window_rows,
        long_look_at=now if done.long_look else mark.long_look_at,
    )
