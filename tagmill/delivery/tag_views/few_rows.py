"""Read and judge the rows of a small run in this process: Spark's start and jobs would take longer than they.

Only runs in which nothing is in doubt are judged here: each persistence_id is clean (tagmill.delivery.tag_views.suspects),
each row lies in its bucket, each staged file fits a batch. Of any other run nothing is decided, and Spark judges it.
"""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from operator import itemgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tagmill.arrow import CODEC
from tagmill.cassandra import uuids
from tagmill.cassandra.paging import Pages
from tagmill.delivery.arrow_checksum import row_checksums
from tagmill.delivery.tag_views import batch_contents, file_summaries, seal_outputs
from tagmill.delivery.tag_views.file_summaries import COLUMNS, FileTotal
from tagmill.delivery.tag_views.model import Manifest, Plan, ScanUnit, Slice
from tagmill.delivery.tag_views.sealing import Sealing
from tagmill.domain.batches import layout
from tagmill.domain.continuity.model import Progress
from tagmill.domain.time_buckets import BucketSize
from tagmill.domain.timeuuid import FUTURE_TICKS, TICKS_PER_MILLISECOND, from_datetime
from tagmill.journal.tag_view_reader import BUCKETS_COUNTED, VIEW_COLUMNS, Views, bounds
from tagmill.ledger.progress import ProgressStore, write_intervals
from tagmill.quality.model import TagReport
from tagmill.runs import checkpoints
from tagmill.runs.storage import RunFiles

# Bytes of rows, and slices, that this process reads for one run at most; queries that are under way at once.
MAX_BYTES, MAX_SLICES, QUERIES_AT_ONCE = 64 * 1024 * 1024, 2000, 4
STAGED = pa.schema(
    {
        "unit": pa.int32(), "tag": pa.string(), "persistence_id": pa.string(), "sequence_nr": pa.int64(),
        "tag_pid_sequence_nr": pa.int64(), "event_time": pa.int64(), "offset": pa.string(), "timebucket": pa.int64(),
        "writer_uuid": pa.string(), "ser_id": pa.int32(), "ser_manifest": pa.string(), "event_manifest": pa.string(),
        "event": pa.binary(), "meta_ser_id": pa.int32(), "meta_ser_manifest": pa.string(), "meta": pa.binary(),
        "late": pa.int32(), "event_missing": pa.bool_(), "offset_broken": pa.bool_(), "size": pa.int32(),
        "row_checksum": pa.int64(),
    }
)  # fmt: skip
PROGRESS = pa.schema(
    {
        "tag": pa.string(), "persistence_id": pa.string(), "number": pa.int64(), "sequence_nr": pa.int64(),
        "offset": pa.string(), "missing": pa.string(), "batch": pa.int32(), "last": pa.bool_(),
    }
)  # fmt: skip
Key = tuple[str, str]


class _TooMuchError(Exception):
    """More rows or bytes than this process reads."""


@dataclass(frozen=True, slots=True)
class Staged:
    """What was read: the totals of each staged file, its summaries (file_summaries.SUMMARY) of all files, and
    what the gate judges.
    """

    totals: list[FileTotal]
    summaries: pa.Table
    tags: tuple[TagReport, ...]


def seal(sealing: Sealing) -> Manifest | None:
    """Do everything except the commit of a run that is_small; return None if it is left to Spark.

    Raises DataQualityStop (the run is then ABANDONED, nothing was sealed).
    """
    pipeline, plan = sealing.pipeline, sealing.plan
    frozen = sealing.frozen()
    folder = f"{sealing.folder}/staged"
    staged = stage(
        sealing.views,
        plan,
        sealing.files,
        folder,
        pipeline.bucket_size,
        pipeline.small_run_rows,
        pipeline.batch_rows,
    )
    checkpoints.reached("seal.staged")
    if staged is None or len(batch_contents.fit(staged.totals, pipeline.batch_bytes)) < len(staged.totals):
        return None
    held = {(hold.tag, hold.persistence_id) for hold in frozen}
    missing = missing_of_clean(staged, sealing.ledger.delivered, plan, sealing.written_to, held)
    if missing is None:
        return None
    checkpoints.reached("seal.judged")
    checked = sealing.enforce(sealing.reports(staged.tags), None)
    checkpoints.reached("seal.cut")
    return seal_outputs.manifest(
        seal_outputs.SealInputs(
            sealing.files,
            plan,
            pipeline,
            sealing.attempt,
            sealing.folder,
            batch_contents.Contents(staged.totals, staged.totals, [], None, folder),
            decisions=None,
            frozen=frozen,
            frozen_rows=None,
            recounted={},
            healed=[],
            docs_page=checked.docs_page,
            write_progress=partial(_write_progress, sealing.files, staged, missing),
        )
    )


