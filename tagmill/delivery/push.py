"""Push a sealed run's batches: each tag's in order, a few tags at a time, each batch exactly once.

Spark is not needed: sealed bytes go from the file to ClickHouse unchanged (docs/decisions/0003). The server
makes the insert conditional. A batch is delivered if ClickHouse has the rows and checksum under its id that
the manifest names.
"""

import hashlib
import io
import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from uuid import UUID

import structlog
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from tagmill.clickhouse.client import ClickHouse, Totals
from tagmill.config.tag_views import PipelineSettings
from tagmill.delivery.dependent_views import DependentViews
from tagmill.delivery.destination_retention import Expiry, Within, times_in
from tagmill.domain.batches.layout import TAG_VIEWS, Layout
from tagmill.domain.batches.states import BatchState
from tagmill.domain.documents import Batch
from tagmill.errors import BatchDiffers, SealedFileDamaged, StoreUnavailable, TagmillError, about
from tagmill.ledger.batch_times import BatchTimes
from tagmill.ledger.runs import BatchRow, Ledger, RunRow
from tagmill.ledger.sent_batches import DestinationBatches
from tagmill.ledger.two_offsets import TwoOffsets
from tagmill.runs import checkpoints
from tagmill.runs.ledger_comparison import require_up_to_date
from tagmill.runs.sealed_files import Sealed, all_batches
from tagmill.runs.workspace import Workspace

log = structlog.get_logger()
PushProgress = Callable[[int, int], None]
# Seconds after which a push asks again which views depend on the destination, and which batches it lacks.
LOOK_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Destination:
    """The table that batches go to, and how fast: `seconds_between` is the least time from one insert to the
    next.
    """

    table: str
    layout: Layout = TAG_VIEWS
    parallel_inserts: int = 1
    seconds_between: float = 0


def push_batches(
    workspace: Workspace, manifest: Sealed, fence: int, to: Destination, progress: PushProgress | None = None
) -> None:
    """Push the NEW batches of a manifest that was read before; see `push`."""
    _Pushing(workspace, manifest, fence, to, progress or (lambda done, of: None)).run()


def destination_of(pipeline: PipelineSettings) -> Destination:
    """Return the destination of a pipeline that reads tag views."""
    return Destination(pipeline.destination, parallel_inserts=pipeline.parallel_inserts)


def push_one(workspace: Workspace, manifest: Sealed, fence: int, number: int, to: Destination) -> None:
    """Push one NEW batch of a run, even of a closed one, as `batches resend` needs it."""
    pushing = _Pushing(workspace, manifest, fence, to, lambda done, of: None)
    rows = {row.number: row for row in workspace.ledger.batches(manifest.pipeline, manifest.run)}
    batch = next(batch for batch in manifest.batches if batch.number == number)
    pushing.push_tag([batch], rows, lambda: None)


@dataclass(frozen=True, slots=True)
class _Look:
    """What a push saw of the destination: the views that depend on it, and the waiting batches that it lacked.

    It holds until the clock `time.monotonic` shows `until`.
    """

    views: DependentViews
    absent: frozenset[UUID]
    until: float


