"""Holds the destination against the ledger: a ledger that was restored or lost must not deliver again what ClickHouse has."""

from tagmill.batches.states import RunState
from tagmill.errors import ConfigurationError, GuardRefused
from tagmill.settings import Settings
from tagmill.stores.clickhouse import ClickHouse
from tagmill.stores.ledger import Ledger
from tagmill.stores.sentbatches import DestinationBatches


def require_up_to_date(
    settings: Settings, ledger: Ledger, pipeline: str, number: int | None = None, done: str = "Nothing was sealed"
) -> None:
    """Raise GuardRefused where ClickHouse has batches of runs from this number on, by default the next run's."""
    with ClickHouse(settings.clickhouse) as clickhouse:
        if found := destination_ahead(settings, ledger, clickhouse, pipeline, number):
            raise GuardRefused(
                f"pipeline {pipeline}: {found}. {done}. Look and go on: tagmill ledger restore --pipeline {pipeline} --dry-run"
            )


def require_unsent(settings: Settings, ledger: Ledger, pipeline: str, run: int) -> None:
    """Raise GuardRefused where ClickHouse has batches of a planned run; another process may have sealed and sent it meanwhile."""
    try:
        require_up_to_date(settings, ledger, pipeline, run)
    except GuardRefused:
        row = ledger.run(pipeline, run)
        if row is None or row.state == RunState.PLANNED:
            raise


def destination_ahead(
    settings: Settings, ledger: Ledger, clickhouse: ClickHouse, pipeline: str, number: int | None = None
) -> str | None:
    """Return in a sentence what ClickHouse has that the ledger can't know of, None: nothing.

    `number`: the run that is to be sealed, by default the next one. A few small queries.
    """
    chosen = settings.streams.get(pipeline) or settings.pipeline(pipeline)
    sent = DestinationBatches(clickhouse, chosen.destination)
    if not clickhouse.columns_of(chosen.destination):
        return None
    if not sent.exists():
        raise ConfigurationError(
            f"{clickhouse.where}: table {settings.clickhouse.database}.{sent.table} does not exist. Nothing was sealed. "
            "Create it: tagmill schema apply"
        )
    number = ledger.free_number(pipeline) if number is None else number
    newest = sent.last_run()
    if newest >= number:
        return f"{chosen.destination} has batches of run {newest}, and the ledger ends with run {number - 1}: it is older than ClickHouse"
    if not newest:
        there = sent.count()
        known = _known_batches(ledger, pipeline) if pipeline in settings.pipelines else there * (number > 1)
        # sent by a version that noted none
        if there > known:
            return f"{chosen.destination} has {there} batches, of which the ledger knows {known}: it is older than ClickHouse"
    return None


def _known_batches(ledger: Ledger, pipeline: str) -> int:
    return sum(mark.batches for mark in ledger.delivered.watermarks(pipeline).values())
