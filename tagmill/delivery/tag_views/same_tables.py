"""Compare a pipeline's journal tables with those that it first read: tables created again may hold another
life of the journal.
"""

from tagmill.config.settings import Settings
from tagmill.errors import GuardRefused
from tagmill.ledger.journal_tables import JournalTableIds
from tagmill.ledger.runs import Ledger


def require_same_tables(settings: Settings, ledger: Ledger, pipeline: str) -> None:
    """Raise GuardRefused if a table of the pipeline's journal was created again since the pipeline first read
    it.
    """
    if changed := changed_tables(settings, ledger, pipeline):
        journal = settings.pipeline(pipeline).keyspace
        raise GuardRefused(
            f"pipeline {pipeline}: {' and '.join(changed)} of journal {journal} was created again since "
            "its events were delivered, so "
            "its numbers may be of another life. Nothing was planned. A new life: deliver it under "
            "another pipeline name and destination. "
            f"The same events (a backup): tagmill ledger accept-journal --pipeline {pipeline} --why …",
            pipeline=pipeline,
        )


def changed_tables(settings: Settings, ledger: Ledger, pipeline: str) -> list[str]:
    """Return the names of the pipeline's journal tables that were created again."""
    return _table_ids(settings, ledger, pipeline).changed(pipeline, _tables(settings, pipeline))


def accept_journal(settings: Settings, ledger: Ledger, pipeline: str) -> str:
    """Note that the present tables of the journal hold the events that were delivered; return a sentence that
    says so.
    """
    _table_ids(settings, ledger, pipeline).accept(pipeline, _tables(settings, pipeline))
    return (
        f"pipeline {pipeline}: the tables of journal {settings.pipeline(pipeline).keyspace} are "
        "accepted; the next run goes on with them"
    )


def _table_ids(settings: Settings, ledger: Ledger, pipeline: str) -> JournalTableIds:
    return JournalTableIds(
        ledger.cassandra, settings.cassandra.ledger_keyspace, settings.pipeline(pipeline).keyspace
    )


def _tables(settings: Settings, pipeline: str) -> tuple[str, str]:
    chosen = settings.pipeline(pipeline)
    return chosen.view_table, chosen.journal.messages
