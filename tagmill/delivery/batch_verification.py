"""Compare the batches of a destination with the ledger: rows and checksum of each, asked of ClickHouse."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from uuid import UUID

from tagmill.clickhouse.client import ClickHouse, Totals
from tagmill.delivery.destination_retention import ExpiredRows
from tagmill.domain import identifiers
from tagmill.domain.batches.states import BatchState
from tagmill.ledger.lease import living_holder
from tagmill.ledger.retired_batches import Retired, RetiredBatch
from tagmill.ledger.runs import BatchRow, Ledger, RunRow
from tagmill.runs import checkpoints
from tagmill.runs.sealed_files import Sealed
from tagmill.runs.storage import RunFiles
from tagmill.runs.workspace import Workspace

# Readings of the ledger after the first one: a batch that differed, and changed before each of them, is changing.
READINGS = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """A disagreement, in a sentence.

    `rows` of a batch that is `changing` may be in ClickHouse or not: a process is at work on it, so it is not a
    difference yet.
    """

    tag: str
    text: str
    changing: bool = False
    rows: int = 0


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
    the destination's retention. `changing`: it differs, and a process is at work on it.
    """

    run: int
    batch: BatchRow
    expected: list[Totals]
    there: list[Totals]
    past_retention: bool = False
    open: bool = False
    expired: int = 0
    changing: bool = False

    @property
    def agrees(self) -> bool:
        """Whether ClickHouse has exactly the sealed rows, once, except those past the destination's
        retention; also while the batch is changing.
        """
        return self.there == self.expected or self.expired > 0 or self.changing

    @property
    def differs(self) -> bool:
        """Whether no delivery makes this batch right: ClickHouse has other rows, or nothing pushes it any longer."""
        if self.batch.state == BatchState.NEW:
            return not self.open and not self.changing
        return not self.agrees


@dataclass(frozen=True, slots=True)
class _Known:
    """What the ledger says of a run; `kept` is the proof of its batches if it is past retention."""

    row: RunRow | None
    batches: list[BatchRow]
    kept: list[RetiredBatch]


def stored(
    workspace: Workspace, clickhouse: ClickHouse, table: str, read: Callable[[RunFiles, RunRow], Sealed]
) -> tuple[list[Stored], list[UUID]]:
    """Return every batch of every run with its rows read again from the columns of `table`, and the batch ids
    that no run has.

    Batches past retention are included. A batch differs only if the ledger says the same of it before and after
    ClickHouse was asked for it.
    """
    return _Comparison(workspace, clickhouse, table, read).of_all()


class _Comparison:
    """The comparison of one destination with the ledger."""

    def __init__(
        self,
        workspace: Workspace,
        clickhouse: ClickHouse,
        table: str,
        read: Callable[[RunFiles, RunRow], Sealed],
    ) -> None:
        self.workspace, self.clickhouse, self.table, self.read = workspace, clickhouse, table, read
        self.ledger, self.retired = workspace.ledger, workspace.store(Retired)
        self.found = _stored(clickhouse, table)
        checkpoints.reached("check.counted")
        self.expired = ExpiredRows.declared(workspace, clickhouse)
        self.batches: dict[UUID, Stored] = {}

    def of_all(self) -> tuple[list[Stored], list[UUID]]:
        """Do what `stored` says."""
        doubtful, last = list[int](), self.ledger.last_run(self.workspace.name)
        numbers = range(self.retired.up_to() + 1, last + 1)
        runs = self.ledger.many_runs(self.workspace.name, numbers)
        for number, (row, of_row) in zip(numbers, runs, strict=True):
            made = self._judged(number, _Known(row, of_row, []))
            if row is None or row.state.is_open or not all(map(_is_settled, made)):
                doubtful.append(number)
        # Read after the runs, so that a run which is retired meanwhile is found in at least one of the two.
        for kept in self.retired.batches(last):
            if kept.batch_id not in self.batches:
                (made_of_it,) = self._judged(kept.run, _Known(None, [], [kept]))
                if made_of_it.differs and kept.run not in doubtful[-1:]:
                    doubtful.append(kept.run)
        self._read_again(doubtful)
        unknown = self.found.keys() - self.batches.keys()
        return list(self.batches.values()), sorted(unknown - self.clickhouse.absent(self.table, unknown))

    def _read_again(self, doubtful: list[int]) -> None:
        """Read these runs serially, which takes ten times as long, and ask ClickHouse again for what differs."""
        known = self._known(doubtful)
        made = {number: self._judged(number, known[number]) for number in known}
        suspects = [number for number in known if _any_differs(made[number])]
        for _ in range(READINGS):
            if not suspects:
                return
            workspace = self.workspace
            holder = living_holder(workspace.cassandra, workspace.ledger_keyspace, workspace.name)
            differing = (one.batch.batch_id for number in suspects for one in made[number] if one.differs)
            self.found |= self.clickhouse.totals_of(self.table, differing)
            before, known = known, self._known(suspects)
            made = {number: self._judged(number, known[number]) for number in suspects}
            for number in suspects:
                row = known[number].row
                if row is not None and row.owner == holder:
                    self._are_changing(made[number])
            suspects = [
                number
                for number in suspects
                if known[number] != before[number] and _any_differs(made[number])
            ]
        for number in suspects:
            self._are_changing(made[number])

    def _known(self, numbers: list[int]) -> dict[int, _Known]:
        """Read runs serially, or their proof if they are past retention."""
        runs = self.ledger.many_runs(self.workspace.name, numbers, serial=True)
        return {
            number: _Known(row, of_row, self.retired.of_run(number) if row is None else [])
            for number, (row, of_row) in zip(numbers, runs, strict=True)
        }

    def _are_changing(self, made: list[Stored]) -> None:
        self.batches |= {one.batch.batch_id: replace(one, changing=True) for one in made if one.differs}

    def _judged(self, number: int, known: _Known) -> list[Stored]:
        """Return the batches of a run by what is known of it, and note them."""
        if known.row is not None and known.row.manifest_file:
            made = self._of_run(known.row, known.batches)
        else:
            made = [self._of_retired(kept) for kept in known.kept]
        self.batches |= {one.batch.batch_id: one for one in made}
        return made

    def _of_run(self, row: RunRow, of_row: list[BatchRow]) -> list[Stored]:
        sealed = {batch.number: batch for batch in self.read(self.workspace.files, row).batches}
        made = []
        for batch in of_row:
            wanted, there = sealed[batch.number], self.found.get(batch.batch_id, [])
            in_place = batch.state == BatchState.IN_CLICKHOUSE
            expected = [Totals(batch.generation, wanted.rows, wanted.checksum)] if in_place else []
            gone = self.expired.count(row.run, batch, expected, there, wanted)
            made.append(Stored(row.run, batch, expected, there, open=row.state.is_open, expired=gone))
        return made

    def _of_retired(self, proof: RetiredBatch) -> Stored:
        state = BatchState.IN_CLICKHOUSE
        row = BatchRow(proof.number, proof.batch_id, state, proof.generation, proof.tag, proof.rows, 0, None)
        expected = [Totals(proof.generation, proof.rows, proof.checksum)]
        there = self.found.get(proof.batch_id, [])
        gone = self.expired.count(proof.run, row, expected, there, None)
        return Stored(proof.run, row, expected, there, past_retention=True, expired=gone)