def is_small(plan: Plan, rows: int) -> bool:
    """Return whether a plan reads at most so many rows, all of them new."""
    return (
        plan.rows <= rows
        and not plan.reread
        and not plan.holds
        and all(unit.kind == "new" for unit in plan.units)
        and sum(len(unit.slices) for unit in plan.units) <= MAX_SLICES
    )


def stage(
    views: Views, plan: Plan, files: RunFiles, folder: str, size: BucketSize, rows: int, batch_rows: int
) -> Staged | None:
    """Write the rows of a plan to files below `folder`, as scan.stage does, and sum them up.

    Args:
        views: reads the tag views.
        plan: one that is_small.
        files: of the run.
        folder: relative to their root.
        size: the view's bucket size.
        rows: that are read at most.
        batch_rows: that a file has at most.

    Returns None if there are more rows or bytes than this process reads, or if a row is damaged or lies outside its bucket.
    """
    windows, new = file_summaries.windows(plan, size), {unit.number for unit in plan.units}
    latest = from_datetime(plan.planned_at) + FUTURE_TICKS
    totals, summaries, reports = list[FileTotal](), list[pa.RecordBatch](), list[TagReport]()
    try:
        for unit, found in _read(views, plan, rows):
            for number, begin in enumerate(range(0, found.num_rows, batch_rows)):
                part = _as_batch_rows(found.slice(begin, batch_rows), unit, latest)
                if (report := _report(part, plan, unit, size)) is None:
                    return None
                name = f"part-{unit.number:05d}-{number:05d}.parquet"
                with files.create(f"{folder}/{name}") as sink:
                    pq.write_table(part, sink, **CODEC)
                of_file = part.select(COLUMNS)
                summaries.append(file_summaries.summary(of_file, name, windows))
                totals.append(file_summaries.total_of(summaries[-1], of_file, new, size))
                reports.append(report)
    except _TooMuchError:
        return None
    return Staged(
        sorted(totals, key=lambda total: (total.tag, total.unit, total.file)),
        pa.Table.from_batches(summaries, file_summaries.SUMMARY),
        tuple(_of_tags(reports)),
    )


def _read(views: Views, plan: Plan, rows: int) -> Iterator[tuple[ScanUnit, pa.Table]]:
    """Yield the rows of each unit that has any, its slices one after the other."""
    budget = {"rows": rows, "bytes": MAX_BYTES}
    selected = ", ".join(name for name in VIEW_COLUMNS if name != "tag_name")
    of_buckets = f"SELECT {selected} FROM {views.view} WHERE tag_name = ? AND timebucket "

    def read(tag: str, part: list[Slice]) -> list[pa.RecordBatch]:
        found, (first, *more) = [], part
        if more:
            pages = reader.of(f"{of_buckets}IN ?", tag, [one.timebucket for one in part])
        else:
            between = bounds(first.after, first.until)
            query = f"{of_buckets}= ? AND timestamp > ? AND timestamp <= ?"
            pages = reader.of(query, tag, first.timebucket, *between)
        for page in pages:
            budget["rows"] -= page.num_rows
            budget["bytes"] -= page.nbytes
            if min(budget.values()) < 0:
                raise _TooMuchError
            found.append(page)
        return found

    parts = [(unit, part) for unit in plan.units for part in _read_together(unit)]
    with Pages(views.cassandra) as reader, ThreadPoolExecutor(QUERIES_AT_ONCE) as pool:
        answers = pool.map(read, [unit.tag for unit, _ in parts], [part for _, part in parts])
        of_parts = zip(parts, answers, strict=True)
        for _, of_unit in groupby(of_parts, key=lambda answer: answer[0][0].number):
            of_slices = list(of_unit)
            if batches := list(chain.from_iterable(found for _, found in of_slices)):
                unit, rows_of_unit = of_slices[0][0][0], pa.Table.from_batches(batches)
                # Cassandra answers for several partitions in an order of its own; within each, rows stay in theirs.
                in_time = np.argsort(rows_of_unit["timebucket"].to_numpy(), kind="stable")
                yield unit, rows_of_unit.take(pa.array(in_time))


