"""The ids of a topic's delivered events, rewritten under another rule or number of shards, and deleted past
the window.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import pytest

from tagmill.delivery.topics import steps
from tagmill.delivery.topics.expire_ids import expire
from tagmill.delivery.topics.give_up import TopicGiveUp
from tagmill.delivery.topics.interventions import TopicInterventions
from tagmill.delivery.topics.rekey_ids import rekey
from tagmill.delivery.topics.status import topic_line
from tagmill.errors import FenceRaised, GuardRefused, LeaseTaken, StoreUnavailable, WorkUnfinished
from tagmill.ledger.runs import Ledger
from tagmill.runs import checkpoints
from tests.support.delivery import tagmill
from tests.support.errors import raises
from tests.support.leases import free_lease
from tests.support.topics import OWNER, Crashed, checked_verdict, crashing, made

INSTANTS = ("rekey.slice", "rekey.written", "rekey.switched")


@pytest.fixture
def shop(stack, kafka, spark, tmp_path):
    """Yield a factory of topics with products, each delivered by its own pipeline."""
    yield from made(stack, kafka, spark, tmp_path)


def rekeyed(one, **options):
    """Rekey the topic's ids and return the report."""
    return rekey(one.settings, one.name, owner=OWNER, who="tester", spark=lambda: one.spark, **options)


def slices(one):
    """Return the folders of payloads that rekeyings have left."""
    return list(Path(one.settings.storage.root, one.name).glob("rekey/*"))


def free(one):
    """Delete the lease that a crashed step has left."""
    free_lease(one.stack.session, one.name)


def test_rekey_other_shards_keeps_ids(shop):
    one = shop(shards=12)
    for product in range(50):
        one.send(product)
    one.deliver()
    before = one.ids()
    one.configure(shards=7)
    planned = rekeyed(one, dry_run=True)
    assert (planned.ids, planned.same, planned.changed, planned.equal) == (
        50,
        50,
        0,
        0,
    ) and one.ids() == before
    done = rekeyed(one)
    assert (done.ids, done.same, done.unreadable) == (50, 50, 0)
    after = one.ids()
    assert after.keys() == before.keys() and max(shard for shard, _ in after.values()) < 7
    assert one.rules() == {one.settings.topic(one.name).rule}
    for product in range(51):
        one.send(product)
    (run,) = one.deliver()
    assert (run["rows"], run["known"]) == (1, 50)
    assert "nothing to do" in rekeyed(one).message


@pytest.mark.parametrize(
    "instant", [*(pytest.param(name, marks=pytest.mark.long) for name in INSTANTS[:-1]), INSTANTS[-1]]
)
def test_rekey_other_rule_crashed_then_repeated_is_whole(shop, instant):
    """Crash a rekeying to another rule, repeat it, and rekey back: events become equal and different
    again.
    """
    one = shop(shards=5, unique_id=["product_id", "colour"])
    for product, colour in ((1, "red"), (1, "blue"), (2, "red")):
        one.send(product, colour=colour)
    one.deliver()
    one.configure(unique_id=["product_id"])
    with crashing(instant), pytest.raises(Crashed):
        rekeyed(one)
    free(one)
    done = rekeyed(one)
    if instant != "rekey.switched":
        assert (done.ids, done.equal, done.changed) == (3, 1, 3) and "become" in done.examples[0]
    assert len(one.ids()) == 2 and one.rules() == {"product_id%5"} and slices(one) == []
    one.send(1, colour="green")
    one.send(3, colour="red")
    (run,) = one.deliver()
    assert (run["rows"], run["known"]) == (1, 1)
    # Rekey back: the ids that were deleted under the first rule are written again.
    one.configure(unique_id=["product_id", "colour"])
    assert rekeyed(one).changed == 3 and len(one.ids()) == 3


@pytest.mark.long
def test_rekey_payload_without_id_is_refused(shop):
    one = shop()
    one.send(1, colour="red")
    one.send(2)
    one.deliver()
    before = one.ids()
    one.configure(unique_id=["product_id", "colour"])
    with raises(GuardRefused, match="field colour, of the key, is missing", pipeline=one.name):
        rekeyed(one)
    assert one.ids() == before
    assert rekeyed(one, drop_unreadable=True).unreadable == 1 and len(one.ids()) == 1


