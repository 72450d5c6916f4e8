"""Give up a build or rebuild of a view that is sealed and can't be finished: it ends, and what it has written
stays.

Rows of the view are written before the progress that counts them. So the next build gives the same events the
same numbers again, or refuses persistence ids whose progress was written. For those, `views build --adopt`
goes on behind that progress.
"""

from dataclasses import dataclass

from tagmill.config.settings import Settings
from tagmill.errors import SealedFileDamaged
from tagmill.ledger.runs import Ledger
from tagmill.ledger.view_builds import BuildRow, Builds, BuildState
from tagmill.runs.operator_action import OperatorAction
from tagmill.runs.sealed_files import read_document
from tagmill.runs.storage import RunFiles
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
        """Whether its manifest is lost or damaged, so that no build can finish it."""
        return self.manifest is None

    def end(self, action: OperatorAction) -> str:
        """Mark the build as done and record the intervention; return what to do next, as text.

        Deliveries read again from the build's late rows on. Without a manifest any row may be late, so they
        read again from the start.
        """
        if not action.dry_run:
            row = self.builds.take_over(action.owner, self.row.bucket_size)
            self.builds.add_late(row.build, self.manifest.late_from if self.manifest else self._anywhere())
            self.builds.finish(row, 0)
            last, what = self.ledger.last_run(self.pipeline), f"run give-up: build {row.build}"
            self.ledger.record_intervention(self.pipeline, last, action.who, what, action.why)
        return (
            f"build {self.row.build} of journal {self.row.journal} {action.be('is')} given up, what it has written stays. Go on: "
            "tagmill views build --pipeline "
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
    """Return the build of a pipeline's journal that is sealed and not finished, or None."""
    builds = Builds(
        ledger.cassandra, settings.cassandra.ledger_keyspace, settings.pipeline(pipeline).keyspace
    )
    row = builds.newest()
    if row is None or row.state != BuildState.SEALED:
        return None
    of = f"build {row.build}, journal {row.journal}"
    try:
        manifest = read_document(
            RunFiles(settings.storage.root), Manifest, str(row.manifest_file), row.manifest_sha256, of=of
        )
    except SealedFileDamaged:
        manifest = None
    return SealedBuild(settings, ledger, pipeline, builds, row, manifest)
