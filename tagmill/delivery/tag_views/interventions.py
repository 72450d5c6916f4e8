"""Change the ledger for an operator: abandon, void, resend, close a hold, rebase progress.

Each change is guarded and recorded.

A change of progress or holds claims a run number of its own, so its writes are ordered between those of the
runs around it.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from uuid import UUID

from tagmill.clickhouse.client import ClickHouse
from tagmill.delivery.dependent_views import accept, despite, require_no_views
from tagmill.delivery.push import destination_of
from tagmill.delivery.run_repairs import (
    abandon_planned,
    batch_of,
    require_not_closing,
    run_in,
    send_again,
    take_out_voided,
    void_waiting,
)
from tagmill.delivery.tag_views import stops, withdraw
from tagmill.delivery.tag_views.close import close
from tagmill.delivery.tag_views.holds import WAIT_FOR_NUMBERS, to_judge_again
from tagmill.delivery.tag_views.model import Manifest, Plan
from tagmill.delivery.tag_views.run_files import read_manifest, read_plan
from tagmill.delivery.tag_views.withdraw import Event
from tagmill.domain.batches.states import BatchState, RunState
from tagmill.domain.continuity import rules
from tagmill.domain.continuity.lives import new_life
from tagmill.domain.continuity.model import Progress, Reason, Row
from tagmill.domain.time_buckets import first_ticks
from tagmill.domain.timeuuid import ticks as ticks_of
from tagmill.domain.timeuuid import to_datetime
from tagmill.errors import GuardRefused, SealedFileDamaged, WorkUnfinished, about
from tagmill.journal.tag_view_reader import Views
from tagmill.ledger.progress import HoldRow
from tagmill.ledger.retired_batches import Retired
from tagmill.ledger.runs import BatchRow, Ledger, RunRow
from tagmill.ledger.same_tables import accept_tables, accepted, changed_tables, would_accept
from tagmill.runs import checkpoints
from tagmill.runs.operator_action import OperatorAction
from tagmill.runs.sealed_files import all_batches
from tagmill.runs.workspace import Workspace

CLOSABLE = (
    *WAIT_FOR_NUMBERS,
    "null_event",
    "broken_offset",
    "two_events_one_number",
    "broken_key",
)


@dataclass(eq=False)
class Interventions(OperatorAction):
    """The changes that an operator makes to one pipeline's ledger, with the reason."""

    despite_views: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        self.pipeline = self.settings.pipeline(self.name)

    def abandon(self) -> str:
        """Give up the PLANNED run; the next run plans its range again."""
        with self.at_work() as workspace:
            ledger = workspace.ledger
            row = run_in(ledger, self.name, RunState.PLANNED)
            if row.kind == withdraw.KIND:
                raise WorkUnfinished(
                    f"run {row.run} of pipeline {self.name} withdraws batches, and may have begun to. "
                    "Nothing was changed; "
                    f"finish it: tagmill run deliver --pipeline {self.name}",
                    pipeline=self.name,
                    run=row.run,
                )
            return abandon_planned(self, ledger, row, "range")

    def void(self) -> str:
        """Give up the batches of the SEALED run that are proven absent from ClickHouse; a later run delivers
        their events.
        """
        with (
            self.at_work() as workspace,
            workspace.clickhouse() as clickhouse,
        ):
            ledger = workspace.ledger
            row = self.take_over(ledger, run_in(ledger, self.name, RunState.SEALED))
            manifest = read_manifest(self.files, row)
            batches = all_batches(ledger, manifest)
            require_voidable(manifest, batches)
            return void_waiting(self, ledger, clickhouse, self.pipeline.destination, row, batches)

    def resend(self, batch_id: UUID, run: int) -> str:
        """Remove a batch's rows from ClickHouse, and push the sealed bytes again under the next
        generation.
        """
        with (
            self.at_work() as workspace,
            workspace.clickhouse() as clickhouse,
        ):
            ledger = workspace.ledger
            row = ledger.run(self.name, run)
            found = (
                next((b for b in ledger.batches(self.name, run) if b.batch_id == batch_id), None)
                if row
                else None
            )
            if row is None:
                self._is_retired(ledger, run, batch_id)
            if row is None or found is None:
                raise GuardRefused(
                    f"pipeline {self.name}, run {run} has no batch {batch_id}. Look: tagmill batches "
                    f"--pipeline {self.name}",
                    pipeline=self.name,
                    run=run,
                    batch=batch_id,
                )
            if found.state == BatchState.VOIDED:
                raise GuardRefused(
                    f"batch {batch_id} is VOIDED: a later run has delivered its events, or they were "
                    "erased. Nothing was changed",
                    pipeline=self.name,
                    run=run,
                    batch=batch_id,
                )
            require_not_closing(row, found)
            require_none_waiting_before(row, found, ledger.batches(self.name, run))
            row = self.take_over(ledger, row)
            manifest = read_manifest(self.files, row)
            to = destination_of(self.pipeline)
            return send_again(
                workspace, self, clickhouse, manifest, row, found, to, despite_views=self.despite_views
            )

    def accept(self, batch_id: UUID, run: int) -> str:
        """Record that the views on the destination have a batch whose insert was not confirmed or ended with
        an error.
        """
        with (
            self.at_work() as workspace,
            workspace.clickhouse() as clickhouse,
        ):
            ledger = workspace.ledger
            row, batch = batch_of(ledger, self.name, run, batch_id)
            return accept(self, ledger, clickhouse, self.pipeline.destination, row, batch)

    def withdraw(self, batch_id: UUID, run: int) -> str:
        """Remove a batch from ClickHouse for good and note its events as not delivered; reading them again
        delivers them, late.

        Of a VOIDED batch that ClickHouse has again, only the rows are removed.
        """
        if self._came_back(batch_id, run):
            return self.take_out_voided(batch_id, run)
        if self.dry_run:
            return self._would_withdraw(batch_id, run)
        again = self._reread(self.taken_out(batch_id, run))
        return (
            f"batch {batch_id} of run {run}, pipeline {self.name}, is out of ClickHouse and VOIDED. "
            f"Deliver its events again: {again}"
        )

    def _would_withdraw(self, batch_id: UUID, run: int) -> str:
        batch = f"batch {batch_id} of run {run}, pipeline {self.name},"
        with self.at_work() as workspace:
            left = workspace.ledger.open_run(self.name)
            if left and left.kind == withdraw.KIND:
                plan = read_plan(self.files, left)
                if str(batch_id) in {part.batch_id for part in plan.withdrawn}:
                    again = self._reread(set(withdraw.buckets(self.files, plan)))
                    return f"{batch} is being withdrawn by run {left.run}, which would be finished. Then: {again}"
                return f"{batch} would be withdrawn after run {left.run}, which withdraws batches and is not finished"
            with about(run=run, batch=batch_id):
                views = self._require_no_views(f"{batch} is not withdrawn")
            rows, buckets = withdraw.survey(workspace, run, batch_id)
        return (
            f"{batch} would be VOIDED and its {rows} rows removed from ClickHouse{views}; its events would be "
            f"noted as not delivered. Other batches stay as they are. Then: {self._reread(buckets)}"
        )

    def _reread(self, buckets: set[tuple[str, int]]) -> str:
        """Return the command that reads these (tag, timebucket) again."""
        starts = sorted(bucket for _, bucket in buckets)
        low = to_datetime(first_ticks(starts[0]))
        high = to_datetime(first_ticks(starts[-1]) + self.pipeline.bucket_size.ticks)
        return (
            f"tagmill run deliver --pipeline {self.name} --reread-from {low:%Y-%m-%dT%H:%M:%SZ} "
            f"--reread-until {high:%Y-%m-%dT%H:%M:%SZ}"
        )

    def taken_out(self, batch_id: UUID, run: int) -> set[tuple[str, int]]:
        """Withdraw a batch, or finish its withdrawal; return the (tag, timebucket) in which the view has its
        events.
        """
        with self.at_work() as workspace:
            plan = self._unfinished_withdrawal(workspace)
            if plan is None or str(batch_id) not in {part.batch_id for part in plan.withdrawn}:
                refused = f"batch {batch_id} of run {run}, pipeline {self.name}, is not withdrawn"
                with about(run=run, batch=batch_id):
                    views = self._require_no_views(refused)
                plan = self._withdrawal(
                    workspace, [(run, batch_id)], [], f"batches withdraw {batch_id}{views}"
                )
            return set(withdraw.buckets(self.files, plan))

    def _came_back(self, batch_id: UUID, run: int) -> bool:
        """Return whether ClickHouse has rows of a VOIDED batch, and no open run is about to remove them."""
        with self.at_work() as workspace, workspace.clickhouse() as clickhouse:
            batches = workspace.ledger.batches(self.name, run)
            voided = {batch.batch_id for batch in batches if batch.state == BatchState.VOIDED}
            return (
                workspace.ledger.open_run(self.name) is None
                and batch_id in voided
                and bool(clickhouse.totals(self.pipeline.destination, batch_id))
            )

    def take_out_voided(self, batch_id: UUID, run: int) -> str:
        """Do run_repairs.take_out_voided, with no run open. Progress stays."""
        with self.at_work() as workspace, workspace.clickhouse() as clickhouse:
            self._none_open(workspace)
            return take_out_voided(
                workspace, self, clickhouse, run, batch_id, despite_views=self.despite_views
            )

    def note_undelivered(self, lost: Iterator[Event]) -> int:
        """Note events in progress as not delivered, unless ClickHouse has them in a batch; return how many
        events were given.
        """
        first = next(lost, None)
        if first is None:
            return 0
        with self.at_work() as workspace:
            self._unfinished_withdrawal(workspace)
            views = self._require_no_views(
                f"events of pipeline {self.name} that ClickHouse lacks are not sent again"
            )
            what = f"repair: progress of what was not delivered{views}"
            plan = self._withdrawal(workspace, [], chain([first], lost), what)
            return withdraw.count(self.files, plan)

    def record(self, workspace: Workspace, action: str) -> None:
        """Record a change of neither progress nor batches under a run number of its own.

        The caller holds the lease.
        """
        run = workspace.ledger.free_number(self.name)
        self._none_open(workspace)
        self.claim_run(workspace, action, "Nothing was changed", run)

    def close_hold(self, tag: str, persistence_id: str) -> str:
        """Give up the numbers that a hold waits for; the next run delivers what comes after them."""
        with self.at_work() as workspace:
            ledger = workspace.ledger
            this_run = ledger.free_number(self.name)
            hold = self._hold(workspace, tag, persistence_id)
            require_closable(self.name, hold)
            before = next(iter(ledger.delivered.progress(self.name, [(tag, persistence_id)])))
            missing = f"{hold.gap.first} to {hold.gap.last}"
            self._intervene(
                workspace,
                this_run,
                hold,
                rules.close(before, hold.gap),
                f"holds close {tag} {persistence_id} {missing}",
            )
            behind = f" ({hold.held_rows} rows); other holds stay as they are" if self.dry_run else ""
            return (
                f"pipeline {self.name}, tag {tag!r}, {persistence_id!r}: numbers {missing} {self.be('are')} "
                f"given up; the next run delivers what is behind them{behind}"
            )

    def rebase(self, tag: str, persistence_id: str, number: int | None, sequence_nr: int | None) -> str:
        """Set progress after the view was renumbered: to the new number of the last delivered event, looked
        up unless it is given.
        """
        with self.at_work() as workspace:
            ledger = workspace.ledger
            this_run = ledger.free_number(self.name)
            hold = self._hold(workspace, tag, persistence_id)
            before = next(iter(ledger.delivered.progress(self.name, [(tag, persistence_id)])))
            seen, delivered = self._events(ledger, tag, persistence_id)
            if hold.reason == Reason.ANOTHER_LIFE or (before and new_life(before, seen, delivered)):
                raise GuardRefused(
                    f"pipeline {self.name}: the numbers of {persistence_id!r}, tag {tag!r}, began again, so the "
                    "delivered events are not those of the view. Nothing was changed; deliver its new life: "
                    f"tagmill progress restart --pipeline {self.name} --tag {tag} --persistence-id {persistence_id}",
                    pipeline=self.name,
                )
            given = None
            if number is not None and sequence_nr is not None:
                given = number, sequence_nr, before.offset if before else ""
            progress = self._looked_up(tag, persistence_id, seen, delivered, given)
            self._intervene(
                workspace,
                this_run,
                hold,
                progress,
                f"progress rebase {tag} {persistence_id} to {progress.number}/{progress.sequence_nr}",
            )
            was = f" (now {_place(before)})" if self.dry_run else ""
            return (
                f"pipeline {self.name}, tag {tag!r}, {persistence_id!r}: progress {self.be('is now')} "
                f"{_place(progress)}{was}; the next run goes on behind it"
            )

    def accept_journal(self) -> str:
        """Note that journal tables which were created again hold the events that were delivered."""
        with self.at_work() as workspace:
            self.record(workspace, "ledger accept-journal")
            if self.dry_run:
                changed = changed_tables(self.settings, workspace.cassandra, self.name)
                return would_accept(self.name, self.pipeline.keyspace, changed)
            accept_tables(self.settings, workspace.cassandra, self.name)
            return accepted(self.name, self.pipeline.keyspace)

    def restart(self, tag: str, persistence_id: str) -> str:
        """Forget the progress of a persistence_id that began another life, and note when that began: the next run
        judges what is held from there on.
        """
        with self.at_work() as workspace:
            ledger = workspace.ledger
            this_run = ledger.free_number(self.name)
            hold = self._hold(workspace, tag, persistence_id)
            require_another_life(self.name, hold)
            before = next(iter(ledger.delivered.progress(self.name, [(tag, persistence_id)])))
            seen, delivered = self._events(ledger, tag, persistence_id)
            progress = new_life(before, seen, delivered) if before else None
            if progress is None:
                return self._judge_again(workspace, this_run, hold)
            again = [row for row in seen if row.ticks >= progress.life_from]
            if twice := sum((row.sequence_nr, row.writer_uuid) in delivered for row in again):
                raise GuardRefused(
                    f"pipeline {self.name}: ClickHouse has {twice} of the events that the view has of "
                    f"{persistence_id!r}, tag {tag!r}, since its numbers began again: they would be delivered twice. "
                    "Nothing was changed; remove their copies from the view",
                    pipeline=self.name,
                )
            self.claim_run(
                workspace, f"progress restart {tag} {persistence_id}", "Nothing was changed", this_run
            )
            lost = sum(
                row.ticks < progress.life_from and (row.sequence_nr, row.writer_uuid) not in delivered
                for row in seen
            )
            said = (
                f"pipeline {self.name}, tag {tag!r}, {persistence_id!r}: the next run delivers its "
                f"new life from number {progress.number + 1} on; rows before "
                f"{to_datetime(progress.life_from):%FT%TZ} count as its earlier life's"
            ) + (f", {lost} of them are not in ClickHouse" if lost else "")
            if self.dry_run:
                return (
                    f"{said} ({hold.held_rows} rows are held); progress ({_place(before)}) would be forgotten, "
                    "ClickHouse keeps the earlier life"
                )
            ledger.delivered.write_holds(self.name, this_run, [replace(hold, seen="")])
            checkpoints.reached("intervene.before_progress")
            ledger.delivered.begin_life(self.name, this_run, (tag, persistence_id), progress)
            return said

    # -- guards

    def _is_retired(self, ledger: Ledger, run: int, batch_id: UUID) -> None:
        kept = Retired(ledger.cassandra, self.settings.cassandra.ledger_keyspace, self.name).of_run(run)
        if batch_id in [batch.batch_id for batch in kept]:
            raise SealedFileDamaged(
                f"batch {batch_id} of run {run}, pipeline {self.name}, is past retention_days "
                f"({self.pipeline.retention_days}): its sealed "
                "file was cleaned up, so its bytes can't be sent again. Nothing was changed. The journal "
                "has its events: "
                f"tagmill repair --pipeline {self.name}",
                pipeline=self.name,
                run=run,
                batch=batch_id,
            )

    def _none_open(self, workspace: Workspace) -> None:
        workspace.ledger.require_none_open(self.name)
        if not self.dry_run:
            stops.finish(workspace)

    def _hold(self, workspace: Workspace, tag: str, persistence_id: str) -> HoldRow:
        self._none_open(workspace)
        # A dry run has recorded nothing, so the holds of a stopped run may be in its files only.
        unrecorded = stops.unrecorded_holds(workspace) if self.dry_run else ()
        of_tag = chain(
            (hold for hold in unrecorded if hold.tag == tag),
            workspace.ledger.delivered.holds(self.name, [tag]),
        )
        hold = next((hold for hold in of_tag if hold.persistence_id == persistence_id), None)
        if hold is None:
            raise GuardRefused(
                f"pipeline {self.name} has no hold of {persistence_id!r} for tag {tag!r}. Nothing was "
                "changed. "
                f"Look: tagmill holds --pipeline {self.name}",
                pipeline=self.name,
            )
        return hold

    def _events(
        self, ledger: Ledger, tag: str, persistence_id: str
    ) -> tuple[list[Row], set[tuple[int, str]]]:
        """Return the rows of a persistence_id in the view, and (sequence_nr, writer_uuid) of those in ClickHouse."""
        views = Views(ledger.cassandra, self.pipeline.journal)
        rows = [
            Row(number, sequence_nr or 0, ticks_of(offset), str(offset), writer)
            for number, sequence_nr, offset, writer in views.numbers(
                tag, persistence_id, views.buckets([tag])[tag]
            )
        ]
        with ClickHouse(self.settings.clickhouse) as clickhouse:
            clickhouse.sync_replica(self.pipeline.destination)
            return rows, clickhouse.events_of(self.pipeline.destination, tag, persistence_id)

    def _judge_again(self, workspace: Workspace, run: int, hold: HoldRow) -> str:
        """Let the next run judge a hold for another life again, since the view has no event of one."""
        none = (
            f"the view has no event of {hold.persistence_id!r}, tag {hold.tag!r}, whose number or sequence_nr "
            "began again with a writer that ClickHouse does not know"
        )
        if hold.reason != Reason.ANOTHER_LIFE:
            raise GuardRefused(
                f"pipeline {self.name}: {none}. Nothing was changed; continue it under its new numbers: tagmill "
                f"progress rebase --pipeline {self.name} --tag {hold.tag} --persistence-id {hold.persistence_id}",
                pipeline=self.name,
            )
        action = f"progress restart {hold.tag} {hold.persistence_id}: hold judged again"
        self.claim_run(workspace, action, "Nothing was changed", run)
        if not self.dry_run:
            workspace.ledger.delivered.write_holds(self.name, run, [replace(hold, seen="")])
        return (
            f"pipeline {self.name}: {none}; its progress stays, and the next run judges it again. If it "
            f"is held again, ClickHouse has lost events: tagmill audit --pipeline {self.name}"
        )

    def _looked_up(
        self,
        tag: str,
        persistence_id: str,
        seen: Iterable[Row],
        delivered: Collection[tuple[int, str]],
        given: tuple[int, int, str] | None,
    ) -> Progress:
        """Return progress under the new numbers, from the rows of the view that ClickHouse has; some may have
        been withdrawn or given up.

        Raises GuardRefused if ClickHouse has none of them and no number is given.
        """
        rows = [(row.number, row.sequence_nr, row.offset, row.writer_uuid) for row in seen]
        progress = rules.rebased(rows, delivered, given)
        if progress is None:
            raise GuardRefused(
                f"pipeline {self.name}: ClickHouse has none of the view's rows of {persistence_id!r}, "
                f"tag {tag!r}. Nothing was changed; "
                "give --number and --sequence-nr",
                pipeline=self.name,
            )
        return progress

    def _require_no_views(self, refused: str) -> str:
        with ClickHouse(self.settings.clickhouse) as clickhouse:
            return despite(
                require_no_views(
                    clickhouse, self.pipeline.destination, refused, despite_views=self.despite_views
                )
            )

    # -- doing it

    def _unfinished_withdrawal(self, workspace: Workspace) -> Plan | None:
        """Finish a withdrawal that is still open and return its plan; None if there is none."""
        ledger = workspace.ledger
        left = ledger.open_run(self.name)
        if left is None or left.kind != withdraw.KIND:
            return None
        return self._finished(workspace, ledger.raise_fence(left, self.owner))

    def _withdrawal(
        self, workspace: Workspace, batches: list[tuple[int, UUID]], lost: Iterable[Event], action: str
    ) -> Plan:
        reason = f"{self.who}: {self.why}"
        row = withdraw.plan(workspace, batches, lost, reason=reason)
        workspace.ledger.record_intervention(self.name, row.run, self.who, action, self.why)
        return self._finished(workspace, row)

    def _finished(self, workspace: Workspace, row: RunRow) -> Plan:
        withdraw.seal(workspace, row.run, row.fence)
        close(workspace, row.run, row.fence)
        return read_plan(self.files, row)

    def _intervene(
        self, workspace: Workspace, run: int, hold: HoldRow, progress: Progress, action: str
    ) -> None:
        """Record a change, and write the hold and the progress that result from it.

        `run` was free before the hold and the progress were read: if another run has started since, the
        number is taken and the claim fails.
        """
        ledger = workspace.ledger
        self.claim_run(workspace, action, "Nothing was changed", run)
        if self.dry_run:
            return
        # Progress is written last: a process that is killed before leaves a hold that can be closed again, or
        # none.
        again = to_judge_again(hold)
        if again is None:
            ledger.delivered.end_holds(self.name, run, [(hold.tag, hold.persistence_id)])
        else:
            ledger.delivered.write_holds(self.name, run, [again])
        checkpoints.reached("intervene.before_progress")
        ledger.delivered.write_progress(self.name, run, [(hold.tag, hold.persistence_id, progress)])


