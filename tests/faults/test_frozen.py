"""A step that is frozen (SIGSTOP), loses its lease, and wakes up after others have done its work changes
nothing.
"""

import time
from collections.abc import Callable
from typing import Any

import pytest

LEASE_SECONDS = 5


@pytest.fixture
def slow(delivery: Callable[..., Any]) -> Callable[..., Any]:
    """Return a factory of deliveries whose lease ends after LEASE_SECONDS."""
    return lambda case="gap-middle", **keys: delivery(
        case, lease_seconds=LEASE_SECONDS, lease_wait_seconds=60, **keys
    )


@pytest.mark.long
def test_planner_frozen_during_other_run_plans_nothing(
    slow: Callable[..., Any], undisturbed: Callable[[str], Any]
) -> None:
    """Wake a planner whose plan says that nothing was delivered yet, after another process has delivered
    everything.
    """
    one = slow()
    frozen = one.deliver(at="plan.before_commit")
    frozen.freeze()
    one.finish()
    runs = one.last_run()
    late = frozen.wake()
    assert (late.code, one.last_run()) == (75, runs)
    assert "somebody else" in late.error
    one.finish()
    undisturbed("gap-middle").equals(one)
    assert one.check().code == 0


@pytest.mark.long
def test_sealer_frozen_during_other_seal_changes_nothing(
    slow: Callable[..., Any], undisturbed: Callable[[str], Any]
) -> None:
    """Wake a sealer after another process has sealed the run; the manifest stays as the other one wrote
    it.
    """
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
def test_pusher_frozen_before_insert_inserts_nothing(
    window: str, slow: Callable[..., Any], undisturbed: Callable[[str], Any]
) -> None:
    """Freeze a pusher between its query and its insert, while another process pushes and closes.

    In one case ClickHouse's deduplication window is off.
    """
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


def test_pusher_frozen_after_insert_moves_no_batch(
    slow: Callable[..., Any], undisturbed: Callable[[str], Any]
) -> None:
    """Freeze a pusher behind its insert until another process has raised the fence; its batches stay NEW."""
    one = slow()
    one.sealed()
    frozen = one.deliver(at="push.after_insert")
    frozen.freeze()
    time.sleep(LEASE_SECONDS + 1)
    other = one.deliver(at="push.before_batch")  # this delivery has raised the fence and moved no batch
    late = frozen.wake()
    assert late.code == 75
    assert {state for *_, state, _ in one.batches()} == {"NEW"}
    assert other.end().code == 0
    undisturbed("gap-middle").equals(one)


@pytest.mark.long
def test_closer_frozen_during_later_run_changes_nothing(
    slow: Callable[..., Any], undisturbed: Callable[[str], Any]
) -> None:
    """Wake a closer after a later run, whose higher number protects its progress, holds and watermarks."""
    one = slow("minute-buckets", max_slices_per_run=10)
    one.sealed()
    frozen = one.deliver(at="close.before_progress")
    frozen.freeze()
    one.finish()
    late = frozen.wake()
    assert late.code == 75
    undisturbed("minute-buckets").equals(one)
    assert one.check().code == 0


def test_pusher_frozen_during_void_inserts_nothing(
    slow: Callable[..., Any], undisturbed: Callable[[str], Any]
) -> None:
    """Void the run of a frozen pusher and deliver its events under other batch ids, which no deduplication
    token knows.
    """
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
@pytest.mark.parametrize(
    ("command", "instant"),
    [
        pytest.param(("run", "give-up"), "giveup.before_delete", id="give-up"),
        pytest.param(("batches", "resend", "--run", "1"), "resend.before_delete", id="resend"),
    ],
)
def test_removal_frozen_during_delivery_removes_nothing(
    command: tuple[str, ...],
    instant: str,
    slow: Callable[..., Any],
    undisturbed: Callable[[str], Any],
) -> None:
    """Freeze a command that is about to remove a batch which is NEW and in ClickHouse, while another process
    delivers the batch.
    """
    one = slow()
    one.sealed()
    one.crash("run", "deliver", at="push.after_insert")
    batches = [batch.batch_id for batch in one.manifest().batches]
    arguments = (*command, batches[0]) if command[0] == "batches" else command
    frozen = one.start(*arguments, "--why", "its machine hangs", "--yes", at=instant)
    frozen.freeze()
    one.finish()
    late = frozen.wake()
    assert late.code == 75
    assert "taken over" in late.error
    undisturbed("gap-middle").equals(one)
    assert one.check().code == 0


@pytest.mark.long
def test_void_partly_pushed_run_repeats_no_batch(
    delivery: Callable[..., Any], undisturbed: Callable[[str], Any]
) -> None:
    """Void the first run after one batch: the tag has rows and progress, but its watermark has not moved."""
    one = delivery("minute-buckets", batch_rows=300, parallel_inserts=1)
    one.sealed()
    stopped = one.deliver(at="push.after_batch")
    stopped.kill()
    assert {state for *_, state, _ in one.batches()} == {"IN_CLICKHOUSE", "NEW"}
    assert one.said("run", "void", "--why", "a test", "--yes").code == 0
    one.finish()
    undisturbed("minute-buckets").equals(one)
    assert one.check().code == 0
