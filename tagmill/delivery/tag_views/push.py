"""Push a sealed run of tag_views."""

from tagmill.config.settings import Settings
from tagmill.delivery.push import PushProgress, destination_of, push_batches
from tagmill.delivery.tag_views.model import Manifest
from tagmill.delivery.tag_views.run_files import read_manifest
from tagmill.domain.batches.states import RunState
from tagmill.ledger.runs import Ledger
from tagmill.runs.storage import RunFiles


def push(
    settings: Settings, ledger: Ledger, name: str, run: int, fence: int, progress: PushProgress | None = None
) -> Manifest:
    """Send every NEW batch of a sealed run to ClickHouse and verify it; call `progress` with (batches done,
    batches in all).

    Raises BatchDiffers, SealedFileDamaged, DestinationDiffers (nothing more is pushed), FenceRaised.
    """
    files = RunFiles(settings.storage.root)
    row = ledger.current(name, run, fence)
    manifest = read_manifest(files, row)
    if row.state != RunState.SEALED:
        return manifest
    push_batches(settings, ledger, files, manifest, fence, destination_of(settings, name), progress)
    return manifest
