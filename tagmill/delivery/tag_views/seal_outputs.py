"""Write what a sealed run leaves besides its batches: the manifest, new progress, holds, and rows that repair
the view.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial, reduce
from itertools import groupby, islice
from operator import or_
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tagmill.config.tag_views import PipelineSettings
from tagmill.delivery.tag_views import batch_contents
from tagmill.delivery.tag_views.file_summaries import FileTotal
from tagmill.delivery.tag_views.gap_evidence import MAX_GAPS, Backfilled
from tagmill.delivery.tag_views.holds import WAIT_FOR_NUMBERS
from tagmill.delivery.tag_views.judge import FROM_JOURNAL, Key
from tagmill.delivery.tag_views.look_back import HOUR_TICKS
from tagmill.delivery.tag_views.model import HoldRecheck, HourRows, Manifest, Plan, TagOutcome, TagRange
from tagmill.delivery.tag_views.staged_rows import as_batch_rows
from tagmill.delivery.tag_views.suspects import KEY
from tagmill.delivery.tag_views.working_rows import KeptRows, counts
from tagmill.domain.continuity.model import FirstSeen, Gap, Policy
from tagmill.domain.documents import Batch
from tagmill.domain.timeuuid import TICKS_PER_MILLISECOND, TICKS_PER_SECOND, from_datetime
from tagmill.journal.tag_view_reader import VIEW_COLUMNS
from tagmill.ledger.progress import HoldRow
from tagmill.runs.storage import RunFiles

DELIVERED = ("deliver", "late")
# Columns of a decision that describe a gap, in the order of Gap.
GAP = ("tag_pid_sequence_nr", "last_missing", "after_sequence_nr", "before_sequence_nr")
# The reason in the manifest's findings for a gap whose events the application has deleted; all other reasons
# are those of rows.
GAP_CLOSED = "hole_closed"
_NUMBERS = (
    "first_missing",
    "last_missing",
    "after_sequence_nr",
    "before_sequence_nr",
    "from_ticks",
    "held_rows",
    "since_run",
)
# Schema of a run's file of holds; `ended` marks a hold that is over.
HOLD_SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("tag", "persistence_id", "reason")]
    + [(name, pa.int64()) for name in _NUMBERS]
    + [("since", pa.timestamp("us", tz="UTC")), ("seen", pa.string()), ("ended", pa.bool_())]
)


@dataclass(frozen=True, slots=True)
class SealInputs:
    """Everything that the manifest is made of.

    `write_progress` writes progress to a folder; it gets the batches' numbers by staged file or 'stream/cut'.
    """

    files: RunFiles
    plan: Plan
    pipeline: PipelineSettings
    attempt: str
    folder: str
    contents: batch_contents.Contents
    decisions: KeptRows | None
    frozen: list[HoldRow]
    frozen_rows: KeptRows | None
    recounted: Mapping[Key, int]
    backfilled: list[Backfilled]
    docs_page: str
    write_progress: Callable[[str, Mapping[str, int]], None]


def policy(pipeline: PipelineSettings, plan: Plan, tag: str) -> Policy:
    """Return the rules' policy for one tag, from the pipeline's settings and the plan."""
    size, span = pipeline.bucket_size, plan.tags[tag]
    return Policy(
        FirstSeen(pipeline.first_seen),
        from_datetime(plan.planned_at),
        int(pipeline.gap_timeout_seconds * TICKS_PER_SECOND),
        pipeline.max_missing_to_search,
        size.start(span.after + 1) < size.start(from_datetime(plan.planned_at)),
    )


def gaps(decisions: KeptRows) -> Iterator[tuple[Key, Gap]]:
    """Yield the gaps that a judgement found, at most MAX_HOLES; the others wait for another run."""
    for row in islice(_of_kind(decisions, "hole", *GAP), MAX_GAPS):
        yield (row["tag"], row["persistence_id"]), gap(row)


def _of_kind(
    decisions: KeptRows | None, kind: str, *columns: str, where: pc.Expression | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the key and these columns of the decisions of one kind, those that satisfy `where`."""
    if decisions is None:
        return
    of_kind = pc.field("kind") == kind
    for table in decisions.tables(["kind", *KEY, *columns], of_kind if where is None else of_kind & where):
        yield from table.to_pylist()