class _Pushing:
    """One push of one run."""

    def __init__(
        self, workspace: Workspace, manifest: Sealed, fence: int, to: Destination, progress: PushProgress
    ) -> None:
        self.workspace, self.to = workspace, to
        self.pause = 0.0
        self.ledger = workspace.ledger
        self.files = workspace.files
        self.manifest = manifest
        self.fence = fence
        self.progress = progress
        self.failed = False
        self.notes_two_offsets: bool | None = None
        self.waiting = frozenset[UUID]()
        self.look: _Look | None = None

    def _looked(self, clickhouse: ClickHouse) -> _Look:
        """Return what the destination was like at most LOOK_SECONDS ago."""
        if self.look is None or time.monotonic() > self.look.until:
            views = DependentViews(self.ledger, clickhouse, self.manifest, self.to.table)
            # Rows that are absent on this replica must be absent on all.
            clickhouse.sync_replica(self.to.table)
            absent = clickhouse.absent(self.to.table, self.waiting)
            self.look = _Look(views, absent, time.monotonic() + LOOK_SECONDS)
        return self.look

    def _two_offsets(self, clickhouse: ClickHouse) -> TwoOffsets | None:
        """Return where events under two offsets are noted; None if the destination has no such table."""
        two_offsets = TwoOffsets(clickhouse, self.to.table)
        if self.notes_two_offsets is None:
            self.notes_two_offsets = self.to.layout is TAG_VIEWS and two_offsets.exists()
        return two_offsets if self.notes_two_offsets else None

    def run(self) -> None:
        """Push the NEW batches: some tags at a time, the batches of a tag in order."""
        manifest = self.manifest
        rows = {row.number: row for row in all_batches(self.ledger, manifest)}
        waiting = [batch for batch in manifest.batches if rows[batch.number].state == BatchState.NEW]
        done = len(manifest.batches) - len(waiting)
        self.progress(done, len(manifest.batches))
        if not waiting:
            return
        self.waiting = frozenset(rows[batch.number].batch_id for batch in waiting)
        with self.workspace.clickhouse(self.to.layout) as clickhouse:
            clickhouse.check_destination(self.to.table)
            DestinationBatches(clickhouse, self.to.table).note(manifest.run, manifest.batches)
        by_tag: dict[str, list[Batch]] = {}
        for batch in waiting:
            by_tag.setdefault(batch.tag, []).append(batch)
        finished = itertools.count(done + 1)

        def report_progress() -> None:
            self.progress(next(finished), len(manifest.batches))

        with ThreadPoolExecutor(self.to.parallel_inserts, thread_name_prefix="push") as pool:
            tasks = [
                pool.submit(self.push_tag, batches, rows, report_progress) for batches in by_tag.values()
            ]
            for task in as_completed(tasks):
                if task.exception():
                    self.failed = True
            for task in tasks:
                task.result()

    def push_tag(
        self, batches: list[Batch], rows: dict[int, BatchRow], report_progress: Callable[[], None]
    ) -> None:
        """Push one tag's batches one after the other, with a client that no other tag uses meanwhile; stop when the
        push of any tag has failed.
        """
        with self.workspace.clickhouse(self.to.layout) as clickhouse:
            noted = self._two_offsets(clickhouse)
            for batch in batches:
                if self.failed:
                    return
                try:
                    self._push_batch(clickhouse, batch, rows[batch.number], noted)
                except BaseException:
                    self.failed = True
                    raise
                report_progress()

    def _push_batch(
        self,
        clickhouse: ClickHouse,
        batch: Batch,
        row: BatchRow,
        two_offsets: TwoOffsets | None,
    ) -> None:
        manifest, table = self.manifest, self.to.table
        look = self._looked(clickhouse)
        views = look.views
        checkpoints.reached("push.before_batch")
        run = self.ledger.current(manifest.pipeline, manifest.run, self.fence)
        content = self._sealed_bytes(batch)
        expiry = Expiry.declared(self.workspace.delivering, clickhouse)
        within = self._within(expiry, batch, content)
        if within and within.is_past:
            self.ledger.move_batch(manifest.pipeline, manifest.run, self.fence, row, BatchState.IN_CLICKHOUSE)
            log.info(
                "batch past retention not sent",
                pipeline=manifest.pipeline,
                run=manifest.run,
                batch=batch.number,
            )
            return
        confirmed = False
        for attempt in Retrying(
            retry=retry_if_exception_type(StoreUnavailable),
            stop=stop_after_attempt(5),
            wait=wait_random_exponential(0.5, max=20),
            reraise=True,
        ):
            with attempt:
                found: list[Totals] = []
                if attempt.retry_state.attempt_number > 1 or row.batch_id not in look.absent:
                    clickhouse.sync_replica(table)
                    found = clickhouse.totals(table, row.batch_id)
                    if found:
                        unmark_known(self.workspace, clickhouse, table, run, row)
                if not found:
                    checkpoints.reached("push.before_insert")
                    time.sleep(max(0.0, self.pause - time.monotonic()))
                    confirmed = self._insert(clickhouse, row, content, views)
                    self.pause = time.monotonic() + self.to.seconds_between
                    checkpoints.reached("push.after_insert")
                    found = clickhouse.totals(table, row.batch_id)
                if not found and not (within and within.rows == 0):
                    # raises if the run was taken over, and the batch voided, while this step slept
                    self.ledger.current(manifest.pipeline, manifest.run, self.fence)
                    # Then the next attempt inserts.
                    unmark_known(self.workspace, clickhouse, table, run, row)
                    raise StoreUnavailable(
                        self._absent(batch, row),
                        pipeline=manifest.pipeline,
                        run=manifest.run,
                        batch=batch.batch_id,
                    )
        expired = within and within.rows <= sum(total.rows for total in found) < batch.rows
        if not (expiry and within and expired and expiry.agrees(row.batch_id, row.generation, within)):
            verify(manifest, batch, row, found)
        if two_offsets is not None:
            two_offsets.note(str(row.batch_id), times_in(io.BytesIO(content)))
        if not confirmed:
            # Those that depend on the table now: one may have been made, and failed, since they were asked for.
            DependentViews(self.ledger, clickhouse, manifest, table).require_whole(row)
        self.ledger.move_batch(manifest.pipeline, manifest.run, self.fence, row, BatchState.IN_CLICKHOUSE)
        views.forget(row)
        checkpoints.reached("push.after_batch")
        log.info(
            "batch in ClickHouse",
            pipeline=manifest.pipeline,
            run=manifest.run,
            batch=batch.number,
            rows=batch.rows,
        )

    def _within(self, expiry: Expiry | None, batch: Batch, content: bytes) -> Within | None:
        """Return what of a batch is within the destination's retention, and note the batch's times; None if
        no retention is declared.
        """
        if expiry is None:
            return None
        times = self.workspace.store(BatchTimes)
        times.write(self.manifest.run, [(batch.number, times_in(io.BytesIO(content)))])
        return expiry.within(io.BytesIO(content))

    def _insert(self, clickhouse: ClickHouse, row: BatchRow, content: bytes, views: DependentViews) -> bool:
        """Insert a batch; return False if ClickHouse did not confirm it, or answered with an error though it
        has the rows.

        Raises the error if ClickHouse does not have the rows, or no views depend on the table.
        """
        try:
            return views.insert(
                row, lambda: clickhouse.insert_batch(self.to.table, row.batch_id, row.generation, content)
            )
        except TagmillError:
            if not views.names or not clickhouse.totals(self.to.table, row.batch_id):
                raise
            return False

    def _sealed_bytes(self, batch: Batch) -> bytes:
        with about(pipeline=self.manifest.pipeline, run=self.manifest.run, batch=batch.batch_id):
            content = self.files.read(batch.file)
        if len(content) != batch.bytes or hashlib.sha256(content).hexdigest() != batch.sha256:
            raise SealedFileDamaged(
                f"{self.files.url(batch.file)}: the bytes of batch {batch.batch_id} "
                f"(run {self.manifest.run}, pipeline {self.manifest.pipeline}) "
                f"are not those that were sealed. Nothing of it was sent. Restore the file, or: "
                f"tagmill run void --pipeline {self.manifest.pipeline} --why …",
                pipeline=self.manifest.pipeline,
                run=self.manifest.run,
                batch=batch.batch_id,
            )
        return content

    def _absent(self, batch: Batch, row: BatchRow) -> str:
        return (
            f"batch {batch.batch_id} of run {self.manifest.run}, pipeline {self.manifest.pipeline}: "
            "ClickHouse skipped the insert (its deduplication "
            f"window still knows generation {row.generation}) and has no rows of it. "
            f"Repair: tagmill batches resend {batch.batch_id} --run {self.manifest.run} --pipeline "
            f"{self.manifest.pipeline} --why …"
        )


