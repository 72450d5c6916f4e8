"""Make the reports that the quality gate judges of few rows, as tagmill.quality.report does with Spark."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pandas as pd
import pyarrow as pa

from tagmill.delivery.tag_views import new_holds, seal_outputs
from tagmill.delivery.tag_views.few_rows.judgement import Verdict
from tagmill.delivery.tag_views.few_rows.staging import StagedFile
from tagmill.delivery.tag_views.model import Plan
from tagmill.delivery.tag_views.sealing import Sealing
from tagmill.domain.time_buckets import BucketSize
from tagmill.domain.timeuuid import TICKS_PER_MILLISECOND
from tagmill.quality.model import GateVerdict, OffendingRow, TagReport
from tagmill.quality.report import combined
from tagmill.quality.suspects import Suspects

NAMED = ["tag", "persistence_id", "tag_pid_sequence_nr", "sequence_nr", "ticks", "timebucket"]


def check(sealing: Sealing, staged: Sequence[StagedFile], verdict: Verdict) -> GateVerdict:
    """Let the gate judge what was read, and return its verdict; rows that were read or held before don't count again.

    Raises DataQualityStop as Sealing.enforce does.
    """
    plan, pipeline = sealing.plan, sealing.pipeline
    read = [file for file in staged if file.is_new or plan.reread]
    names = [file.name for file in read]
    holds = new_holds.open_holds(plan, verdict.frozen)
    suspected = Suspects(pipeline.quality.named_rows, holds)
    for table in seal_outputs.dispositions(verdict.decisions, verdict.frozen_rows, names):
        suspected.add(table)
    rows = _judged(read, plan, set(holds))
    reports = combined(
        tuple(_tag_report(str(tag), of_tag, pipeline.bucket_size) for tag, of_tag in rows.groupby("tag")),
        partial(_damaged, rows, pipeline.bucket_size, pipeline.quality.named_rows),
        suspected,
        sealing.schema(),
        pipeline.bucket_size,
    )
    return sealing.enforce(reports, partial(_new_holds, plan, verdict, rows, set(holds), set(names)))


def _judged(read: Sequence[StagedFile], plan: Plan, waiting: set[tuple[str, str]]) -> pd.DataFrame:
    """Return what batch_contents.for_gate does, and for each bucket size whether a row lies in its bucket."""
    columns = [*NAMED[:4], "event_time", "timebucket", "offset_broken", "event_missing"]
    ttls = {
        unit.number: [part.ttl_seconds for part in unit.slices if part.ttl_seconds is not None]
        for unit in plan.units
        if unit.kind == "new"
    }
    frames = []
    for file in read:
        frame: pd.DataFrame = file.rows.select(columns).to_pandas()
        held = plan.held_ttl_seconds.get(file.tag)
        ttl = min([*ttls.get(file.unit, []), *([] if held is None else [held])], default=None)
        frames.append(frame.assign(file=file.name, ttl_seconds=pd.array([ttl] * len(frame), dtype="Int64")))
    rows = pd.concat(frames) if frames else pd.DataFrame(columns=[*columns, "file", "ttl_seconds"])
    waits = pd.Series(
        [key in waiting for key in zip(rows["tag"], rows["persistence_id"], strict=True)],
        rows.index,
        dtype=bool,
    )
    broken = rows["offset_broken"].astype(bool)
    numbers = (rows["tag_pid_sequence_nr"] < 1) | (rows["sequence_nr"] < 1)
    rows["bad_key"] = ((rows["persistence_id"] == "") | (rows["tag"] == "") | numbers).astype(bool) & ~waits
    rows["ticks"] = rows["event_time"].astype("Int64").mask(broken | waits)
    rows["timebucket"] = rows["timebucket"].astype("Int64").mask(waits, 0)
    for size in BucketSize:
        start = rows["timebucket"] * TICKS_PER_MILLISECOND
        inside = (rows["ticks"] >= start) & (rows["ticks"] < start + size.ticks)
        aligned = rows["timebucket"] % size.milliseconds == 0
        rows[f"fits_{size.lower()}"] = (inside & aligned).fillna(False).astype(bool)
        rows[f"aligned_{size.lower()}"] = aligned.astype(bool)
    return rows


def _tag_report(tag: str, rows: pd.DataFrame, size: BucketSize) -> TagReport:
    misaligned, outside = _damage(rows, size)
    return TagReport(
        tag,
        len(rows),
        null_keys=int(rows["bad_key"].sum()),
        null_events=int(rows["event_missing"].sum()),
        timebucket_misaligned=int(misaligned.sum()),
        wrong_bucket=int(outside.sum()),
        fits_day=int(rows["fits_day"].sum()),
        fits_hour=int(rows["fits_hour"].sum()),
        fits_minute=int(rows["fits_minute"].sum()),
        first_ticks=_number(rows["ticks"].min()),
        last_ticks=_number(rows["ticks"].max()),
        smallest_ttl_seconds=_number(rows["ttl_seconds"].min()),
    )


def _damage(rows: pd.DataFrame, size: BucketSize) -> tuple[pd.Series, pd.Series]:
    """Return which rows have a timebucket that is no start of one, and which lie outside their bucket."""
    outside = rows["ticks"].notna() & ~rows[f"fits_{size.lower()}"]
    return ~rows[f"aligned_{size.lower()}"], outside


def _number(value: Any) -> int | None:
    return None if pd.isna(value) else int(value)


def _damaged(rows: pd.DataFrame, size: BucketSize, limit: int) -> Iterator[OffendingRow]:
    """Name any `limit` rows for each kind of damage of keys and buckets."""
    misaligned, outside = _damage(rows, size)
    for reason, damaged in (
        ("null_key", rows["bad_key"]),
        ("misaligned_bucket", misaligned),
        ("wrong_bucket", outside & ~misaligned),
    ):
        named = pa.Table.from_pandas(rows[damaged].head(limit)[[*NAMED, "file"]], preserve_index=False)
        for row in named.to_pylist():
            yield OffendingRow(reason=reason, action="read", **row)


def _new_holds(
    plan: Plan, verdict: Verdict, rows: pd.DataFrame, waiting: set[tuple[str, str]], read: set[str]
) -> Iterator[dict[str, Any]]:
    """Yield what new_holds.found does."""
    held = {
        (record["tag"], record["persistence_id"]): record
        for record in verdict.records
        if record["kind"] == "held"
    }
    behind = dict.fromkeys(held, 0)
    for record in verdict.records:
        key = (record["tag"], record["persistence_id"])
        if (
            record["kind"] == "row"
            and record["action"] == "hold"
            and record["file"] not in read
            and key in behind
        ):
            behind[key] += 1
    for key, record in held.items():
        if key not in waiting:
            yield new_holds.held_record(plan, record, behind[key])
    broken = rows[rows["bad_key"]]
    for (tag, persistence_id), of_key in broken.groupby(["tag", "persistence_id"]):
        if (tag, persistence_id) not in held:
            yield new_holds.broken_record(plan, (tag, persistence_id), _number(of_key["ticks"].min()))
