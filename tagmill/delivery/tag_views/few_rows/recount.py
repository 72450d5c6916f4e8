"""Count what open holds keep back if rows may have come late to them, as tagmill.delivery.tag_views.held_row_counts does."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tagmill.delivery.tag_views.few_rows.judgement import Verdict, was_delivered
from tagmill.delivery.tag_views.few_rows.staging import StagedFile
from tagmill.delivery.tag_views.holds import gap_buckets
from tagmill.delivery.tag_views.judge import Key
from tagmill.delivery.tag_views.look_back import HOUR_TICKS
from tagmill.delivery.tag_views.sealing import Sealing
from tagmill.domain.continuity.model import Row
from tagmill.domain.timeuuid import TICKS_PER_MILLISECOND
from tagmill.domain.timeuuid import ticks as ticks_of
from tagmill.ledger.progress import HoldRow, Watermark

# Buckets of single persistence_ids that this process reads for one run; Spark counts more.
MAX_BUCKETS = 2000


def recounted(sealing: Sealing, staged: Sequence[StagedFile], verdict: Verdict) -> dict[Key, int] | None:
    """Return the number of held rows of each hold to which rows may have come late; None if they are left to Spark."""
    if verdict.frozen_rows is None or sealing.plan.first:
        return {}
    marks = sealing.ledger.delivered.watermarks(sealing.plan.pipeline)
    late = {
        (row["tag"], row["persistence_id"])
        for tag in sealing.plan.tags
        for row in _may_be_late(sealing, staged, verdict.frozen_rows.table, tag, marks.get(tag))
    }
    holds = [hold for hold in verdict.frozen if (hold.tag, hold.persistence_id) in late]
    return _counted(sealing, holds, {tag: mark.ticks for tag, mark in marks.items()})


def _may_be_late(
    sealing: Sealing, staged: Sequence[StagedFile], held: pa.Table, tag: str, mark: Watermark | None
) -> Iterator[dict[str, Any]]:
    """Yield the held rows of a tag that may have come late: they were read again from where the view has other rows than
    when it was last read.
    """
    plan, span = sealing.plan, sealing.plan.tags[tag]
    rows = held.filter(pc.field("tag") == tag).to_pylist()
    if plan.reread or tag in plan.filled_tags or span.back_from is not None:
        yield from rows
        return
    hours = {hour.begin * TICKS_PER_MILLISECOND for hour in plan.look_back.get(tag, [])}
    window = mark if mark and _has_other_rows(sealing, staged, mark) else None
    for row in rows:
        ticks = row["event_time"]
        in_window = window is not None and window.window_from < ticks <= window.ticks
        if not row["is_new"] and (ticks - ticks % HOUR_TICKS in hours or in_window):
            yield row


def _has_other_rows(sealing: Sealing, staged: Sequence[StagedFile], mark: Watermark) -> bool:
    """Return whether a tag's look-back window holds another number of rows than when a run left it."""
    first = sealing.pipeline.bucket_size.start(max(mark.window_from, 0))
    ticks, bucket = pc.field("event_time"), pc.field("timebucket")
    of_window = (ticks > mark.window_from) & (ticks <= mark.ticks) & (bucket >= first)
    again = (file.rows for file in staged if file.tag == mark.tag and not file.is_new)
    return bool(sum(rows.filter(of_window).num_rows for rows in again) != mark.window_rows)


def _counted(sealing: Sealing, holds: Sequence[HoldRow], marks: dict[str, int]) -> dict[Key, int] | None:
    """Count the undelivered rows of each hold from its gap to the watermark that the run leaves behind."""
    plan, size = sealing.plan, sealing.pipeline.bucket_size
    keys = [(hold.tag, hold.persistence_id) for hold in holds]
    known = list(sealing.ledger.delivered.progress(plan.pipeline, keys))
    spans = []
    for hold, progress in zip(holds, known, strict=True):
        span = plan.tags[hold.tag]
        until = span.until if plan.moves_watermark else marks.get(hold.tag, span.after)
        first = gap_buckets(size, progress, hold, sealing.pipeline.start_ticks(hold.tag))[0]
        spans.append((range(first, max(first, size.start(until)) + 1, size.milliseconds), until))
    if sum(len(buckets) for buckets, _ in spans) > MAX_BUCKETS:
        return None
    found = dict.fromkeys(keys, 0)
    for key, progress, (buckets, until) in zip(keys, known, spans, strict=True):
        for number, sequence_nr, offset, _ in sealing.views.numbers(*key, buckets):
            if ticks_of(offset) <= until:
                row = Row(number, sequence_nr or 0, ticks_of(offset), str(offset), "")
                found[key] += not was_delivered(row, progress)
    return found
