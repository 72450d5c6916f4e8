"""Compares the tables of a pipeline's journal with those that it read before: created again, they hold another life of the journal."""

from tagmill.errors import GuardRefused
from tagmill.ledger.journal_tables import JournalTableIds
from tagmill.settings import Settings
from tagmill.stores.ledger import Ledger


def require_same_tables(settings: Settings, ledger: Ledger, pipeline: str) -> None:
    """Raise GuardRefused where a table of the pipeline's journal was created again since the pipeline read it first."""
    if changed := changed_tables(settings, ledger, pipeline):
        journal = settings.pipeline(pipeline).keyspace
        raise GuardRefused(
            f"pipeline {pipeline}: {' and '.join(changed)} of journal {journal} was created again since its events were delivered, so "
            "its numbers may be of another life. Nothing was planned. A new life: deliver it under another pipeline name and destination. "
            f"The same events (a backup): tagmill ledger accept-journal --pipeline {pipeline} --why …"
        )


def changed_tables(settings: Settings, ledger: Ledger, pipeline: str) -> list[str]:
    """Return the tables of the pipeline's journal that were created again, by name."""
    return _table_ids(settings, ledger, pipeline).changed(pipeline, _tables(settings, pipeline))


def accept_journal(settings: Settings, ledger: Ledger, pipeline: str) -> str:
    """Note that the tables which the journal has now hold the events that were delivered; say so in a sentence."""
    _table_ids(settings, ledger, pipeline).accept(pipeline, _tables(settings, pipeline))
    return f"pipeline {pipeline}: the tables of journal {settings.pipeline(pipeline).keyspace} are accepted; the next run goes on with them"


def _table_ids(settings: Settings, ledger: Ledger, pipeline: str) -> JournalTableIds:
    return JournalTableIds(ledger.cassandra, settings.cassandra.ledger_keyspace, settings.pipeline(pipeline).keyspace)


def _tables(settings: Settings, pipeline: str) -> tuple[str, str]:
    chosen = settings.pipeline(pipeline)
    return chosen.view_table, chosen.journal.messages
