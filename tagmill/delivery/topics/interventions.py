"""Let a person end or repair a run of a topic or a Kafka Journal: abandon, void, resend or accept.

Each is guarded and recorded.
"""

from dataclasses import dataclass, field
from uuid import UUID

from tagmill.config.kafka import KafkaJournalEventsSettings
from tagmill.delivery.dependent_views import accept
from tagmill.delivery.push import Destination
from tagmill.delivery.run_repairs import (
    abandon_planned,
    batch_of,
    require_not_closing,
    run_in,
    send_again,
    take_out_voided,
    void_waiting,
)
from tagmill.delivery.topics.run_files import read_manifest
from tagmill.delivery.topics.same_journal import SameJournal
from tagmill.delivery.topics.table_columns import layout, sealed_layout
from tagmill.domain.batches.states import BatchState, RunState
from tagmill.errors import ConfigurationError, GuardRefused
from tagmill.ledger.same_tables import would_accept
from tagmill.runs.operator_action import OperatorAction
from tagmill.runs.sealed_files import all_batches


@dataclass(eq=False)
class TopicInterventions(OperatorAction):
    """The interventions of one person in the runs of one pipeline; each is recorded with the person's
    reason.
    """

    despite_views: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        self.pipeline = self.settings.stream(self.name)

    def abandon(self) -> str:
        """Give up the run that is PLANNED; the next run plans its records again."""
        with self.at_work() as workspace:
            ledger = workspace.ledger
            return abandon_planned(self, ledger, run_in(ledger, self.name, RunState.PLANNED), "records")

    def void(self) -> str:
        """Give up the batches of the SEALED run that are proven absent from ClickHouse; its close forgets
        their ids.
        """
        with (
            self.at_work() as workspace,
            workspace.clickhouse(layout(self.pipeline)) as clickhouse,
        ):
            ledger = workspace.ledger
            row = self.take_over(ledger, run_in(ledger, self.name, RunState.SEALED))
            batches = all_batches(ledger, read_manifest(self.files, row))
            return void_waiting(self, ledger, clickhouse, self.pipeline.destination, row, batches)

    def resend(self, batch_id: UUID, run: int) -> str:
        """Take a batch's rows out of ClickHouse, and push the sealed bytes again under the next
        generation.
        """
        with self.at_work() as workspace:
            ledger = workspace.ledger
            row = ledger.run(self.name, run)
            found = (
                next((one for one in ledger.batches(self.name, run) if one.batch_id == batch_id), None)
                if row
                else None
            )
            if row is None or found is None or found.state == BatchState.VOIDED:
                raise GuardRefused(
                    f"pipeline {self.name}, run {run} has no batch {batch_id} that could be sent again. "
                    "Nothing was changed. "
                    f"Look: tagmill batches --pipeline {self.name}",
                    pipeline=self.name,
                    run=run,
                    batch=batch_id,
                )
            require_not_closing(row, found)
            row = self.take_over(ledger, row)
            manifest = read_manifest(self.files, row)
            to = Destination(
                self.pipeline.destination,
                sealed_layout(self.pipeline, manifest.columns, f"run {run} of pipeline {self.name}"),
            )
            with workspace.clickhouse(to.layout) as clickhouse:
                return send_again(
                    workspace, self, clickhouse, manifest, row, found, to, despite_views=self.despite_views
                )

    def accept(self, batch_id: UUID, run: int) -> str:
        """Record that the views on the destination have a batch whose insert ended with an error."""
        with (
            self.at_work() as workspace,
            workspace.clickhouse(layout(self.pipeline)) as clickhouse,
        ):
            ledger = workspace.ledger
            row, batch = batch_of(ledger, self.name, run, batch_id)
            return accept(self, ledger, clickhouse, self.pipeline.destination, row, batch)

    def withdraw(self, batch_id: UUID, run: int) -> str:
        """Do run_repairs.take_out_voided, with no run open; a batch that is not VOIDED is refused."""
        with (
            self.at_work() as workspace,
            workspace.clickhouse(layout(self.pipeline)) as clickhouse,
        ):
            workspace.ledger.require_none_open(self.name)
            return take_out_voided(
                workspace, self, clickhouse, run, batch_id, despite_views=self.despite_views
            )

    def accept_journal(self) -> str:
        """Note that a Kafka Journal whose tables were created again holds the events that were delivered."""
        if not isinstance(self.pipeline, KafkaJournalEventsSettings):
            raise ConfigurationError(
                f"pipeline {self.name} reads topics and no journal's tables. Nothing was changed. A topic that "
                f"was created again: tagmill run deliver --pipeline {self.name} --recreated",
                pipeline=self.name,
            )
        with self.at_work() as workspace:
            ledger = workspace.ledger
            ledger.require_none_open(self.name)
            journal = SameJournal(workspace)
            if self.dry_run:
                changes = [*journal.changed_tables(), *journal.changed_topics().values()]
                return would_accept(self.name, journal.journal, changes)
            last = ledger.last_run(self.name)
            ledger.record_intervention(self.name, last, self.who, "ledger accept-journal", self.why)
            return journal.accept()
