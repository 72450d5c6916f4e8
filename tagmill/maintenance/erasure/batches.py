"""Removes rows from sealed batches: each gets a new file, and its run a new manifest, committed by one
conditional update.

After the commit `check`, `resend` and `withdraw` know only the new files. A batch keeps the order of its
rows, its id and its generation; one without rows left is VOIDED, so that it is never sent. Batches past
retention have no file: their proof is amended.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tagmill.clickhouse.client import ClickHouse, OfBatch, Totals
from tagmill.delivery.tag_views.model import Manifest
from tagmill.delivery.tag_views.run_files import read_manifest
from tagmill.domain.batches.states import BatchState
from tagmill.domain.documents import Batch
from tagmill.errors import GuardRefused, SealedFileDamaged
from tagmill.ledger.retired_batches import Retired, RetiredBatch
from tagmill.ledger.runs import BatchRow, RunRow
from tagmill.maintenance.erasure.model import RetiredLeft
from tagmill.maintenance.erasure.name_matching import ErasedNames, less
from tagmill.runs import checkpoints
from tagmill.runs.sealed_files import write_document
from tagmill.runs.workspace import Workspace

ID, CHECKSUM, OFFSET = "persistence_id", "row_checksum", "offset"
ROWS_AT_ONCE = 100_000


@dataclass(slots=True)
class Found:
    """What sealed batches have of the persistence ids; `emptied`: by tag, how many batches lose all that
    ClickHouse has of them.
    """

    batches: int = 0
    rows: int = 0
    known: set[str] = field(default_factory=set)
    emptied: dict[str, int] = field(default_factory=dict)
    retired: list[RetiredLeft] = field(default_factory=list)


class SealedBatches:
    """Sealed batches of one pipeline's finished runs, and the persistence ids to remove from them."""

    def __init__(self, workspace: Workspace, persistence_ids: Sequence[str]) -> None:
        self.ledger, self.name, self.table = workspace.ledger, workspace.name, workspace.pipeline.destination
        self.files = workspace.files
        self.retired = workspace.store(Retired)
        self.ids, self.names = pa.array(persistence_ids, pa.string()), ErasedNames(persistence_ids)

    # -- counting

    def look(self, delivered: Sequence[OfBatch]) -> Found:
        """Count the batches and rows of the persistence ids in all finished runs; `delivered`: what
        ClickHouse has of them.

        Raises GuardRefused for a batch that is to be sent again, since the process that began to may still
        have its bytes. Raises SealedFileDamaged.
        """
        found = Found()
        for row, manifest in self._runs():
            states = {batch.number: batch.state for batch in self.ledger.batches(self.name, row.run)}
            for batch in manifest.batches:
                rows, known = self._rows_of(batch)
                if not rows:
                    continue
                if states[batch.number] == BatchState.NEW:
                    raise GuardRefused(
                        f"batch {batch.batch_id} of run {row.run}, pipeline {self.name}, was to be sent "
                        "again and is not. Nothing was "
                        f"erased; finish it: tagmill batches resend {batch.batch_id} --run {row.run} "
                        f"--pipeline {self.name} --why …",
                        pipeline=self.name,
                        run=row.run,
                        batch=batch.batch_id,
                    )
                self.files.open_sealed(
                    batch.file, batch.sha256
                ).close()  # raises for a damaged file before anything is erased
                found.batches += 1
                found.rows += rows
                found.known |= known
                if rows == batch.rows and states[batch.number] == BatchState.IN_CLICKHOUSE:
                    found.emptied[batch.tag] = found.emptied.get(batch.tag, 0) + 1
        for left in self._retired_without(delivered):
            found.retired.append(left)
            if left.rows == 0:
                found.emptied[left.tag] = found.emptied.get(left.tag, 0) + 1
        return found

    def _runs(self) -> Iterator[tuple[RunRow, Manifest]]:
        for number in range(self.retired.up_to() + 1, self.ledger.last_run(self.name) + 1):
            row = self.ledger.run(self.name, number)
            if row is not None and row.manifest_file:
                yield row, read_manifest(self.files, row)

    def _rows_of(self, batch: Batch) -> tuple[int, set[str]]:
        try:
            with self.files.open(batch.file) as source:
                return matches(source, self.ids)
        except pa.ArrowInvalid as error:
            raise SealedFileDamaged(
                f"{self.files.url(batch.file)}, batch {batch.batch_id} of pipeline {self.name}, can't be "
                f"read: {error}. Nothing was "
                "erased; restore it from a backup",
                pipeline=self.name,
                batch=batch.batch_id,
            ) from None

    def _retired_without(self, delivered: Sequence[OfBatch]) -> Iterator[RetiredLeft]:
        by_batch: dict[UUID, list[OfBatch]] = {}
        for part in delivered:
            by_batch.setdefault(part.batch_id, []).append(part)
        for one in self.retired.batches(self.ledger.last_run(self.name)) if by_batch else ():
            if gone := by_batch.get(one.batch_id):
                yield RetiredLeft(
                    run=one.run,
                    number=one.number,
                    batch_id=str(one.batch_id),
                    generation=one.generation,
                    tag=one.tag,
                    rows=one.rows - sum(part.rows for part in gone),
                    checksum=less(one.checksum, [part.checksum for part in gone]),
                )

    # -- erasing

    def reseal(
        self, erasure: int, owner: str, clickhouse: ClickHouse, retired: Sequence[RetiredLeft]
    ) -> None:
        """Amend every run that names one of the persistence ids, and the proof of retired batches.

        Raises SealedFileDamaged, FenceRaised.
        """
        for number in range(self.retired.up_to() + 1, self.ledger.last_run(self.name) + 1):
            row = self.ledger.run(self.name, number)
            if row is not None:
                self._amend(row, erasure, owner, clickhouse)
        for left in retired:
            batch = RetiredBatch(
                left.run,
                left.number,
                UUID(left.batch_id),
                left.generation,
                left.tag,
                left.rows,
                left.checksum,
            )
            if left.rows:
                self.retired.keep([batch])
            else:
                self.retired.forget(batch)

    def _amend(self, row: RunRow, erasure: int, owner: str, clickhouse: ClickHouse) -> None:
        manifest = read_manifest(self.files, row) if row.manifest_file else None
        touched = [batch for batch in manifest.batches if self._rows_of(batch)[0]] if manifest else []
        new = self._without_names(row)
        if touched or new != row:
            row = self.ledger.raise_fence(row, owner)
            new = self._without_names(row)
            if manifest and touched:
                manifest, new = self._rewritten(manifest, touched, new, erasure)
            self.ledger.amend(row, new)
            checkpoints.reached("erase.resealed")
        if manifest and _is_of(new.manifest_file, erasure):
            # The new manifest may also be one that a killed process committed.
            self._settle(self.ledger.raise_fence(new, owner), manifest, erasure, clickhouse)

    def _without_names(self, row: RunRow) -> RunRow:
        """Return the run with its reason masked, and without its plan if that names a persistence id.

        A finished run's plan is never read again.
        """
        new = replace(row, reason=self.names.masked(row.reason)) if row.reason else row
        if row.plan_file and self.names.are_in_json(self.files.read(row.plan_file).decode()):
            new = replace(new, plan_file="", plan_sha256="")
        return new

    def _rewritten(
        self, manifest: Manifest, touched: list[Batch], row: RunRow, erasure: int
    ) -> tuple[Manifest, RunRow]:
        folder = f"{self.files.folder(self.name, row.run)}/{_mark(erasure)}{uuid4().hex[:12]}"
        anew = {
            batch.number: self._without(batch, f"{folder}/batch-{batch.number:05d}.parquet")
            for batch in touched
        }
        manifest = manifest.model_copy(
            update={"batches": [anew.get(batch.number, batch) for batch in manifest.batches]}
        )
        file = f"{folder}/manifest.json"
        sha256 = write_document(self.files, file, manifest)
        return manifest, replace(row, manifest_file=file, manifest_sha256=sha256)

    def _without(self, batch: Batch, target: str) -> Batch:
        """Write a batch's remaining rows to the file `target`, one row group in memory at a time; return the
        batch with its new figures.
        """
        rows = checksum = 0
        offsets: list[str] = []
        with self.files.open_sealed(batch.file, batch.sha256) as source, self.files.create(target) as sink:
            parquet = pq.ParquetFile(source)
            with pq.ParquetWriter(sink, parquet.schema_arrow, compression="snappy") as writer:
                for group in range(parquet.num_row_groups):
                    table = parquet.read_row_group(group)
                    stays = table.filter(pc.invert(pc.is_in(table[ID], value_set=self.ids)))
                    if stays.num_rows == 0:
                        continue
                    writer.write_table(stays)
                    rows += stays.num_rows
                    checksum += int(stays[CHECKSUM].to_numpy().sum())  # wraps, as the checksum must
                    offsets = [*offsets[:1], *(stays[OFFSET][at].as_py() for at in (0, -1))]
        size, sha256 = self.files.digest(target)
        return batch.model_copy(
            update={
                "file": target,
                "rows": rows,
                "bytes": size,
                "sha256": sha256,
                "checksum": checksum % 2**64,
                "first_offset": offsets[0] if offsets else "",
                "last_offset": offsets[-1] if offsets else "",
            }
        )

    def _settle(self, row: RunRow, manifest: Manifest, erasure: int, clickhouse: ClickHouse) -> None:
        """Update the ledger's batches to what the manifest says, and void those without rows, so that they
        are never sent.
        """
        anew = {batch.number: batch for batch in manifest.batches if _is_of(batch.file, erasure)}
        for known in self.ledger.batches(self.name, row.run):
            batch = anew.get(known.number)
            if batch is None:
                continue
            if (known.rows, known.bytes) != (batch.rows, batch.bytes):
                self.ledger.set_size(row, known.number, batch.rows, batch.bytes)
            if batch.rows == 0:
                self._void(row, known, clickhouse)

    def _void(self, row: RunRow, batch: BatchRow, clickhouse: ClickHouse) -> None:
        if batch.state == BatchState.IN_CLICKHOUSE:
            self.ledger.move_batch(self.name, row.run, row.fence, batch, BatchState.VOIDED)
        clickhouse.void_batch(self.table, batch.batch_id)

    # -- proof

    def differing(
        self, erasure: int, clickhouse: ClickHouse, retired: Sequence[RetiredLeft]
    ) -> Iterator[str]:
        """Yield the ids of amended batches of which ClickHouse has other rows, or another checksum, than it
        should by now.
        """
        for row, manifest in self._runs():
            anew = {batch.number: batch for batch in manifest.batches if _is_of(batch.file, erasure)}
            for known in self.ledger.batches(self.name, row.run) if anew else ():
                batch = anew.get(known.number)
                if batch is None:
                    continue
                is_there = known.state == BatchState.IN_CLICKHOUSE
                wanted = [Totals(known.generation, batch.rows, batch.checksum)] if is_there else []
                if clickhouse.totals(self.table, known.batch_id) != wanted:
                    yield batch.batch_id
        for left in retired:
            wanted = [Totals(left.generation, left.rows, left.checksum)] if left.rows else []
            if clickhouse.totals(self.table, UUID(left.batch_id)) != wanted:
                yield left.batch_id


def matches(source: Any, ids: pa.Array) -> tuple[int, set[str]]:
    """Count the rows of these persistence ids in an open Parquet file, and return which of them it has.

    A file without the column persistence_id has none.
    """
    parquet = pq.ParquetFile(source)
    rows, known = 0, set[str]()
    if ID not in parquet.schema_arrow.names:
        return rows, known
    for part in parquet.iter_batches(ROWS_AT_ONCE, columns=[ID]):
        names = part.column(0).cast(pa.string())
        hits = names.filter(pc.is_in(names, value_set=ids))
        rows += len(hits)
        known.update(hits.unique().to_pylist())
    return rows, known


def _mark(erasure: int) -> str:
    """Return how the names of folders with rewritten batches begin, within the folder of their run."""
    return f"erased-{erasure:08d}-"


def _is_of(file: str | None, erasure: int) -> bool:
    """Return True if this erasure has written the file."""
    return f"/{_mark(erasure)}" in (file or "")
