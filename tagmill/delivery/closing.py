"""Write progress that an older process may have written already."""

from collections.abc import Iterator
from contextlib import contextmanager

from tagmill.domain.batches.states import RunState
from tagmill.errors import FenceRaised, ForeignWriteTime
from tagmill.ledger.runs import Ledger


@contextmanager
def read_back(ledger: Ledger, name: str, run: int, fence: int) -> Iterator[None]:
    """Raise FenceRaised instead of ForeignWriteTime if another process has closed the run: later runs may
    have written since.
    """
    try:
        yield
    except ForeignWriteTime:
        if (state := ledger.current(name, run, fence).state) != RunState.SEALED:
            raise FenceRaised(
                f"run {run} of pipeline {name} is {state} already. This step changed nothing that counts",
                pipeline=name,
                run=run,
            ) from None
        raise
