"""The way out of a view's build or rebuild that is sealed and cannot be finished: it ends, and what it has written stays.

Rows of the view are written before the progress that counts them. So the next build numbers the same events again with the same
numbers, or refuses those whose progress was written, and `views build --adopt` goes on behind it.
"""

from dataclasses import dataclass

from tagmill.delivery.runfiles import read_document
from tagmill.errors import SealedFileDamaged
from tagmill.settings import Settings
from tagmill.stores.builds import BuildRow, Builds, BuildState
from tagmill.stores.files import RunFiles
from tagmill.stores.ledger import Ledger
from tagmill.views.model import Manifest


@dataclass(frozen=True, slots=True)
class SealedBuild:
    """A build that is not finished; `manifest` None: its file is lost or damaged."""

    settings: Settings
    ledger: Ledger
    pipeline: str
    builds: Builds
    row: BuildRow
    manifest: Manifest | None

    @property
    def is_damaged(self) -> bool:
        """Whether no build can finish it."""
        return self.manifest is None

    def end(self, owner: str, who: str, why: str) -> str:
        """End it; deliveries look for its late rows again, of which without a manifest any may be."""
        row = self.builds.take_over(owner, self.row.bucket_size)
        self.builds.add_late(row.build, self.manifest.late_from if self.manifest else self._anywhere())
        self.builds.finish(row, 0)
        action = f"run give-up: build {row.build}"
        self.ledger.record_intervention(self.pipeline, self.ledger.last_run(self.pipeline), who, action, why)
        return (
            f"build {row.build} of journal {row.journal} is given up, what it has written stays. Go on: tagmill views build --pipeline "
            f"{self.pipeline}, with --adopt if it refuses persistence ids, and give a rebuild's command again"
        )

    def _anywhere(self) -> dict[str, int]:
        first: dict[str, int] = {}
        for name in self.settings.on_journal(self.row.journal):
            chosen = self.settings.pipeline(name)
            for tag in chosen.tags:
                first[tag] = min(max(0, chosen.start_ticks(tag)), first.get(tag, 2**63 - 1))
        return first


def sealed(settings: Settings, ledger: Ledger, pipeline: str) -> SealedBuild | None:
    """Return the build of a pipeline's journal that is sealed and not finished."""
    builds = Builds(ledger.cassandra, settings.cassandra.ledger_keyspace, settings.pipeline(pipeline).keyspace)
    row = builds.newest()
    if row is None or row.state != BuildState.SEALED:
        return None
    of = f"build {row.build}, journal {row.journal}"
    try:
        manifest = read_document(RunFiles(settings.storage.root), Manifest, str(row.manifest_file), row.manifest_sha256, of=of)
    except SealedFileDamaged:
        manifest = None
    return SealedBuild(settings, ledger, pipeline, builds, row, manifest)
