"""Do what every way out of a run needs, whatever the run reads: find the run, give up batches, send a batch
again.
"""

from collections.abc import Iterable
from uuid import UUID

from tagmill.clickhouse.client import ClickHouse
from tagmill.delivery.dependent_views import despite, require_no_views
from tagmill.delivery.push import Destination, push_one, unmark, unmark_known
from tagmill.domain.batches.states import BatchState, RunState
from tagmill.domain.documents import Batch
from tagmill.errors import GuardRefused, StoreUnavailable, about
from tagmill.ledger.runs import BatchRow, Ledger, RunRow
from tagmill.runs import checkpoints
from tagmill.runs.operator_action import OperatorAction
from tagmill.runs.sealed_files import Sealed
from tagmill.runs.workspace import Workspace

EVERY_GENERATION = 2**32 - 1


def run_in(ledger: Ledger, pipeline: str, state: RunState) -> RunRow:
    """Return the open run of a pipeline; raise GuardRefused if it is not in this state, or no run is open."""
    row = ledger.open_run(pipeline)
    if row is None or row.state != state:
        there = f"run {row.run} is {row.state}" if row else "no run is open"
        raise GuardRefused(
            f"pipeline {pipeline} has no {state} run ({there}). Nothing was changed. Look: tagmill runs "
            f"--pipeline {pipeline}",
            pipeline=pipeline,
        )
    return row


def batch_of(ledger: Ledger, pipeline: str, run: int, batch_id: UUID) -> tuple[RunRow, BatchRow]:
    """Return a run and one of its batches; raise GuardRefused if there is no such batch."""
    row = ledger.run(pipeline, run)
    batch = (
        next((batch for batch in ledger.batches(pipeline, run) if batch.batch_id == batch_id), None)
        if row
        else None
    )
    if row is None or batch is None:
        raise GuardRefused(
            f"pipeline {pipeline}, run {run} has no batch {batch_id}. Nothing was changed. Look: tagmill "
            f"batches --pipeline {pipeline}",
            pipeline=pipeline,
            run=run,
            batch=batch_id,
        )
    return row, batch


def require_not_closing(row: RunRow, batch: BatchRow) -> None:
    """Raise GuardRefused if a batch is delivered and its run is still open.

    A close that was killed may have noted its events as delivered: if sending it again failed, and the batch
    was voided, no run would read them again.
    """
    if row.state.is_open and batch.state == BatchState.IN_CLICKHOUSE:
        raise GuardRefused(
            f"batch {batch.batch_id} of run {row.run}, pipeline {row.pipeline}, is in ClickHouse and its run "
            "is not finished. Nothing was changed; "
            f"finish it first: tagmill run deliver --pipeline {row.pipeline}",
            pipeline=row.pipeline,
            run=row.run,
            batch=batch.batch_id,
        )


def abandon_planned(action: OperatorAction, ledger: Ledger, row: RunRow, again: str) -> str:
    """Abandon a PLANNED run; return a sentence that says so.

    `again` says what the next run plans again.
    """
    said = (
        f"run {row.run} of pipeline {row.pipeline} {action.be('is')} ABANDONED; nothing of it was delivered, "
        f"the next run plans its {again} again"
    )
    if action.dry_run:
        return f"{said}. ClickHouse, progress and holds stay as they are"
    row, reason = ledger.raise_fence(row, action.owner), f"{action.who}: {action.why}"
    ledger.finish_run(row.pipeline, row.run, row.fence, RunState.PLANNED, RunState.ABANDONED, reason)
    ledger.record_intervention(row.pipeline, row.run, action.who, "run abandon", action.why)
    action.files.remove_attempts(row.pipeline, row.run)
    return said


def void_waiting(
    action: OperatorAction,
    ledger: Ledger,
    clickhouse: ClickHouse,
    table: str,
    row: RunRow,
    batches: list[BatchRow],
) -> str:
    """Give up a run's NEW batches, each proven absent from its table; return a sentence that says what was
    done.

    Raises GuardRefused if the table has one of them.
    """
    waiting = [batch for batch in batches if batch.state == BatchState.NEW]
    for batch in waiting:
        if not action.dry_run:
            clickhouse.void_batch(table, batch.batch_id)
            checkpoints.reached("void.marked")
        clickhouse.sync_replica(table)
        if clickhouse.totals(table, batch.batch_id):
            if not action.dry_run:
                unmark(ledger, clickhouse, table, row, batch)
            raise GuardRefused(
                f"batch {batch.batch_id} of run {row.run}, pipeline {row.pipeline}, is in ClickHouse. It "
                "was not voided; "
                f"finish the run instead: tagmill run deliver --pipeline {row.pipeline}",
                pipeline=row.pipeline,
                run=row.run,
                batch=batch.batch_id,
            )
        if not action.dry_run:
            ledger.move_batch(row.pipeline, row.run, row.fence, batch, BatchState.VOIDED)
    said = f"run {row.run} of pipeline {row.pipeline}: {len(waiting)} batches"
    stay = f"{len(batches) - len(waiting)} stay"
    if action.dry_run:
        rows = sum(batch.rows for batch in waiting)
        return f"{said} ({rows} rows), which are not in ClickHouse, would be VOIDED; {stay}"
    what = f"run void ({len(waiting)} batches)"
    ledger.record_intervention(row.pipeline, row.run, action.who, what, action.why)
    again = ", then give the command that reads a range again once more" if row.kind == "reread" else ""
    return f"{said} VOIDED, {stay}. Close it: tagmill run deliver --pipeline {row.pipeline}{again}"