def gap(row: Mapping[str, Any]) -> Gap:
    """Return the gap that a decision (judge.JUDGED_SCHEMA) describes."""
    return Gap(*(row[name] for name in GAP))


def flag_late(decisions: DataFrame, plan: Plan) -> DataFrame:
    """Flag as late what is delivered from hours that are read again because rows came late, unless a hold
    kept it back.
    """
    if not plan.look_back:
        return decisions
    held: dict[str, list[str]] = {}
    for look in plan.holds:
        held.setdefault(look.tag, []).append(look.persistence_id)
    hours = {
        tag: [hour.begin * TICKS_PER_MILLISECOND for hour in of_tag] for tag, of_tag in plan.look_back.items()
    }
    begin = F.col("ticks") - F.pmod(F.col("ticks"), F.lit(HOUR_TICKS))
    from_hour = [
        (F.col("tag") == tag) & begin.isin(begins) & ~F.col("persistence_id").isin(held.get(tag, []))
        for tag, begins in hours.items()
    ]
    is_late = (F.col("kind") == "row") & (F.col("action") == "deliver") & reduce(or_, from_hour)
    return decisions.withColumn("action", F.when(is_late, F.lit("late")).otherwise(F.col("action")))


def deliveries(decisions: DataFrame) -> DataFrame:
    """Return the judged rows that go to ClickHouse."""
    return decisions.where((F.col("kind") == "row") & F.col("action").isin(*DELIVERED))


def dispositions(
    decisions: KeptRows | None, frozen_rows: KeptRows | None, files: list[str]
) -> Iterator[pa.Table]:
    """Yield the rows that the gate counts by action and reason, as tagmill.quality.suspects takes them.

    These are judged rows of these files and of the journal, without those that are simply next or already
    delivered, and rows read of holds that wait.
    """
    columns = (*KEY, "tag_pid_sequence_nr", "sequence_nr", "timebucket", "reason", "file")
    read_now = pc.field("file").isin([*files, FROM_JOURNAL])
    if decisions is not None:
        judged = (pc.field("kind") == "row") & ~pc.field("reason").isin(["next", "already_delivered"])
        yield from decisions.tables([*columns, "ticks", "action", "kind"], judged & read_now)
    if frozen_rows is not None:
        for table in frozen_rows.tables([*columns, "event_time"], read_now):
            hold = pa.repeat("hold", table.num_rows)
            yield table.append_column("ticks", table["event_time"]).append_column("action", hold)


def manifest(sealed: SealInputs) -> Manifest:
    """Write progress, holds and repairs, and return the manifest that names them with their digests."""
    plan = sealed.plan
    batches, numbers = _batches(sealed)
    progress_file, holds_file, repairs_file = (
        f"{sealed.folder}/{name}" for name in ("progress", "holds.parquet", "repairs.parquet")
    )
    sealed.write_progress(progress_file, numbers)
    _write_holds(sealed, holds_file)
    _write_repairs(sealed, repairs_file)
    parts = sealed.files.parquet(progress_file)
    counts = _counts(sealed)
    oldest = oldest_hour(plan.planned_at, sealed.pipeline.look_back_windows_seconds)
    return Manifest(
        pipeline=plan.pipeline,
        run=plan.run,
        sealed_at=datetime.now(UTC),
        attempt=sealed.attempt,
        generation=1,
        moves_watermark=plan.moves_watermark,
        tags={
            tag: tag_outcome(span, tag, batches, counts, sealed.contents.totals, oldest)
            for tag, span in plan.tags.items()
        },
        batches=batches,
        findings=findings(counts),
        progress_file=progress_file,
        holds_file=holds_file,
        repairs_file=repairs_file,
        sha256={file: sealed.files.digest(file)[1] for file in (*parts, holds_file, repairs_file)},
        docs_page=sealed.docs_page,
        more=plan.more,
    )


