"""Hold a pipeline's lease for the time of one step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tagmill.config.settings import Settings
from tagmill.ledger.failures import noted
from tagmill.ledger.lease import Lease
from tagmill.ledger.preconditions import check_journal
from tagmill.ledger.runs import Ledger


@contextmanager
def leased(
    settings: Settings, pipeline: str, owner: str, *, wait: float = 0, step: str = "", run: int | None = None
) -> Iterator[tuple[Ledger, Lease]]:
    """Yield the ledger and the pipeline's lease (Lease.for_a_step), and note the failure of a delivery's
    `step`.
    """
    chosen = settings.pipeline(pipeline)
    with Ledger(settings.cassandra) as ledger:
        lease = Lease(
            ledger.cassandra, settings.cassandra.ledger_keyspace, pipeline, owner, chosen.lease_seconds
        )
        with lease.for_a_step(wait), noted(settings, ledger.cassandra, pipeline, step, run):
            check_journal(ledger.cassandra, settings, pipeline)
            yield ledger, lease