def views_with(
    clickhouse: ClickHouse, table: str, row: RunRow, batches: Iterable[BatchRow], *, despite_views: bool
) -> str:
    """Return the names of the views that depend on a table, if it has rows of batches that are to be taken
    out; else an empty string.

    Raises GuardRefused if there are views and the operator did not ask to work despite them: the next run
    sends the rows again, and the views count them twice.
    """
    if not clickhouse.dependent_views(table):
        return ""
    clickhouse.sync_replica(table)
    if not any(clickhouse.totals(table, batch.batch_id) for batch in batches):
        return ""
    refused = f"run {row.run} of pipeline {row.pipeline} is not given up"
    with about(pipeline=row.pipeline, run=row.run):
        return require_no_views(clickhouse, table, refused, despite_views=despite_views)


def take_back(
    ledger: Ledger, clickhouse: ClickHouse, table: str, row: RunRow, batch: BatchRow, *, despite_views: bool
) -> None:
    """Make a batch of a run VOIDED, whatever its table has of it: mark it as void, remove it, prove it
    absent.

    Raises StoreUnavailable if the table still has rows of it, FenceRaised if another process has taken the run
    over. Raises GuardRefused if an insert has reached the views meanwhile (views_with).
    """
    clickhouse.void_batch(table, batch.batch_id)
    checkpoints.reached("giveup.marked")
    clickhouse.sync_replica(table)
    if clickhouse.totals(table, batch.batch_id):
        try:
            views_with(clickhouse, table, row, [batch], despite_views=despite_views)
        except GuardRefused:
            unmark(ledger, clickhouse, table, row, batch)
            raise
        checkpoints.reached("giveup.before_delete")
        # Another process may have taken the run over and delivered the batch while this one slept.
        ledger.current(row.pipeline, row.run, row.fence)
        clickhouse.delete_batch(table, batch.batch_id, EVERY_GENERATION)
        clickhouse.sync_replica(table)
    if clickhouse.totals(table, batch.batch_id):
        raise StoreUnavailable(
            f"batch {batch.batch_id} of run {row.run}, pipeline {row.pipeline}, is still in ClickHouse. "
            "The run stays as it is; "
            "run the same command again",
            pipeline=row.pipeline,
            run=row.run,
            batch=batch.batch_id,
        )
    ledger.move_batch(row.pipeline, row.run, row.fence, batch, BatchState.VOIDED)


def take_out(clickhouse: ClickHouse, table: str, batch_id: UUID) -> bool:
    """Mark a VOIDED batch as void and remove its rows; return whether the table has none of them any more."""
    clickhouse.void_batch(table, batch_id)
    clickhouse.sync_replica(table)
    clickhouse.delete_batch(table, batch_id, EVERY_GENERATION)
    clickhouse.sync_replica(table)
    return not clickhouse.totals(table, batch_id)


