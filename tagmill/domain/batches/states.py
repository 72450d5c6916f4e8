"""The states of a run and of a batch, and the moves between them."""

from enum import StrEnum


class RunState(StrEnum):
    """PLANNED: nothing is written yet.

    SEALED: the batches are fixed. CLOSED: progress is written. ABANDONED: nothing is delivered.
    """

    PLANNED = "PLANNED"
    SEALED = "SEALED"
    CLOSED = "CLOSED"
    ABANDONED = "ABANDONED"

    @property
    def is_open(self) -> bool:
        """Whether the run has to be finished before another one starts."""
        return self in (RunState.PLANNED, RunState.SEALED)


class BatchState(StrEnum):
    """NEW: sealed. IN_CLICKHOUSE: verified there. VOIDED: given up and proven absent, or taken out.

    A later run delivers the events of a VOIDED batch, unless they were erased.
    """

    NEW = "NEW"
    IN_CLICKHOUSE = "IN_CLICKHOUSE"
    VOIDED = "VOIDED"


RUN_MOVES = frozenset(
    {
        (RunState.PLANNED, RunState.SEALED),
        (RunState.PLANNED, RunState.ABANDONED),
        (RunState.SEALED, RunState.CLOSED),
        # given up on purpose, each of its batches VOIDED
        (RunState.SEALED, RunState.ABANDONED),
    }
)
BATCH_MOVES = frozenset(
    {
        (BatchState.NEW, BatchState.IN_CLICKHOUSE),
        (BatchState.NEW, BatchState.VOIDED),
        # sent again on purpose, under the next generation
        (BatchState.IN_CLICKHOUSE, BatchState.NEW),
        (BatchState.NEW, BatchState.NEW),
        # withdrawn on purpose, by a run that then notes its numbers as not delivered
        (BatchState.IN_CLICKHOUSE, BatchState.VOIDED),
    }
)


def may_move_run(old: RunState, new: RunState) -> bool:
    """Return whether a run may go from one state to another."""
    return (old, new) in RUN_MOVES


def may_move_batch(old: BatchState, new: BatchState) -> bool:
    """Return whether a batch may go from one state to another."""
    return (old, new) in BATCH_MOVES


def may_close(batches: list[BatchState]) -> bool:
    """Return whether a run with batches in these states may close: none is left to push."""
    return BatchState.NEW not in batches
