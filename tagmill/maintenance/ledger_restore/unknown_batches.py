"""Finds what the destination has that the ledger doesn't know: batches, by run."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from tagmill.clickhouse.client import ClickHouse, Totals
from tagmill.domain import identifiers
from tagmill.ledger.retired_batches import Retired
from tagmill.ledger.runs import Ledger
from tagmill.ledger.sent_batches import BatchOrigin, DestinationBatches
from tagmill.runs.sealed_files import Sealed
from tagmill.runs.storage import RunFiles

# a batch that neither the destination's notes nor a manifest name gets a number behind all that a run has
UNNAMED_FROM = 1_000_000


@dataclass(frozen=True, slots=True)
class UnknownBatch:
    """A batch that ClickHouse has and no run of the ledger."""

    batch_id: UUID
    origin: BatchOrigin
    totals: Totals


def known_batches(ledger: Ledger, ledger_keyspace: str, pipeline: str) -> set[UUID]:
    """Return the batches of all runs of the ledger, also past retention."""
    retired, last = Retired(ledger.cassandra, ledger_keyspace, pipeline), ledger.last_run(pipeline)
    numbers = range(retired.up_to() + 1, last + 1)
    of_many = ledger.batches_of_many(pipeline, numbers, serial=True)
    of_runs = (batch.batch_id for _, batches in of_many for batch in batches)
    return {*of_runs, *(kept.batch_id for kept in retired.batches(last))}


def unknown_batches(
    clickhouse: ClickHouse, files: RunFiles, pipeline: str, destination: str, known: set[UUID], last_run: int
) -> list[UnknownBatch]:
    """Return what ClickHouse has besides the known batches, in the order of their runs."""
    totals = {batch: total for batch, total in _totals(clickhouse, destination) if batch not in known}
    if not totals:
        return []
    sent = DestinationBatches(clickhouse, destination)
    origins = {batch: origin for batch, origin in sent.origins() if batch in totals}
    if set(totals) - set(origins):
        origins |= _from_storage(files, pipeline, set(totals) - set(origins))
    unnamed = sorted(set(totals) - set(origins))
    run = max([last_run, 1, *(origin.run for origin in origins.values())])
    tags = _tags(clickhouse, destination, unnamed) if unnamed else {}
    for number, batch in enumerate(unnamed, start=UNNAMED_FROM):
        origins[batch] = BatchOrigin(run, number, tags.get(batch, ""))
    found = (UnknownBatch(batch, origins[batch], total) for batch, total in totals.items())
    return sorted(found, key=lambda one: (one.origin.run, one.origin.number))


def manifest_files(files: RunFiles, pipeline: str, run: int) -> Iterator[str]:
    """Yield the manifests in a run's folder, the last amended first."""
    yield from reversed(
        [file for file in files.below(files.folder(pipeline, run)) if file.endswith("/manifest.json")]
    )


def belongs(manifest: Sealed, batches: list[UnknownBatch]) -> bool:
    """Return whether a manifest has these batches, with the rows and checksums that ClickHouse has."""
    sealed = {UUID(batch.batch_id): batch for batch in manifest.batches}
    return all(
        (batch := sealed.get(one.batch_id)) is not None
        and (batch.number, batch.rows, batch.checksum)
        == (one.origin.number, one.totals.rows, one.totals.checksum)
        for one in batches
    )


def _totals(clickhouse: ClickHouse, destination: str) -> Iterator[tuple[UUID, Totals]]:
    """Yield rows and checksum of each batch from the projection; of several generations the newest."""
    query = (
        f"SELECT `batch_id`, `generation`, count(), sum({clickhouse.layout.row_checksum_sql()}) FROM "
        f"{identifiers.sql(destination)} "
        "GROUP BY `batch_id`, `generation` ORDER BY `batch_id`, `generation`"
    )
    for batch_id, generation, rows, checksum in clickhouse.rows(query):
        yield UUID(str(batch_id)), Totals(int(generation), int(rows), int(checksum))


def _from_storage(files: RunFiles, pipeline: str, batches: set[UUID]) -> dict[UUID, BatchOrigin]:
    """Return the origins of batches that an earlier version has sent, from the manifests in the storage, the
    newest first.
    """
    origins: dict[UUID, BatchOrigin] = {}
    for folder in reversed([name for name in files.folders(pipeline) if name.startswith("run-")]):
        run = int(folder.removeprefix("run-"))
        for file in manifest_files(files, pipeline, run):
            for batch in json.loads(files.read(file))["batches"]:
                if (batch_id := UUID(batch["batch_id"])) in batches:
                    origins[batch_id] = BatchOrigin(run, batch["number"], batch["tag"])
        if len(origins) == len(batches):
            break
    return origins


def _tags(clickhouse: ClickHouse, destination: str, batches: list[UUID]) -> dict[UUID, str]:
    if not any(column.name == "tag" for column in clickhouse.layout.columns):
        return {}
    query = f"SELECT `batch_id`, toString(any(`tag`)) FROM {identifiers.sql(destination)} GROUP BY `batch_id`"
    wanted = set(batches)
    return {UUID(str(batch)): str(tag) for batch, tag in clickhouse.rows(query) if UUID(str(batch)) in wanted}
