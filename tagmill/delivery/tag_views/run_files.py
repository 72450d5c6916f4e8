"""Read the plan and the manifest of a run of tag_views."""

from tagmill.delivery.tag_views.model import Manifest, Plan
from tagmill.ledger.runs import RunRow
from tagmill.runs.sealed_files import read_of_run
from tagmill.runs.storage import RunFiles


def read_plan(files: RunFiles, row: RunRow) -> Plan:
    """Read the plan of a run and check it against the ledger.

    Raises TerminalError if the run has none, SealedFileDamaged.
    """
    return read_of_run(files, row, Plan, row.plan_file, row.plan_sha256)


def read_manifest(files: RunFiles, row: RunRow) -> Manifest:
    """Read the manifest of a sealed run and check it against the ledger.

    Raises TerminalError if the run has none, SealedFileDamaged.
    """
    return read_of_run(files, row, Manifest, row.manifest_file, row.manifest_sha256)
