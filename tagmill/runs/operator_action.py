"""What a person does to one pipeline; each change is recorded with the person's reason."""

from dataclasses import dataclass
from functools import cached_property

from tagmill.config.settings import Settings
from tagmill.ledger.runs import Ledger
from tagmill.runs.ledger_comparison import require_up_to_date
from tagmill.runs.storage import RunFiles


@dataclass(eq=False)
class OperatorAction:
    """An operator at work on the pipeline `name`.

    `owner` is the process that holds the lease, `who` the person, `why` the person's reason.
    """

    settings: Settings
    name: str
    owner: str
    who: str
    why: str

    @cached_property
    def files(self) -> RunFiles:
        """The files of runs below the storage root."""
        return RunFiles(self.settings.storage.root)

    def claim_run(self, ledger: Ledger, action: str, untouched: str, run: int | None = None) -> int:
        """Claim a run number for a change without batches, record who made it and why, and return the number.

        `run` is the number, by default the next free one; `untouched` says in a refusal what was left undone.
        Raises GuardRefused if the ledger is older than ClickHouse, FenceRaised if the number is taken.
        """
        require_up_to_date(self.settings, ledger, self.name, done=untouched)
        run = ledger.free_number(self.name) if run is None else run
        ledger.add_intervention(self.name, run, owner=self.owner, who=self.who, action=action, why=self.why)
        return run
