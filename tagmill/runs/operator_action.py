"""What a person does to one pipeline; each change is recorded with the person's reason."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from tagmill.config.settings import Settings
from tagmill.domain.batches.states import RunState
from tagmill.ledger.preconditions import check_journal
from tagmill.ledger.runs import Ledger, RunRow
from tagmill.runs.ledger_comparison import require_up_to_date
from tagmill.runs.storage import RunFiles
from tagmill.runs.workspace import Workspace, open_workspace


@dataclass(eq=False)
class OperatorAction:
    """An operator at work on the pipeline `name`.

    `owner` is the process that holds the lease, `who` the person, `why` the person's reason. With `dry_run`
    each method checks the same as it would, returns what it would change, and writes nothing.
    """

    settings: Settings
    name: str
    owner: str
    who: str
    why: str
    dry_run: bool = field(default=False, kw_only=True)

    @contextmanager
    def at_work(self) -> Iterator[Workspace]:
        """Open the workspace under the pipeline's lease; a dry run takes none, so that it writes nothing.

        Raises LeaseTaken, of a pipeline of kind tag_views what check_journal raises, and GuardRefused if the
        ledger is older than ClickHouse. A SEALED run may be ended nevertheless: `ledger restore` waits for
        that.
        """
        leases = [] if self.dry_run else [self.name]
        with open_workspace(self.settings, self.name, owner=self.owner, leases=leases) as workspace:
            if self.name in self.settings.pipelines:
                check_journal(workspace.cassandra, self.settings, self.name)
            if self.name not in self.settings.kafka_journals:
                row = workspace.ledger.open_run(self.name)
                if row is None or row.state != RunState.SEALED:
                    require_up_to_date(workspace, done="Nothing was changed")
            yield workspace

    def take_over(self, ledger: Ledger, row: RunRow) -> RunRow:
        """Raise a run's fence and return its new row; in a dry run return the row as it is."""
        return row if self.dry_run else ledger.raise_fence(row, self.owner)

    def be(self, form: str) -> str:
        """Return a form of "to be" for a sentence about a change: `form`, or "would be" in a dry run."""
        return "would be" if self.dry_run else form

    @cached_property
    def files(self) -> RunFiles:
        """The files of runs below the storage root."""
        return RunFiles(self.settings.storage.root)

    def claim_run(self, workspace: Workspace, action: str, untouched: str, run: int | None = None) -> int:
        """Claim a run number for a change without batches, record who made it and why, and return the number.

        `run` is the number, by default the next free one; `untouched` says in a refusal what was left undone.
        A dry run claims none. Raises GuardRefused if the ledger is older than ClickHouse, FenceRaised if the
        number is taken.
        """
        ledger = workspace.ledger
        require_up_to_date(workspace, done=untouched)
        run = ledger.free_number(self.name) if run is None else run
        if self.dry_run:
            return run
        ledger.add_intervention(self.name, run, owner=self.owner, who=self.who, action=action, why=self.why)
        return run
