"""Which partitions of a view may be deleted, and why not the others. Pure; docs/cleanup.md has the table.

A partition goes only where every guard is silent. Each guard is a function of its own; the first that speaks gives the reason.
Moments are ticks (100 ns since 1970), timebuckets milliseconds.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from tagmill.buckets import BucketSize, first_ticks
from tagmill.timeuuid import from_datetime, to_datetime


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
        """Its first tick."""
        return first_ticks(self.timebucket)

    @property
    def end(self) -> int:
        """The first tick behind it."""
        return self.begin + self.size.ticks


@dataclass(frozen=True, slots=True)
class Held:
    """Timebuckets first to last (milliseconds) that an open hold may still find rows in."""

    first: int
    last: int
    persistence_id: str


@dataclass(frozen=True, slots=True)
class Delivered:
    """How a pipeline stands with a tag.

    start: where its delivery begins; needs_from: from here on runs read again (None: no watermark yet); holds: disjoint, in order;
    open_run: the run that is not finished: one that withdraws batches is to find their events in the view.
    """

    pipeline: str
    start: int
    needs_from: int | None
    holds: Sequence[Held] = ()
    open_run: int | None = None


@dataclass(frozen=True, slots=True)
class ReadTo:
    """How far another reader of the view is with a tag: everything up to `ticks`; None: that can't be told, `why` says why."""

    name: str
    ticks: int | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class TagState:
    """What is known of a tag before any of its partitions is looked at.

    cleaning: the pipeline that cleans; others: those that deliver the tag from the same journal; readers: None if not stated.
    """

    cleaning: Delivered
    others: Sequence[Delivered] = ()
    readers: Sequence[ReadTo] | None = None

    def must_prove(self, bucket: Bucket) -> list[str]:
        """Pipelines whose audit has to agree: all that are to deliver the bucket."""
        return [self.cleaning.pipeline, *(one.pipeline for one in self.others if one.start < bucket.end)]


@dataclass(frozen=True, slots=True)
class Proof:
    """What a pipeline's newest audit says of a partition: its rows, and whether all of them are in ClickHouse and nothing is missing."""

    audited_at: datetime
    rows: int
    agrees: bool


@dataclass(frozen=True, slots=True)
class Now:
    """What a partition holds now.

    newest_write: microseconds since 1970; in_clickhouse: rows by pipeline; cleaned: rows that earlier cleanups deleted of it.
    """

    rows: int
    newest_write: int
    in_clickhouse: dict[str, int] = field(default_factory=dict)
    cleaned: int = 0


def limit(now: datetime, older_than_days: int) -> int:
    """Partitions that end at or before this tick are candidates."""
    return from_datetime(now) - older_than_days * 86_400 * 10_000_000


def refused_by_tag(bucket: Bucket, state: TagState) -> Refusal | None:
    """What is known of the tag and forbids it, before anything is asked about the partition itself."""
    return refused_by_readers(bucket, state.readers) or _deliveries(bucket, state)


def refused_by_audit(bucket: Bucket, state: TagState, proofs: dict[str, Proof]) -> Refusal | None:
    """What the newest audits of all pipelines that deliver the partition say."""
    for pipeline in state.must_prove(bucket):
        proof = proofs.get(pipeline)
        if proof is None:
            return Refusal(
                Reason.NOT_AUDITED, f"no audit of pipeline {pipeline} has proven it; run: tagmill audit --pipeline {pipeline}"
            )
        if not proof.agrees:
            return Refusal(
                Reason.AUDIT_DISAGREES, f"the audit of pipeline {pipeline} of {proof.audited_at:%Y-%m-%d %H:%M} does not agree"
            )
    return None


def refused_by_rows(proofs: dict[str, Proof], now: Now) -> Refusal | None:
    """Whether the partition is still what the audits saw, and ClickHouse still has it."""
    for pipeline, proof in proofs.items():
        if now.rows != proof.rows:
            return Refusal(
                Reason.CHANGED, f"it has {now.rows} rows, the audit of pipeline {pipeline} saw {proof.rows}; audit again"
            )
        if now.newest_write > microseconds(proof.audited_at):
            return Refusal(Reason.CHANGED, f"rows were written after the audit of pipeline {pipeline}; audit again")
    return refused_by_clickhouse({pipeline: now.in_clickhouse.get(pipeline, 0) for pipeline in proofs}, now.rows + now.cleaned)