def take_out_voided(
    workspace: Workspace,
    action: OperatorAction,
    clickhouse: ClickHouse,
    run: int,
    batch_id: UUID,
    *,
    despite_views: bool,
) -> str:
    """Remove the rows of a VOIDED batch that a restored ClickHouse has again; return a sentence that says so.

    Other batches have the events. Raises GuardRefused if one of them is in no other batch, or the batch is not
    VOIDED, StoreUnavailable if ClickHouse still has rows of the batch.
    """
    ledger, name, table = workspace.ledger, workspace.name, workspace.delivering.destination
    said = f"batch {batch_id} of run {run}, pipeline {name},"
    _, batch = batch_of(ledger, name, run, batch_id)
    with about(pipeline=name, run=run, batch=batch_id):
        if batch.state != BatchState.VOIDED:
            raise GuardRefused(f"{said} is {batch.state}. Its rows stay")
        clickhouse.sync_replica(table)
        rows = sum(total.rows for total in clickhouse.totals(table, batch_id))
        if alone := clickhouse.events_only_in(table, batch_id):
            raise GuardRefused(
                f"{said} is VOIDED, and ClickHouse has {alone} of its {rows} events in no other batch. Its rows "
                "stay; first send again the batches that lack rows (tagmill batches resend), and deliver: "
                f"tagmill check --pipeline {name}",
                pipeline=name,
            )
        views = despite(
            require_no_views(clickhouse, table, f"{said} is not taken out", despite_views=despite_views)
        )
        if not action.dry_run:
            if not take_out(clickhouse, table, batch_id):
                raise StoreUnavailable(
                    f"{said} is VOIDED and still in ClickHouse. Run the same command again"
                )
            what = f"batches withdraw {batch_id}: VOIDED, rows removed{views}"
            ledger.record_intervention(name, run, action.who, what, action.why)
    return (
        f"{said} is VOIDED; its {rows} rows {action.be('are')} removed from ClickHouse{views}. Progress and other "
        "batches stay as they are"
    )


def unsealed(clickhouse: ClickHouse, table: str, batch: BatchRow) -> Batch:
    """Return a batch for the manifest that replaces a lost one: without a file, with the checksum of the rows
    in its table.
    """
    checksum = sum(total.checksum for total in clickhouse.totals(table, batch.batch_id, from_rows=True))
    return Batch(
        number=batch.number,
        batch_id=str(batch.batch_id),
        tag=batch.tag,
        file="",
        rows=batch.rows,
        bytes=batch.bytes,
        sha256="",
        checksum=checksum,
        first_offset="",
        last_offset="",
    )


def _must_not_be_withdrawn(clickhouse: ClickHouse, row: RunRow, batch: BatchRow, table: str) -> None:
    """Raise GuardRefused if a delivered batch was withdrawn, which a restored ledger does not know: its events are
    in another batch.
    """
    is_delivered = not row.state.is_open and batch.state == BatchState.IN_CLICKHOUSE
    if is_delivered and clickhouse.voided_at(table, batch.batch_id):
        clickhouse.sync_replica(table)
        if not clickhouse.totals(table, batch.batch_id):
            raise GuardRefused(
                f"batch {batch.batch_id} of run {row.run}, pipeline {row.pipeline}, is marked as void and not in "
                "ClickHouse: it was withdrawn, and the ledger is of an earlier time. Nothing was changed; what is "
                f"missing, if anything: tagmill audit --pipeline {row.pipeline}",
                pipeline=row.pipeline,
                run=row.run,
                batch=batch.batch_id,
            )


def send_again(
    workspace: Workspace,
    action: OperatorAction,
    clickhouse: ClickHouse,
    manifest: Sealed,
    row: RunRow,
    batch: BatchRow,
    to: Destination,
    *,
    despite_views: bool,
) -> str:
    """Remove a batch from its table and push its sealed bytes under the next generation; return a sentence
    that says so.

    Raises SealedFileDamaged before a row is removed that could not be sent again.
    """
    ledger = workspace.ledger
    batch_id = batch.batch_id
    sealed = next(one for one in manifest.batches if one.number == batch.number)
    what = f"batch {batch_id} of run {row.run}, pipeline {row.pipeline}, is not sent again"
    with about(pipeline=row.pipeline, run=row.run, batch=batch_id):
        action.files.open_sealed(sealed.file, sealed.sha256).close()
        views = require_no_views(clickhouse, to.table, what, despite_views=despite_views)
    generation, said = batch.generation + 1, f"batch {batch_id} of run {row.run}, pipeline {row.pipeline},"
    _must_not_be_withdrawn(clickhouse, row, batch, to.table)
    if action.dry_run:
        rows = sum(total.rows for total in clickhouse.totals(to.table, batch_id))
        return (
            f"{said} would be sent again as generation {generation}: its {rows} rows in ClickHouse would be "
            f"removed, its {sealed.rows} sealed rows inserted{despite(views)}. Other batches stay as they are"
        )
    unmark_known(workspace, clickhouse, to.table, row, batch)
    checkpoints.reached("resend.before_delete")
    # A batch that was NEW may have been delivered under this generation while this process slept.
    ledger.current(row.pipeline, row.run, row.fence)
    clickhouse.delete_batch(to.table, batch_id, batch.generation)
    ledger.move_batch(row.pipeline, row.run, row.fence, batch, BatchState.NEW, generation)
    what = f"batches resend {batch_id}{despite(views)}"
    ledger.record_intervention(row.pipeline, row.run, action.who, what, action.why)
    push_one(workspace, manifest, row.fence, batch.number, to)
    return f"{said} was sent again as generation {generation} and verified"
