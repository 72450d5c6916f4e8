"""Checks before any work on a journal: its view is the configured one, and no erasure is under way.

Readers need only the first.
"""

from tagmill.cassandra.client import Cassandra
from tagmill.config.settings import Settings
from tagmill.ledger.erasures import Erasures
from tagmill.ledger.view_tables import JournalViews


def check_journal(cassandra: Cassandra, settings: Settings, pipeline: str) -> None:
    """Raise ConfigurationError if a pipeline's journal has another view by now, GuardRefused if an erasure of
    it is not finished.
    """
    chosen, ledger_keyspace = settings.pipeline(pipeline), settings.cassandra.ledger_keyspace
    JournalViews(cassandra, ledger_keyspace, chosen.keyspace).check(pipeline, chosen.view)
    Erasures(cassandra, ledger_keyspace, chosen.keyspace).check(pipeline)


def check_view(cassandra: Cassandra, settings: Settings, pipeline: str) -> None:
    """Raise ConfigurationError if the pipeline's configured view is not the one that its journal has now.

    Without a ledger the journal never had another view.
    """
    chosen, ledger_keyspace = settings.pipeline(pipeline), settings.cassandra.ledger_keyspace
    if not cassandra.missing(ledger_keyspace, [JournalViews.TABLE]):
        JournalViews(cassandra, ledger_keyspace, chosen.keyspace).check(pipeline, chosen.view)
