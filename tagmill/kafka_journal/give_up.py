"""Give up a replication that cannot be finished, and set records apart.

Its pointers have not moved, so the next replication reads its records again. Those that it had written count
as replicated, or are written again with a later time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tagmill.errors import ConfigurationError, GuardRefused
from tagmill.kafka.set_apart import record_of
from tagmill.ledger.replications import SEALED, Replications
from tagmill.ledger.runs import Ledger
from tagmill.ledger.set_apart import Kind, SetApart
from tagmill.runs.operator_action import OperatorAction


@dataclass(eq=False)
class ReplicationGiveUp(OperatorAction):
    """The interventions of one person in the replication of one Kafka Journal, recorded with the person's
    reason.
    """

    def __post_init__(self) -> None:
        self.journal = self.settings.kafka_journal(self.name)

    def run(self, apart: Sequence[str]) -> list[str]:
        """Give up the sealed replication, then set records (topic/partition/offset) apart; return what was
        done. Safe to repeat.
        """
        if wrong := [item for item in apart if record_of(item) is None]:
            raise ConfigurationError(
                f"pipeline {self.name}: {', '.join(map(repr, wrong))} is no record "
                "(topic/partition/offset). Nothing was changed",
                pipeline=self.name,
            )
        with self.at_work() as workspace:
            said = self._give_up(workspace.ledger, workspace.store(Replications))
            if not said and not apart:
                raise GuardRefused(
                    f"pipeline {self.name} has no replication to give up. Nothing was changed",
                    pipeline=self.name,
                )
            if apart:
                if not self.dry_run:
                    table = workspace.store(SetApart)
                    table.add(Kind.RECORD, apart, 0, self.who, self.why)
                said.append(
                    f"pipeline {self.name}: {len(apart)} records {'would ' * self.dry_run}become dead letters; "
                    "the rest is replicated"
                )
            return [*said, f"go on: tagmill kafka-journal replicate --pipeline {self.name}"]

    def _give_up(self, ledger: Ledger, replications: Replications) -> list[str]:
        newest = replications.newest()
        if newest is None or newest.state != SEALED:
            return []
        if not self.dry_run:
            newest = replications.finish(replications.take_over(self.owner))
            ledger.record_intervention(self.name, newest.replication, self.who, "run give-up", self.why)
        return [
            f"replication {newest.replication} of pipeline {self.name} {self.be('is')} given up: the next one "
            "reads its records again"
        ]
