"""A step that stands still (SIGSTOP), loses its lease, and wakes up when others have done its work: it changes nothing."""

import time
from collections.abc import Callable
from typing import Any

import pytest

LEASE_SECONDS = 5


@pytest.fixture
def slow(delivery: Callable[..., Any]) -> Callable[..., Any]:
    """A delivery whose lease ends soon."""
    return lambda case="gap-middle", **keys: delivery(case, lease_seconds=LEASE_SECONDS, lease_wait_seconds=60, **keys)


@pytest.mark.long
def test_a_planner_that_wakes_up_after_the_run_of_another_plans_nothing(
    slow: Callable[..., Any], undisturbed: Callable[[str], Any]
) -> None:
    """Its plan says that nothing was ever delivered."""
    one = slow()
    frozen = one.deliver(at="plan.before_commit")
    frozen.freeze()
    one.finish()
    runs = one._ledger("pipelines", "last_run")
    late = frozen.wake()
    assert (late.code, one._ledger("pipelines", "last_run")) == (75, runs)
    assert "somebody else" in late.error
    one.finish()
    undisturbed("gap-middle").equals(one)
    assert one.check().code == 0


@pytest.mark.long
def test_a_sealer_that_wakes_up_after_another_has_sealed_changes_nothing(
    slow: Callable[..., Any], undisturbed: Callable[[str], Any]
) -> None:
    one = slow()
    frozen = one.deliver(at="seal.before_commit")
    frozen.freeze()
    other = one.deliver(at="seal.after_commit")
    sealed = one.manifest()
    late = frozen.wake()
    assert late.code == 75
    assert "taken over" in late.error
    assert one.manifest() == sealed
    assert one.rows() == []
    assert other.end().code == 0
    undisturbed("gap-middle").equals(one)
    assert one.check().code == 0


@pytest.mark.parametrize("window", [pytest.param("remembers", marks=pytest.mark.long), "has forgotten"])
def test_a_pusher_that_wakes_up_between_asking_and_inserting_inserts_nothing(
    window: str, slow: Callable[..., Any], undisturbed: Callable[[str], Any]
) -> None:
    """Another process has pushed and closed meanwhile; ClickHouse's deduplication `window` is off in one of the cases."""
    one = slow()
    one.sealed()
    if window == "has forgotten":
        one.without_deduplication()
    frozen = one.deliver(at="push.before_insert")
    frozen.freeze()
    one.finish()
    before = one.batches()
    late = frozen.wake()
    assert late.code == 75
    assert "taken over" in late.error
    assert one.batches() == before
    undisturbed("gap-middle").equals(one)
    assert one.check().code == 0


def test_a_pusher_frozen_after_its_insert_does_not_move_the_batch(
    slow: Callable[..., Any], undisturbed: Callable[[str], Any]
) -> None:
    one = slow()
    one.sealed()
    frozen = one.deliver(at="push.after_insert")
    frozen.freeze()
    time.sleep(LEASE_SECONDS + 1)
    other = one.deliver(at="push.before_batch")  # has raised the fence, has moved nothing
    late = frozen.wake()
    assert late.code == 75
    assert {state for *_, state, _ in one.batches()} == {"NEW"}
    assert other.end().code == 0
    undisturbed("gap-middle").equals(one)


@pytest.mark.long
def test_a_closer_that_wakes_up_after_a_later_run_takes_nothing_back(
    slow: Callable[..., Any], undisturbed: Callable[[str], Any]
) -> None:
    """Its progress, holds and watermarks bear its run's number, the later run's a higher one."""
    one = slow("minute-buckets", max_slices_per_run=10)
    one.sealed()
    frozen = one.deliver(at="close.before_progress")
    frozen.freeze()
    one.finish()
    late = frozen.wake()
    assert late.code == 75
    undisturbed("minute-buckets").equals(one)
    assert one.check().code == 0


def test_a_pusher_that_wakes_up_after_its_batches_were_voided_inserts_nothing(
    slow: Callable[..., Any], undisturbed: Callable[[str], Any]
) -> None:
    """A person has given the run up, a later run has delivered the events under other batch ids; no token knows of it."""
    one = slow()
    one.sealed()
    frozen = one.deliver(at="push.before_insert")
    frozen.freeze()
    voided = one.said("run", "void", "--why", "its machine hangs", "--yes")
    assert voided.code == 0, voided
    one.finish()
    assert {(run, state) for run, _, state, _ in one.batches()} == {(1, "VOIDED"), (2, "IN_CLICKHOUSE")}
    late = frozen.wake()
    assert late.code == 75
    assert "taken over" in late.error
    undisturbed("gap-middle").equals(one)
    assert one.check().code == 0


@pytest.mark.long
def test_batches_delivered_before_the_rest_was_voided_are_not_delivered_again(
    delivery: Callable[..., Any], undisturbed: Callable[[str], Any]
) -> None:
    """In the very first run: the tag has rows in ClickHouse and progress, but its watermark has not moved."""
    one = delivery("minute-buckets", batch_rows=300, parallel_inserts=1)
    one.sealed()
    stopped = one.deliver(at="push.after_batch")
    stopped.kill()
    assert {state for *_, state, _ in one.batches()} == {"IN_CLICKHOUSE", "NEW"}
    assert one.said("run", "void", "--why", "a test", "--yes").code == 0
    one.finish()
    undisturbed("minute-buckets").equals(one)
    assert one.check().code == 0