def test_rekey_raised_limit_reads_refused_payload(shop):
    """Refuse a payload that is nested deeper than the limit, and read it again once the limit is raised."""
    one = shop(shards=2)
    one.send(1, note=[[1]])
    one.deliver()
    one.configure(shards=3, max_record_depth=2)
    with raises(GuardRefused, match="nested deeper", pipeline=one.name):
        rekeyed(one)
    free(one)
    one.configure(max_record_depth=3)
    done = rekeyed(one, dry_run=True)
    assert (done.unreadable, done.same) == (0, 1) and len(slices(one)) == 1


def test_rekey_passes_large_payloads(shop):
    """Rekey payloads of nearly a megabyte each, and back: each can be read again."""
    one = shop(shards=2)
    for product in range(60):
        one.send(product, note="x" * 900_000)
    one.deliver()
    before = one.ids()
    for shards in (3, 2):
        one.configure(shards=shards)
        assert rekeyed(one).same == 60
    assert one.ids() == before


def test_rekey_during_open_run_is_refused(shop):
    one = shop()
    one.send(1)
    one.sealed()
    one.configure(unique_id=["product_id"])
    with raises(WorkUnfinished, match="put the rule back", pipeline=one.name, run=1):
        rekeyed(one)


def test_rekey_delivered_id_wins_over_given_up(shop):
    """Give up a run with an event whose id becomes that of a delivered one: the event stays known."""
    one = shop(unique_id=["product_id", "colour"])
    one.send(1, colour="red")
    one.deliver()
    one.send(1, colour="blue")
    one.sealed()
    free(one)
    TopicGiveUp(one.settings, one.name, OWNER, "me", "a test").run([])
    free(one)
    one.configure(unique_id=["product_id"])
    done = rekeyed(one)
    assert (done.ids, done.changed, done.equal) == (1, 1, 0)
    (run,) = one.deliver()
    assert (run["rows"], run["known"]) == (0, 1) and one.products() == [1]


def test_rekey_finishing_waits_for_newer_run(shop):
    """Crash a rekeying behind its switch and seal a run: the rekeying finishes only after that run."""
    one = shop(unique_id=["product_id", "colour"])
    one.send(1, colour="red")
    one.deliver()
    one.configure(unique_id=["product_id"])
    with crashing("rekey.switched"), pytest.raises(Crashed):
        rekeyed(one)
    free(one)
    one.send(2, colour="red")
    planned = one.sealed()
    free(one)
    with raises(WorkUnfinished, pipeline=one.name, run=planned["run"]):
        rekeyed(one)
    free(one)
    again = steps.plan(one.settings, one.name, owner=OWNER)
    assert again["run"] == planned["run"] == 3
    one.finish(again)
    assert one.products() == [1, 2] and "nothing to do" in rekeyed(one).message
    assert len(one.ids()) == 2 and one.rules() == {one.settings.topic(one.name).rule}


@pytest.mark.parametrize(
    ("instant", "error"),
    [pytest.param("rekey.slice", LeaseTaken, marks=pytest.mark.long), ("rekey.written", FenceRaised)],
)
def test_rekey_frozen_during_delivery_keeps_new_ids(shop, instant, error):
    """Deliver while a rekeying sleeps: the rekeying is kept out, and a repeated one covers the new ids."""
    one = shop(shards=3, unique_id=["product_id", "colour"])
    one.send(1, colour="red")
    one.deliver()
    delivered: list[int] = []

    def reached(name):
        if name == instant and not delivered:
            delivered.append(2)
            one.configure(unique_id=["product_id", "colour"])
            one.send(2, colour="red")
            one.deliver()
            one.configure(unique_id=["product_id"])

    one.configure(unique_id=["product_id"])
    with patch.object(checkpoints, "reached", reached), pytest.raises(error):
        rekeyed(one)
    assert delivered and one.products() == [1, 2]
    assert (rekeyed(one).ids, len(one.ids())) == (2, 2)
    one.send(2, colour="blue")
    (run,) = one.deliver()
    assert (run["rows"], run["known"]) == (0, 1)


