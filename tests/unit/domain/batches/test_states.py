"""States of runs and batches, and the permitted moves between them."""

from itertools import product

import pytest

from tagmill.domain.batches.states import BatchState, RunState, may_close, may_move_batch, may_move_run


def test_may_move_run_follows_life_cycle() -> None:
    """Runs go from PLANNED to SEALED to CLOSED, or are abandoned before they are closed."""
    moves = [(old.value, new.value) for old, new in product(RunState, RunState) if may_move_run(old, new)]
    assert moves == [
        ("PLANNED", "SEALED"),
        ("PLANNED", "ABANDONED"),
        ("SEALED", "CLOSED"),
        ("SEALED", "ABANDONED"),
    ]


def test_only_planned_and_sealed_runs_are_open() -> None:
    assert [state.value for state in RunState if state.is_open] == ["PLANNED", "SEALED"]


def test_nothing_follows_a_finished_run() -> None:
    assert not any(may_move_run(old, new) for old in RunState if not old.is_open for new in RunState)


def test_may_move_batch_follows_life_cycle() -> None:
    """Batches go to ClickHouse or are voided; they may be sent again, and withdrawn from ClickHouse."""
    moves = [
        (old.value, new.value) for old, new in product(BatchState, BatchState) if may_move_batch(old, new)
    ]
    assert moves == [
        ("NEW", "NEW"),
        ("NEW", "IN_CLICKHOUSE"),
        ("NEW", "VOIDED"),
        ("IN_CLICKHOUSE", "NEW"),
        ("IN_CLICKHOUSE", "VOIDED"),
    ]


@pytest.mark.parametrize(
    ("states", "closes"),
    [("", True), ("IN_CLICKHOUSE VOIDED", True), ("IN_CLICKHOUSE NEW", False), ("NEW", False)],
)
def test_a_run_closes_when_no_batch_is_new(states: str, closes: bool) -> None:
    """Close a run once all of its batches are in ClickHouse or voided; a run without batches may close,
    too.
    """
    assert may_close([BatchState(state) for state in states.split()]) is closes
