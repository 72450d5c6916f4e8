"""Write and read plans and manifests as files; the ledger names each with its SHA-256."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar
from uuid import UUID, uuid4

from tagmill.domain.batches.states import RunState
from tagmill.domain.documents import Batch, Document
from tagmill.errors import SealedFileDamaged, TerminalError, about
from tagmill.ledger.runs import BatchRow, Ledger, RunRow
from tagmill.runs.ledger_comparison import require_up_to_date
from tagmill.runs.storage import RunFiles
from tagmill.runs.workspace import Workspace

D = TypeVar("D", bound=Document)


class Sealed(Protocol):
    """The parts of a manifest that the ledger and a push read."""

    @property
    def pipeline(self) -> str:
        """The pipeline of the run."""

    @property
    def run(self) -> int:
        """The number of the run."""

    @property
    def batches(self) -> list[Batch]:
        """The batches in the order in which they are sent."""


def write_document(files: RunFiles, relative: str, document: Document) -> str:
    """Write a document as JSON; return its SHA-256."""
    return files.write(relative, document.model_dump_json(indent=1).encode())


def create_planned_run(
    workspace: Workspace, run: int, plan: Document, *, kind: str, reason: str = ""
) -> RunRow:
    """Claim a run's number, write its plan, and create the run PLANNED with fence 1.

    Raises FenceRaised if the number is taken, GuardRefused if the run before it is open or the ledger is
    older than ClickHouse.
    """
    ledger, pipeline = workspace.ledger, workspace.name
    require_up_to_date(workspace, done="Nothing was planned")
    ledger.claim(pipeline, run)
    files = workspace.files
    file = f"{files.folder(pipeline, run)}/plan-{uuid4().hex[:12]}.json"
    sha256 = write_document(files, file, plan)
    return ledger.create_run(
        pipeline,
        run,
        kind=kind,
        state=RunState.PLANNED,
        owner=workspace.owner,
        plan_file=file,
        plan_sha256=sha256,
        reason=reason,
    )


def read_document(files: RunFiles, kind: type[D], file: str, sha256: str | None, *, of: str) -> D:
    """Read a document and check it against the SHA-256 that the ledger has; `of` names its run in messages.

    Raises SealedFileDamaged.
    """
    content = files.read(file)
    if hashlib.sha256(content).hexdigest() != sha256:
        raise SealedFileDamaged(
            f"{files.url(file)}: the {kind.__name__.lower()} of {of}, is not the one that the ledger "
            "names (SHA-256 differs). "
            "Nothing was written or sent; restore the file from a backup"
        )
    return kind.model_validate_json(content)


def require_rows(files: RunFiles, folder: str, sealed: int, of: str = "") -> None:
    """Raise SealedFileDamaged unless the Parquet files of a folder have as many rows as were sealed; `of` names their
    run in the message.

    A folder that is gone is only empty for who lists it.
    """
    rows = files.count_rows(folder)
    if rows != sealed:
        raise SealedFileDamaged(
            f"{files.url(folder)} has {rows} rows, and {sealed} were sealed{of and f' by {of}'}. Nothing of it was used; "
            "restore it from a backup"
        )


def if_readable(read: Callable[[RunFiles, RunRow], D], files: RunFiles, row: RunRow) -> D | None:
    """Return what `read` returns of a run, or None if its file is lost or damaged."""
    try:
        return read(files, row)
    except SealedFileDamaged:
        return None


@contextmanager
def way_out(pipeline: str) -> Iterator[None]:
    """Add to a SealedFileDamaged the command that goes on without the lost file."""
    try:
        yield
    except SealedFileDamaged as error:
        raise SealedFileDamaged(
            f"{error}, or go on without it: tagmill run give-up --pipeline {pipeline} --why …",
            pipeline=pipeline,
            run=error.run,
            batch=error.batch,
        ) from None


def add_batches(ledger: Ledger, manifest: Sealed) -> None:
    """Write the batches of a sealed run into the ledger; leave those that it has as they are."""
    ledger.add_batches(
        manifest.pipeline,
        manifest.run,
        ((b.number, UUID(b.batch_id), b.tag, b.rows, b.bytes) for b in manifest.batches),
    )


def all_batches(ledger: Ledger, manifest: Sealed) -> list[BatchRow]:
    """Return the batches of a sealed run, and write those that a sealer did not because it was killed right
    after its commit.
    """
    found = ledger.batches(manifest.pipeline, manifest.run)
    if len(found) < len(manifest.batches):
        add_batches(ledger, manifest)
        found = ledger.batches(manifest.pipeline, manifest.run)
    return found


def read_of_run(files: RunFiles, row: RunRow, kind: type[D], file: str | None, sha256: str | None) -> D:
    """Read a document of a run that the ledger names.

    Raises TerminalError if the run has none, SealedFileDamaged.
    """
    if not file:
        raise TerminalError(
            f"run {row.run} of pipeline {row.pipeline} has no {kind.__name__.lower()} (it is {row.state})",
            pipeline=row.pipeline,
            run=row.run,
        )
    with about(pipeline=row.pipeline, run=row.run):
        return read_document(files, kind, file, sha256, of=f"run {row.run}, pipeline {row.pipeline}")
