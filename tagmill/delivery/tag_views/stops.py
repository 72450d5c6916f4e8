"""Record stops of the quality gate: the run is ABANDONED, and the holds that it found are recorded, so that
the next run goes on.

The commit names a manifest of those holds. After it the holds are written USING TIMESTAMP = the run's number,
and the manifest is removed from the run's row. The next plan or intervention finishes a recording that was
interrupted.
"""

from collections.abc import Iterator
from contextlib import suppress

import pyarrow.parquet as pq
import structlog

from tagmill.delivery.tag_views.close import hold_row, write_holds
from tagmill.delivery.tag_views.model import Manifest
from tagmill.delivery.tag_views.run_files import read_manifest
from tagmill.domain.batches.states import RunState
from tagmill.errors import SealedFileDamaged
from tagmill.ledger.progress import HoldRow
from tagmill.ledger.runs import RunRow
from tagmill.runs import checkpoints
from tagmill.runs.sealed_files import write_document
from tagmill.runs.workspace import Workspace

log = structlog.get_logger()


def stop(workspace: Workspace, row: RunRow, attempt: str, holds_file: str, reason: str) -> None:
    """Abandon a PLANNED run and record the holds in `holds_file`; if FenceRaised is raised, nothing is
    recorded.
    """
    files = workspace.files
    sha256_of_holds = files.digest(holds_file)[1]
    manifest = Manifest.unsealed(
        row.pipeline, row.run, attempt, holds_file=holds_file, sha256={holds_file: sha256_of_holds}
    )
    file = f"{files.folder(row.pipeline, row.run)}/attempt-{attempt}/manifest.json"
    sha256 = write_document(files, file, manifest)
    checkpoints.reached("stop.before_commit")
    workspace.ledger.end_run(row, RunState.ABANDONED, file, sha256, reason)
    checkpoints.reached("stop.after_commit")
    finish(workspace)


def unrecorded_holds(workspace: Workspace) -> Iterator[HoldRow]:
    """Yield the holds that `finish` would record."""
    files = workspace.files
    if row := _unrecorded(workspace):
        with suppress(SealedFileDamaged):
            manifest = read_manifest(files, row)
            with files.open_sealed(manifest.holds_file, manifest.sha256[manifest.holds_file]) as source:
                rows = pq.read_table(source).to_pylist()
            yield from (hold_row(line) for line in rows if not line["ended"])


def _unrecorded(workspace: Workspace) -> RunRow | None:
    """Return the newest run if its stop has found holds that are not recorded yet."""
    ledger = workspace.ledger
    row = ledger.run(workspace.name, ledger.last_run(workspace.name))
    return row if row and row.state == RunState.ABANDONED and row.manifest_file else None


def finish(workspace: Workspace) -> None:
    """Record the holds that the newest run's stop found, if that is not done yet."""
    files = workspace.files
    row = _unrecorded(workspace)
    if row is None:
        return
    try:
        write_holds(workspace, read_manifest(files, row), set())
    except SealedFileDamaged as error:
        # The next run finds the same gaps again.
        log.warning(
            "holds of a stopped run were not recorded", pipeline=workspace.name, run=row.run, error=str(error)
        )
    checkpoints.reached("stop.recorded")
    workspace.ledger.stop_recorded(row)
    files.remove_attempts(workspace.name, row.run)