def _batches(sealed: SealInputs) -> tuple[list[Batch], dict[str, int]]:
    """Return the batches in the order in which they are pushed, and their numbers by staged file or
    'stream/cut'.
    """
    plan = sealed.plan
    entries = in_push_order(sealed.contents)
    with ThreadPoolExecutor(2) as pool:
        digests = list(pool.map(sealed.files.digest, [file for file, _, _ in entries]))
        offsets = list(pool.map(partial(_offsets, sealed.files), [file for file, _, _ in entries]))
    batches, numbers = [], {}
    for number, (entry, (size, sha256), (first_offset, last_offset)) in enumerate(
        zip(entries, digests, offsets, strict=True), start=1
    ):
        file, total, judged = entry
        numbers[
            f"{total.stream}/{total.cut}" if isinstance(total, batch_contents.CutTotal) else total.file
        ] = number
        batches.append(
            Batch(
                number=number,
                batch_id=str(uuid5(NAMESPACE_URL, f"tagmill:{plan.pipeline}/{plan.run}/{number}/{sha256}")),
                tag=total.tag,
                file=file,
                rows=total.rows,
                bytes=size,
                sha256=sha256,
                checksum=total.checksum % 2**64,
                first_offset=first_offset,
                last_offset=last_offset,
                mended=judged,
            )
        )
    return batches, numbers


def in_push_order(
    contents: batch_contents.Contents,
) -> list[tuple[str, FileTotal | batch_contents.CutTotal, bool]]:
    """Return file, totals and whether its rows are judged of each batch, in the order of the push.

    Within a tag, staged files come in the order of their units, and batches of judged rows last.
    """
    staged: list[tuple[tuple[str, tuple[int, int, str, int]], FileTotal | batch_contents.CutTotal]] = [
        ((total.tag, (0, total.unit, total.file, 0)), total) for total in contents.as_they_are
    ]
    cuts = [((cut.tag, cut.order), cut) for cut in contents.cuts]
    ordered = sorted([*staged, *cuts], key=lambda entry: entry[0])
    return [
        (total.file, total, total.stream >= batch_contents.JUDGED_STREAMS)
        if isinstance(total, batch_contents.CutTotal)
        else (f"{contents.staged_folder}/{total.file}", total, False)
        for _, total in ordered
    ]


def _offsets(files: RunFiles, file: str) -> tuple[str, str]:
    """Return the first and the last offset of a batch's file."""
    with files.open(file) as source:
        parquet = pq.ParquetFile(source)
        first = parquet.read_row_group(0, columns=["offset"])["offset"][0]
        last = parquet.read_row_group(parquet.num_row_groups - 1, columns=["offset"])["offset"][-1]
        return str(first), str(last)


def _write_holds(sealed: SealInputs, file: str) -> None:
    """Write open holds (ended = false) and holds that are over, one row each."""
    looks = {(look.tag, look.persistence_id): look for look in sealed.plan.holds}
    rows = []
    held: set[Key] = set()
    for row in _of_kind(sealed.decisions, "held", "reason", *GAP, "ticks", "held_rows"):
        key = (row["tag"], row["persistence_id"])
        held.add(key)
        hold = judged_hold(
            sealed.plan, looks.get(key), key, row["reason"], gap(row), row["ticks"], row["held_rows"]
        )
        rows.append(hold_record(hold))
    gone = sorted(set(looks) - held)
    of_gone = pc.field("persistence_id").isin([persistence_id for _, persistence_id in gone])
    judged = counts(sealed.decisions, ["kind", *KEY], (pc.field("kind") == "row") & of_gone) if gone else ()
    rows += [no_longer_held(sealed.plan, looks[key], judged=("row", *key) in judged) for key in gone]
    rows += _holds_that_grew(sealed)
    _write_table(sealed.files, file, pa.Table.from_pylist(rows, schema=HOLD_SCHEMA))


def judged_hold(
    plan: Plan,
    before: HoldRecheck | None,
    key: Key,
    reason: str,
    gap: Gap,
    from_ticks: int,
    held_rows: int,
) -> HoldRow:
    """Return the hold of a persistence_id that a run has judged.

    Its age goes on if it waits for the same first number as `before`. A new hold has no fingerprint, so the
    next plan looks at it.
    """
    same = before is not None and before.first_missing == gap.first
    return HoldRow(
        *key,
        reason,
        gap,
        from_ticks,
        held_rows,
        before.since_run if before and same else plan.run,
        before.since if before and same else plan.planned_at,
        before.seen if before else "",
    )