def _is_settled(stored_batch: Stored) -> bool:
    """Return whether nothing of a batch would look otherwise if a change under way was missed."""
    return stored_batch.agrees and stored_batch.batch.state != BatchState.NEW


def _any_differs(batches: list[Stored]) -> bool:
    return any(one.differs for one in batches)


def differences(pipeline: str, batches: list[Stored]) -> Iterator[Finding]:
    """Yield the batches of which ClickHouse has not exactly the sealed rows, once, or that no delivery pushes
    any longer, and those that are changing.
    """
    oldest: dict[str, tuple[int, int]] = {}
    for one in batches:
        if one.there:
            place = (one.run, one.batch.number)
            oldest[one.batch.tag] = min(place, oldest.get(one.batch.tag, place))
    for one in batches:
        batch = one.batch
        if one.changing:
            yield _at_work(one.run, batch)
        elif one.differs and batch.state == BatchState.NEW:
            yield _not_sent(pipeline, one.run, batch)
        elif one.differs:
            rows, wanted = sum(total.rows for total in one.there), sum(total.rows for total in one.expected)
            same = "other values" if rows == wanted and one.expected else f"{rows} rows instead of {wanted}"
            state = "past retention" if one.past_retention else batch.state
            # A retention removes the oldest rows first.
            dropped = (
                wanted and not rows and (one.run, batch.number) < oldest.get(batch.tag, (one.run + 1, 0))
            )
            hint = " (dropped on purpose? declare destination_retention_days)" if dropped else ""
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
    """Yield the batches of one run that are NEW although the run isn't open, also those that are being sent again.

    A batch that changes meanwhile is not among them.
    """

    def known() -> tuple[RunRow | None, list[BatchRow]]:
        return next(ledger.many_runs(pipeline, [run], serial=True))

    row, batches = known()
    new = [batch for batch in batches if batch.state == BatchState.NEW]
    if row is None or row.state.is_open or not new:
        return
    holder = living_holder(ledger.cassandra, ledger.ledger_keyspace, pipeline)
    if row.owner == holder:
        yield from (_at_work(run, batch) for batch in new)
    elif known() == (row, batches):
        yield from (_not_sent(pipeline, run, batch) for batch in new)


def parted(findings: Iterable[Finding]) -> tuple[list[Finding], list[Finding]]:
    """Return the findings that are differences, and those that are changing, each once."""
    parts: tuple[list[Finding], list[Finding]] = [], []
    for finding in dict.fromkeys(findings):
        parts[finding.changing].append(finding)
    return parts


def _at_work(run: int, batch: BatchRow) -> Finding:
    text = f"batch {batch.batch_id} of run {run} ({batch.state}) is changing: a process is at work on it"
    return Finding(batch.tag, text, changing=True, rows=batch.rows)


def _not_sent(pipeline: str, run: int, batch: BatchRow) -> Finding:
    return Finding(
        batch.tag,
        f"batch {batch.batch_id} of run {run} is not delivered: sending it again is not finished. Finish it: "
        f"tagmill batches resend {batch.batch_id} --run {run} --pipeline {pipeline} --why …",
    )