def unmark_known(
    workspace: Workspace, clickhouse: ClickHouse, table: str, run: RunRow, batch: BatchRow
) -> None:
    """Remove the mark that a void left on a batch (unmark), unless the ledger may not know that the void ended.

    Raises LedgerOutdated: ClickHouse has batches of later runs, so the ledger is of an earlier time.
    """
    if clickhouse.voided_at(table, batch.batch_id):
        said = f"Batch {batch.batch_id} of run {run.run} is marked as void, and was not sent"
        require_up_to_date(workspace, done=said)
        unmark(workspace.ledger, clickhouse, table, run, batch)


def unmark(ledger: Ledger, clickhouse: ClickHouse, table: str, run: RunRow, batch: BatchRow) -> None:
    """Remove the mark that a void left on a batch without making it VOIDED, since it was killed or refused.

    Raises FenceRaised if another process has taken the run over: it may have marked the batch as well. A mark
    that is later than this look stays.
    """
    if marked := clickhouse.voided_at(table, batch.batch_id):
        ledger.current(run.pipeline, run.run, run.fence)
        clickhouse.unvoid_batch(table, batch.batch_id, until=marked)


def verify(manifest: Sealed, batch: Batch, row: BatchRow, present: list[Totals]) -> None:
    """Raise BatchDiffers unless ClickHouse has exactly the sealed rows, once."""
    if len(present) == 1 and present[0] == Totals(row.generation, batch.rows, batch.checksum):
        return
    there = (
        "; ".join(f"{t.rows} rows, checksum {t.checksum:016x}, generation {t.generation}" for t in present)
        or "nothing"
    )
    raise BatchDiffers(
        f"batch {UUID(batch.batch_id)} of run {manifest.run}, pipeline {manifest.pipeline}: ClickHouse "
        f"has {there}; "
        f"sealed are {batch.rows} rows, checksum {batch.checksum:016x}, generation {row.generation}. "
        "Nothing more was pushed. "
        f"Look: tagmill batches --pipeline {manifest.pipeline}. "
        f"Repair: tagmill batches resend {batch.batch_id} --run {manifest.run} --pipeline "
        f"{manifest.pipeline} --why …",
        pipeline=manifest.pipeline,
        run=manifest.run,
        batch=batch.batch_id,
    )
