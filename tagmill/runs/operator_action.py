"""What a person does to one pipeline; each change is recorded with the person's reason."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property

from tagmill.config.settings import Settings
from tagmill.ledger.runs import Ledger, RunRow
from tagmill.runs.leased import at_work
from tagmill.runs.ledger_comparison import require_up_to_date
from tagmill.runs.storage import RunFiles


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

    def at_work(self) -> AbstractContextManager[Ledger]:
        """Return the context of the work (leased.at_work); it has no lease in a dry run."""
        return at_work(self.settings, self.name, self.owner, dry_run=self.dry_run)

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

    def claim_run(self, ledger: Ledger, action: str, untouched: str, run: int | None = None) -> int:
        """Claim a run number for a change without batches, record who made it and why, and return the number.

        `run` is the number, by default the next free one; `untouched` says in a refusal what was left undone.
        A dry run claims none. Raises GuardRefused if the ledger is older than ClickHouse, FenceRaised if the
        number is taken.
        """
        require_up_to_date(self.settings, ledger, self.name, done=untouched)
        run = ledger.free_number(self.name) if run is None else run
        if self.dry_run:
            return run
        ledger.add_intervention(self.name, run, owner=self.owner, who=self.who, action=action, why=self.why)
        return run
