"""Push a sealed run of tag_views."""

from tagmill.delivery.push import PushProgress, destination_of, push_batches
from tagmill.delivery.tag_views.model import Manifest
from tagmill.delivery.tag_views.run_files import read_manifest
from tagmill.domain.batches.states import RunState
from tagmill.runs.workspace import Workspace


def push(workspace: Workspace, run: int, fence: int, progress: PushProgress | None = None) -> Manifest:
    """Send every NEW batch of a sealed run to ClickHouse and verify it; call `progress` with (batches done,
    batches in all).

    Raises BatchDiffers, SealedFileDamaged, DestinationDiffers (nothing more is pushed), FenceRaised.
    """
    files = workspace.files
    row = workspace.ledger.current(workspace.name, run, fence)
    manifest = read_manifest(files, row)
    if row.state != RunState.SEALED:
        return manifest
    push_batches(workspace, manifest, fence, destination_of(workspace.pipeline), progress)
    return manifest
