"""Brings a pipeline's ledger forward: for `tagmill ledger restore`, after the ledger's rows were restored or
lost (docs/decisions/0036).

Rows that another program has written get to be older than what runs write. Batches that ClickHouse has and no
run of the ledger become known, with the progress that they made. The ledger's last run moves last: a restore
that was killed is found wanting by the next delivery.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tagmill.clickhouse.client import ClickHouse
from tagmill.config.tag_views import PipelineSettings
from tagmill.delivery.topics.table_columns import layout
from tagmill.domain.batches.layout import TAG_VIEWS
from tagmill.domain.batches.states import RunState
from tagmill.domain.documents import Document
from tagmill.errors import WorkUnfinished
from tagmill.ledger.audits import Audits
from tagmill.ledger.dedup import Deduplication, Rules, shards_of
from tagmill.ledger.preconditions import check_journal
from tagmill.ledger.runs import Ledger
from tagmill.ledger.sent_batches import DestinationBatches
from tagmill.maintenance.ledger_restore import runs
from tagmill.maintenance.ledger_restore.tag_views import ViewRestore
from tagmill.maintenance.ledger_restore.topics import TopicRestore
from tagmill.maintenance.ledger_restore.unknown_batches import UnknownBatch, known_batches, unknown_batches
from tagmill.runs import checkpoints
from tagmill.runs.operator_action import OperatorAction
from tagmill.runs.workspace import Workspace, open_workspace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Restored(Document):
    """What a restore found, and does.

    `foreign`: rows with the write time of another program, `examples` some of them.

    `runs`, `batches`, `rows`: what ClickHouse has and the ledger doesn't know; `last_run`: the ledger's last
    run then.
    """

    pipeline: str
    foreign: int
    examples: list[str]
    runs: list[int]
    batches: int
    rows: int
    last_run: int
    dry_run: bool

    @property
    def message(self) -> str:
        """Return it in a sentence."""
        would = "would be" if self.dry_run else "is"
        return (
            f"pipeline {self.pipeline}: {self.foreign} rows of the ledger that another program has "
            f"written; {self.batches} batches "
            f"({self.rows} rows, {len(self.runs)} runs) that ClickHouse has and the ledger did not know. "
            f"The ledger {would} brought "
            f"forward to run {self.last_run}"
        )


@dataclass(eq=False)
class Restoring(OperatorAction):
    """One restore of one pipeline, of tag views, a topic or a Kafka Journal."""

    spark: Callable[[], SparkSession]

    def __post_init__(self) -> None:
        self.pipeline = self.settings.streams.get(self.name) or self.settings.pipeline(self.name)
        self.keyspace = self.settings.cassandra.ledger_keyspace

    def run(self) -> Restored:
        """Do it, under the pipeline's lease; in a dry run only say what would be done.

        Raises GuardRefused: a sealed run has to be finished first, or the storage lacks what a topic's ledger
        needs.
        """
        of_views = isinstance(self.pipeline, PipelineSettings)
        of_batch = TAG_VIEWS if isinstance(self.pipeline, PipelineSettings) else layout(self.pipeline)
        leases = [] if self.dry_run else [self.name]
        with (
            open_workspace(self.settings, self.name, owner=self.owner, leases=leases) as workspace,
            workspace.clickhouse(of_batch) as clickhouse,
        ):
            if self.dry_run:
                return self._survey(workspace.ledger, clickhouse)[0]
            if of_views:
                check_journal(workspace.cassandra, self.settings, self.name)
            return self._restored(workspace, clickhouse)

    def _survey(self, ledger: Ledger, clickhouse: ClickHouse) -> tuple[Restored, list[UnknownBatch], int]:
        """Return what is found, the unknown batches, and the newest write time of another program."""
        clickhouse.sync_replica(self.pipeline.destination)
        clickhouse.check_destination(self.pipeline.destination)
        last = ledger.last_run(self.name)
        limit, count, newest, examples = ledger.delivered.write_times.of(self.name, last), 0, 0, list[str]()
        for what, written in self._written(ledger):
            if written > limit:
                count, newest = count + 1, max(newest, written)
                examples += [what] if len(examples) < 3 else []
        known = known_batches(ledger, self.keyspace, self.name)
        batches = unknown_batches(clickhouse, self.files, self.name, self.pipeline.destination, known, last)
        sent = DestinationBatches(clickhouse, self.pipeline.destination).last_run()
        found = Restored(
            pipeline=self.name,
            foreign=count,
            examples=examples,
            runs=sorted({batch.origin.run for batch in batches}),
            batches=len(batches),
            rows=sum(batch.totals.rows for batch in batches),
            last_run=max([last, sent, *(batch.origin.run for batch in batches)]),
            dry_run=True,
        )
        return found, batches, newest

    def _restored(self, workspace: Workspace, clickhouse: ClickHouse) -> Restored:
        ledger = workspace.ledger
        found, batches, newest = self._survey(ledger, clickhouse)
        is_behind = bool(batches) or found.last_run > ledger.last_run(self.name)
        # Also where no row is foreign: a deletion by another program has left none. In front of the refusal: a
        # sealed run can't be closed as long as its rows lose against foreign ones.
        base = ledger.delivered.write_times.raise_above(self.name, newest)
        checkpoints.reached("restore.base_raised")
        if is_behind and (row := ledger.open_run(self.name)) and row.state == RunState.SEALED:
            raise WorkUnfinished(
                f"run {row.run} of pipeline {self.name} is SEALED, and ClickHouse has more than it. "
                "Only the write times were raised, so that it can be closed. First finish it: "
                f"tagmill run deliver --pipeline {self.name}, then again: tagmill ledger restore --pipeline "
                f"{self.name}",
                pipeline=self.name,
                run=row.run,
            )
        if is_behind:
            if isinstance(self.pipeline, PipelineSettings):
                ViewRestore(workspace, clickhouse, batches).run(found.last_run)
            else:
                TopicRestore(workspace, batches, self.spark).run()
            checkpoints.reached("restore.before_end")
            runs.give_up_planned(workspace)
            runs.advance(ledger, self.name, found.last_run)
        done = found.model_copy(update={"dry_run": False})
        self._record(ledger, f"ledger restore (write times from {base} on): {done.message}")
        return done

    def _record(self, ledger: Ledger, text: str) -> None:
        """Note who did it under a number of its own, or that of the run which is open and so has to be the
        last.
        """
        if row := ledger.open_run(self.name):
            ledger.record_intervention(self.name, row.run, self.who, text, self.why)
            return
        number = ledger.free_number(self.name)
        ledger.add_intervention(self.name, number, owner=self.owner, who=self.who, action=text, why=self.why)

    def _written(self, ledger: Ledger) -> Iterator[tuple[str, int]]:
        """Yield the pipeline's rows that are written with a run's write time, each with its own."""
        yield from ledger.delivered.write_times.small(self.name)
        if isinstance(self.pipeline, PipelineSettings):
            yield from ledger.delivered.written(self.name, self.pipeline.tags)
            base, audits = (
                ledger.delivered.write_times.base(self.name),
                Audits(ledger.cassandra, self.keyspace, self.name),
            )
            for audit, written in audits.words_written(self.pipeline.view.key(self.name), self.pipeline.tags):
                if written > base + audit:
                    yield f"the word of audit {audit}", written
        elif self.pipeline.rule and (rule := Rules(ledger.cassandra, self.keyspace, self.name).current()):
            ids = Deduplication(ledger.cassandra, self.keyspace, self.name, rule.rule)
            yield from ids.written(shards_of(rule.rule))
