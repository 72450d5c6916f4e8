"""Decides which partitions of a view may be deleted, and why the others stay.

Pure; docs/cleanup.md has the table.

Each guard is a function that returns a Refusal or None. A partition is deleted only if all of them return
None; the first Refusal gives the reason. Moments are ticks (100 ns since 1970), timebuckets milliseconds.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from tagmill.domain.time_buckets import BucketSize, first_ticks
from tagmill.domain.timeuuid import from_datetime, to_datetime


class Reason(StrEnum):
    """Why a partition stays; the value is the word in JSON and docs."""

    READERS_NOT_STATED = "readers_not_stated"
    READER_BEHIND = "reader_behind"
    BEFORE_START = "before_start"
    STILL_READ = "still_read"
    HELD = "held"
    NOT_AUDITED = "not_audited"
    AUDIT_DISAGREES = "audit_disagrees"
    CHANGED = "changed"
    NOT_IN_CLICKHOUSE = "not_in_clickhouse"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why one partition stays, in a word and in a sentence."""

    reason: Reason
    text: str


@dataclass(frozen=True, slots=True)
class Bucket:
    """One partition of the view."""

    tag: str
    timebucket: int
    size: BucketSize

    @property
    def begin(self) -> int:
        """First tick of the bucket."""
        return first_ticks(self.timebucket)

    @property
    def end(self) -> int:
        """First tick after the bucket."""
        return self.begin + self.size.ticks


@dataclass(frozen=True, slots=True)
class Held:
    """Timebuckets from first to last (milliseconds) in which an open hold may still find rows."""

    first: int
    last: int
    persistence_id: str


@dataclass(frozen=True, slots=True)
class Delivered:
    """Delivery state of one tag in one pipeline.

    start: where its delivery begins. needs_from: from here on runs read again (None: no watermark yet).
    holds: disjoint, in order.
    open_run: the run that is not finished; one that withdraws batches needs their events in the view.
    """

    pipeline: str
    start: int
    needs_from: int | None
    holds: Sequence[Held] = ()
    open_run: int | None = None


@dataclass(frozen=True, slots=True)
class ReadTo:
    """How far another reader of the view has read a tag: everything up to `ticks`; None: unknown, and `why`
    gives the reason.
    """

    name: str
    ticks: int | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class TagState:
    """What is known of a tag before any of its partitions is examined.

    cleaning: the pipeline that cleans; others: those that deliver the tag from the same journal; readers:
    None if not stated.
    """

    cleaning: Delivered
    others: Sequence[Delivered] = ()
    readers: Sequence[ReadTo] | None = None

    def must_prove(self, bucket: Bucket) -> list[str]:
        """Return the pipelines whose audits must agree: all that deliver the bucket."""
        return [self.cleaning.pipeline, *(one.pipeline for one in self.others if one.start < bucket.end)]


@dataclass(frozen=True, slots=True)
class Proof:
    """Result of a pipeline's newest audit of a partition: its rows, and whether ClickHouse has all of them
    and nothing is missing.
    """

    audited_at: datetime
    rows: int
    agrees: bool


@dataclass(frozen=True, slots=True)
class Now:
    """Current content of a partition.

    newest_write: microseconds since 1970; in_clickhouse: rows by pipeline; cleaned: rows that earlier
    cleanups deleted of it.
    """

    rows: int
    newest_write: int
    in_clickhouse: dict[str, int] = field(default_factory=dict)
    cleaned: int = 0


def limit(now: datetime, older_than_days: int) -> int:
    """Return the tick at or before which a partition must end to be a candidate for deletion."""
    return from_datetime(now) - older_than_days * 86_400 * 10_000_000


def refused_by_tag(bucket: Bucket, state: TagState) -> Refusal | None:
    """Return a refusal if the tag's readers or deliveries forbid deleting the bucket; the partition itself is
    not read.
    """
    return refused_by_readers(bucket, state.readers) or _deliveries(bucket, state)


def refused_by_audit(bucket: Bucket, state: TagState, proofs: dict[str, Proof]) -> Refusal | None:
    """Return a refusal if a pipeline that delivers the bucket has no audit of it, or its newest audit
    disagrees.
    """
    for pipeline in state.must_prove(bucket):
        proof = proofs.get(pipeline)
        if proof is None:
            return Refusal(
                Reason.NOT_AUDITED,
                f"no audit of pipeline {pipeline} has proven it; run: tagmill audit --pipeline {pipeline}",
            )
        if not proof.agrees:
            return Refusal(
                Reason.AUDIT_DISAGREES,
                f"the audit of pipeline {pipeline} of {proof.audited_at:%Y-%m-%d %H:%M} does not agree",
            )
    return None


