"""Hold leases: the pipeline's for one step of a run, or any for the time of an operation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from tagmill.cassandra.client import Cassandra
from tagmill.config.settings import Settings
from tagmill.domain.batches.states import RunState
from tagmill.errors import about
from tagmill.ledger.attempts import counted
from tagmill.ledger.failures import noted
from tagmill.ledger.lease import Lease
from tagmill.ledger.preconditions import check_journal
from tagmill.ledger.runs import Ledger
from tagmill.runs.ledger_comparison import require_up_to_date


@contextmanager
def leased(
    settings: Settings, pipeline: str, owner: str, *, wait: float = 0, step: str = "", run: int | None = None
) -> Iterator[tuple[Ledger, Lease]]:
    """Yield the ledger and the pipeline's lease (Lease.for_a_step), and note the failure of a delivery's
    `step`.

    A plan is counted as an attempt, too. Later steps are not: the fence of their run counts takeovers.

    Raises LeaseTaken, and of a pipeline of kind tag_views what check_journal raises.
    """
    chosen = settings.streams.get(pipeline) or settings.pipeline(pipeline)
    with Ledger(settings.cassandra) as ledger:
        lease = Lease(
            ledger.cassandra, settings.cassandra.ledger_keyspace, pipeline, owner, chosen.lease_seconds
        )
        with (
            about(pipeline=pipeline, run=run),
            lease.for_a_step(wait),
            noted(settings, ledger.cassandra, pipeline, step, run),
            counted(settings, ledger.cassandra, pipeline, step if step == "plan" else ""),
        ):
            if pipeline in settings.pipelines:
                check_journal(ledger.cassandra, settings, pipeline)
            yield ledger, lease


@contextmanager
def at_work(settings: Settings, pipeline: str, owner: str, *, dry_run: bool = False) -> Iterator[Ledger]:
    """Yield the ledger under the pipeline's lease, which is given back however the block ends.

    A dry run takes no lease, so that it writes nothing.

    Raises LeaseTaken, of a pipeline of kind tag_views what check_journal raises, and GuardRefused if the
    ledger is older than ClickHouse. A SEALED run may be ended nevertheless: `ledger restore` waits for that.
    """
    with (
        about(pipeline=pipeline),
        Ledger(settings.cassandra) as ledger,
        held(settings, ledger.cassandra, pipeline, owner, [] if dry_run else [pipeline]),
    ):
        if pipeline in settings.pipelines:
            check_journal(ledger.cassandra, settings, pipeline)
        if pipeline not in settings.kafka_journals:
            row = ledger.open_run(pipeline)
            if row is None or row.state != RunState.SEALED:
                require_up_to_date(settings, ledger, pipeline, done="Nothing was changed")
        yield ledger


@contextmanager
def held(
    settings: Settings, cassandra: Cassandra, pipeline: str, owner: str, names: Iterable[str]
) -> Iterator[None]:
    """Take the leases of these names in their order, renew them while the block runs, and give them back.

    A lease lasts as its pipeline says; one that is not a pipeline's, such as "orders/audit", as `pipeline`
    says. Raises LeaseTaken.
    """
    configured = {**settings.pipelines, **settings.kafka_journals, **settings.streams}
    with ExitStack() as leases:
        for name in names:
            chosen = configured.get(name) or configured[pipeline]
            lease = Lease(cassandra, settings.cassandra.ledger_keyspace, name, owner, chosen.lease_seconds)
            leases.enter_context(lease.held(chosen.lease_wait_seconds))
        yield
