"""What an operator may void, resend, close and restart."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagmill.delivery.run_repairs import void_waiting
from tagmill.delivery.tag_views.holds import pick_holds, to_judge_again
from tagmill.delivery.tag_views.interventions import (
    require_another_life,
    require_closable,
    require_none_waiting_before,
    require_voidable,
)
from tagmill.domain.batches.states import BatchState, RunState
from tagmill.domain.continuity.model import Reason
from tagmill.errors import GuardRefused
from tests.support.errors import raises
from tests.unit.delivery.tag_views.ledger_rows import (
    NOW,
    batch_row,
    hold_row,
    manifest,
    run_row,
    sealed_batch,
)

NEW, SENT, VOID = BatchState.NEW, BatchState.IN_CLICKHOUSE, BatchState.VOIDED
STATES = st.lists(st.sampled_from([NEW, SENT, VOID]), max_size=6)


@given(states=STATES, tags=st.lists(st.sampled_from("tu"), min_size=6, max_size=6))
def test_voiding_leaves_nothing_behind_void(states: list[BatchState], tags: list[str]) -> None:
    """Batches may be voided unless a delivered batch of the same tag comes after one of them."""
    batches = [
        batch_row(number, state, tag)
        for number, (state, tag) in enumerate(zip(states, tags, strict=False), start=1)
    ]
    sealed = manifest(*(sealed_batch(batch.number, batch.tag) for batch in batches))
    left_behind = any(
        (one.tag, one.state, other.state) == (other.tag, NEW, SENT)
        for at, one in enumerate(batches)
        for other in batches[at:]
    )
    if left_behind:
        with raises(GuardRefused, pipeline=sealed.pipeline, run=sealed.run):
            require_voidable(sealed, batches)
    else:
        require_voidable(sealed, batches)


def test_judged_batches_are_void_all_or_none() -> None:
    """Batches of judged rows belong together: one that is delivered keeps the others from being voided."""
    batches = [batch_row(1, SENT), batch_row(2, SENT), batch_row(3, NEW)]
    with pytest.raises(GuardRefused):
        require_voidable(
            manifest(sealed_batch(1), sealed_batch(2, mended=True), sealed_batch(3, mended=True)), batches
        )
    require_voidable(manifest(sealed_batch(1), sealed_batch(2), sealed_batch(3, mended=True)), batches)
    others = [batch_row(2, SENT, "u"), batch_row(3, NEW, "t")]
    require_voidable(manifest(sealed_batch(2, "u", mended=True), sealed_batch(3, mended=True)), others)


@pytest.mark.parametrize(
    ("waiting", "run_state", "refused"),
    [
        (batch_row(1, NEW), RunState.SEALED, True),
        (batch_row(1, NEW), RunState.CLOSED, False),
        (batch_row(1, VOID), RunState.SEALED, False),
        (batch_row(1, NEW, "u"), RunState.SEALED, False),
        (batch_row(3, NEW), RunState.SEALED, False),
    ],
    ids=["before it", "run is closed", "void", "another tag", "behind it"],
)
def test_resend_keeps_order_of_tag(waiting, run_state, refused) -> None:
    """A batch is not sent again before an undelivered one that comes before it."""
    batches = [waiting, batch_row(2, SENT)]
    if refused:
        about = {"pipeline": "p", "run": 3, "batch": str(waiting.batch_id)}
        with raises(GuardRefused, match="comes before batch", **about):
            require_none_waiting_before(run_row(run_state), batches[1], batches)
    else:
        require_none_waiting_before(run_row(run_state), batches[1], batches)


@pytest.mark.parametrize("reason", Reason)
def test_reasons_have_one_way_out(reason: Reason) -> None:
    """Only another life is restarted, which may look renumbered; its numbers are never given up."""
    hold = hold_row(reason=reason.value)
    ways = {Reason.ANOTHER_LIFE: "progress restart", Reason.RENUMBERED: "progress rebase"}
    if reason in ways:
        require_another_life("p", hold)
        with pytest.raises(GuardRefused, match=ways[reason]):
            require_closable("p", hold)
    else:
        with raises(GuardRefused, pipeline="p"):
            require_another_life("p", hold)


@pytest.mark.parametrize(
    "reason", ["hole", "first_seen", "too_many_missing", "gap_too_large", "null_event", "broken_offset"]
)
def test_closable_holds_wait_for_numbers(reason: str) -> None:
    require_closable("p", hold_row(reason=reason))


@pytest.mark.parametrize(("kind", "says"), [("reread", True), ("deliver", False)])
def test_void_of_reread_names_its_command(kind: str, says: bool) -> None:
    """No later run reads again what a person asked to read again: the sentence says to ask once more."""
    row = replace(run_row(RunState.SEALED), kind=kind)
    action: Any = SimpleNamespace(dry_run=False, who="w", why="x")
    clickhouse: Any = Mock(**{"totals.return_value": []})
    said = void_waiting(action, Mock(), clickhouse, "table", row, [batch_row(1, NEW)])
    assert ("once more" in said) is says


def test_released_hold_has_next_turn() -> None:
    """A changed hold is judged by the next plan, before all others; without a row in the view it ends."""
    changed = to_judge_again(hold_row("p-9"))
    assert changed == replace(hold_row("p-9"), seen="")
    others = [hold_row(f"p-{n}") for n in range(5)]
    assert pick_holds([*others, changed], NOW)[0] == changed
    assert to_judge_again(hold_row(held_rows=0)) is None
