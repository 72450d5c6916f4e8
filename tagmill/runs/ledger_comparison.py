"""Compare the destination with the ledger, so that a restored or lost ledger never delivers again what
ClickHouse already has.
"""

from uuid import UUID

from tagmill.clickhouse.client import ClickHouse
from tagmill.domain.batches.states import RunState
from tagmill.errors import ConfigurationError, LedgerOutdated
from tagmill.ledger.retired_batches import Retired
from tagmill.ledger.runs import Ledger
from tagmill.ledger.sent_batches import DestinationBatches
from tagmill.runs.workspace import Workspace


def require_up_to_date(
    workspace: Workspace, number: int | None = None, done: str = "Nothing was sealed"
) -> None:
    """Raise LedgerOutdated if ClickHouse has batches that the ledger cannot know of.

    Everything that claims a run number asks this first: after as many numbers as runs were lost, the next run
    would deliver again.

    `number` is the run to be sealed, by default the next one; `done` says in the message what was left
    undone.
    """
    pipeline = workspace.name
    with workspace.clickhouse() as clickhouse:
        if found := destination_ahead(workspace, clickhouse, number):
            raise LedgerOutdated(
                f"pipeline {pipeline}: {found}. {done}. Look and go on: tagmill ledger restore "
                f"--pipeline {pipeline} --dry-run",
                pipeline=pipeline,
            )


def require_unsent(workspace: Workspace, run: int) -> None:
    """Raise LedgerOutdated if ClickHouse has batches of a run that is still PLANNED.

    Another process may have sealed and sent the run in the meantime; that is not an error.
    """
    try:
        require_up_to_date(workspace, run)
    except LedgerOutdated:
        row = workspace.ledger.run(workspace.name, run)
        if row is None or row.state == RunState.PLANNED:
            raise


def destination_ahead(workspace: Workspace, clickhouse: ClickHouse, number: int | None = None) -> str | None:
    """Return a sentence about batches in ClickHouse that the ledger cannot know of, or None if there are
    none.

    Compares the number of the newest run that ClickHouse has noted, and whether the ledger knows the batches
    of that run. `number` is the run to be sealed, by default the next one. Costs a few small queries.
    """
    ledger, pipeline = workspace.ledger, workspace.name
    chosen = workspace.delivering
    sent = DestinationBatches(clickhouse, chosen.destination)
    if not clickhouse.columns_of(chosen.destination):
        return None
    if not sent.exists():
        raise ConfigurationError(
            f"{clickhouse.where}: table {workspace.settings.clickhouse.database}.{sent.table} does not exist. "
            "Nothing was done. "
            "Create it: tagmill schema apply"
        )
    # In this order, so that a run which begins meanwhile is not taken for one that the ledger does not know.
    newest = sent.last_run()
    number = ledger.free_number(pipeline) if number is None else number
    if newest >= number:
        return (
            f"{chosen.destination} has batches of run {newest}, and the ledger ends with run "
            f"{number - 1}: it is older than ClickHouse"
        )
    if newest and _unknown_batches(workspace, sent, newest):
        return (
            f"{chosen.destination} has batches of run {newest} that the ledger does not know: it is older "
            "than ClickHouse"
        )
    if not newest:
        there = sent.count()
        known = (
            _known_batches(ledger, pipeline)
            if pipeline in workspace.settings.pipelines
            else there * (number > 1)
        )
        # Batches without a note of their run were sent by a version that noted none: only their number can be
        # compared.
        if there > known:
            return (
                f"{chosen.destination} has {there} batches, of which the ledger knows {known}: it is "
                "older than ClickHouse"
            )
    return None


def _unknown_batches(workspace: Workspace, sent: DestinationBatches, run: int) -> set[UUID]:
    """Return the batches of a run that have rows in the destination, and are neither in the ledger's run nor
    among its retired batches.

    A batch is in the ledger before it is noted, so a run under way has none.
    """
    unknown = sent.of_run(run) - {batch.batch_id for batch in workspace.ledger.batches(workspace.name, run)}
    if unknown:
        retired = workspace.store(Retired)
        unknown -= {batch.batch_id for batch in retired.of_run(run)}
    return sent.with_rows(unknown) if unknown else unknown


def _known_batches(ledger: Ledger, pipeline: str) -> int:
    return sum(mark.batches for mark in ledger.delivered.watermarks(pipeline).values())
