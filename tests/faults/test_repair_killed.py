"""A withdrawal or resend that is killed or frozen, and repeated, loses no event and delivers each once."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from tagmill.delivery.tag_views.interventions import Interventions
from tests.faults.conftest import Delivery
from tests.support.delivery import OWNER, clickhouse_rows, deliver
from tests.support.leases import free_lease

WITHDRAW = [
    "withdraw.planned",
    "withdraw.voided",
    "withdraw.removed",
    "withdraw.before_commit",
    "withdraw.after_commit",
]
# At the other instants a withdrawal crashes in this process.
KILLED = ("withdraw.removed", "withdraw.after_commit", "close.after_progress")
WHY = ("--why", "seen in a test", "--yes")


@pytest.fixture
def delivered(delivery: Callable[..., Delivery], spark: Any) -> Callable[..., Delivery]:
    """Return delivered(case, **pipeline keys), which makes a pipeline and delivers its journal."""

    def make(case: str, **keys: Any) -> Delivery:
        one = delivery(case, lease_seconds=5, **keys)
        deliver(one.settings, one.pipeline, spark)
        return one

    return make


def withdrawal(one: Delivery) -> tuple[str, ...]:
    """Return the command that withdraws the first batch of run 1."""
    return ("batches", "withdraw", one.manifest().batches[0].batch_id, "--run", "1", *WHY)


def withdraw(one: Delivery, at: str) -> Any:
    """Start to withdraw the first batch of run 1, and return once it waits at an instant."""
    return one.start(*withdrawal(one), at=at)


def again(one: Delivery, spark: Any) -> None:
    """Read and deliver all of 2026 again."""
    deliver(one.settings, one.pipeline, spark, reread=("2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"))


def is_whole(one: Delivery, before: list[Any]) -> None:
    """Assert that ClickHouse has the rows of `before` once, those of the withdrawn batch marked late."""
    now = clickhouse_rows(one.settings, one.table)
    assert [row._replace(late=0) for row in now] == before and sum(
        row.late for row in now
    ) == one.manifest().batches[0].rows
    assert one.check().code == 0


@pytest.mark.timeout(900)
def test_withdraw_killed_at_each_instant_finishes(delivered: Any, spark: Any) -> None:
    """Kill or crash a withdrawal at each instant and repeat it: the batch is voided, and its events come
    again, late.
    """
    one = delivered("swapped-order")
    before = clickhouse_rows(one.settings, one.table)
    for instant in [*WITHDRAW, "close.before_progress", "close.after_progress", "close.before_end"]:
        if instant in KILLED:
            withdraw(one, at=instant).kill()
        else:
            one.crash(*withdrawal(one), at=instant)
    ended = one.said(*withdrawal(one))
    assert ended.code == 0 and "is out of ClickHouse and VOIDED" in ended.out, ended
    assert one.run_state(2)[0] == "CLOSED"
    again(one, spark)
    is_whole(one, before)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("instant", ["withdraw.removed", "withdraw.after_commit"])
def test_withdraw_killed_is_finished_by_next_delivery(instant: str, delivered: Any, spark: Any) -> None:
    """Kill a withdrawal and do not repeat it: the run can't be abandoned, and the next delivery finishes the
    withdrawal.
    """
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
def test_withdraw_frozen_during_redelivery_changes_nothing(instant: str, delivered: Any, spark: Any) -> None:
    """Wake a frozen withdrawal after other runs have finished it and delivered its events again."""
    one = delivered("gap-middle")
    before = clickhouse_rows(one.settings, one.table)
    frozen = withdraw(one, at=instant)
    frozen.freeze()
    free_lease(one.stack.session, one.pipeline)
    deliver(one.settings, one.pipeline, spark)
    again(one, spark)
    progress = one.progress()
    woken = frozen.wake()
    assert woken.code == 75, woken
    assert one.progress() == progress
    is_whole(one, before)
    again(one, spark)
    is_whole(one, before)


def test_resend_frozen_during_withdrawal_sends_nothing(delivered: Any, spark: Any) -> None:
    """Freeze a resend before its insert, withdraw its batch and deliver the events again; then wake the
    resend.
    """
    one = delivered("gap-middle")
    before = clickhouse_rows(one.settings, one.table)
    batch = one.manifest().batches[0]
    frozen = one.start("batches", "resend", batch.batch_id, "--run", "1", *WHY, at="push.before_insert")
    frozen.freeze()
    free_lease(one.stack.session, one.pipeline)
    Interventions(one.settings, one.pipeline, OWNER, "tester", "a test").withdraw(UUID(batch.batch_id), 1)
    again(one, spark)
    woken = frozen.wake()
    assert woken.code == 75, woken
    is_whole(one, before)
