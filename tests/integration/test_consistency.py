"""read_consistency applies to the application's tables only: Tagmill reads its own tables at LOCAL_QUORUM.

One node can't answer at THREE, so a read at THREE fails and a read at LOCAL_QUORUM succeeds.
"""

import pytest

from tagmill.cassandra import client as stores
from tagmill.cassandra.client import Cassandra
from tagmill.cassandra.paging import Pages
from tagmill.errors import StoreUnavailable
from tagmill.journal.event_store import JournalStore
from tagmill.journal.tag_view_reader import Views
from tagmill.ledger import schema
from tagmill.ledger.lease import Lease
from tagmill.ledger.runs import Ledger
from tagmill.spark.cassandra_table import CassandraTable
from tests.support.delivery import only


@pytest.fixture
def configured(keyspace, settings, monkeypatch):
    """Return a pipeline whose reads of the application's tables fail, because one node can't answer at
    THREE.
    """
    monkeypatch.setattr(stores, "PATIENCE_SECONDS", 0)
    made = settings(
        keyspace("gap-middle"), case="gap-middle", sections={"cassandra": {"read_consistency": "THREE"}}
    )
    schema.apply(made)
    return made


def test_ledger_read_at_local_quorum_journal_as_configured(configured):
    """Read the ledger at LOCAL_QUORUM and the application's tables at read_consistency."""
    name, journal = only(configured), configured.pipeline(only(configured)).journal
    with Ledger(configured.cassandra) as ledger:
        assert ledger.delivered.watermarks(name) == {} and list(
            ledger.delivered.progress(name, [("t", "p")])
        ) == [None]
        assert list(ledger.delivered.holds(name, ["t"])) == []
        assert (
            Lease(ledger.cassandra, configured.cassandra.ledger_keyspace, name, "owner", 30).holder() is None
        )
        views = Views(ledger.cassandra, journal)
        store = JournalStore(ledger.cassandra, journal, "none", "none")
        for read in (
            lambda: views.deleted_to("p"),
            lambda: list(views.partitions()),
            lambda: store.deleted_to("p"),
        ):
            with pytest.raises(StoreUnavailable):
                read()


def test_spark_reads_the_same_way(configured, spark):
    """Read the ledger by Spark; the pages that its workers read the application's tables by fail."""
    name, journal = only(configured), configured.pipeline(only(configured)).journal
    with Cassandra(configured.cassandra) as cassandra:
        ledger = CassandraTable(cassandra, configured.cassandra.ledger_keyspace, "holds")
        assert ledger.rows(spark, "pipeline").where(f"pipeline = '{name}'").count() == 0
        with Pages(cassandra) as pages, pytest.raises(StoreUnavailable):
            list(pages.of(f"SELECT tag_name FROM {journal.cql(journal.view)}"))