def no_longer_held(plan: Plan, look: HoldRecheck, *, judged: bool) -> dict[str, Any]:
    """Return the record of a hold that keeps no row back: it is over if rows of it were judged.

    Without a row in the view the hold stays, so that rows that come back are judged.
    """
    if judged:
        return {
            "tag": look.tag,
            "persistence_id": look.persistence_id,
            "ended": True,
            "since": plan.planned_at,
        }
    return {**look.model_dump(), "held_rows": 0, "ended": False}


def _holds_that_grew(sealed: SealInputs) -> list[dict[str, Any]]:
    """Return the holds that were not judged again but keep back another number of rows, because of new rows
    or late ones, or whose gap has a row now.
    """
    read = counts(sealed.frozen_rows, [*KEY, "is_new"])
    new_rows = {(tag, persistence_id): rows for (tag, persistence_id, is_new), rows in read.items() if is_new}
    in_gap = in_their_gaps(sealed.frozen, sealed.frozen_rows)
    return [hold_record(hold) for hold in grown(sealed.frozen, new_rows, sealed.recounted, in_gap)]


def in_their_gaps(holds: Iterable[HoldRow], rows: KeptRows | None) -> set[Key]:
    """Return the holds that wait for missing numbers of which some have come in these rows.

    A fingerprint covers only the last buckets of a wide gap.
    """
    waiting = [hold for hold in holds if hold.reason in WAIT_FOR_NUMBERS]
    if rows is None or not waiting:
        return set()
    columns = [[getattr(hold, name) for hold in waiting] for name in KEY]
    ends = [[getattr(hold.gap, name) for hold in waiting] for name in ("first", "last")]
    gaps = pa.table([*columns, *ends], [*KEY, "first", "last"])
    number, found = pc.field("tag_pid_sequence_nr"), set[Key]()
    for table in rows.tables([*KEY, "tag_pid_sequence_nr"]):
        of_gap = table.join(gaps, list(KEY), join_type="inner")
        inside = of_gap.filter((number >= pc.field("first")) & (number <= pc.field("last")))
        found |= {(row["tag"], row["persistence_id"]) for row in inside.select(KEY).to_pylist()}
    return found


def grown(
    holds: Iterable[HoldRow],
    new_rows: Mapping[Key, int],
    recounted: Mapping[Key, int],
    in_gap: Collection[Key],
) -> Iterator[HoldRow]:
    """Yield the holds that keep back another number of rows: `new_rows` more, or as many as were recounted.

    Those of which missing numbers have come (`in_gap`) lose their fingerprint, so that the next plan judges them.
    """
    for hold in holds:
        key = (hold.tag, hold.persistence_id)
        rows = recounted.get(key, hold.held_rows + new_rows.get(key, 0))
        changed = replace(hold, held_rows=rows, seen="" if key in in_gap else hold.seen)
        if changed != hold:
            yield changed


def hold_record(hold: HoldRow) -> dict[str, Any]:
    """Return an open hold as a record of HOLD_SCHEMA."""
    return {
        "tag": hold.tag,
        "persistence_id": hold.persistence_id,
        "reason": hold.reason,
        "first_missing": hold.gap.first,
        "last_missing": hold.gap.last,
        "after_sequence_nr": hold.gap.after_sequence_nr,
        "before_sequence_nr": hold.gap.before_sequence_nr,
        "from_ticks": hold.from_ticks,
        "held_rows": hold.held_rows,
        "since_run": hold.since_run,
        "since": hold.since,
        "seen": hold.seen,
        "ended": False,
    }


def _write_repairs(sealed: SealInputs, file: str) -> None:
    """Write the journal's events that filled a gap and were delivered, as rows for tag_views."""
    used: set[int] = set()
    if sealed.backfilled:
        backfilled = pc.field("reason") == "healed_from_journal"
        rows_used = _of_kind(sealed.decisions, "row", "reason", "row_index", where=backfilled)
        used = {row["row_index"] for row in rows_used}
    rows = [view_row(item, str(item.event.offset)) for item in sealed.backfilled if item.index in used]
    _write_table(sealed.files, file, pa.Table.from_pylist(rows, schema=view_schema(pa.string())))


def backfilled_rows(backfilled: Sequence[Backfilled]) -> pa.Table:
    """Return events of the journal as rows of batches (STAGED), in their order."""
    schema = view_schema(pa.binary(16))
    parts = []
    for tag, of_tag in groupby(backfilled, key=lambda item: item.key[0]):
        rows = [view_row(item, item.event.offset.bytes) for item in of_tag]
        parts.append(as_batch_rows(pa.Table.from_pylist(rows, schema), 0, tag, 2**62))
    return pa.concat_tables(parts)


