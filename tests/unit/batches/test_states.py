"""States of runs and batches, and the moves between them."""

from itertools import product

import pytest

from tagmill.batches.states import BatchState, RunState, may_close, may_move_batch, may_move_run


def test_a_run_goes_from_planned_to_sealed_to_closed_or_is_abandoned() -> None:
    moves = [(old.value, new.value) for old, new in product(RunState, RunState) if may_move_run(old, new)]
    assert moves == [("PLANNED", "SEALED"), ("PLANNED", "ABANDONED"), ("SEALED", "CLOSED"), ("SEALED", "ABANDONED")]


def test_only_planned_and_sealed_runs_are_open() -> None:
    assert [state.value for state in RunState if state.is_open] == ["PLANNED", "SEALED"]


def test_nothing_follows_a_finished_run() -> None:
    assert not any(may_move_run(old, new) for old in RunState if not old.is_open for new in RunState)


def test_a_batch_goes_to_clickhouse_or_is_voided_and_may_be_sent_again_or_withdrawn() -> None:
    moves = [(old.value, new.value) for old, new in product(BatchState, BatchState) if may_move_batch(old, new)]
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
    assert may_close([BatchState(state) for state in states.split()]) is closes
