"""Writes runs that the ledger had lost: from a manifest in the storage, with the batches as ClickHouse has
them.
"""

import hashlib
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from uuid import UUID, uuid4

from tagmill.domain.batches.states import BatchState, RunState
from tagmill.domain.documents import Batch
from tagmill.ledger.runs import Ledger
from tagmill.maintenance.ledger_restore.unknown_batches import UnknownBatch
from tagmill.runs.storage import RunFiles
from tagmill.runs.workspace import Workspace

KIND = "deliver"


def add_batches(
    ledger: Ledger, pipeline: str, run: int, sealed: Iterable[Batch], unknown: Iterable[UnknownBatch]
) -> None:
    """Write the sealed batches of a lost run, VOIDED but for those that ClickHouse has; doing it again writes
    the same.
    """
    generations = {batch.batch_id: batch.totals.generation for batch in unknown}
    states = (
        (batch, BatchState.IN_CLICKHOUSE, generations[UUID(batch.batch_id)])
        if UUID(batch.batch_id) in generations
        else (batch, BatchState.VOIDED, 1)
        for batch in sealed
    )
    ledger.cassandra.write_many(
        f"INSERT INTO {ledger.keyspace}.runs (pipeline, run, batch_no, batch_id, batch_state, "
        "generation, tag, rows, bytes, verified_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            (
                pipeline,
                run,
                b.number,
                UUID(b.batch_id),
                state.value,
                generation,
                b.tag,
                b.rows,
                b.bytes,
                datetime.now(UTC),
            )
            for b, state, generation in states
        ),
    )


def add_run(workspace: Workspace, run: int, state: RunState, manifest: str, plan: str | None) -> None:
    """Write a lost run behind its batches; one that the ledger has stays."""
    ledger, files = workspace.ledger, workspace.files
    attempt, now = uuid4(), datetime.now(UTC)
    workspace.cassandra.transact(
        f"INSERT INTO {ledger.keyspace}.runs (pipeline, run, state, kind, fence, attempt, owner, "
        "manifest_file, manifest_sha256,"
        " plan_file, plan_sha256, reason, planned_at, sealed_at, closed_at)"
        " VALUES (?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS",
        workspace.name,
        run,
        state.value,
        KIND,
        attempt,
        "ledger restore",
        manifest,
        _sha256(files, manifest),
        plan,
        _sha256(files, plan),
        "restored from the storage",
        now,
        now,
        now if state == RunState.CLOSED else None,
        landed=lambda: ledger.run(workspace.name, run) is not None,
    )


def plan_file(files: RunFiles, pipeline: str, run: int, fits: Callable[[bytes], bool]) -> str | None:
    """Return the plan in a run's folder that a manifest was made from."""
    folder = files.folder(pipeline, run)
    plans = (f"{folder}/{name}" for name in files.names(folder) if name.startswith("plan-"))
    return next((file for file in plans if fits(files.read(file))), None)


def give_up_planned(workspace: Workspace) -> None:
    """Abandon a planned run: what it was to read was delivered meanwhile, or is read by the next run."""
    ledger = workspace.ledger
    if (row := ledger.open_run(workspace.name)) and row.state == RunState.PLANNED:
        row = ledger.raise_fence(row, workspace.owner)
        ledger.finish_run(
            workspace.name, row.run, row.fence, RunState.PLANNED, RunState.ABANDONED, "ledger restore"
        )


def advance(ledger: Ledger, pipeline: str, run: int) -> None:
    """Make this run the ledger's last, unless a later one is."""
    table = f"{ledger.keyspace}.pipelines"
    known = ledger.last_run(pipeline)
    if not known:
        ledger.cassandra.transact(
            f"INSERT INTO {table} (pipeline, last_run) VALUES (?, ?) IF NOT EXISTS",
            pipeline,
            run,
            landed=lambda: ledger.last_run(pipeline) >= run,
        )
    elif known < run:
        ledger.cassandra.transact(
            f"UPDATE {table} SET last_run = ? WHERE pipeline = ? IF last_run < ?",
            run,
            pipeline,
            run,
            landed=lambda: ledger.last_run(pipeline) >= run,
        )


def _sha256(files: RunFiles, file: str | None) -> str | None:
    return hashlib.sha256(files.read(file)).hexdigest() if file else None
