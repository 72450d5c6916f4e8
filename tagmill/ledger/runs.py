"""The ledger: the runs of each pipeline, their batches and their owners.

The module `delivered` says how far delivery has come.

Every move of a run or a batch says IF state = ? AND fence = ?, so a step that wakes up late changes nothing.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any
from uuid import UUID

from cassandra import ConsistencyLevel

from tagmill.cassandra.client import CONCURRENCY, READ_TOGETHER, Cassandra, utc
from tagmill.config.settings import CassandraSettings
from tagmill.domain import identifiers
from tagmill.domain.batches.states import BatchState, RunState, may_move_batch, may_move_run
from tagmill.errors import ConfigurationError, FenceRaised, TagmillError, WorkUnfinished
from tagmill.ledger.fenced_record import FencedRecord
from tagmill.ledger.progress import ProgressStore
from tagmill.ledger.schema_steps import SchemaSteps

SERIAL = ConsistencyLevel.SERIAL


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run as the ledger has it."""

    pipeline: str
    run: int
    state: RunState
    kind: str
    fence: int
    attempt: UUID
    owner: str
    plan_file: str | None
    plan_sha256: str | None
    manifest_file: str | None
    manifest_sha256: str | None
    reason: str | None
    planned_at: datetime | None
    sealed_at: datetime | None
    closed_at: datetime | None


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A batch as the ledger has it."""

    number: int
    batch_id: UUID
    state: BatchState
    generation: int
    tag: str
    rows: int
    bytes: int
    verified_at: datetime | None


BATCH_FIELDS = "batch_no, batch_id, batch_state, generation, tag, rows, bytes, verified_at"


class Ledger:
    """The ledger's tables in one keyspace. Owns its Cassandra session."""

    def __init__(self, settings: CassandraSettings, cassandra: Cassandra | None = None) -> None:
        self.cassandra = cassandra or Cassandra(settings)
        self.ledger_keyspace = settings.ledger_keyspace
        self.keyspace = identifiers.cql(settings.ledger_keyspace)
        steps = SchemaSteps(self.cassandra, settings.ledger_keyspace)
        if (
            cassandra is None
            and not steps.exist()
            and self.cassandra.keyspace(settings.ledger_keyspace) is None
        ):
            self.cassandra.close()
            raise ConfigurationError(
                f"{self.cassandra.where}: the ledger's keyspace {settings.ledger_keyspace} does not "
                "exist. Nothing was done. "
                "Create it: tagmill schema apply"
            )
        try:
            steps.require_known()
        except TagmillError:
            if cassandra is None:
                self.cassandra.close()
            raise
        self.delivered = ProgressStore(self.cassandra, settings.ledger_keyspace)

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *_: object) -> None:
        self.cassandra.close()

    # -- runs

    def last_run(self, pipeline: str) -> int:
        """Return the number of the newest run, 0 if there was none."""
        rows = self._serial(f"SELECT last_run FROM {self.keyspace}.pipelines WHERE pipeline = ?", pipeline)
        return int(rows[0].last_run) if rows else 0

    def run(self, pipeline: str, run: int) -> RunRow | None:
        """Return a run by its number; None: the ledger has no such run."""
        fields = ", ".join(RunRow.__dataclass_fields__)
        rows = self._serial(
            f"SELECT {fields} FROM {self.keyspace}.runs WHERE pipeline = ? AND run = ? LIMIT 1", pipeline, run
        )
        return _run(rows)

    def many_runs(
        self, pipeline: str, numbers: Iterable[int], *, serial: bool = False
    ) -> Iterator[tuple[RunRow | None, list[BatchRow]]]:
        """Yield each of these runs (None: the ledger has no such run) with its batches, in their order.

        Reads many at once. Without `serial`, which takes ten times as long, a change that is under way may be missing.
        """
        fields = f"{', '.join(RunRow.__dataclass_fields__)}, {BATCH_FIELDS}"
        for _, rows in self._rows_of_many(pipeline, numbers, fields, serial=serial):
            yield _run(rows), _batches(rows)

    def batches_of_many(
        self, pipeline: str, numbers: Iterable[int], *, serial: bool = False
    ) -> Iterator[tuple[int, list[BatchRow]]]:
        """Yield each of these runs' numbers with its batches, in their order; `serial` as for many_runs."""
        for number, rows in self._rows_of_many(pipeline, numbers, f"run, {BATCH_FIELDS}", serial=serial):
            yield number, _batches(rows)

    def _rows_of_many(
        self, pipeline: str, numbers: Iterable[int], fields: str, *, serial: bool
    ) -> Iterator[tuple[int, list[Any]]]:
        """Yield each of these numbers with the rows of its partition."""
        remaining, asked = iter(numbers), deque[list[int]]()
        together = 1 if serial else READ_TOGETHER  # Cassandra reads only one partition at SERIAL

        def values() -> Iterator[tuple[str, list[int]]]:
            while part := list(islice(remaining, together)):
                asked.append(part)
                yield pipeline, part

        results = self.cassandra.execute_many(
            f"SELECT {fields} FROM {self.keyspace}.runs WHERE pipeline = ? AND run IN ?",
            values(),
            SERIAL if serial else None,
            CONCURRENCY // together,
        )
        for answer in results:
            found: dict[int, list[Any]] = {number: [] for number in asked.popleft()}
            for row in answer:
                found[row.run].append(row)
            yield from found.items()

    def open_run(self, pipeline: str) -> RunRow | None:
        """Return the newest run if it has to be finished before another one starts, else None."""
        newest = self.run(pipeline, self.last_run(pipeline))
        return newest if newest and newest.state.is_open else None

    def require_none_open(self, pipeline: str, untouched: str = "Nothing was changed") -> None:
        """Raise WorkUnfinished while a run has to be finished first; `untouched` says what was left undone."""
        if row := self.open_run(pipeline):
            raise WorkUnfinished(
                f"run {row.run} of pipeline {pipeline} is not finished ({row.state}). {untouched}; first: "
                f"tagmill run deliver --pipeline {pipeline}",
                pipeline=pipeline,
                run=row.run,
            )

    def free_number(self, pipeline: str) -> int:
        """Return the number that a run planned now will have; ask for it before reading anything else for the
        plan.

        A number that was claimed and never used is free.
        """
        last = self.last_run(pipeline)
        return last + 1 if last == 0 or self.run(pipeline, last) else last

    def claim(self, pipeline: str, number: int) -> None:
        """Claim a number that was free.

        Raises FenceRaised if a later one is taken, GuardRefused if the run before it is open.

        If two processes claim the same number, the first to create the run has it, so a run's plan never
        misses the run before it. Tagmill finishes only the newest run, so no run may follow an open one.
        """
        if (before := self.run(pipeline, number - 1)) and before.state.is_open:
            raise WorkUnfinished(
                f"run {before.run} of pipeline {pipeline} is not finished ({before.state}), so no later "
                "one begins. Nothing was written; "
                f"first: tagmill run deliver --pipeline {pipeline}",
                pipeline=pipeline,
                run=before.run,
            )
        if number == 1:
            claimed = self.cassandra.transact(
                f"INSERT INTO {self.keyspace}.pipelines (pipeline, last_run) VALUES (?, 1) IF NOT EXISTS",
                pipeline,
                landed=lambda: self.last_run(pipeline) == number,
            )
        else:
            claimed = self.cassandra.transact(
                f"UPDATE {self.keyspace}.pipelines SET last_run = ? WHERE pipeline = ? IF last_run = ?",
                number,
                pipeline,
                number - 1,
                landed=lambda: self.last_run(pipeline) == number,
            )
        if not claimed:
            raise _created_meanwhile(pipeline, number)

    def create_run(
        self,
        pipeline: str,
        run: int,
        *,
        kind: str,
        state: RunState,
        owner: str,
        plan_file: str = "",
        plan_sha256: str = "",
        reason: str = "",
    ) -> RunRow:
        """Write a new run with fence 1; raises FenceRaised if another run has this number."""
        columns = {
            "state": state.value,
            "kind": kind,
            "plan_file": plan_file,
            "plan_sha256": plan_sha256,
            "reason": reason,
            "planned_at": self.cassandra.now(),
        }
        return self._record(pipeline, run).begin(owner, columns)

    def raise_fence(self, row: RunRow, owner: str) -> RunRow:
        """Take over an open run, so that its earlier steps can no longer change anything; raises
        FenceRaised.
        """
        return self._record(row.pipeline, row.run).take_over(row, owner)

    def seal(self, pipeline: str, run: int, fence: int, manifest_file: str, manifest_sha256: str) -> bool:
        """Commit a run, PLANNED → SEALED; return False if an earlier attempt of this run has sealed it.

        Raises FenceRaised.
        """
        changes = {
            "state": RunState.SEALED.value,
            "manifest_file": manifest_file,
            "manifest_sha256": manifest_sha256,
            "sealed_at": self.cassandra.now(),
        }
        return self._record(pipeline, run).try_move(
            fence,
            {"state": RunState.PLANNED.value},
            changes,
            lambda row: row.manifest_file == manifest_file,
        )

    def finish_run(
        self, pipeline: str, run: int, fence: int, old: RunState, new: RunState, reason: str = ""
    ) -> None:
        """Finish a run, SEALED → CLOSED or PLANNED → ABANDONED; raises FenceRaised, and ValueError for
        another move.
        """
        if not may_move_run(old, new):
            raise ValueError(f"a run doesn't go from {old} to {new}")
        self._record(pipeline, run).finish(
            fence,
            {"state": old.value},
            new.value,
            {"closed_at": self.cassandra.now(), "reason": reason},
            "Nothing was written; look: tagmill runs",
        )

    def end_run(
        self, row: RunRow, new: RunState, manifest_file: str, manifest_sha256: str, reason: str
    ) -> None:
        """End an open run, replacing its manifest by another one or none ('').

        Raises FenceRaised; ValueError for another move.

        An ABANDONED run that has a manifest is one whose holds are still to be recorded (stop_recorded).
        """
        if not may_move_run(row.state, new):
            raise ValueError(f"a run doesn't go from {row.state} to {new}")
        changes = {
            "closed_at": self.cassandra.now(),
            "reason": reason,
            "manifest_file": manifest_file,
            "manifest_sha256": manifest_sha256,
        }
        self._record(row.pipeline, row.run).finish(
            row.fence,
            {"state": row.state.value},
            new.value,
            changes,
            "It was not ended; look: tagmill runs",
        )

    def stop_recorded(self, row: RunRow) -> None:
        """Remove the manifest from an ABANDONED run once its holds are recorded."""
        self.cassandra.transact(
            f"UPDATE {self.keyspace}.runs SET manifest_file = '', manifest_sha256 = '' WHERE pipeline = "
            "? AND run = ?"
            " IF state = 'ABANDONED' AND manifest_file = ?",
            row.pipeline,
            row.run,
            row.manifest_file,
            landed=lambda: True,
        )

    def amend(self, old: RunRow, new: RunRow) -> None:
        """Replace manifest, plan and reason of a finished run by those of `new`; raises FenceRaised.

        Its batches keep their rows and bytes until the caller changes them with set_size.
        """
        amended = ("manifest_file", "manifest_sha256", "plan_file", "plan_sha256", "reason")
        self._record(old.pipeline, old.run).move(
            old.fence,
            {"state": old.state.value, "manifest_sha256": old.manifest_sha256},
            {column: getattr(new, column) for column in amended},
            lambda row: row == new,
            "It was not amended",
        )

    def set_size(self, row: RunRow, number: int, rows: int, size: int) -> None:
        """Set rows and bytes of a batch to those of an amended manifest; raises FenceRaised."""
        self._batch_record(row.pipeline, row.run, number).move(
            row.fence, {}, {"rows": rows, "bytes": size}, lambda _: True
        )

    def delete_run(self, row: RunRow) -> None:
        """Delete a finished run; raises FenceRaised if another process has taken it over since it was read.

        A lightweight transaction can't delete a whole partition: it deletes the run's own columns first, then
        the batches follow.
        """
        columns = ", ".join(name for name in RunRow.__dataclass_fields__ if name not in ("pipeline", "run"))
        done = self.cassandra.transact(
            f"DELETE {columns} FROM {self.keyspace}.runs WHERE pipeline = ? AND run = ? IF state = ? AND "
            "fence = ?",
            row.pipeline,
            row.run,
            row.state.value,
            row.fence,
            landed=lambda: self.run(row.pipeline, row.run) is None,
        )
        if not done:
            raise FenceRaised(
                f"run {row.run} of pipeline {row.pipeline} was taken up by somebody else. It was not removed",
                pipeline=row.pipeline,
                run=row.run,
            )
        self.delete_batches(row.pipeline, row.run)

    def delete_batches(self, pipeline: str, run: int) -> None:
        """Delete the batches that are left of a deleted run."""
        self.cassandra.write_many(
            f"DELETE FROM {self.keyspace}.runs WHERE pipeline = ? AND run = ?", [(pipeline, run)]
        )

    def current(self, pipeline: str, run: int, fence: int) -> RunRow:
        """Return the run if this fence is still in force; raises FenceRaised otherwise."""
        return self._record(pipeline, run).current(fence)

    # -- batches

    def add_batches(
        self, pipeline: str, run: int, batches: Iterable[tuple[int, UUID, str, int, int]]
    ) -> None:
        """Write the batches (batch, batch_id, tag, rows, bytes) of a sealed run as NEW, so that a repetition
        undoes no move.

        USING TIMESTAMP 1 makes every move outrank these writes. Where another program has deleted rows of the
        run, only a conditional write is later than that deletion.
        """
        wanted = {number: columns for number, *columns in batches}
        self.cassandra.write_many(
            f"INSERT INTO {self.keyspace}.runs (batch_id, tag, rows, bytes, pipeline, run, batch_no, "
            "batch_state, generation)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, 'NEW', 1) USING TIMESTAMP 1",
            ((*columns, pipeline, run, number) for number, columns in wanted.items()),
        )
        for number in wanted.keys() - {batch.number for batch in self.batches(pipeline, run)}:
            self.cassandra.transact(
                f"UPDATE {self.keyspace}.runs SET batch_id = ?, tag = ?, rows = ?, bytes = ?, "
                "batch_state = 'NEW', generation = 1"
                " WHERE pipeline = ? AND run = ? AND batch_no = ? IF state = 'SEALED' AND batch_state = null",
                *wanted[number],
                pipeline,
                run,
                number,
                landed=lambda: True,
            )

    def batches(self, pipeline: str, run: int) -> list[BatchRow]:
        """Return the batches of a run, in the order of their numbers."""
        rows = self._serial(
            f"SELECT {BATCH_FIELDS} FROM {self.keyspace}.runs WHERE pipeline = ? AND run = ?", pipeline, run
        )
        return _batches(rows)

    def move_batch(
        self,
        pipeline: str,
        run: int,
        fence: int,
        batch: BatchRow,
        new: BatchState,
        generation: int | None = None,
    ) -> None:
        """Move a batch to its next state under this fence; raises FenceRaised, and ValueError for a move that
        is not allowed.
        """
        if not may_move_batch(batch.state, new):
            raise ValueError(f"a batch doesn't go from {batch.state} to {new}")

        generation = generation or batch.generation

        def landed(_: RunRow) -> bool:
            found = next(b for b in self.batches(pipeline, run) if b.number == batch.number)
            return (found.state, found.generation) == (new, generation)

        self._batch_record(pipeline, run, batch.number, batch.batch_id).move(
            fence,
            {"batch_state": batch.state.value, "generation": batch.generation},
            {"batch_state": new.value, "generation": generation, "verified_at": self.cassandra.now()},
            landed,
        )

    # -- what people did

    def add_intervention(
        self, pipeline: str, run: int, *, owner: str, who: str, action: str, why: str
    ) -> None:
        """Claim the free number `run` for a closed run without batches, and record under it what a person
        did.
        """
        self.claim(pipeline, run)
        self.create_run(
            pipeline, run, kind="intervention", state=RunState.CLOSED, owner=owner, reason=f"{who}: {why}"
        )
        self.record_intervention(pipeline, run, who, action, why)

    def record_intervention(self, pipeline: str, run: int, who: str, action: str, why: str) -> None:
        """Write to the ledger who did what under a run, and why."""
        self.cassandra.write_many(
            f"INSERT INTO {self.keyspace}.interventions (pipeline, run, who, at, what, why) VALUES (?, "
            "?, ?, ?, ?, ?)",
            [(pipeline, run, who, self.cassandra.now(), action, why)],
        )

    def interventions(self, pipeline: str, limit: int = 100) -> list[Any]:
        """Return up to `limit` interventions of a pipeline, the newest first."""
        return self.cassandra.execute(
            f"SELECT * FROM {self.keyspace}.interventions WHERE pipeline = ? LIMIT ?", pipeline, limit
        )

    def amend_interventions(self, pipeline: str, amended: Callable[[str], str]) -> int:
        """Rewrite the texts of interventions that `amended` changes; return how many interventions
        changed.
        """
        table = f"{self.keyspace}.interventions"
        rows = self.cassandra.stream(f"SELECT run, what, why FROM {table} WHERE pipeline = ?", pipeline)
        changed = [
            (what, why, pipeline, row.run)
            for row in rows
            if (what := amended(row.what or ""), why := amended(row.why or ""))
            != (row.what or "", row.why or "")
        ]
        return self.cassandra.write_many(
            f"UPDATE {table} SET what = ?, why = ? WHERE pipeline = ? AND run = ?", changed
        )

    def _serial(self, cql: str, *values: Any) -> list[Any]:
        return self.cassandra.execute(cql, *values, consistency=SERIAL)

    def _record(self, pipeline: str, run: int) -> FencedRecord[RunRow]:
        return FencedRecord(
            self.cassandra,
            f"{self.keyspace}.runs",
            {"pipeline": pipeline, "run": run},
            lambda: self.run(pipeline, run),
            f"run {run} of pipeline {pipeline}",
            f"This step changed nothing; look: tagmill runs --pipeline {pipeline}",
        )

    def _batch_record(
        self, pipeline: str, run: int, number: int, batch_id: UUID | None = None
    ) -> FencedRecord[RunRow]:
        """Return the record of a batch, which is changed under the fence of its run."""
        record = self._record(pipeline, run)
        return replace(
            record,
            key={**record.key, "batch_no": number},
            name=f"batch {batch_id or number} of {record.name}",
            batch=batch_id,
        )


def _created_meanwhile(pipeline: str, run: int) -> FenceRaised:
    return FenceRaised(
        f"run {run} of pipeline {pipeline} was created by somebody else meanwhile. Nothing was written",
        pipeline=pipeline,
        run=run,
    )


def _run(rows: Sequence[Any]) -> RunRow | None:
    """Return the run that these rows of its partition say; None if they say none."""
    if not rows or rows[0].state is None:
        return None
    row = {name: getattr(rows[0], name) for name in RunRow.__dataclass_fields__}
    moments = {name: utc(row[name]) for name in ("planned_at", "sealed_at", "closed_at")}
    return RunRow(**{**row, "state": RunState(row["state"]), **moments})


def _batches(rows: Iterable[Any]) -> list[BatchRow]:
    return [
        BatchRow(
            row.batch_no,
            row.batch_id,
            BatchState(row.batch_state),
            row.generation,
            row.tag,
            row.rows,
            row.bytes,
            utc(row.verified_at),
        )
        for row in rows
        if row.batch_no is not None
    ]