def view_row(backfilled: Backfilled, timestamp: str | bytes) -> dict[str, Any]:
    """Return an event of the journal as a row of tag_views, with its TimeUUID in the form that is wanted."""
    return {
        "tag_name": backfilled.key[0],
        "timebucket": backfilled.timebucket,
        "timestamp": timestamp,
        "persistence_id": backfilled.key[1],
        "tag_pid_sequence_nr": backfilled.number,
        **{name: getattr(backfilled.event, name) for name in _EVENT_COLUMNS},
    }


def view_schema(timestamps: pa.DataType) -> pa.Schema:
    """Return the schema of rows of tag_views, with its TimeUUIDs in the form that is wanted."""
    kinds = {
        "text": pa.string(),
        "bigint": pa.int64(),
        "int": pa.int32(),
        "blob": pa.binary(),
        "timeuuid": timestamps,
    }
    return pa.schema([(name, kinds[kind]) for name, kind in VIEW_COLUMNS.items()])


_EVENT_COLUMNS = (
    "sequence_nr", "writer_uuid", "ser_id", "ser_manifest", "event_manifest", "event", "meta_ser_id", "meta_ser_manifest", "meta",
)  # fmt: skip


def _write_table(files: RunFiles, file: str, table: pa.Table) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    files.write(file, sink.getvalue().to_pybytes())


def _counts(sealed: SealInputs) -> dict[tuple[str, str, str], int]:
    """Return the number of judged rows by tag, action and reason, and of the gaps that were closed."""
    found = Counter[tuple[str, str, str]]()
    judged = pc.field("kind").isin(["row", "closed"])
    for (kind, tag, action, reason), rows in counts(
        sealed.decisions, ["kind", "tag", "action", "reason"], judged
    ).items():
        found[(tag, action, reason) if kind == "row" else (tag, "close", GAP_CLOSED)] += rows
    for (tag, reason), rows in counts(sealed.frozen_rows, ["tag", "reason"]).items():
        found[tag, "hold", reason] += rows
    return dict(found)


def findings(counts: Mapping[tuple[str, str, str], int]) -> dict[str, int]:
    """Return the judged rows (by tag, action and reason) by reason."""
    return {
        reason: sum(n for (_, _, r), n in counts.items() if r == reason)
        for reason in sorted({r for _, _, r in counts})
    }


def tag_outcome(
    span: TagRange,
    tag: str,
    batches: Sequence[Batch],
    counts: Mapping[tuple[str, str, str], int],
    totals: Sequence[FileTotal],
    oldest: int,
) -> TagOutcome:
    """Return the outcome of a run for a tag.

    `counts`: judged rows by tag, action and reason. `oldest`: the first hour (milliseconds) that look-back
    still counts.
    """

    def count(action: str) -> int:
        return sum(n for (t, a, _), n in counts.items() if (t, a) == (tag, action))

    return TagOutcome(
        after=span.after,
        until=span.until,
        window_from=span.window_from,
        window_rows=sum(total.window_rows for total in totals if total.tag == tag),
        long_look=span.long_look,
        delivered=sum(batch.rows for batch in batches if batch.tag == tag),
        late=count("late"),
        dropped=count("drop"),
        held=count("hold"),
        back_from=span.back_from,
        hours=hours_read((total for total in totals if total.tag == tag), oldest),
    )


def hours_read(totals: Iterable[FileTotal], oldest: int) -> list[HourRows]:
    """Return the new rows that were read of each hour from `oldest` (milliseconds) on."""
    read: dict[int, int] = {}
    for total in totals:
        for begin, rows in total.hours:
            if begin >= oldest:
                read[begin] = read.get(begin, 0) + rows
    return [HourRows(begin=begin, rows=rows) for begin, rows in sorted(read.items())]


def oldest_hour(planned_at: datetime, windows: Sequence[float]) -> int:
    """Return the moment (milliseconds) up to which look-back reaches; older hours are not counted."""
    reach = max(windows, default=0)
    return (from_datetime(planned_at) - int(reach * TICKS_PER_SECOND)) // TICKS_PER_MILLISECOND
