"""Read the plan and the manifest of a run from the files that the ledger names. No Spark."""

from tagmill.delivery.topics.model import TopicManifest, TopicPlan
from tagmill.ledger.runs import RunRow
from tagmill.runs.sealed_files import read_document
from tagmill.runs.storage import RunFiles

IDS_DONE = "ids.done"


def read_plan(files: RunFiles, row: RunRow) -> TopicPlan:
    """Read the plan of a run, and check it against the digest in the ledger."""
    return read_document(
        files, TopicPlan, str(row.plan_file), row.plan_sha256, of=f"run {row.run}, pipeline {row.pipeline}"
    )


def read_manifest(files: RunFiles, row: RunRow) -> TopicManifest:
    """Read the manifest of a sealed run, and check it against the digest in the ledger."""
    of = f"run {row.run}, pipeline {row.pipeline}"
    return read_document(files, TopicManifest, str(row.manifest_file), row.manifest_sha256, of=of)


def ids_noted(files: RunFiles, manifest: TopicManifest) -> bool:
    """Return whether all ids of a sealed run's batches are noted in deduplication."""
    return IDS_DONE in files.names(_home(files, manifest))


def note_ids_done(files: RunFiles, manifest: TopicManifest) -> None:
    """Write the mark next to the manifest that says that all ids are noted."""
    files.write(f"{_home(files, manifest)}/{IDS_DONE}", b"")


def _home(files: RunFiles, manifest: TopicManifest) -> str:
    return f"{files.folder(manifest.pipeline, manifest.run)}/attempt-{manifest.attempt}"
