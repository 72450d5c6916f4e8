"""Number the new events of a journal in this process, if it can hold what they need."""

from typing import Any

import pyarrow as pa

from tagmill.cassandra.paging import Pages
from tagmill.journal.flaws import Reason
from tagmill.runs import checkpoints
from tagmill.runs.parquet_files import write_table
from tagmill.runs.storage import RunFiles
from tagmill.views import run_numbering
from tagmill.views.few_rows import numbering
from tagmill.views.few_rows.events import EventReader
from tagmill.views.few_rows.numbering import End
from tagmill.views.few_rows.positions import Position, TooMany, positions
from tagmill.views.model import Waiting
from tagmill.views.numbered import NewEvents, Numbered
from tagmill.views.run_numbering import REACHED, RUNS, STARTS, Sums

# Bytes of the events that this process holds at most.
MOST_BYTES = 64 * 1024 * 1024
ROWS_AT_ONCE = 10_000
RECORDS = pa.schema(
    {
        "persistence_id": pa.string(),
        **dict.fromkeys(("sequence_nr", "partition_nr", "scanned"), pa.int64()),
        "progress": REACHED.field("progress").type,
        "new": pa.list_(pa.string()),
    }
)


def number(new: NewEvents) -> Numbered | None:
    """Read, check and number new events into files, as many_rows.number does; None if that is left to Spark.

    Raises GuardRefused (NewEvents.check_refused).
    """
    most = new.attempt.pipeline.small_run_rows
    if new.adopt or not most:
        return None
    try:
        return _number(new, most)
    except TooMany:
        return None


def _number(new: NewEvents, most: int) -> Numbered | None:
    attempt, cassandra = new.attempt, new.attempt.builds.cassandra
    with Pages(cassandra) as pages:
        found = positions(cassandra, pages, attempt.journal, attempt.workspace.ledger_keyspace, most)
        refused = sorted(
            (one for one in found if one.reason == Reason.ELSEWHERE), key=lambda one: one.persistence_id
        )
        first_refused = refused[0].as_refused() if refused else None
        new.check_refused(len(refused), first_refused)
        if any(one.waits_numbered and one.reason is None for one in found):
            return None
        checkpoints.reached("build.reading")
        rows = EventReader(cassandra, pages, attempt.journal, most, MOST_BYTES).new_events(found)
    written_at = new.write_time()
    if any(one.written > written_at for one in found):
        return None
    held = [
        End(one.persistence_id, one.from_nr, one.from_nr, one.reason.value) for one in found if one.reason
    ]
    staged = attempt.staging(new.until).of_batches(rows, f"{new.folder}/events")
    ends, moved, sums = list[End](), 0, Sums()
    if staged:
        attempt.tell("numbering")
        ends, moved, sums = _numbered(
            new, {one.persistence_id: one for one in found if one.reason is None}, staged
        )
        checkpoints.reached("build.numbered")
    return Numbered(
        persistence_ids=len(found),
        refused=len(refused),
        first_refused=first_refused,
        written_at=written_at,
        stopped=numbering.stopped(
            [*ends, *held], [(one.reason, one.persistence_id, one.sequence_nr) for one in new.known]
        ),
        examples=[
            Waiting(
                persistence_id=end.persistence_id, sequence_nr=end.upto + 1, reason=Reason(str(end.reason))
            )
            for end in numbering.examples([*ends, *held])
        ],
        moved=moved,
        events=sum(end.upto - end.from_nr for end in ends),
        sums=sums,
    )


def _numbered(
    new: NewEvents, positions_of: dict[str, Position], staged: list[str]
) -> tuple[list[End], int, Sums]:
    """Number the staged events; return how far each persistence_id came, the number of new records, and the totals."""
    attempt, files, folder = new.attempt, new.attempt.files, new.folder
    run_numbering.find_runs(files, staged, f"{folder}/runs")
    runs = _rows(files, f"{folder}/runs", RUNS)
    ends = numbering.ends(runs, {name: one.from_nr for name, one in positions_of.items()})
    for file, starts in numbering.start_numbers(runs, ends, positions_of).items():
        write_table(
            files, f"{folder}/starts/file={file}/starts.parquet", pa.Table.from_pylist(starts, STARTS)
        )
    sums = attempt.number_rows(folder, staged)
    reached = _rows(files, f"{folder}/reached", REACHED)
    moved = list(numbering.records(reached, ends, positions_of))
    write_table(files, f"{folder}/records/records.parquet", pa.Table.from_pylist(moved, RECORDS))
    return ends, len(moved), sums


def _rows(files: RunFiles, folder: str, schema: pa.Schema) -> list[dict[str, Any]]:
    parts = files.record_batches(folder, ROWS_AT_ONCE, schema.names)
    return [row for part in parts for row in part.to_pylist()]
