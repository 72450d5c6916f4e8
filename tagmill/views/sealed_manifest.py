"""Write and read the manifest of a sealed build, which says how many rows each folder of its files has: without the
numbers, a build whose files were lost would count as written.
"""

from tagmill.ledger.view_builds import BuildRow
from tagmill.runs.sealed_files import read_document, require_rows, write_document
from tagmill.runs.storage import RunFiles
from tagmill.views.model import Manifest


def write_manifest(files: RunFiles, manifest: Manifest) -> tuple[str, str]:
    """Write the manifest with the numbers of rows that its files have now; return its file and SHA-256."""
    folders = (manifest.rows_in, "records", "removed", "forgotten")
    counts = {name: files.count_rows(f"{manifest.folder}/{name}") for name in folders}
    file = f"{manifest.folder}/manifest.json"
    sha256 = write_document(files, file, manifest.model_copy(update={"sealed_rows": counts}))
    return file, sha256


def read_manifest(files: RunFiles, row: BuildRow) -> Manifest:
    """Read the manifest of a sealed build.

    Raises SealedFileDamaged: it is not the one that the ledger names, or its files have not as many rows as it says.
    """
    of = f"build {row.build}, journal {row.journal}"
    manifest = read_document(files, Manifest, str(row.manifest_file), row.manifest_sha256, of=of)
    for name, sealed in manifest.sealed_rows.items():
        require_rows(files, f"{manifest.folder}/{name}", sealed, of)
    return manifest
