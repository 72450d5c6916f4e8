"""The way out of a run of a topic or a Kafka Journal, for a person: abandon, void, resend a batch. Each is guarded and recorded."""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from tagmill.batches.states import BatchState, RunState
from tagmill.delivery.push import Destination, push_one
from tagmill.delivery.runfiles import all_batches
from tagmill.errors import GuardRefused
from tagmill.settings import Settings
from tagmill.stores.clickhouse import ClickHouse
from tagmill.stores.files import RunFiles
from tagmill.stores.lease import Lease
from tagmill.stores.ledger import Ledger, RunRow
from tagmill.topics.columns import layout, layout_of
from tagmill.topics.runfiles import read_manifest


class TopicInterventions:
    """What one person does to one such pipeline's ledger, with the reason."""

    def __init__(self, settings: Settings, pipeline: str, owner: str, who: str, why: str) -> None:
        self.settings, self.name, self.chosen = settings, pipeline, settings.stream(pipeline)
        self.owner, self.who, self.why = owner, who, why
        self.files = RunFiles(settings.storage.root)

    def abandon(self) -> str:
        """Give up the run that is PLANNED; the next run plans anew."""
        with self._at_work() as ledger:
            row = ledger.raise_fence(self._open(ledger, RunState.PLANNED), self.owner)
            ledger.finish_run(self.name, row.run, row.fence, RunState.PLANNED, RunState.ABANDONED, f"{self.who}: {self.why}")
            ledger.record_intervention(self.name, row.run, self.who, "run abandon", self.why)
            return f"run {row.run} of pipeline {self.name} is ABANDONED; nothing of it was delivered, the next run plans its records again"

    def void(self) -> str:
        """Give up the batches of the SEALED run that are proven absent from ClickHouse; its close forgets their ids."""
        with self._at_work() as ledger, ClickHouse(self.settings.clickhouse, layout(self.chosen)) as clickhouse:
            row = ledger.raise_fence(self._open(ledger, RunState.SEALED), self.owner)
            batches = all_batches(ledger, read_manifest(self.files, row))
            waiting, table = [batch for batch in batches if batch.state == BatchState.NEW], self.chosen.destination
            for batch in waiting:
                clickhouse.void_batch(table, batch.batch_id)
                clickhouse.sync_replica(table)
                if clickhouse.totals(table, batch.batch_id):
                    clickhouse.unvoid_batch(table, batch.batch_id)
                    raise GuardRefused(
                        f"batch {batch.batch_id} of run {row.run}, pipeline {self.name}, is in ClickHouse. It was not voided; "
                        f"finish the run instead: tagmill run deliver --pipeline {self.name}"
                    )
                ledger.move_batch(self.name, row.run, row.fence, batch, BatchState.VOIDED)
            ledger.record_intervention(self.name, row.run, self.who, f"run void ({len(waiting)} batches)", self.why)
            return (
                f"run {row.run} of pipeline {self.name}: {len(waiting)} batches VOIDED, "
                f"{len(batches) - len(waiting)} stay. Close it: tagmill run deliver --pipeline {self.name}"
            )

    def resend(self, batch_id: UUID, run: int) -> str:
        """Take a batch's rows out of ClickHouse, and push the sealed bytes again under the next generation."""
        with self._at_work() as ledger:
            row = ledger.run(self.name, run)
            found = next((one for one in ledger.batches(self.name, run) if one.batch_id == batch_id), None) if row else None
            if row is None or found is None or found.state == BatchState.VOIDED:
                raise GuardRefused(
                    f"pipeline {self.name}, run {run} has no batch {batch_id} that could be sent again. Nothing was changed. "
                    f"Look: tagmill batches --pipeline {self.name}"
                )
            row = ledger.raise_fence(row, self.owner)
            manifest = read_manifest(self.files, row)
            sealed = next(one for one in manifest.batches if one.number == found.number)
            self.files.open_sealed(sealed.file, sealed.sha256).close()  # what can't be sent again stays
            to = Destination(
                self.chosen.destination, layout_of(self.chosen, manifest.columns, f"run {run} of pipeline {self.name}")
            )
            with ClickHouse(self.settings.clickhouse, to.layout) as clickhouse:
                clickhouse.delete_batch(to.table, batch_id, found.generation)
            generation = found.generation + 1
            ledger.move_batch(self.name, run, row.fence, found, BatchState.NEW, generation)
            ledger.record_intervention(self.name, run, self.who, f"batches resend {batch_id}", self.why)
            push_one(self.settings, ledger, manifest, row.fence, found.number, to)
            return f"batch {batch_id} of run {run}, pipeline {self.name}, was sent again as generation {generation} and verified"

    def _open(self, ledger: Ledger, state: RunState) -> RunRow:
        row = ledger.open_run(self.name)
        if row is None or row.state != state:
            there = f"run {row.run} is {row.state}" if row else "no run is open"
            raise GuardRefused(
                f"pipeline {self.name} has no {state} run ({there}). Nothing was changed. Look: tagmill runs --pipeline {self.name}"
            )
        return row

    @contextmanager
    def _at_work(self) -> Iterator[Ledger]:
        with Ledger(self.settings.cassandra) as ledger:
            keyspace = self.settings.cassandra.ledger_keyspace
            lease = Lease(ledger.cassandra, keyspace, self.name, self.owner, self.chosen.lease_seconds)
            with lease.held(self.chosen.lease_wait_seconds):
                yield ledger