def refused_by_clickhouse(in_clickhouse: Mapping[str, int], wanted: int) -> Refusal | None:
    """Whether ClickHouse has all rows of a partition, by pipeline."""
    for pipeline, found in in_clickhouse.items():
        if found < wanted:
            return Refusal(
                Reason.NOT_IN_CLICKHOUSE, f"ClickHouse has {found} of its {wanted} rows for pipeline {pipeline}; audit again"
            )
    return None


def delete_up_to(proofs: dict[str, Proof]) -> datetime:
    """Writes up to this moment are deleted: the oldest audit's, so that what came after any of them survives."""
    return min(proof.audited_at for proof in proofs.values())


def microseconds(moment: datetime) -> int:
    """What USING TIMESTAMP and WRITETIME count in."""
    return from_datetime(moment) // 10


def merged(holds: Iterable[Held]) -> list[Held]:
    """Disjoint ranges in order that cover the same buckets; each names one of its persistence ids."""
    result: list[Held] = []
    for one in sorted(holds, key=lambda held: held.first):
        if result and one.first <= result[-1].last:
            known = result[-1]
            result[-1] = Held(known.first, max(known.last, one.last), known.persistence_id)
        else:
            result.append(one)
    return result


def refused_by_readers(bucket: Bucket, readers: Sequence[ReadTo] | None) -> Refusal | None:
    """What other readers still need: one bucket more, for they go back to the start of the bucket before the one that they stand in."""
    if readers is None:
        return Refusal(
            Reason.READERS_NOT_STATED,
            "it is not stated who else reads this view: set cleanup.other_readers (to [] if nobody does)",
        )
    for reader in readers:
        if reader.ticks is None:
            return Refusal(Reason.READER_BEHIND, f"reader {reader.name}: {reader.why}")
        if reader.ticks < bucket.end + bucket.size.ticks:
            return Refusal(Reason.READER_BEHIND, f"reader {reader.name} has read to {_moment(reader.ticks)} only")
    return None


def _deliveries(bucket: Bucket, state: TagState) -> Refusal | None:
    if bucket.begin < state.cleaning.start:
        return Refusal(
            Reason.BEFORE_START, f"pipeline {state.cleaning.pipeline} begins at {_moment(state.cleaning.start)}: never delivered"
        )
    for one in (state.cleaning, *state.others):
        if one.start >= bucket.end:
            continue
        if refused := still_read(bucket, one):
            return refused
        if held := _held(bucket, one.holds):
            return Refusal(
                Reason.HELD, f"pipeline {one.pipeline} holds {held.persistence_id!r}, whose missing rows may lie in it"
            )
    return None


def still_read(bucket: Bucket, one: Delivered) -> Refusal | None:
    """Whether runs of a pipeline read the bucket again."""
    if one.open_run is not None:
        return Refusal(Reason.STILL_READ, f"run {one.open_run} of pipeline {one.pipeline} is not finished")
    if one.needs_from is None or bucket.end > one.needs_from:
        there = "has no watermark" if one.needs_from is None else f"reads again from {_moment(one.needs_from)} on"
        return Refusal(Reason.STILL_READ, f"pipeline {one.pipeline} {there}")
    return None


def _held(bucket: Bucket, holds: Sequence[Held]) -> Held | None:
    at = bisect_right(holds, bucket.timebucket, key=lambda held: held.first) - 1
    return holds[at] if at >= 0 and holds[at].last >= bucket.timebucket else None


def _moment(ticks: int) -> str:
    return f"{to_datetime(ticks):%Y-%m-%d %H:%M:%S}Z"


def past_retention(is_open: bool, finished_at: datetime | None, before: datetime) -> bool:
    """Whether a run or an audit may go by its age; one that is under way never."""
    return not is_open and finished_at is not None and finished_at < before
