"""Inputs of plans: an hourly view whose first bucket begins at START, planned at NOW with a delay of a minute."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from tagmill.config.tag_views import PipelineSettings
from tagmill.delivery.tag_views.look_back import part_of
from tagmill.delivery.tag_views.model import Plan, Slice
from tagmill.delivery.tag_views.plan import Part, PlanInputs
from tagmill.domain.time_buckets import BucketSize, first_ticks
from tagmill.domain.timeuuid import from_datetime
from tagmill.ledger.progress import Watermark

START = datetime(2026, 5, 1, tzinfo=UTC)
NOW = START + timedelta(hours=24)
DELAY = timedelta(minutes=1)
UNTIL = from_datetime(NOW - DELAY)
SIZE = BucketSize.HOUR
BEFORE = from_datetime(START) - 1


def at(hours: float) -> int:
    """Return the tick so many hours after START."""
    return from_datetime(START + timedelta(hours=hours))


def bucket(hour: int) -> int:
    """Return the timebucket of an hour after START."""
    return SIZE.start(at(hour))


def whole(hour: int, rows: int = 1, tag: str = "t") -> Part:
    """Return the slice of a whole hour."""
    return tag, Slice(timebucket=bucket(hour), rows=rows)


def pipeline(**changes: Any) -> PipelineSettings:
    """Return the settings of a pipeline of one tag, `t`."""
    fields: dict[str, Any] = {
        "keyspace": "k",
        "bucket_size": "Hour",
        "tags": ["t"],
        "first_time_bucket": START,
        "destination": "d",
        "eventual_consistency_delay_seconds": DELAY.total_seconds(),
    }
    return PipelineSettings(**{**fields, **changes})


def mark(hours: float, tag: str = "t", **changes: Any) -> Watermark:
    """Return a watermark whose look-back window is empty, and whose long look was just now."""
    fields: dict[str, Any] = {
        "run": 1,
        "window_from": at(hours),
        "window_rows": 0,
        "long_look_at": NOW,
        "delivered": 0,
        "batches": 0,
    }
    return Watermark(tag=tag, ticks=at(hours), **{**fields, **changes})


def inputs(*marks: Watermark, settings: PipelineSettings | None = None, **changes: Any) -> PlanInputs:
    """Return the inputs of a run that has nothing to do, with changes."""
    chosen = settings or pipeline()
    fields: dict[str, Any] = {
        "name": "p",
        "run": 2 if marks else 1,
        "tags": chosen.tags,
        "now": NOW,
        "back_from": {},
        "built": None,
        "view_columns": {"event": "blob"},
        "window_rows": [(known, known.window_rows) for known in marks],
    }
    return PlanInputs(pipeline=chosen, marks={known.tag: known for known in marks}, **{**fields, **changes})


def slices_of(rows: Iterable[tuple[str, int]], after: int, until: int) -> list[Part]:
    """Return, in time order, the slices with rows (tag, tick) between two ticks, counted."""
    inside = sorted((SIZE.start(tick), tag) for tag, tick in rows if after < tick <= until)
    parts = []
    for (timebucket, tag), group in groupby(inside):
        part = part_of(SIZE, timebucket, after, until)
        assert part is not None
        parts.append((tag, part.model_copy(update={"rows": len(list(group))})))
    return parts


def times_read(plan: Plan, row: tuple[str, int], kind: str) -> int:
    """Return how many slices of units of a kind have a row (tag, tick)."""
    tag, tick = row
    return sum(
        first_ticks(part.timebucket) <= tick < first_ticks(part.timebucket) + SIZE.ticks
        and (part.after is None or part.after < tick)
        and (part.until is None or tick <= part.until)
        for unit in plan.units
        if (unit.tag, unit.kind) == (tag, kind)
        for part in unit.slices
    )