def test_rekey_replaced_by_next_attempt_ends(shop):
    """Start the next attempt of the same DAG run while one is still at work: only the newer one makes the ids."""
    one = shop(shards=3, unique_id=["product_id", "colour"])
    for product in (1, 2):
        one.send(product, colour="red")
    one.deliver()
    one.configure(unique_id=["product_id"])
    newer = []

    def reached(name):
        if name == "rekey.slice" and not newer:
            newer.append(None)
            newer.append(rekeyed(one))

    with patch.object(checkpoints, "reached", reached), raises(LeaseTaken, pipeline=one.name):
        rekeyed(one)
    assert newer[1].ids == 2 and len(one.ids()) == 2
    assert one.rules() == {one.settings.topic(one.name).rule}


def expired(one, **options):
    """Delete the ids past the window and return their number."""
    return expire(one.settings, one.name, owner=OWNER, spark=lambda: one.spark, **options).ids


def seen_days_ago(one, days, ids):
    """Date ids back by some days."""
    for unique_id in ids:
        shard, run = one.ids()[unique_id]
        one.stack.session.execute(
            "UPDATE tagmill_test.deduplication USING TIMESTAMP %s SET seen_at = %s WHERE pipeline = %s "
            "AND rule = %s AND shard = %s "
            "AND unique_id = %s",
            (
                run + 1,
                datetime.now(UTC) - timedelta(days=days),
                one.name,
                one.settings.topic(one.name).rule,
                shard,
                unique_id,
            ),
        )


def test_expire_deletes_only_old_delivered_ids(shop):
    one = shop(window_days=10)
    for product in (1, 2):
        one.send(product)
    one.deliver()
    old, young = one.ids()
    seen_days_ago(one, 11, [old])
    one.send(3)
    planned = one.sealed()  # the run's ids are noted, and its batch is not in ClickHouse
    (waiting,) = one.ids().keys() - {old, young}
    seen_days_ago(one, 100, [waiting])
    assert expired(one, dry_run=True) == 1 and len(one.ids()) == 3
    free(one)
    assert expired(one) == 1 and one.ids().keys() == {young, waiting}
    free(one)
    one.finish(planned)
    assert expired(one) == 1 and one.ids().keys() == {young}


def test_expire_keeps_ids_of_interrupted_resend(shop):
    """Interrupt a resend: the verdict names its batch and the command, and its ids stay until it is
    finished.
    """
    one = shop(window_days=10)
    one.send(1)
    one.deliver()
    one.send(2)
    one.deliver()
    seen_days_ago(one, 11, one.ids())
    with Ledger(one.settings.cassandra) as ledger:
        (batch,) = ledger.batches(one.name, 1)
    with crashing("push.before_insert"), pytest.raises(Crashed):
        TopicInterventions(one.settings, one.name, OWNER, "tester", "a test").resend(batch.batch_id, 1)
    free(one)
    assert one.products() == [2]
    resend = f"batches resend {batch.batch_id} --run 1 --pipeline {one.name}"
    for verify in (False, True):
        verdict = topic_line(one.settings, one.name, verify=verify)["verdict"]
        assert (
            verdict.startswith(f"differs: batch {batch.batch_id} of run 1 is not delivered")
            and f"tagmill {resend}" in verdict
        )
    assert expired(one) == 1
    free(one)
    code, _, err = tagmill(one.file, *resend.split(), "--why", "a test", "--yes")
    assert code == 0 and checked_verdict(one) == "exactly once", err
    assert one.products() == [1, 2] and expired(one) == 1


def test_expire_and_rekey_cassandra_silent_is_one_line(shop):
    one = shop()
    one.send(1)
    one.deliver()

    def silent(*_, **__):
        raise StoreUnavailable("Cassandra at 127.0.0.1:1 did not answer")

    with (
        patch("tagmill.delivery.topics.expire_ids._expire", silent),
        pytest.raises(StoreUnavailable, match="Ids that are not gone yet stay"),
    ):
        expired(one)
    free(one)
    one.configure(shards=7)
    with (
        patch("tagmill.delivery.topics.rekey_ids._rekeyed", silent),
        pytest.raises(StoreUnavailable, match="The rule in force stays"),
    ):
        rekeyed(one)


def test_expire_keeps_ids_of_planned_run(shop):
    one = shop(window_days=10)
    one.send(1)
    one.deliver()
    (known,) = one.ids()
    one.send(1)
    one.topic.flush()
    seen_days_ago(one, 9, [known])
    planned = steps.plan(one.settings, one.name, owner=OWNER)
    one.configure(window_days=1)
    assert expired(one) == 0
    free(one)
    assert one.finish(planned)["known"] == 1 and one.products() == [1]
