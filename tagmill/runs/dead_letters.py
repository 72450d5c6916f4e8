"""Let a person discard the dead letters of a topic, for pipelines of any kind that reads Kafka."""

from dataclasses import dataclass

from tagmill.errors import GuardRefused, WorkUnfinished
from tagmill.kafka.set_apart import of_topic
from tagmill.ledger.dead_letters import DeadLetters
from tagmill.ledger.replications import SEALED, Replications
from tagmill.ledger.set_apart import Kind, SetApart
from tagmill.runs.operator_action import OperatorAction


@dataclass(eq=False)
class DeadLetterDiscard(OperatorAction):
    """A person's decision that the dead letters of a topic go, recorded with the person's reason."""

    def run(self, topic: str) -> str:
        """Delete a topic's dead letters, and forget which of its records are set apart; raise GuardRefused if it has
        neither.
        """
        with self.at_work() as workspace:
            ledger, letters, table = workspace.ledger, workspace.store(DeadLetters), workspace.store(SetApart)
            sealed = workspace.store(Replications).newest()
            if sealed is not None and sealed.state == SEALED:
                raise WorkUnfinished(
                    f"replication {sealed.replication} of pipeline {self.name} is not finished, and would write its "
                    "dead letters again. Nothing was discarded; first: tagmill kafka-journal replicate --pipeline "
                    f"{self.name}",
                    pipeline=self.name,
                )
            positions = list(letters.positions(topic))
            apart = of_topic(table.items(Kind.RECORD), topic)
            if not positions and not apart:
                raise GuardRefused(
                    f"pipeline {self.name} has no dead letters of topic {topic}, and no records of it are set "
                    f"apart. Nothing was changed. Look: tagmill deadletters list --pipeline {self.name}",
                    pipeline=self.name,
                )
            if not self.dry_run:
                last, action = ledger.last_run(self.name), f"deadletters discard {topic}"
                ledger.record_intervention(self.name, last, self.who, action, self.why)
                letters.forget(positions)
                for item in apart:
                    table.remove(Kind.RECORD, item)
            return (
                f"pipeline {self.name}: {len(positions)} dead letters of topic {topic} {self.be('are')} discarded; "
                f"{len(apart)} records of it {self.be('are')} set apart no longer"
            )