def _read_together(unit: ScanUnit) -> Iterator[list[Slice]]:
    """Yield the slices of a unit by queries: whole partitions together, each other part alone."""
    for whole, of_kind in groupby(unit.slices, key=lambda part: part.whole):
        parts, together = list(of_kind), BUCKETS_COUNTED if whole else 1
        for begin in range(0, len(parts), together):
            yield parts[begin : begin + together]


def _as_batch_rows(found: pa.Table, unit: ScanUnit, latest: int) -> pa.Table:
    """Return the rows of a unit as scan.as_batch_rows does, with their checksums (STAGED)."""
    count, (batch,) = found.num_rows, found.combine_chunks().to_batches()
    offsets = uuids.of_binary(batch["timestamp"])
    ticks = uuids.ticks(offsets)

    def size(name: str) -> pa.Array:
        return pc.fill_null(pc.binary_length(batch[name]), 0)

    fixed = len(unit.tag.encode()) + 100
    columns = {
        **{name: batch[name] for name in batch.schema.names},
        "unit": pa.repeat(unit.number, count),
        "tag": pa.repeat(unit.tag, count),
        "event_time": pa.array(ticks),
        "offset": uuids.text(offsets),
        "late": pa.repeat(0, count),
        "event_missing": pc.or_(batch["event"].is_null(), batch["ser_id"].is_null()),
        "offset_broken": pa.array((uuids.versions(offsets) != 1) | (ticks < 0) | (ticks > latest)),
        "size": pc.add(pc.add(size("event"), size("meta")), pc.add(size("persistence_id"), fixed)),
        "row_checksum": pa.nulls(count, pa.int64()),
    }
    for name, nothing in (("sequence_nr", 0), ("ser_id", 0), ("event", b"")):
        columns[name] = pc.fill_null(columns[name], nothing)
    for name in ("writer_uuid", "ser_manifest", "event_manifest"):
        columns[name] = pc.fill_null(columns[name], "")
    made = pa.RecordBatch.from_arrays(
        [columns[field.name].cast(field.type) for field in STAGED], schema=STAGED
    )
    checksums = pa.array(row_checksums(made, layout.COLUMNS).view(np.int64))
    at = STAGED.get_field_index("row_checksum")
    return pa.Table.from_batches([made]).set_column(at, STAGED.field(at), checksums)


def _report(rows: pa.Table, plan: Plan, unit: ScanUnit, size: BucketSize) -> TagReport | None:
    """Return what the gate judges of the rows of one file; None if a row is damaged or outside its bucket."""
    ticks, bucket = rows["event_time"].to_numpy(), rows["timebucket"].to_numpy()

    def fits(size: BucketSize) -> int:
        start, length = bucket * TICKS_PER_MILLISECOND, size.milliseconds
        inside = (ticks >= start) & (ticks < start + length * TICKS_PER_MILLISECOND)
        return int(np.count_nonzero((bucket % length == 0) & inside))

    damaged = [pc.equal(rows["persistence_id"], ""), rows["event_missing"], rows["offset_broken"]]
    damaged += [pc.less(rows[name], 1) for name in ("tag_pid_sequence_nr", "sequence_nr")]
    if any(pc.any(column).as_py() for column in damaged) or fits(size) < rows.num_rows:
        return None
    ttls = [part.ttl_seconds for part in unit.slices] + [plan.held_ttl_seconds.get(unit.tag)]
    return TagReport(
        unit.tag,
        rows.num_rows,
        null_keys=0,
        null_events=0,
        timebucket_misaligned=0,
        wrong_bucket=0,
        fits_day=fits(BucketSize.DAY),
        fits_hour=fits(BucketSize.HOUR),
        fits_minute=fits(BucketSize.MINUTE),
        first_ticks=int(ticks.min()),
        last_ticks=int(ticks.max()),
        smallest_ttl_seconds=min((ttl for ttl in ttls if ttl is not None), default=None),
    )