def _place(progress: Progress | None) -> str:
    return f"number {progress.number}, sequence_nr {progress.sequence_nr}" if progress else "none"


def require_voidable(manifest: Manifest, batches: Sequence[BatchRow]) -> None:
    """Raise GuardRefused if a tag has delivered batches that belong with those to be voided.

    Batches are given up only from the end of a tag: what comes after a void batch must not be delivered.
    """
    judged = {batch.number for batch in manifest.batches if batch.mended}
    for tag in {batch.tag for batch in batches}:
        of_tag = [batch for batch in batches if batch.tag == tag]
        new = [batch.number for batch in of_tag if batch.state == BatchState.NEW]
        there = [batch.number for batch in of_tag if batch.state == BatchState.IN_CLICKHOUSE]
        if new and there and (max(there) > min(new) or (judged & set(new) and judged & set(there))):
            raise GuardRefused(
                f"run {manifest.run} of pipeline {manifest.pipeline}: tag {tag!r} has delivered batches that "
                "belong with those to be voided. "
                f"Nothing was voided; finish the run instead: tagmill run deliver --pipeline {manifest.pipeline}",
                pipeline=manifest.pipeline,
                run=manifest.run,
            )


def require_none_waiting_before(row: RunRow, batch: BatchRow, batches: Sequence[BatchRow]) -> None:
    """Raise GuardRefused if the run is open and an undelivered batch of the same tag comes before this
    one.
    """
    waiting = [
        other
        for other in batches
        if other.state == BatchState.NEW and other.tag == batch.tag and other.number < batch.number
    ]
    if waiting and row.state.is_open:
        raise GuardRefused(
            f"batch {waiting[0].batch_id} of run {row.run}, pipeline {row.pipeline}, comes before batch "
            f"{batch.batch_id} and is not "
            "delivered. Nothing was changed; finish the run instead: tagmill run deliver --pipeline "
            f"{row.pipeline}",
            pipeline=row.pipeline,
            run=row.run,
            batch=waiting[0].batch_id,
        )


def require_closable(pipeline_name: str, hold: HoldRow) -> None:
    """Raise GuardRefused if a hold does not wait for numbers that can be given up."""
    if hold.reason not in CLOSABLE:
        raise GuardRefused(
            f"hold of {hold.persistence_id!r}, tag {hold.tag!r}, is for {hold.reason}: its numbers can't "
            "be given up. Nothing was changed; "
            "see: tagmill progress "
            f"{'restart' if hold.reason == Reason.ANOTHER_LIFE else 'rebase'} --help",
            pipeline=pipeline_name,
        )


def require_another_life(pipeline_name: str, hold: HoldRow) -> None:
    """Raise GuardRefused if a hold can't be for a persistence_id whose numbers, or sequence_nrs only, began again."""
    if hold.reason not in (Reason.ANOTHER_LIFE, Reason.RENUMBERED):
        raise GuardRefused(
            f"hold of {hold.persistence_id!r}, tag {hold.tag!r}, is for {hold.reason}, not "
            f"{Reason.ANOTHER_LIFE} or {Reason.RENUMBERED}. Nothing was changed; "
            f"look: tagmill holds --pipeline {pipeline_name}",
            pipeline=pipeline_name,
        )
