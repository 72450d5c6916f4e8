"""Find the events of batches that were removed from ClickHouse and are in no other batch there."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import structlog

from tagmill.delivery.tag_views.run_files import read_manifest
from tagmill.delivery.tag_views.withdraw import Event, ViewPlaces, key_rows
from tagmill.domain.batches.states import BatchState
from tagmill.domain.documents import Batch
from tagmill.errors import SealedFileDamaged
from tagmill.journal.tag_view_reader import Views
from tagmill.ledger.retired_batches import Retired
from tagmill.runs.workspace import Workspace

log = structlog.get_logger()


def events(workspace: Workspace) -> Iterator[Event]:
    """Yield the events of all VOIDED batches that are in no batch of ClickHouse, as the view has them now.

    A batch whose file is gone is left out with a warning: an audit finds its events.
    """
    pipeline = workspace.pipeline
    views = Views(workspace.cassandra, pipeline.journal)
    with workspace.clickhouse() as clickhouse:
        for run, batch in _voided(workspace):
            standing = ViewPlaces(
                views,
                pipeline.bucket_size,
                f"batch {batch.batch_id} of run {run}, pipeline {workspace.name},",
            )
            try:
                for rows in key_rows(workspace.files, batch):
                    there = clickhouse.present(
                        pipeline.destination,
                        {(r["tag"], r["persistence_id"], r["sequence_nr"]) for r in rows},
                    )
                    missing = [
                        r
                        for r in rows
                        if (r["tag"], r["persistence_id"], r["sequence_nr"], r["writer_uuid"]) not in there
                    ]
                    yield from standing.of([missing])
            except SealedFileDamaged as error:
                log.warning(
                    "events of a batch were not looked for",
                    pipeline=workspace.name,
                    run=run,
                    batch=batch.batch_id,
                    error=str(error),
                )


def recount(workspace: Workspace) -> None:
    """Count again from the batches what is delivered of each tag, for the newest run, a withdrawal that
    counted nothing.
    """
    ledger, name = workspace.ledger, workspace.name
    last = ledger.last_run(name)
    retired = workspace.store(Retired)
    rows, batches = Counter[str](), Counter[str]()
    up_to = retired.up_to()
    for kept in retired.batches(last):
        if kept.run <= up_to:
            rows[kept.tag] += kept.rows
            batches[kept.tag] += 1
    for number in range(up_to + 1, last + 1):
        for batch in ledger.batches(name, number):
            if batch.state == BatchState.IN_CLICKHOUSE:
                rows[batch.tag] += batch.rows
                batches[batch.tag] += 1
    for tag, mark in ledger.delivered.watermarks(name).items():
        ledger.delivered.write_watermark(
            name, replace(mark, run=last, delivered=rows[tag], batches=batches[tag])
        )


def _voided(workspace: Workspace) -> Iterator[tuple[int, Batch]]:
    ledger, name = workspace.ledger, workspace.name
    retired = workspace.store(Retired).up_to()
    for number in range(retired + 1, ledger.last_run(name) + 1):
        voided = {batch.number for batch in ledger.batches(name, number) if batch.state == BatchState.VOIDED}
        row = ledger.run(name, number) if voided else None
        if row is None or not row.manifest_file:
            continue
        try:
            manifest = read_manifest(workspace.files, row)
        except SealedFileDamaged as error:
            log.warning("batches of a run were not looked for", pipeline=name, run=number, error=str(error))
            continue
        yield from ((number, batch) for batch in manifest.batches if batch.number in voided)
