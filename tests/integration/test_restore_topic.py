"""A topic's ledger is lost while ClickHouse has its events: offsets and ids come back from the sealed
manifests.
"""

import shutil
from pathlib import Path

import pytest

from tagmill.delivery.topics.give_up import TopicGiveUp
from tagmill.delivery.topics.status import topic_line
from tagmill.errors import GuardRefused, LedgerOutdated
from tagmill.ledger.runs import Ledger
from tagmill.maintenance.ledger_restore.restore import Restoring
from tests.support.errors import raises
from tests.support.topics import OWNER, Crashed, checked_verdict, crashing, made


@pytest.fixture
def shop(stack, kafka, spark, tmp_path):
    """Yield a factory of topics with products, each delivered by its own pipeline."""
    yield from made(stack, kafka, spark, tmp_path)


def lose_ledger(one):
    """Delete all ledger rows of the pipeline by hand, so that their deletions have the time of this
    moment.
    """
    session = one.stack.session
    shards = {shard for shard, _ in one.ids().values()}
    for rule, shard in ((rule, shard) for rule in one.rules() for shard in shards):
        where = "pipeline = %s AND rule = %s AND shard = %s"
        session.execute(f"DELETE FROM tagmill_test.deduplication WHERE {where}", (one.name, rule, shard))
    for run in range(1, 10):
        session.execute("DELETE FROM tagmill_test.runs WHERE pipeline = %s AND run = %s", (one.name, run))
    for table in ("pipelines", "topic_offsets", "topic_rules", "topic_ids"):
        session.execute(f"DELETE FROM tagmill_test.{table} WHERE pipeline = %s", (one.name,))


def test_restore_of_topic_delivers_nothing_twice(shop):
    one = shop(2)
    for first in (1, 4):
        for product in range(first, first + 3):
            one.send(product, partition=product % 2)
        one.deliver()
    lose_ledger(one)
    one.send(7)
    one.send(2, partition=1)  # a product that was delivered before
    with raises(LedgerOutdated, pipeline=one.name):
        one.deliver()
    assert topic_line(one.settings, one.name, verify=False)["verdict"].startswith("differs: ")
    give_up = TopicGiveUp(one.settings, one.name, OWNER, "me", "a test")
    with raises(LedgerOutdated, pipeline=one.name):
        give_up.run([f"{one.name}/0/0"])
    lost = (one.settings, one.name, OWNER, "me", "lost", lambda: one.spark)
    assert Restoring(*lost, dry_run=True).run().runs == [1, 2]
    restoring = Restoring(*lost)
    for instant in ("restore.ids_noted", "restore.before_end"):
        with pytest.raises(Crashed), crashing(instant):
            restoring.run()
    restoring.run()
    (run,) = one.deliver()
    assert (run["records"], run["rows"]) == (2, 1)
    assert sorted(one.products()) == [1, 2, 3, 4, 5, 6, 7]
    assert checked_verdict(one).startswith("exactly once")


def test_restore_of_topic_refuses_numbers_used_since(shop):
    """Claim the number of a lost run, as an earlier version did: no run delivers again, no restore passes the
    lost run over.
    """
    one = shop()
    one.send(1)
    one.deliver()
    lose_ledger(one)
    with Ledger(one.settings.cassandra) as ledger:
        ledger.add_intervention(one.name, 1, owner=OWNER, who="me", action="a", why="b")
    with raises(LedgerOutdated, pipeline=one.name):
        one.deliver()
    restoring = Restoring(one.settings, one.name, OWNER, "me", "lost", lambda: one.spark)
    with raises(GuardRefused, match="to other work.*Nothing was changed.*backup", pipeline=one.name, run=1):
        restoring.run()
    assert one.products() == [1]


def test_restore_of_topic_without_manifest_refuses(shop):
    """Lose the manifest of a run, too: one line says what to do, and nothing is changed."""
    one = shop()
    one.send(1)
    one.deliver()
    lose_ledger(one)
    shutil.rmtree(Path(one.settings.storage.root) / one.name / "run-00000001")
    restoring = Restoring(one.settings, one.name, OWNER, "me", "lost", lambda: one.spark)
    with raises(GuardRefused, match="no manifest.*Nothing was changed.*backup", pipeline=one.name, run=1):
        restoring.run()
    assert one.products() == [1]
