"""Everything that work on one pipeline needs, in one object, and the leases under which it works."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from tagmill.cassandra.client import Cassandra
from tagmill.clickhouse.client import ClickHouse
from tagmill.config.kafka import Stream
from tagmill.config.settings import Settings
from tagmill.config.tag_views import PipelineSettings
from tagmill.domain.batches.layout import TAG_VIEWS, Layout
from tagmill.errors import about
from tagmill.ledger.attempts import counted
from tagmill.ledger.failures import noted
from tagmill.ledger.lease import Lease
from tagmill.ledger.preconditions import check_journal
from tagmill.ledger.runs import Ledger
from tagmill.runs.progress import Tell
from tagmill.runs.storage import RunFiles

Store = TypeVar("Store")


def silent(_: str) -> None:
    """Show nothing of what is being done."""


@dataclass(frozen=True, eq=False)
class Workspace:
    """What work on the pipeline `name` needs. It is open as long as its ledger is.

    Args:
        owner: the process that holds the leases.
        tell: shows what is being done.
        leases: held; none while it only looks.
    """

    settings: Settings
    name: str
    ledger: Ledger
    owner: str = ""
    tell: Tell = silent
    leases: tuple[Lease, ...] = ()

    @cached_property
    def pipeline(self) -> PipelineSettings:
        """The settings of a pipeline of kind tag_views."""
        return self.settings.pipeline(self.name)

    @cached_property
    def stream(self) -> Stream:
        """The settings of a pipeline of kind topic or kafka_journal_events."""
        return self.settings.stream(self.name)

    @cached_property
    def delivering(self) -> PipelineSettings | Stream:
        """The settings of a pipeline of any kind that delivers to ClickHouse."""
        return self.stream if self.name in self.settings.streams else self.pipeline

    @cached_property
    def files(self) -> RunFiles:
        """The files of runs below the storage root."""
        return RunFiles(self.settings.storage.root)

    @property
    def cassandra(self) -> Cassandra:
        """The session of the ledger, which reads the application's tables, too."""
        return self.ledger.cassandra

    @property
    def ledger_keyspace(self) -> str:
        """The keyspace of the ledger's tables."""
        return self.ledger.ledger_keyspace

    def store(self, kind: Callable[[Cassandra, str, str], Store]) -> Store:
        """Return the rows of a ledger's table that are of this pipeline."""
        return kind(self.cassandra, self.ledger_keyspace, self.name)

    def journal_store(self, kind: Callable[[Cassandra, str, str], Store]) -> Store:
        """Return the rows of a ledger's table that are of this pipeline's journal."""
        return kind(self.cassandra, self.ledger_keyspace, self.pipeline.keyspace)

    def clickhouse(self, layout: Layout = TAG_VIEWS) -> ClickHouse:
        """Return a new client of ClickHouse, for the caller to close."""
        return ClickHouse(self.settings.clickhouse, layout)

    def of(self, name: str) -> Workspace:
        """Return the workspace of another pipeline, for the same work and under the same leases."""
        return replace(self, name=name)

    def require_leases(self) -> None:
        """Raise LeaseTaken if a lease was lost (Lease.require)."""
        for lease in self.leases:
            lease.require()

    def give_back(self) -> None:
        """Give the leases back before the workspace is closed."""
        for lease in self.leases:
            lease.give_back()


@contextmanager
def open_workspace(
    settings: Settings, name: str, *, owner: str = "", leases: Iterable[str] = (), tell: Tell = silent
) -> Iterator[Workspace]:
    """Yield a workspace, and hold the leases of these names while it is open; without any it only looks.

    Leases are taken in their order. One that is not a pipeline's, such as "orders/audit", lasts as the
    pipeline `name` says. Raises LeaseTaken.
    """
    with about(pipeline=name), Ledger(settings.cassandra) as ledger, ExitStack() as stack:
        held = [_lease(settings, ledger, each, name, owner) for each in leases]
        for lease, wait_seconds in held:
            stack.enter_context(lease.held(wait_seconds))
        yield Workspace(settings, name, ledger, owner, tell, tuple(lease for lease, _ in held))


@contextmanager
def open_step(
    settings: Settings,
    name: str,
    *,
    owner: str,
    wait: bool = False,
    step: str = "",
    run: int | None = None,
    tell: Tell = silent,
) -> Iterator[Workspace]:
    """Yield the workspace of one step of a run, under the pipeline's lease (Lease.for_a_step).

    The lease stays taken for the run's next step until it is given back; `wait` for it as long as the
    pipeline says. A failure of a delivery's `step` is noted. A plan is counted as an attempt, too; later
    steps are not, since the fence of their run counts takeovers.

    Raises LeaseTaken, and of a pipeline of kind tag_views what check_journal raises.
    """
    with about(pipeline=name, run=run), Ledger(settings.cassandra) as ledger:
        lease, wait_seconds = _lease(settings, ledger, name, name, owner)
        workspace = Workspace(settings, name, ledger, owner, tell, (lease,))
        with (
            lease.for_a_step(wait_seconds if wait else 0),
            noted(settings, ledger.cassandra, name, step, run),
            counted(settings, ledger.cassandra, name, step if step == "plan" else ""),
        ):
            if name in settings.pipelines:
                check_journal(ledger.cassandra, settings, name)
            yield workspace


def _lease(settings: Settings, ledger: Ledger, lease: str, name: str, owner: str) -> tuple[Lease, float]:
    """Return a lease, and for how many seconds to wait for it."""
    configured = {**settings.pipelines, **settings.kafka_journals, **settings.streams}
    lasting = configured.get(lease) or configured.get(name) or settings.pipeline(name)
    return (
        Lease(ledger.cassandra, ledger.ledger_keyspace, lease, owner, lasting.lease_seconds),
        lasting.lease_wait_seconds,
    )
