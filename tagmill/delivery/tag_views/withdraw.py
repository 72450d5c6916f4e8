"""Remove delivered batches from ClickHouse for good, so that their events can be delivered again from a
repaired view.

A withdrawal is a run of its own (docs/decisions/0013): while it is open nothing else is planned, and the next
command finishes it. Its plan names the batches and every (persistence_id, number) in them. Sealing it makes
the batches VOIDED, removes their rows, proves them absent, and fixes the new progress, in which those numbers
are missing. Closing it writes that progress. A number is noted only if ClickHouse has its event in no other
batch, so that nothing is delivered twice.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from tagmill.clickhouse.client import ClickHouse
from tagmill.delivery.run_repairs import take_out
from tagmill.delivery.tag_views.model import Manifest, Plan, TagOutcome, Withdrawn
from tagmill.delivery.tag_views.run_files import read_manifest, read_plan
from tagmill.domain.batches.layout import EventKey
from tagmill.domain.batches.states import BatchState, RunState
from tagmill.domain.continuity import rules
from tagmill.domain.continuity.model import Gap
from tagmill.domain.documents import Batch
from tagmill.domain.time_buckets import BucketSize
from tagmill.domain.timeuuid import ticks as ticks_of
from tagmill.errors import GuardRefused, StoreUnavailable, about
from tagmill.journal.tag_view_reader import Views
from tagmill.ledger.progress import write_intervals
from tagmill.ledger.runs import BatchRow, RunRow
from tagmill.runs import checkpoints
from tagmill.runs.sealed_files import create_planned_run, write_document
from tagmill.runs.storage import RunFiles
from tagmill.runs.workspace import Workspace

KIND = "withdraw"
# Rows of a batch that the view may have at another place; a batch with more is not withdrawn.
MAX_MOVED = 10_000
EVENT_SCHEMA = pa.schema(
    {
        "tag": pa.string(),
        "persistence_id": pa.string(),
        "sequence_nr": pa.int64(),
        "number": pa.int64(),
        "timebucket": pa.int64(),
        "writer_uuid": pa.string(),
    }
)
PROGRESS_SCHEMA = pa.schema(
    {
        "tag": pa.string(), "persistence_id": pa.string(), "number": pa.int64(), "sequence_nr": pa.int64(), "offset": pa.string(),
        "missing": pa.string(), "batch": pa.int32(), "last": pa.bool_(),
    }
)  # fmt: skip
ROWS_AT_ONCE = 10_000
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Event:
    """An event to deliver again: its bucket, and the number under which a reader of the view finds it.

    `writer_uuid` is None in the file of a withdrawal that an earlier version planned.
    """

    tag: str
    persistence_id: str
    sequence_nr: int
    number: int
    timebucket: int
    writer_uuid: str | None = None


def plan(
    workspace: Workspace, batches: Sequence[tuple[int, UUID]], lost: Iterable[Event] = (), *, reason: str
) -> RunRow:
    """Plan a run that withdraws batches (run, batch_id) and notes `lost` events as not delivered.

    Raises GuardRefused if another run is open, a batch is unknown, its run is not closed, or the view has
    lost an event of it.
    """
    ledger, name = workspace.ledger, workspace.name
    number = ledger.free_number(name)
    ledger.require_none_open(name, "Nothing was withdrawn")
    chosen = [_chosen(workspace, run, batch_id) for run, batch_id in batches]
    files = workspace.files
    file = f"{files.folder(name, number)}/undelivered-{uuid4().hex[:12]}.parquet"
    with files.create(file) as target, pq.ParquetWriter(target, EVENT_SCHEMA, compression="zstd") as writer:
        for run, batch in chosen:
            _write(writer, _events_of(workspace, run, batch))
        _write(writer, lost)
    document = Plan(
        pipeline=name,
        run=number,
        planned_at=workspace.cassandra.now(),
        reread=True,
        first=False,
        tags={},
        units=[],
        holds=[],
        view_columns={},
        more=False,
        undelivered_file=file,
        undelivered_sha256=files.digest(file)[1],
        withdrawn=[
            Withdrawn(run=run, number=batch.number, batch_id=batch.batch_id, tag=batch.tag, rows=batch.rows)
            for run, batch in chosen
        ],
    )
    row = create_planned_run(workspace, number, document, kind=KIND, reason=reason)
    checkpoints.reached("withdraw.planned")
    return row


def survey(workspace: Workspace, run: int, batch_id: UUID) -> tuple[int, set[tuple[str, int]]]:
    """Return how many rows a batch has that could be withdrawn, and the (tag, timebucket) that the view has
    its events in.

    Raises what `plan` would raise, and writes nothing.
    """
    workspace.ledger.require_none_open(workspace.name, "Nothing was withdrawn")
    _, batch = _chosen(workspace, run, batch_id)
    return batch.rows, {(event.tag, event.timebucket) for event in _events_of(workspace, run, batch)}


def seal(workspace: Workspace, run: int, fence: int) -> Manifest:
    """Remove the batches, prove them absent, and fix the progress without them; leave a run that is sealed
    already as it is.
    """
    ledger, name = workspace.ledger, workspace.name
    files = workspace.files
    row = ledger.current(name, run, fence)
    if row.state != RunState.PLANNED:
        return read_manifest(files, row)
    document = read_plan(files, row)
    table = workspace.pipeline.destination
    with workspace.clickhouse() as clickhouse:
        for part in document.withdrawn:
            _take_out(workspace, clickhouse, table, part)
        checkpoints.reached("withdraw.removed")
        manifest = _manifest(workspace, clickhouse, document, table)
    checkpoints.reached("withdraw.before_commit")
    file = f"{files.folder(name, run)}/attempt-{manifest.attempt}/manifest.json"
    if not ledger.seal(name, run, fence, file, write_document(files, file, manifest)):
        return read_manifest(files, ledger.current(name, run, fence))
    checkpoints.reached("withdraw.after_commit")
    return manifest


def buckets(files: RunFiles, document: Plan) -> Iterator[tuple[str, int]]:
    """Yield the (tag, timebucket) in which the view has the events of a withdrawal; some more than once."""
    for events in _events(files, document):
        yield from {(event.tag, event.timebucket) for event in events}


def count(files: RunFiles, document: Plan) -> int:
    """Return how many events the file of a withdrawal names."""
    with files.open_sealed(document.undelivered_file, document.undelivered_sha256) as source:
        return int(pq.ParquetFile(source).metadata.num_rows)


# -- planning


def _events_of(workspace: Workspace, run: int, batch: Batch) -> Iterator[Event]:
    """Yield the events of a batch at their present places in the view (ViewPlaces)."""
    pipeline, files = workspace.pipeline, workspace.files
    views = Views(workspace.cassandra, pipeline.journal)
    places = ViewPlaces(
        views, pipeline.bucket_size, f"batch {batch.batch_id} of run {run}, pipeline {workspace.name},"
    )
    with about(pipeline=workspace.name, run=run, batch=batch.batch_id):
        yield from places.of(key_rows(files, batch))


def _chosen(workspace: Workspace, run: int, batch_id: UUID) -> tuple[int, Batch]:
    ledger, name = workspace.ledger, workspace.name
    row = ledger.run(name, run)
    row, batch = withdrawable(name, run, batch_id, row, ledger.batches(name, run) if row else [])
    manifest = read_manifest(workspace.files, row)
    return run, next(sealed for sealed in manifest.batches if sealed.number == batch.number)


def withdrawable(
    name: str, run: int, batch_id: UUID, row: RunRow | None, batches: Sequence[BatchRow]
) -> tuple[RunRow, BatchRow]:
    """Return a run and its batch that can be withdrawn.

    Raises GuardRefused if the batch is unknown or VOIDED, or its run is not closed.
    """
    batch = next((batch for batch in batches if batch.batch_id == batch_id), None)
    if row is None or batch is None:
        raise GuardRefused(
            f"pipeline {name}, run {run} has no batch {batch_id}. Look: tagmill batches --pipeline {name}",
            pipeline=name,
            run=run,
            batch=batch_id,
        )
    if row.state != RunState.CLOSED:
        raise GuardRefused(
            f"batch {batch_id} is of run {run}, pipeline {name}, which is {row.state}: only a closed "
            "run's batches can be withdrawn. "
            "Nothing was changed",
            pipeline=name,
            run=run,
            batch=batch_id,
        )
    if batch.state == BatchState.VOIDED:
        raise GuardRefused(
            f"batch {batch_id} of run {run}, pipeline {name}, is VOIDED already. Nothing was changed",
            pipeline=name,
            run=run,
            batch=batch_id,
        )
    return row, batch


def key_rows(files: RunFiles, batch: Batch) -> Iterator[list[dict[str, Any]]]:
    """Yield the key columns of a sealed batch, ROWS_AT_ONCE rows at a time."""
    columns = [
        "tag",
        "persistence_id",
        "sequence_nr",
        "tag_pid_sequence_nr",
        "offset",
        "timebucket",
        "writer_uuid",
    ]
    with files.open_sealed(batch.file, batch.sha256) as source:
        for rows in pq.ParquetFile(source).iter_batches(ROWS_AT_ONCE, columns=columns):
            yield rows.to_pylist()


class ViewPlaces:
    """The present places of a batch's events in the view.

    If the view has lost an event, its batch stays: it can't be delivered again.
    """

    def __init__(self, views: Views, size: BucketSize, batch_name: str) -> None:
        self.views = views
        self.size = size
        self.what = batch_name
        self.moved = 0

    def of(self, parts: Iterable[list[dict[str, Any]]]) -> Iterator[Event]:
        """Yield each event under the view's present number, and if its row has moved, also the event that has
        its former number by now: readers may have taken that for delivered.
        """
        for rows in parts:
            for event, there in zip(*self._looked_up(rows), strict=True):
                if not there:
                    now = self._elsewhere(event)
                    yield self._successor(event, now)
                    event = now
                yield event

    def _successor(self, event: Event, now: Event) -> Event:
        """Return the event that has the former number of a moved event, if it is near one of its places; else
        the moved event under that number.
        """
        near = (bucket + step for bucket in (event.timebucket, now.timebucket) for step in self._neighbours)
        for number, sequence_nr, offset, writer in self.views.numbers(
            event.tag, event.persistence_id, sorted(set(near))
        ):
            if number == event.number and sequence_nr is not None:
                bucket = self.size.start(ticks_of(offset))
                return replace(event, sequence_nr=sequence_nr, timebucket=bucket, writer_uuid=writer)
        return replace(event, timebucket=now.timebucket)

    @property
    def _neighbours(self) -> tuple[int, int, int]:
        return -self.size.milliseconds, 0, self.size.milliseconds

    def _looked_up(self, rows: list[dict[str, Any]]) -> tuple[list[Event], list[bool]]:
        """Return the events, and for each whether the view has it in the bucket it was read from or that of
        its time.

        The two differ if the view has had another bucket size since.
        """
        events = [
            Event(
                row["tag"],
                row["persistence_id"],
                row["sequence_nr"],
                row["tag_pid_sequence_nr"],
                row["timebucket"],
                row["writer_uuid"],
            )
            for row in rows
        ]
        offsets = [UUID(row["offset"]) for row in rows]
        there = self._there(events, offsets)
        gone = [at for at, found in enumerate(there) if not found]
        moved = [replace(events[at], timebucket=self.size.start(ticks_of(offsets[at]))) for at in gone]
        for at, event, found in zip(
            gone, moved, self._there(moved, [offsets[at] for at in gone]), strict=True
        ):
            if found:
                events[at], there[at] = event, True
        return events, there

    def _there(self, events: list[Event], offsets: list[UUID]) -> list[bool]:
        keys = (
            (e.tag, e.timebucket, offset, e.persistence_id, e.number)
            for e, offset in zip(events, offsets, strict=True)
        )
        return [
            found == e.sequence_nr for e, found in zip(events, self.views.sequence_nrs(keys), strict=True)
        ]

    def _elsewhere(self, event: Event) -> Event:
        """Return an event at the place that the journal's time gives it, for a view that was repaired since.

        Raises GuardRefused if the view no longer has the event, or if more than MAX_MOVED rows are not at
        their place.
        """
        self.moved += 1
        if self.moved > MAX_MOVED:
            raise GuardRefused(
                f"{self.what} has more than {MAX_MOVED} rows that the view has no longer. Nothing was "
                "withdrawn"
            )
        around = Gap(event.number, event.number, event.sequence_nr - 1, event.sequence_nr + 1)
        for found in self.views.journal_events(event.tag, event.persistence_id, around, 2):
            if (found.writer_uuid or "") != event.writer_uuid:
                continue  # of another life
            bucket = self.size.start(ticks_of(found.offset))
            for number, sequence_nr in self.views.numbers_at(
                event.tag, bucket, found.offset, event.persistence_id
            ):
                if sequence_nr == event.sequence_nr:
                    return replace(event, number=number, timebucket=bucket)
        raise GuardRefused(
            f"{self.what} has the event {event.sequence_nr} of {event.persistence_id!r}, tag "
            f"{event.tag!r}, which the view "
            "has no longer: it could not be delivered again. Nothing was withdrawn; repair the view first "
            "(tagmill repair)"
        )


def _write(writer: pq.ParquetWriter, events: Iterable[Event]) -> None:
    part: list[dict[str, Any]] = []
    for event in events:
        part.append({name: getattr(event, name) for name in EVENT_SCHEMA.names})
        if len(part) == ROWS_AT_ONCE:
            writer.write_table(pa.Table.from_pylist(part, schema=EVENT_SCHEMA))
            part.clear()
    writer.write_table(pa.Table.from_pylist(part, schema=EVENT_SCHEMA))


# -- sealing


def _take_out(workspace: Workspace, clickhouse: ClickHouse, table: str, part: Withdrawn) -> None:
    """Make a batch VOIDED, mark it as void, remove its rows, and prove them absent.

    Raises StoreUnavailable if ClickHouse still has rows of it.
    """
    ledger, name = workspace.ledger, workspace.name
    home = ledger.run(name, part.run)
    assert home is not None  # noqa: S101 - the plan has seen it
    # After this, a process that is sending the batch again can't change anything.
    home = ledger.raise_fence(home, workspace.owner)
    batch = next(batch for batch in ledger.batches(name, part.run) if batch.number == part.number)
    if batch.state != BatchState.VOIDED:
        ledger.move_batch(name, part.run, home.fence, batch, BatchState.VOIDED)
    checkpoints.reached("withdraw.voided")
    if not take_out(clickhouse, table, batch.batch_id):
        raise StoreUnavailable(
            f"batch {batch.batch_id} of run {part.run}, pipeline {name}, is still in ClickHouse. Nothing "
            "was noted as undelivered; "
            f"run the same command again, or: tagmill run deliver --pipeline {name}",
            pipeline=name,
            run=part.run,
            batch=batch.batch_id,
        )


def _manifest(workspace: Workspace, clickhouse: ClickHouse, document: Plan, table: str) -> Manifest:
    """Write the new progress, and return a manifest of it without batches."""
    files = workspace.files
    attempt = uuid4().hex[:12]
    folder = f"{files.folder(document.pipeline, document.run)}/attempt-{attempt}"
    progress_file, holds_file, repairs_file = (
        f"{folder}/progress",
        f"{folder}/holds.parquet",
        f"{folder}/repairs.parquet",
    )
    part = f"{progress_file}/part.parquet"
    with (
        files.create(part) as target,
        pq.ParquetWriter(target, PROGRESS_SCHEMA, compression="zstd") as writer,
    ):
        for rows in _progress(workspace, clickhouse, document, table):
            writer.write_table(pa.Table.from_pylist(rows, schema=PROGRESS_SCHEMA))
    for empty in (holds_file, repairs_file):
        with files.create(empty) as target:
            pq.write_table(pa.table({"tag": pa.array([], pa.string())}), target)
    nothing = TagOutcome(
        after=0,
        until=0,
        window_from=0,
        window_rows=0,
        long_look=False,
        delivered=0,
        late=0,
        dropped=0,
        held=0,
    )
    return Manifest(
        pipeline=document.pipeline,
        run=document.run,
        sealed_at=workspace.cassandra.now(),
        attempt=attempt,
        generation=1,
        moves_watermark=False,
        tags={part.tag: nothing for part in document.withdrawn},
        batches=[],
        withdrawn=document.withdrawn,
        findings={},
        progress_file=progress_file,
        holds_file=holds_file,
        repairs_file=repairs_file,
        sha256={file: files.digest(file)[1] for file in (part, holds_file, repairs_file)},
        docs_page=None,
        more=False,
    )


def _progress(
    workspace: Workspace, clickhouse: ClickHouse, document: Plan, table: str
) -> Iterator[list[dict[str, Any]]]:
    """Yield rows of PROGRESS_SCHEMA in groups: one row for every persistence_id that loses numbers."""
    numbers: dict[Key, set[int]] = {}
    for events in _events(workspace.files, document):
        present = clickhouse.present(
            table, {(event.tag, event.persistence_id, event.sequence_nr) for event in events}
        )
        for event in undelivered(events, present):
            numbers.setdefault((event.tag, event.persistence_id), set()).add(event.number)
    keys = list(numbers)
    rows: list[dict[str, Any]] = []
    for (tag, persistence_id), known in zip(
        keys, workspace.ledger.delivered.progress(document.pipeline, keys), strict=True
    ):
        progress = rules.without(known, numbers[tag, persistence_id]) if known else None
        if progress is not None and progress != known:
            rows.append(
                {
                    "tag": tag,
                    "persistence_id": persistence_id,
                    "number": progress.number,
                    "sequence_nr": progress.sequence_nr,
                    "offset": progress.offset,
                    "missing": write_intervals(progress.missing),
                    "batch": 0,
                    "last": True,
                }
            )
        if len(rows) == ROWS_AT_ONCE:
            yield rows
            rows = []
    yield rows


def undelivered(events: Iterable[Event], present: Collection[EventKey]) -> Iterator[Event]:
    """Yield the events that are `present` in no batch; of an unknown writer, those that no writer's is."""
    of_any_writer = {key[:3] for key in present}
    for event in events:
        key = (event.tag, event.persistence_id, event.sequence_nr)
        there = key in of_any_writer if event.writer_uuid is None else (*key, event.writer_uuid) in present
        if not there:
            yield event


def _events(files: RunFiles, document: Plan) -> Iterator[list[Event]]:
    with files.open_sealed(document.undelivered_file, document.undelivered_sha256) as source:
        for rows in pq.ParquetFile(source).iter_batches(ROWS_AT_ONCE):
            yield [Event(**row) for row in rows.to_pylist()]
