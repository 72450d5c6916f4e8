"""What every work on a journal asks first: whether it is configured as it is, and whether nobody erases. Who only looks asks the first."""

from tagmill.settings import Settings
from tagmill.stores.cassandra import Cassandra
from tagmill.stores.erasures import Erasures
from tagmill.stores.journalviews import JournalViews


def check_journal(cassandra: Cassandra, settings: Settings, pipeline: str) -> None:
    """Refuse work on a pipeline's journal that has another view by now (ConfigurationError) or is being erased from (GuardRefused)."""
    chosen, ledger_keyspace = settings.pipeline(pipeline), settings.cassandra.ledger_keyspace
    JournalViews(cassandra, ledger_keyspace, chosen.keyspace).check(pipeline, chosen.view)
    Erasures(cassandra, ledger_keyspace, chosen.keyspace).check(pipeline)


def check_view(cassandra: Cassandra, settings: Settings, pipeline: str) -> None:
    """Refuse to look at a table that the journal's view was in before (ConfigurationError); without a ledger there was no other."""
    chosen, ledger_keyspace = settings.pipeline(pipeline), settings.cassandra.ledger_keyspace
    ledger = cassandra.cluster.metadata.keyspaces.get(ledger_keyspace)
    if ledger is not None and JournalViews.TABLE in ledger.tables:
        JournalViews(cassandra, ledger_keyspace, chosen.keyspace).check(pipeline, chosen.view)
