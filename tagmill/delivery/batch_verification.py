"""Compare the batches of a destination with the ledger: rows and checksum of each, asked of ClickHouse."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from uuid import UUID

from tagmill.clickhouse.client import ClickHouse, Totals
from tagmill.delivery.destination_retention import ExpiredRows
from tagmill.domain import identifiers
from tagmill.domain.batches.states import BatchState
from tagmill.ledger.retired_batches import Retired
from tagmill.ledger.runs import BatchRow, Ledger, RunRow
from tagmill.runs.sealed_files import Sealed
from tagmill.runs.storage import RunFiles
from tagmill.runs.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Finding:
    """A disagreement, in a sentence."""

    tag: str
    text: str


def _stored(clickhouse: ClickHouse, table: str) -> dict[UUID, list[Totals]]:
    """Return the totals of every batch in the table, read from its columns and not from the projection."""
    rows = clickhouse.rows(
        f"SELECT `batch_id`, `generation`, count(), sum({clickhouse.layout.row_checksum_sql()}) "
        f"FROM {identifiers.sql(table)} GROUP BY `batch_id`, `generation`",
        settings={"optimize_use_projections": 0},
    )
    found: dict[UUID, list[Totals]] = {}
    for batch_id, generation, count, checksum in rows:
        found.setdefault(UUID(str(batch_id)), []).append(Totals(int(generation), int(count), int(checksum)))
    return found


@dataclass(frozen=True, slots=True)
class Stored:
    """A batch of the ledger and what ClickHouse has of it; `expected` is empty for a batch that must not be
    there, or not yet.

    `open`: its run is open, so the next delivery pushes it if it is NEW. `expired`: rows that are gone, past
    the destination's retention.
    """

    run: int
    batch: BatchRow
    expected: list[Totals]
    there: list[Totals]
    past_retention: bool = False
    open: bool = False
    expired: int = 0

    @property
    def agrees(self) -> bool:
        """Whether ClickHouse has exactly the sealed rows, once, except those past the destination's
        retention.
        """
        return self.there == self.expected or self.expired > 0


def stored(
    workspace: Workspace, clickhouse: ClickHouse, table: str, read: Callable[[RunFiles, RunRow], Sealed]
) -> tuple[list[Stored], list[UUID]]:
    """Return every batch of every run with its rows read again from the columns of `table`, and the batch ids
    that no run has.

    Batches past retention are included.
    """
    ledger = workspace.ledger
    found = _stored(clickhouse, table)
    files = workspace.files
    retired, last = (
        workspace.store(Retired),
        ledger.last_run(workspace.name),
    )
    expired = ExpiredRows.declared(workspace, clickhouse)
    batches: dict[UUID, Stored] = {}

    def of_run(row: RunRow, of_row: list[BatchRow]) -> list[Stored]:
        sealed = {batch.number: batch for batch in read(files, row).batches}
        made = []
        for batch in of_row:
            wanted, there = sealed[batch.number], found.get(batch.batch_id, [])
            in_place = batch.state == BatchState.IN_CLICKHOUSE
            expected = [Totals(batch.generation, wanted.rows, wanted.checksum)] if in_place else []
            gone = expired.count(row.run, batch, expected, there, wanted)
            made.append(Stored(row.run, batch, expected, there, open=row.state.is_open, expired=gone))
        return made

    numbers = range(retired.up_to() + 1, last + 1)
    doubtful = dict[int, tuple[RunRow | None, list[BatchRow]]]()
    for number, (row, of_row) in zip(numbers, ledger.many_runs(workspace.name, numbers), strict=True):
        made = of_run(row, of_row) if row is not None and row.manifest_file else []
        if row is None or row.state.is_open or not all(map(_is_settled, made)):
            doubtful[number] = row, of_row
        batches |= {one.batch.batch_id: one for one in made}
    # Serial reads take ten times as long, so only those runs are read so. What did not change was judged already.
    for known, now in zip(
        doubtful.values(), ledger.many_runs(workspace.name, doubtful, serial=True), strict=True
    ):
        if now != known and now[0] is not None and now[0].manifest_file:
            batches |= {one.batch.batch_id: one for one in of_run(now[0], now[1])}
    for batch_id in batches:
        found.pop(batch_id, None)
    # Read after the runs, so that a run which is retired meanwhile is found in at least one of the two.
    for kept in retired.batches(last):
        if kept.batch_id not in batches:
            row_of_it = BatchRow(
                kept.number,
                kept.batch_id,
                BatchState.IN_CLICKHOUSE,
                kept.generation,
                kept.tag,
                kept.rows,
                0,
                None,
            )
            expected = [Totals(kept.generation, kept.rows, kept.checksum)]
            there = found.pop(kept.batch_id, [])
            gone = expired.count(kept.run, row_of_it, expected, there, None)
            batches[kept.batch_id] = Stored(
                kept.run, row_of_it, expected, there, past_retention=True, expired=gone
            )
    return list(batches.values()), list(found)


def _is_settled(stored_batch: Stored) -> bool:
    """Return whether nothing of a batch would look otherwise if a change under way was missed."""
    return stored_batch.agrees and stored_batch.batch.state != BatchState.NEW


def differences(pipeline: str, batches: list[Stored]) -> Iterator[Finding]:
    """Yield the batches of which ClickHouse has not exactly the sealed rows, once, or that no delivery pushes
    any longer.
    """
    for one in batches:
        batch = one.batch
        if batch.state == BatchState.NEW:
            if not one.open:
                yield _not_sent(pipeline, one.run, batch)
        elif not one.agrees:
            rows, wanted = sum(total.rows for total in one.there), sum(total.rows for total in one.expected)
            same = "other values" if rows == wanted and one.expected else f"{rows} rows instead of {wanted}"
            state = "past retention" if one.past_retention else batch.state
            hint = " (dropped on purpose? declare destination_retention_days)" if wanted and not rows else ""
            yield Finding(
                batch.tag, f"batch {batch.batch_id} of run {one.run} ({state}) has {same} in ClickHouse{hint}"
            )


def runs_with_new(
    ledger: Ledger, ledger_keyspace: str, pipeline: str, *, serial: bool = True
) -> Iterator[int]:
    """Yield the runs that have a NEW batch; `serial` as for Ledger.many_runs. A run past retention has none."""
    retired = Retired(ledger.cassandra, ledger_keyspace, pipeline).up_to()
    numbers = range(retired + 1, ledger.last_run(pipeline) + 1)
    for number, batches in ledger.batches_of_many(pipeline, numbers, serial=serial):
        if any(batch.state == BatchState.NEW for batch in batches):
            yield number


def unfinished_of(ledger: Ledger, pipeline: str, run: int) -> Iterator[Finding]:
    """Yield the batches of one run that are NEW although the run isn't open.

    The run's state is read before its batches, so that a batch which is being pushed is not among them.
    """
    row = ledger.run(pipeline, run)
    if row is not None and not row.state.is_open:
        yield from (
            _not_sent(pipeline, run, batch)
            for batch in ledger.batches(pipeline, run)
            if batch.state == BatchState.NEW
        )


def _not_sent(pipeline: str, run: int, batch: BatchRow) -> Finding:
    return Finding(
        batch.tag,
        f"batch {batch.batch_id} of run {run} is not delivered: sending it again is not finished. Finish it: "
        f"tagmill batches resend {batch.batch_id} --run {run} --pipeline {pipeline} --why …",
    )
