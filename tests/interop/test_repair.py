"""The plugin reads every event by tag from a view that had all damages of the fixtures and was repaired."""

from collections import Counter

import pytest

from tagmill.audit.repair import audit_and_repair
from tagmill.ledger import schema
from tests.interop.conftest import Peer
from tests.support import damage
from tests.support.delivery import OWNER, clickhouse_rows, only


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_plugin_reads_what_was_mended_for_it(stack, peer_programs, damaged_journal, settings, spark):
    made = damaged_journal()
    plugin = Peer(peer_programs, stack.cassandra.port, made.keyspace)
    configured = settings(made.keyspace, bucket_size="Hour", tags=damage.TAGS, first_time_bucket=damage.FIRST)
    schema.apply(configured)
    report = audit_and_repair(
        configured, only(configured), spark=spark, owner=OWNER, who="tester", why="a test"
    )
    (done,) = report.repairs
    assert report.agrees and done.left == []
    wanted = {tag: [row for row in damage.healthy() if row["tag_name"] == tag] for tag in damage.TAGS}
    for tag in damage.TAGS:
        read = plugin.read(tag, "Hour", damage.FIRST)
        assert Counter(read) == Counter(
            (row["persistence_id"], row["sequence_nr"], str(row["timestamp"])) for row in wanted[tag]
        )
    assert Counter(row.tag for row in clickhouse_rows(configured, only(configured))) == {
        t: len(r) for t, r in wanted.items()
    }
