"""Give up a run of tag views, whatever state it and its files are in, and set persistence_ids apart.

This always works.

ClickHouse shows which events of the run are delivered; these are noted as progress. Everything else is taken
back. The watermark stays, so the next run reads it again. Neither the plan nor a sealed file is needed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import groupby
from uuid import uuid4

import pyarrow.parquet as pq

from tagmill.clickhouse.client import ClickHouse
from tagmill.delivery.dependent_views import despite
from tagmill.delivery.run_repairs import take_back, unsealed, views_with
from tagmill.delivery.tag_views import holds, stops, withdraw, withdrawn_events
from tagmill.delivery.tag_views.close import close, count_delivered
from tagmill.delivery.tag_views.model import Manifest
from tagmill.delivery.tag_views.run_files import read_manifest, read_plan
from tagmill.domain import identifiers
from tagmill.domain.batches.states import BatchState, RunState
from tagmill.domain.continuity.model import Progress, Reason
from tagmill.domain.continuity.noted import with_delivered
from tagmill.domain.time_buckets import first_ticks
from tagmill.domain.timeuuid import to_datetime
from tagmill.errors import GuardRefused, SealedFileDamaged
from tagmill.journal.tag_view_reader import Views
from tagmill.ledger.progress import HoldRow
from tagmill.ledger.runs import BatchRow, Ledger, RunRow
from tagmill.runs import checkpoints
from tagmill.runs.operator_action import OperatorAction
from tagmill.runs.sealed_files import all_batches, if_readable, write_document
from tagmill.runs.workspace import Workspace
from tagmill.views import give_up as buildgiveup

KEYS_AT_ONCE = 1000
Key = tuple[str, str]
Delivered = tuple[int, int, str]
NOT_APART = "Nothing was set apart"


@dataclass(eq=False)
class GiveUp(OperatorAction):
    """The give-up of one pipeline's run by an operator, with the reason."""

    despite_views: bool = field(default=False, kw_only=True)
    # The views that keep what was taken out, for the record.
    views: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self.pipeline = self.settings.pipeline(self.name)

    def run(self, apart: Sequence[str]) -> list[str]:
        """Give up the open run, then hold the persistence_ids in `apart`; return sentences that say what was
        done. Safe to repeat.
        """
        with self.at_work() as workspace:
            ledger = workspace.ledger
            row = ledger.open_run(self.name)
            build = buildgiveup.sealed(workspace)
            if build and (build.is_damaged or not (row or apart or self._lost_its_withdrawal(ledger))):
                return [*self._others(workspace, row, apart), build.end(self)]
            if row is None and not apart and not self._lost_its_withdrawal(ledger):
                raise GuardRefused(
                    f"pipeline {self.name} has no open run to give up. Nothing was changed. Look: "
                    f"tagmill runs --pipeline {self.name}",
                    pipeline=self.name,
                )
            return self._others(workspace, row, apart)

    def _others(self, workspace: Workspace, row: RunRow | None, apart: Sequence[str]) -> list[str]:
        """Do everything that does not concern a build; return sentences that say what was done.

        Gives up the open run, finishes the record of a stopped one, notes what a lost withdrawal took out,
        and sets persistence_ids apart.
        """
        ledger = workspace.ledger
        said = [self._give_up(workspace, self.take_over(ledger, row))] if row else []
        if not self.dry_run:
            stops.finish(workspace)
        if self._lost_its_withdrawal(ledger):
            said.append(self._note_taken_out(workspace))
        if apart:
            said.append(self._set_apart(workspace, apart))
        return said

    def release(self, tag: str, persistence_id: str) -> str:
        """Release a persistence_id that was set apart, so that runs judge it again."""
        with self.at_work() as workspace:
            ledger = workspace.ledger
            ledger.require_none_open(self.name)
            hold = ledger.delivered.hold(self.name, tag, persistence_id)
            if hold is None or hold.reason != Reason.SET_APART:
                raise GuardRefused(
                    f"pipeline {self.name} has not set {persistence_id!r} apart for tag {tag!r}. Nothing "
                    "was changed. "
                    f"Look: tagmill holds --pipeline {self.name}",
                    pipeline=self.name,
                )
            run = self.claim_run(workspace, f"holds release {tag} {persistence_id}", NOT_APART)
            said = (
                f"pipeline {self.name}, tag {tag!r}, {persistence_id!r} {self.be('is')} released; the next run "
                "judges it again"
            )
            if self.dry_run:
                return f"{said} ({hold.held_rows} rows are held); other holds stay as they are"
            released = holds.to_judge_again(replace(hold, reason=Reason.RELEASED.value))
            if released is None:  # no run has passed a row of this persistence_id
                ledger.delivered.end_holds(self.name, run, [(tag, persistence_id)])
            else:
                ledger.delivered.write_holds(self.name, run, [released])
            return said

    # -- the run

    def _give_up(self, workspace: Workspace, row: RunRow) -> str:
        ledger = workspace.ledger
        if row.kind == withdraw.KIND:
            said = self._end_withdrawal(workspace, row)
        elif row.state == RunState.PLANNED:
            said = self._abandon(ledger, row)
        else:
            said = self._end_sealed(workspace, row)
        if not self.dry_run:
            what = f"run give-up{despite(self.views)}"
            ledger.record_intervention(self.name, row.run, self.who, what, self.why)
        again = ". It read a range again on request: give that command again" if row.kind == "reread" else ""
        return f"run {row.run} of pipeline {self.name} {self.be('is')} given up: {said}{again}"

    def _abandon(self, ledger: Ledger, row: RunRow, voided: int = 0) -> str:
        if not self.dry_run:
            ledger.end_run(row, RunState.ABANDONED, "", "", f"{self.who}: {self.why}")
            self.files.remove_attempts(self.name, row.run)
        batches = f"{voided} batches are VOIDED, " if voided else ""
        return f"{batches}nothing of it was delivered, the next run plans its range again"

    def _end_sealed(self, workspace: Workspace, row: RunRow) -> str:
        ledger = workspace.ledger
        manifest = if_readable(read_manifest, self.files, row)
        batches = all_batches(ledger, manifest) if manifest else ledger.batches(self.name, row.run)
        delivered = [batch for batch in batches if batch.state == BatchState.IN_CLICKHOUSE]
        waiting = [batch for batch in batches if batch.state == BatchState.NEW]
        table = self.pipeline.destination
        said = (
            f"{len(delivered)} batches stay delivered, {len(waiting)} are VOIDED; the next run reads "
            "the rest of its range again"
        )
        with ClickHouse(self.settings.clickhouse) as clickhouse:
            self.views = views_with(clickhouse, table, row, waiting, despite_views=self.despite_views)
            if self.dry_run:
                return said if delivered else self._abandon(ledger, row, len(waiting))
            for batch in waiting:
                take_back(ledger, clickhouse, table, row, batch, despite_views=self.despite_views)
            checkpoints.reached("giveup.voided")
            if not delivered:
                return self._abandon(ledger, row, len(waiting))
            ledger.delivered.write_progress(
                self.name, row.run, self._progress(ledger, clickhouse, row, delivered)
            )
            checkpoints.reached("giveup.noted")
            file, sha256 = str(row.manifest_file), str(row.manifest_sha256)
            if manifest is None:
                file, sha256 = self._rebuilt(clickhouse, row, batches)
        count_delivered(workspace, row.run, delivered)
        ledger.end_run(row, RunState.CLOSED, file, sha256, f"{self.who}: {self.why}")
        return said

    def _progress(
        self, ledger: Ledger, clickhouse: ClickHouse, row: RunRow, delivered: list[BatchRow]
    ) -> Iterator[tuple[str, str, Progress]]:
        """Yield the progress of each (tag, persistence_id) of delivered batches, from the rows that
        ClickHouse has of them.
        """
        group: list[tuple[Key, list[Delivered]]] = []
        for part in self._delivered(clickhouse, row, delivered):
            group.append(part)
            if len(group) == KEYS_AT_ONCE:
                yield from self._advanced(ledger, group)
                group = []
        yield from self._advanced(ledger, group)

    def _advanced(
        self, ledger: Ledger, group: list[tuple[Key, list[Delivered]]]
    ) -> Iterator[tuple[str, str, Progress]]:
        known = ledger.delivered.progress(self.name, [key for key, _ in group])
        for (key, rows), progress in zip(group, known, strict=True):
            yield *key, with_delivered(progress, rows)

    def _delivered(
        self, clickhouse: ClickHouse, row: RunRow, delivered: list[BatchRow]
    ) -> Iterator[tuple[Key, list[Delivered]]]:
        """Yield each (tag, persistence_id) with its delivered (number, sequence_nr, offset).

        ClickHouse's answer may be large, so it is saved to a file first.
        """
        file = f"{self.files.folder(self.name, row.run)}/delivered-{uuid4().hex[:12]}.parquet"
        columns = (
            "toString(`tag`) AS tag, `persistence_id`, `tag_pid_sequence_nr`, `sequence_nr`, "
            "toString(`offset`) AS at"
        )
        query = (
            f"SELECT {columns} FROM {identifiers.sql(self.pipeline.destination)} WHERE `batch_id` IN "
            f"{{batches:Array(UUID)}} "
            "ORDER BY tag, `persistence_id`, `tag_pid_sequence_nr`"
        )
        with self.files.create(file) as sink:
            text = {"output_format_parquet_string_as_string": 1}
            clickhouse.save(query, {"batches": [str(batch.batch_id) for batch in delivered]}, sink, text)
        try:
            with self.files.open(file) as source:
                rows = (
                    r
                    for part in pq.ParquetFile(source).iter_batches(withdraw.ROWS_AT_ONCE)
                    for r in part.to_pylist()
                )
                for key, of_key in groupby(rows, key=lambda r: (r["tag"], r["persistence_id"])):
                    yield key, [(r["tag_pid_sequence_nr"], r["sequence_nr"], r["at"]) for r in of_key]
        finally:
            self.files.remove(file)

    def _rebuilt(self, clickhouse: ClickHouse, row: RunRow, batches: list[BatchRow]) -> tuple[str, str]:
        """Write a manifest in place of a lost one, from what ClickHouse has; return its file and SHA-256.

        Its batches can't be sent again.
        """
        rebuilt = [unsealed(clickhouse, self.pipeline.destination, batch) for batch in batches]
        attempt = uuid4().hex[:12]
        manifest = Manifest.unsealed(self.name, row.run, attempt, batches=rebuilt)
        file = f"{self.files.folder(self.name, row.run)}/attempt-{attempt}/manifest.json"
        return file, write_document(self.files, file, manifest)

    # -- a withdrawal

    def _end_withdrawal(self, workspace: Workspace, row: RunRow) -> str:
        """Finish a withdrawal if its files allow that, else end it; return a phrase that says which.

        What an ended withdrawal has taken out is noted as not delivered afterwards.
        """
        ledger = workspace.ledger
        if self.dry_run:
            if if_readable(read_plan, self.files, row):
                return "it withdraws batches, and would be finished if its files are whole"
            return (
                "it withdraws batches and has lost its plan: those that it has not taken out stay delivered, the "
                "others would be noted as not delivered"
            )
        try:
            withdraw.seal(workspace, row.run, row.fence)
            close(workspace, row.run, row.fence)
            return "it withdrew batches, and could be finished"
        except SealedFileDamaged:
            ledger.end_run(
                ledger.current(self.name, row.run, row.fence),
                RunState.ABANDONED,
                "",
                "",
                f"{self.who}: {self.why}",
            )
            checkpoints.reached("giveup.withdrawal_ended")
            return "it withdrew batches; those that it has not taken out stay delivered"

    def _lost_its_withdrawal(self, ledger: Ledger) -> bool:
        """Return whether the newest run is a withdrawal that could not be finished."""
        row = ledger.run(self.name, ledger.last_run(self.name))
        return row is not None and row.kind == withdraw.KIND and row.state == RunState.ABANDONED

    def _note_taken_out(self, workspace: Workspace) -> str:
        """Note events of VOIDED batches that ClickHouse has in no other batch as not delivered, by a
        withdrawal without batches.
        """
        if self.dry_run:
            return (
                "what its withdrawal took out would be noted as not delivered, except what ClickHouse has in "
                "another batch"
            )
        withdrawn_events.recount(workspace)
        lost = withdrawn_events.events(workspace)
        reason = f"{self.who}: {self.why}"
        row = withdraw.plan(workspace, [], lost, reason=reason)
        workspace.ledger.record_intervention(
            self.name, row.run, self.who, "run give-up: progress of what a withdrawal took out", self.why
        )
        withdraw.seal(workspace, row.run, row.fence)
        close(workspace, row.run, row.fence)
        found = sorted({bucket for _, bucket in withdraw.buckets(self.files, read_plan(self.files, row))})
        if not found:
            return "nothing that it took out is missing"
        low, high = (
            to_datetime(first_ticks(found[0])),
            to_datetime(first_ticks(found[-1]) + self.pipeline.bucket_size.ticks),
        )
        return (
            "what it took out is noted as not delivered. Deliver it again: tagmill run deliver "
            f"--pipeline {self.name} "
            f"--reread-from {low:%Y-%m-%dT%H:%M:%SZ} --reread-until {high:%Y-%m-%dT%H:%M:%SZ}"
        )

    # -- persistence_ids

    def _set_apart(self, workspace: Workspace, persistence_ids: Sequence[str]) -> str:
        """Open a hold of each persistence_id for every tag, or turn the hold that it has into one that sets
        it apart.
        """
        ledger = workspace.ledger
        run = self.claim_run(
            workspace,
            identifiers.shortened(f"run give-up --set-apart {', '.join(persistence_ids)}", 1000),
            NOT_APART,
        )
        said = (
            f"pipeline {self.name}: {len(persistence_ids)} persistence_ids {self.be('are')} held until tagmill "
            f"holds release; the rest flows: tagmill run deliver --pipeline {self.name}"
        )
        views = Views(ledger.cassandra, self.pipeline.journal)
        if unknown := [one for one in persistence_ids if not views.has_events(one)]:
            said += f". The journal has no events of {identifiers.quoted(unknown)}: look at the spelling"
        if self.dry_run:
            return f"{said}. Tags: {', '.join(self.pipeline.tags)}"
        marks = ledger.delivered.watermarks(self.name)

        def apart(tag: str, persistence_id: str) -> HoldRow:
            if hold := ledger.delivered.hold(self.name, tag, persistence_id):
                return replace(hold, reason=Reason.SET_APART.value)
            from_ticks = marks[tag].window_from + 1 if tag in marks else self.pipeline.start_ticks(tag)
            return holds.set_apart(tag, persistence_id, from_ticks, run, datetime.now(UTC))

        ledger.delivered.write_holds(
            self.name,
            run,
            (apart(tag, persistence_id) for tag in self.pipeline.tags for persistence_id in persistence_ids),
        )
        return said
