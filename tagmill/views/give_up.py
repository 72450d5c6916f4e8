"""Give up a build or rebuild of a view that is sealed and can't be finished: it ends, and what it has written
stays.

Rows of the view are written before the progress that counts them. So the next build gives the same events the
same numbers again, or refuses persistence ids whose progress was written. For those, `views build --adopt`
goes on behind that progress.
"""

from dataclasses import dataclass

from tagmill.errors import SealedFileDamaged
from tagmill.ledger.view_builds import BuildRow, Builds, BuildState
from tagmill.runs.operator_action import OperatorAction
from tagmill.runs.workspace import Workspace
from tagmill.views.model import Manifest
from tagmill.views.sealed_manifest import read_manifest


@dataclass(frozen=True, slots=True)
class SealedBuild:
    """A build that is not finished; `manifest` None: it, or a file that it names, is lost or damaged."""

    workspace: Workspace
    builds: Builds
    row: BuildRow
    manifest: Manifest | None

    @property
    def is_damaged(self) -> bool:
        """Whether files of it are lost or damaged, so that no build can finish it."""
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
            ledger, what = self.workspace.ledger, f"run give-up: build {row.build}"
            last = ledger.last_run(action.name)
            ledger.record_intervention(action.name, last, action.who, what, action.why)
        return (
            f"build {self.row.build} of journal {self.row.journal} {action.be('is')} given up, what it has written stays. Go on: "
            "tagmill views build --pipeline "
            f"{action.name}, with --adopt if it refuses persistence ids, and give a rebuild's command again"
        )

    def _anywhere(self) -> dict[str, int]:
        first: dict[str, int] = {}
        settings = self.workspace.settings
        for name in settings.on_journal(self.row.journal):
            chosen = settings.pipeline(name)
            for tag in chosen.tags:
                first[tag] = min(max(0, chosen.start_ticks(tag)), first.get(tag, 2**63 - 1))
        return first


def sealed(workspace: Workspace) -> SealedBuild | None:
    """Return the build of a pipeline's journal that is sealed and not finished, or None."""
    builds = workspace.journal_store(Builds)
    row = builds.newest()
    if row is None or row.state != BuildState.SEALED:
        return None
    try:
        manifest = read_manifest(workspace.files, row)
    except SealedFileDamaged:
        manifest = None
    return SealedBuild(workspace, builds, row, manifest)