def refused_by_rows(proofs: dict[str, Proof], now: Now) -> Refusal | None:
    """Return a refusal if the partition has changed since its audits, or ClickHouse no longer has all of its
    rows.
    """
    for pipeline, proof in proofs.items():
        if now.rows != proof.rows:
            return Refusal(
                Reason.CHANGED,
                f"it has {now.rows} rows, the audit of pipeline {pipeline} saw {proof.rows}; audit again",
            )
        if now.newest_write > microseconds(proof.audited_at):
            return Refusal(
                Reason.CHANGED, f"rows were written after the audit of pipeline {pipeline}; audit again"
            )
    return refused_by_clickhouse(
        {pipeline: now.in_clickhouse.get(pipeline, 0) for pipeline in proofs}, now.rows + now.cleaned
    )


def refused_by_clickhouse(in_clickhouse: Mapping[str, int], wanted: int) -> Refusal | None:
    """Return a refusal if ClickHouse has fewer than the `wanted` rows of a partition for any pipeline."""
    for pipeline, found in in_clickhouse.items():
        if found < wanted:
            return Refusal(
                Reason.NOT_IN_CLICKHOUSE,
                f"ClickHouse has {found} of its {wanted} rows for pipeline {pipeline}; audit again",
            )
    return None


def delete_up_to(proofs: dict[str, Proof]) -> datetime:
    """Return the moment up to which writes are deleted: that of the oldest audit, so that rows written after
    any audit survive.
    """
    return min(proof.audited_at for proof in proofs.values())


def microseconds(moment: datetime) -> int:
    """Return a moment in microseconds since 1970, the unit of USING TIMESTAMP and WRITETIME."""
    return from_datetime(moment) // 10


def merged(holds: Iterable[Held]) -> list[Held]:
    """Merge holds into disjoint ranges in order that cover the same buckets; each range names one of its
    persistence ids.
    """
    result: list[Held] = []
    for one in sorted(holds, key=lambda held: held.first):
        if result and one.first <= result[-1].last:
            known = result[-1]
            result[-1] = Held(known.first, max(known.last, one.last), known.persistence_id)
        else:
            result.append(one)
    return result


def refused_by_readers(bucket: Bucket, readers: Sequence[ReadTo] | None) -> Refusal | None:
    """Return a refusal if the other readers are not stated, or one of them may still need the bucket.

    A reader must be one more bucket ahead, since readers go back to the start of the bucket before their
    current one.
    """
    if readers is None:
        return Refusal(
            Reason.READERS_NOT_STATED,
            "it is not stated who else reads this view: set cleanup.other_readers (to [] if nobody does)",
        )
    for reader in readers:
        if reader.ticks is None:
            return Refusal(Reason.READER_BEHIND, f"reader {reader.name}: {reader.why}")
        if reader.ticks < bucket.end + bucket.size.ticks:
            return Refusal(
                Reason.READER_BEHIND, f"reader {reader.name} has read to {_moment(reader.ticks)} only"
            )
    return None


def _deliveries(bucket: Bucket, state: TagState) -> Refusal | None:
    if bucket.begin < state.cleaning.start:
        return Refusal(
            Reason.BEFORE_START,
            f"pipeline {state.cleaning.pipeline} begins at {_moment(state.cleaning.start)}: never delivered",
        )
    for one in (state.cleaning, *state.others):
        if one.start >= bucket.end:
            continue
        if refused := still_read(bucket, one):
            return refused
        if held := _held(bucket, one.holds):
            return Refusal(
                Reason.HELD,
                f"pipeline {one.pipeline} holds {held.persistence_id!r}, whose missing rows may lie in it",
            )
    return None


def still_read(bucket: Bucket, progress: Delivered) -> Refusal | None:
    """Return a refusal if runs of the pipeline read the bucket again.

    They do while a run is open, without a watermark, or if needs_from lies before the bucket's end.
    """
    if progress.open_run is not None:
        return Refusal(
            Reason.STILL_READ, f"run {progress.open_run} of pipeline {progress.pipeline} is not finished"
        )
    if progress.needs_from is None or bucket.end > progress.needs_from:
        there = (
            "has no watermark"
            if progress.needs_from is None
            else f"reads again from {_moment(progress.needs_from)} on"
        )
        return Refusal(Reason.STILL_READ, f"pipeline {progress.pipeline} {there}")
    return None


def _held(bucket: Bucket, holds: Sequence[Held]) -> Held | None:
    at = bisect_right(holds, bucket.timebucket, key=lambda held: held.first) - 1
    return holds[at] if at >= 0 and holds[at].last >= bucket.timebucket else None


def _moment(ticks: int) -> str:
    return f"{to_datetime(ticks):%Y-%m-%d %H:%M:%S}Z"


def past_retention(is_open: bool, finished_at: datetime | None, before: datetime) -> bool:
    """Return True if a run or an audit finished before the moment `before`; an open one never is past
    retention.
    """
    return not is_open and finished_at is not None and finished_at < before
