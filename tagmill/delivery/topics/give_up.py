"""Give up a run of a topic or a Kafka Journal, and set records, columns or ids apart: the way out that always
works.

What ClickHouse has verified stays if later runs can tell it from the rest: by a topic's ids, or by a Kafka
Journal's sealed files. Everything else is taken back. The offsets stay, so the next run reads it again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import takewhile
from uuid import uuid4

from tagmill.clickhouse.client import ClickHouse
from tagmill.config.kafka import KafkaJournalEventsSettings, TopicSettings
from tagmill.delivery.dependent_views import despite
from tagmill.delivery.run_repairs import take_back, unsealed, views_with
from tagmill.delivery.topics.model import TopicCounts, TopicManifest, TopicPlan
from tagmill.delivery.topics.plan import closed_runs, left_partly, lost
from tagmill.delivery.topics.run_files import read_manifest, read_plan
from tagmill.delivery.topics.table_columns import layout
from tagmill.domain import identifiers
from tagmill.domain.batches.states import BatchState, RunState
from tagmill.errors import ConfigurationError, GuardRefused, SealedFileDamaged
from tagmill.kafka.offset_ranges import Range
from tagmill.kafka.set_apart import Since, record_of
from tagmill.ledger.dedup import TopicOffsets
from tagmill.ledger.runs import BatchRow, Ledger, RunRow
from tagmill.ledger.set_apart import Kind, SetApart
from tagmill.runs import checkpoints
from tagmill.runs.operator_action import OperatorAction
from tagmill.runs.sealed_files import all_batches, if_readable, write_document
from tagmill.runs.workspace import Workspace

NOT_APART = "Nothing was set apart"


@dataclass(eq=False)
class TopicGiveUp(OperatorAction):
    """The interventions of one person in the runs of one pipeline; each is recorded with the person's
    reason.
    """

    despite_views: bool = field(default=False, kw_only=True)
    # The views that keep what was taken out, for the record.
    views: str = field(default="", init=False)
    # Whether the open run ends CLOSED, with batches that stay delivered.
    closes: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.stream = self.settings.stream(self.name)

    def run(self, apart: Sequence[str]) -> list[str]:
        """Give the open run up, then set `apart` apart: columns, or records as topic/partition/offset.

        Safe to repeat.
        """
        records, columns = self._checked(apart)
        with self.at_work() as workspace:
            ledger = workspace.ledger
            said = []
            if row := ledger.open_run(self.name):
                row = self.take_over(ledger, row)
                said.append(
                    f"run {row.run} of pipeline {self.name} {self.be('is')} given up: "
                    f"{self._give_up(ledger, row)}"
                )
                if not self.dry_run:
                    what = f"run give-up{despite(self.views)}"
                    ledger.record_intervention(self.name, row.run, self.who, what, self.why)
            said += self._without_lost_files(ledger, row if self.dry_run and self.closes else None)
            if not said and not apart:
                raise GuardRefused(
                    f"pipeline {self.name} has no open run to give up. Nothing was changed. Look: "
                    f"tagmill runs --pipeline {self.name}",
                    pipeline=self.name,
                )
            if apart:
                table = self._set_apart(ledger)
                run = self.claim_run(
                    workspace,
                    identifiers.shortened(f"run give-up --set-apart {', '.join(apart)}", 1000),
                    NOT_APART,
                )
                of_journal = isinstance(self.stream, KafkaJournalEventsSettings)
                if not self.dry_run:
                    table.add(Kind.RECORD, records, run, self.who, self.why)
                    table.add(Kind.COLUMN, columns, run, self.who, self.why)
                    if of_journal:
                        self._leave_out(workspace, table, apart, run)
                left_out = (
                    f"{len(apart)} ids {self.be('are')} left out until tagmill run take-back"
                    if of_journal
                    else f"{len(records)} records {'would ' * self.dry_run}become dead letters, {len(columns)} "
                    "columns null"
                )
                said.append(
                    f"pipeline {self.name}: {left_out}; the rest flows: tagmill run deliver --pipeline "
                    f"{self.name}"
                )
            return said

    def take_back(self, item: str) -> str:
        """Let runs deliver a column, or a Kafka Journal's id, that was set apart.

        What was delivered without the column stays null; the id's events that were left out are delivered.
        """
        kind = Kind.ID if isinstance(self.stream, KafkaJournalEventsSettings) else Kind.COLUMN
        name = "id" if kind is Kind.ID else "column"
        with self.at_work() as workspace:
            table = self._set_apart(workspace.ledger)
            if item not in table.items(kind):
                raise GuardRefused(
                    f"pipeline {self.name} has not set the {name} {item!r} apart. Nothing was changed",
                    pipeline=self.name,
                )
            self.claim_run(workspace, identifiers.shortened(f"run take-back {item}", 1000), NOT_APART)
            if not self.dry_run:
                table.remove(kind, item)
            return f"pipeline {self.name}: the {name} {item!r} {self.be('is')} delivered again from the next run on"

    def _leave_out(self, workspace: Workspace, table: SetApart, ids: Sequence[str], run: int) -> None:
        """Note the offsets from which the events of these ids are left out, then set the ids apart."""
        read_to = workspace.store(TopicOffsets).read_to()
        _, delivered = left_partly(workspace)
        now = Since(places=[(*partition, end) for partition, end in sorted(read_to.items())])
        known = {key: Since.model_validate_json(text) for key, text in table.items(Kind.SINCE).items()}
        for key in ids:
            since = known.get(key, now)
            since = since.model_copy(update={"delivered": sorted({*since.delivered, *(delivered or [])})})
            table.add(Kind.SINCE, [key], run, self.who, since.model_dump_json())
        table.add(Kind.ID, ids, run, self.who, self.why)

    def _checked(self, apart: Sequence[str]) -> tuple[list[str], list[str]]:
        """Split the items into records and columns; a Kafka Journal's items are ids, and both lists stay
        empty.

        Raises ConfigurationError for an item that cannot be set apart.
        """
        if not apart or not isinstance(self.stream, TopicSettings):
            return [], []
        optional = {column.name for column in layout(self.stream).columns if column.optional}
        columns = [item for item in apart if item in optional]
        records = [item for item in apart if item not in optional and record_of(item)]
        if wrong := [item for item in apart if item not in columns and item not in records]:
            raise ConfigurationError(
                f"pipeline {self.name}: {', '.join(map(repr, wrong))} is neither a record "
                "(topic/partition/offset) nor a nullable column "
                f"({', '.join(sorted(optional)) or 'there is none'}). Nothing was changed",
                pipeline=self.name,
            )
        return records, columns

    # -- the run

    def _give_up(self, ledger: Ledger, row: RunRow) -> str:
        if row.state == RunState.PLANNED:
            return self._abandon(ledger, row)
        manifest = if_readable(read_manifest, self.files, row)
        batches = all_batches(ledger, manifest) if manifest else ledger.batches(self.name, row.run)
        delivered = [batch for batch in batches if batch.state == BatchState.IN_CLICKHOUSE]
        waiting = [batch for batch in batches if batch.state == BatchState.NEW]
        self.closes = stays = bool(delivered) and self._told_apart(ledger, row, manifest, delivered)
        said = (
            f"{len(delivered)} batches stay delivered, the others are VOIDED; the next run reads the "
            "rest of its records again"
        )
        with ClickHouse(self.settings.clickhouse, layout(self.stream)) as clickhouse:
            self.views = views_with(
                clickhouse,
                self.stream.destination,
                row,
                waiting if stays else [*waiting, *delivered],
                despite_views=self.despite_views,
            )
            if self.dry_run:
                return said if stays else self._abandon(ledger, row, len(batches))
            self._void(ledger, clickhouse, row, waiting)
            checkpoints.reached("giveup.voided")
            if not stays:
                self._void(ledger, clickhouse, row, delivered)
                return self._abandon(ledger, row, len(batches))
            if len(delivered) == len(batches):
                self._move_offsets(ledger, row, manifest)
            file, sha256 = str(row.manifest_file), str(row.manifest_sha256)
            if manifest is None:
                file, sha256 = self._rebuilt(clickhouse, row, batches)
        ledger.end_run(row, RunState.CLOSED, file, sha256, f"{self.who}: {self.why}")
        return said

    def _abandon(self, ledger: Ledger, row: RunRow, voided: int = 0) -> str:
        if not self.dry_run:
            ledger.end_run(row, RunState.ABANDONED, "", "", f"{self.who}: {self.why}")
            self.files.remove_attempts(self.name, row.run)
        batches = f"{voided} batches are VOIDED, " if voided else ""
        return f"{batches}nothing of it is delivered, the next run plans its records again"

    def _void(self, ledger: Ledger, clickhouse: ClickHouse, row: RunRow, batches: Sequence[BatchRow]) -> None:
        """Take batches back.

        Before that, their ids stop counting as delivered, so nothing depends on the files that hold the ids.
        """
        ledger.current(row.pipeline, row.run, row.fence)
        self._set_apart(ledger).add(
            Kind.BATCH, (str(batch.batch_id) for batch in batches), row.run, self.who, self.why
        )
        for batch in batches:
            table = self.stream.destination
            take_back(ledger, clickhouse, table, row, batch, despite_views=self.despite_views)

    def _told_apart(
        self,
        ledger: Ledger,
        row: RunRow,
        manifest: TopicManifest | None,
        delivered: Sequence[BatchRow],
    ) -> bool:
        """Return whether later runs can tell what these batches have delivered: a topic's by ids, a Kafka
        Journal's by files or offsets.
        """
        if not isinstance(self.stream, KafkaJournalEventsSettings):
            return True
        if self._offsets(ledger).moved_by(row.run):
            return True
        return manifest is not None and self._intact(row, manifest, {batch.number for batch in delivered})

    def _move_offsets(self, ledger: Ledger, row: RunRow, manifest: TopicManifest | None) -> None:
        """Move the offsets of a Kafka Journal's run of which no batch is void, unless it has moved them."""
        offsets = self._offsets(ledger)
        if isinstance(self.stream, KafkaJournalEventsSettings) and manifest and not offsets.moved_by(row.run):
            offsets.write(row.run, {one.topic_partition: one.end for one in manifest.ranges})

    def _intact(self, row: RunRow, manifest: TopicManifest, numbers: set[int]) -> bool:
        try:
            read_plan(self.files, row)
            for batch in manifest.batches:
                if batch.number in numbers:
                    self.files.open_sealed(batch.file, batch.sha256).close()
        except SealedFileDamaged:
            return False
        return True

    # -- the newest closed run, which the next plan reads

    def _without_lost_files(self, ledger: Ledger, closing: RunRow | None) -> Iterator[str]:
        """Write the lost plan or manifest of the newest closed run again, and yield a line that says so.

        In a dry run that is `closing`, if the open run would be closed.
        If a Kafka Journal's run was delivered in part, only the lost files tell which part: what ClickHouse
        has of it is taken out.
        """
        row = closing or next(closed_runs(ledger, self.name), None)
        if row is None or not row.manifest_file:
            return
        plan, manifest = if_readable(read_plan, self.files, row), if_readable(read_manifest, self.files, row)
        partly = isinstance(self.stream, KafkaJournalEventsSettings) and self._is_partly(ledger, row)
        if plan and manifest and not (partly and lost(self.files, plan.delivered)):
            return
        said = f"run {row.run} of pipeline {self.name} is closed and had lost files: they"
        if self.dry_run:
            taken = ", and what ClickHouse has of its records taken out" if partly else ""
            yield f"{said} would be written again{taken}"
            return
        row = ledger.raise_fence(row, self.owner)
        new = replace(row, reason=f"{self.who}: {self.why}")
        views = ""
        with ClickHouse(self.settings.clickhouse, layout(self.stream)) as clickhouse:
            if partly:
                views = self._take_out(ledger, clickhouse, row)
            checkpoints.reached("giveup.taken_out")
            if plan is None or partly:
                file = f"{self.files.folder(self.name, row.run)}/plan-{uuid4().hex[:12]}.json"
                ranges = plan.ranges if plan else manifest.ranges if manifest else []
                sha256 = write_document(self.files, file, self._plan_again(ledger, row, ranges))
                new = replace(new, plan_file=file, plan_sha256=sha256)
            if manifest is None:
                file, sha256 = self._rebuilt(clickhouse, row, ledger.batches(self.name, row.run))
                new = replace(new, manifest_file=file, manifest_sha256=sha256)
        ledger.amend(row, new)
        what = f"run give-up: files written again{despite(views)}"
        ledger.record_intervention(self.name, row.run, self.who, what, self.why)
        taken = (
            ". What ClickHouse had of its records was taken out, the next run delivers all of them"
            if partly
            else ""
        )
        yield f"{said} were written again{taken}"

    def _is_partly(self, ledger: Ledger, row: RunRow) -> bool:
        return any(batch.state == BatchState.VOIDED for batch in ledger.batches(self.name, row.run))

    def _take_out(self, ledger: Ledger, clickhouse: ClickHouse, row: RunRow) -> str:
        """Void the delivered batches of a closed run, and of the runs before it that read the same records;
        return the names of the views that keep them.
        """
        of_runs = [
            (run, [b for b in ledger.batches(self.name, run.run) if b.state == BatchState.IN_CLICKHOUSE])
            for run in takewhile(partial(self._is_partly, ledger), closed_runs(ledger, self.name))
        ]
        batches = [batch for _, of_run in of_runs for batch in of_run]
        table = self.stream.destination
        views = views_with(clickhouse, table, row, batches, despite_views=self.despite_views)
        for run, of_run in of_runs:
            fenced = row if run.run == row.run else ledger.raise_fence(run, self.owner)
            self._void(ledger, clickhouse, fenced, of_run)
            self._forget_delivered(ledger, run)
        return views

    def _forget_delivered(self, ledger: Ledger, run: RunRow) -> None:
        """Remove a run's batch files from those that count as delivered for ids that are set apart."""
        table, folder = self._set_apart(ledger), f"{self.files.folder(self.name, run.run)}/"
        for key, text in table.items(Kind.SINCE).items():
            since = Since.model_validate_json(text)
            kept = [file for file in since.delivered if not file.startswith(folder)]
            if kept != since.delivered:
                left = since.model_copy(update={"delivered": kept})
                table.add(Kind.SINCE, [key], run.run, self.who, left.model_dump_json())

    def _plan_again(self, ledger: Ledger, row: RunRow, ranges: list[Range]) -> TopicPlan:
        """Return a plan that makes the next run search every id for new events from the first record on."""
        offsets = TopicOffsets(ledger.cassandra, self.settings.cassandra.ledger_keyspace, self.name)
        begun = [
            Range(topic=topic, partition=at, first=0, end=end)
            for (topic, at), end in sorted(offsets.read_to().items())
        ]
        return TopicPlan(
            pipeline=self.name,
            run=row.run,
            planned_at=row.planned_at or datetime.now(UTC),
            ranges=ranges,
            known_since=0,
            rule=self.stream.rule,
            begun=begun,
            warnings=[],
            more=True,
        )

    def _rebuilt(self, clickhouse: ClickHouse, row: RunRow, batches: Sequence[BatchRow]) -> tuple[str, str]:
        """Write a manifest from what ClickHouse has, in place of a lost one; return its file and digest.

        Its batches can't be resent.
        """
        rebuilt = [unsealed(clickhouse, self.stream.destination, batch) for batch in batches]
        attempt = uuid4().hex[:12]
        home = f"{self.files.folder(self.name, row.run)}/attempt-{attempt}"
        columns = layout(self.stream)
        manifest = TopicManifest(
            pipeline=self.name,
            run=row.run,
            sealed_at=datetime.now(UTC),
            attempt=attempt,
            generation=1,
            ranges=[],
            batches=rebuilt,
            counts=TopicCounts(new=sum(batch.rows for batch in rebuilt)),
            columns=list(columns.names),
            required=list(columns.required),
            letters=f"{home}/letters",
            replayed=f"{home}/replayed",
            sha256={},
            warnings=[],
            more=False,
        )
        return f"{home}/manifest.json", write_document(self.files, f"{home}/manifest.json", manifest)

    # -- the ledger

    def _offsets(self, ledger: Ledger) -> TopicOffsets:
        return TopicOffsets(ledger.cassandra, self.settings.cassandra.ledger_keyspace, self.name)

    def _set_apart(self, ledger: Ledger) -> SetApart:
        return SetApart(ledger.cassandra, self.settings.cassandra.ledger_keyspace, self.name)
