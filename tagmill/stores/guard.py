"""What every work on a journal asks first: whether it is configured as it is, and whether nobody erases."""

from tagmill.settings import Settings
from tagmill.stores.cassandra import Cassandra
from tagmill.stores.erasures import Erasures
from tagmill.stores.journalviews import JournalViews


def check_journal(cassandra: Cassandra, settings: Settings, pipeline: str) -> None:
    """Refuse work on a pipeline's journal that has another view by now (ConfigurationError) or is being erased from (GuardRefused)."""
    chosen, ledger_keyspace = settings.pipeline(pipeline), settings.cassandra.ledger_keyspace
    JournalViews(cassandra, ledger_keyspace, chosen.keyspace).check(pipeline, chosen.view)
    Erasures(cassandra, ledger_keyspace, chosen.keyspace).check(pipeline)
