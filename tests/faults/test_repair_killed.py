"""A withdrawal that is killed or frozen at announced instants, and begun again: each event once, nothing lost."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from tagmill.delivery.interventions import Interventions
from tests.faults.conftest import Delivery
from tests.support.delivery import OWNER, clickhouse_rows, deliver

WITHDRAW = ["withdraw.planned", "withdraw.voided", "withdraw.removed", "withdraw.before_commit", "withdraw.after_commit"]
WHY = ("--why", "seen in a test", "--yes")


@pytest.fixture
def delivered(delivery: Callable[..., Delivery], spark: Any) -> Callable[..., Delivery]:
    """delivered(case) -> a pipeline whose journal is delivered."""

    def make(case: str, **keys: Any) -> Delivery:
        one = delivery(case, lease_seconds=5, **keys)
        deliver(one.settings, one.pipeline, spark)
        return one

    return make


def withdraw(one: Delivery, at: str | None = None) -> Any:
    batch = one.manifest().batches[0]
    return one.start("batches", "withdraw", batch.batch_id, "--run", "1", *WHY, at=at)


def again(one: Delivery, spark: Any) -> None:
    """Read everything again."""
    deliver(one.settings, one.pipeline, spark, reread=("2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"))


def is_whole(one: Delivery, before: list[Any]) -> None:
    """The rows of before, once; those of the withdrawn batch late."""
    now = clickhouse_rows(one.settings, one.table)
    assert [row._replace(late=0) for row in now] == before and sum(row.late for row in now) == one.manifest().batches[0].rows
    assert one.check().code == 0


@pytest.mark.timeout(900)
def test_a_withdrawal_killed_at_every_instant_goes_on_when_it_is_called_again(delivered: Any, spark: Any) -> None:
    one = delivered("swapped-order")
    before = clickhouse_rows(one.settings, one.table)
    for instant in [*WITHDRAW, "close.before_progress", "close.after_progress", "close.before_end"]:
        withdraw(one, at=instant).kill()
    ended = withdraw(one).end()
    assert ended.code == 0 and "is out of ClickHouse and VOIDED" in ended.out, ended
    assert one.run_state(2)[0] == "CLOSED"
    again(one, spark)
    is_whole(one, before)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("instant", [pytest.param("withdraw.removed", marks=pytest.mark.long), "withdraw.after_commit"])
def test_a_withdrawal_killed_and_left_is_finished_by_the_next_delivery(instant: str, delivered: Any, spark: Any) -> None:
    one = delivered("gap-middle")
    before = clickhouse_rows(one.settings, one.table)
    withdraw(one, at=instant).kill()
    refused = one.said("run", "abandon", *WHY)
    assert refused.code == 2 and "Nothing was changed" in refused.error
    deliver(one.settings, one.pipeline, spark)
    assert one.run_state(2)[0] == "CLOSED" and one.batches()[0][2] == "VOIDED"
    again(one, spark)
    is_whole(one, before)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("instant", ["withdraw.before_commit", "close.before_progress"])
def test_a_frozen_withdrawal_that_wakes_after_its_events_came_again_changes_nothing(
    instant: str, delivered: Any, spark: Any
) -> None:
    one = delivered("gap-middle")
    before = clickhouse_rows(one.settings, one.table)
    frozen = withdraw(one, at=instant)
    frozen.freeze()
    one.stack.session.execute("DELETE FROM tagmill_test.leases WHERE pipeline = %s", (one.pipeline,))
    deliver(one.settings, one.pipeline, spark)
    again(one, spark)
    progress = one.progress()
    woken = frozen.wake()
    assert woken.code == 75, woken
    assert one.progress() == progress
    is_whole(one, before)
    again(one, spark)
    is_whole(one, before)


def test_a_resend_that_sleeps_while_its_batch_is_withdrawn_sends_nothing(delivered: Any, spark: Any) -> None:
    one = delivered("gap-middle")
    before = clickhouse_rows(one.settings, one.table)
    batch = one.manifest().batches[0]
    frozen = one.start("batches", "resend", batch.batch_id, "--run", "1", *WHY, at="push.before_insert")
    frozen.freeze()
    one.stack.session.execute("DELETE FROM tagmill_test.leases WHERE pipeline = %s", (one.pipeline,))
    Interventions(one.settings, one.pipeline, OWNER, "tester", "a test").withdraw(UUID(batch.batch_id), 1)
    again(one, spark)
    woken = frozen.wake()
    assert woken.code == 75, woken
    is_whole(one, before)