def _of_tags(reports: Iterable[TagReport]) -> Iterator[TagReport]:
    """Yield one report a tag, ordered by tag."""
    by_tag = itemgetter(0)
    pairs = sorted(((report.tag, report) for report in reports), key=by_tag)
    for tag, of_tag in groupby(pairs, key=by_tag):
        parts = [report for _, report in of_tag]
        ttls = [part.smallest_ttl_seconds for part in parts if part.smallest_ttl_seconds is not None]
        yield TagReport(
            tag,
            sum(part.rows for part in parts),
            null_keys=0,
            null_events=0,
            timebucket_misaligned=0,
            wrong_bucket=0,
            fits_day=sum(part.fits_day for part in parts),
            fits_hour=sum(part.fits_hour for part in parts),
            fits_minute=sum(part.fits_minute for part in parts),
            first_ticks=min(part.first_ticks for part in parts if part.first_ticks is not None),
            last_ticks=max(part.last_ticks for part in parts if part.last_ticks is not None),
            smallest_ttl_seconds=min(ttls, default=None),
        )


def missing_of_clean(
    staged: Staged, store: ProgressStore, plan: Plan, written_to: int, frozen: Iterable[Key]
) -> dict[Key, str] | None:
    """Return, by persistence_id, the numbers in progress that were never delivered, of those that have any.

    Returns None if a persistence_id is not clean (suspects.is_clean) or one of `frozen`.
    """
    order = [("tag", "ascending"), ("persistence_id", "ascending"), ("low", "ascending")]
    rows = staged.summaries.sort_by([*order, ("unit", "ascending"), ("file", "ascending")]).to_pylist()
    found = {key: list(of_key) for key, of_key in groupby(rows, itemgetter("tag", "persistence_id"))}
    if not found.keys().isdisjoint(frozen):
        return None
    known = store.progress_written(plan.pipeline, found) if not plan.first else iter([None] * len(found))
    missing = dict[Key, str]()
    for (key, files), before in zip(found.items(), known, strict=True):
        if not _is_clean(files, before, written_to):
            return None
        if before and before[0].missing:
            missing[key] = write_intervals(before[0].missing)
    return missing


def _is_clean(files: list[dict[str, int]], before: tuple[Progress, int] | None, written_to: int) -> bool:
    """Return what suspects.run_summaries and suspects.is_clean say of one persistence_id, from its summaries in
    the order of their numbers.
    """
    first = files[0]
    if before is None:
        goes_on = first["low"] == 1
    else:
        progress, written = before
        goes_on = (
            first["low"] == progress.number + 1
            and first["low_sequence_nr"] > progress.sequence_nr
            and first["low_ticks"] >= progress.ticks
            and written <= written_to
        )
    return goes_on and all(row["sound"] for row in files) and all(map(_follows, files[1:], files))


def _follows(row: dict[str, int], before: dict[str, int]) -> bool:
    return (
        row["low"] == before["high"] + 1
        and row["low_sequence_nr"] > before["high_sequence_nr"]
        and row["low_ticks"] >= before["high_ticks"]
        and (row["unit"], row["file"]) > (before["unit"], before["file"])
    )


def _write_progress(
    files: RunFiles, staged: Staged, missing: Mapping[Key, str], folder: str, numbers: Mapping[str, int]
) -> None:
    """Write the progress of each persistence_id behind each batch (progress_steps.COLUMNS)."""
    rows = staged.summaries.to_pylist()
    last = {(row["tag"], row["persistence_id"]): 0 for row in rows}
    for row in rows:
        key = row["tag"], row["persistence_id"]
        last[key] = max(last[key], row["high"])
    lines = [
        {
            "tag": row["tag"],
            "persistence_id": row["persistence_id"],
            "number": row["high"],
            "sequence_nr": row["high_sequence_nr"],
            "offset": row["high_offset"],
            "missing": missing.get(key, ""),
            "batch": numbers[row["file"]],
            "last": row["high"] == last[key],
        }
        for row in rows
        for key in [(row["tag"], row["persistence_id"])]
    ]
    with files.create(f"{folder}/part-00000.parquet") as sink:
        pq.write_table(pa.Table.from_pylist(lines, PROGRESS), sink, **CODEC)
