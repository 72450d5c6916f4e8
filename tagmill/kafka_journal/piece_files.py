"""Read the files of a piece: its decoded records (STAGED), and what they change in each id (FOLDED).

Spark and this process write the same columns, Spark's timestamps as INT96.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tagmill.kafka.client import KafkaRecord
from tagmill.kafka_journal.model import Counts
from tagmill.kafka_journal.staging import MOMENT
from tagmill.ledger.dead_letters import DeadLetter
from tagmill.runs.sealed_files import require_rows
from tagmill.runs.storage import RunFiles

NAMED_WARNINGS = 20
# Rows, and bytes of their columns, that are read at once; bytes of a column that are read ahead.
ROWS_AT_ONCE, BYTES_AT_ONCE, READ_AHEAD_BYTES = 1000, 4 * 1024 * 1024, 1024 * 1024
# What is counted of an append's events: reading all of `events` would read payloads.
SEQ_NR = "events.list.element.seq_nr"
# Columns of a dead letter.
LETTER = ["kind", "topic", "partition", "offset", "timestamp", "key", "value", "raw_headers", "reason"]


class PieceFiles:
    """The files of one attempt at a piece: its records, its folds and, where Spark makes them, its rows of journal.

    They are listed when they are first read: if another process removes them, reading fails.
    """

    def __init__(self, files: RunFiles, folder: str) -> None:
        self.files, self.folder = files, folder
        self.records_folder, self.folds_folder = f"{folder}/records", f"{folder}/folds"
        self.events_folder = f"{folder}/events"

    @cached_property
    def record_files(self) -> Sequence[str]:
        """The files of STAGED, relative to the storage root."""
        return self.files.parquet(self.records_folder)

    @cached_property
    def fold_files(self) -> Sequence[str]:
        """The files of FOLDED, relative to the storage root."""
        return self.files.parquet(self.folds_folder)

    def records(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield these columns of the records, some at once."""
        return self._read(self.record_files, columns)

    def folds(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield these columns of the folds, some at once."""
        return self._read(self.fold_files, columns)

    def require_whole(self, counts: Counts) -> None:
        """Raise SealedFileDamaged unless the files have as many rows as were sealed."""
        require_rows(self.files, self.records_folder, counts.records)
        require_rows(self.files, self.folds_folder, counts.ids)

    def counts(self) -> tuple[Counts, list[str]]:
        """Return the counts of the piece, and the first warnings of its records and of its forks."""
        kinds, events, warnings, told = Counter[str](), 0, 0, list[str]()
        for batch in self.records(["kind", "topic", "id", "warning", SEQ_NR]):
            kinds.update(batch["kind"].to_pylist())
            events += pc.sum(pc.list_value_length(batch["events"])).as_py() or 0
            warned = batch.filter(pc.is_valid(batch["warning"]))
            warnings += warned.num_rows
            for row in warned.slice(0, NAMED_WARNINGS - len(told)).to_pylist():
                told.append(f"topic {row['topic']}, id {row['id']}: {row['warning']}")
        ids = applied = forks = 0
        forked = list[str]()
        for batch in self.folds(["topic", "id", "applied", "forks"]):
            ids += batch.num_rows
            applied += pc.sum(batch["applied"]).as_py() or 0
            forks += (count := pc.sum(pc.list_value_length(batch["forks"])).as_py() or 0)
            if count and len(forked) < NAMED_WARNINGS:
                forked += islice(_forked(batch), NAMED_WARNINGS - len(forked))
        counts = Counts(
            records=kinds.total(),
            appends=kinds["append"],
            deletes=kinds["delete"],
            purges=kinds["purge"],
            marks=kinds["mark"],
            skipped=kinds["none"],
            unreadable=kinds["broken"],
            applied=applied,
            events=events,
            ids=ids,
            warnings=warnings,
            forks=forks,
        )
        return counts, [*told, *forked]

    def newest_overwritten(self) -> tuple[str, int] | None:
        """Return id and write time (microseconds) of the entry with the latest write time among those that are
        written over; None: none is.
        """
        newest: tuple[str, int] | None = None
        for batch in self.folds(["id", "moved", "purged", "overwritten"]):
            changing = batch.filter(pc.or_(batch["moved"], batch["purged"])).drop_null()
            for key, written in zip(
                changing["id"].to_pylist(), changing["overwritten"].to_pylist(), strict=True
            ):
                if newest is None or written > newest[1]:
                    newest = key, written
        return newest

    def dead_letters(self) -> Iterator[DeadLetter]:
        """Yield the records that can't be read, as they came, with the reasons."""
        for batch in self.records(LETTER):
            for row in batch.filter(pc.equal(batch["kind"], "broken")).to_pylist():
                headers = [(header["key"], header["value"]) for header in row["raw_headers"] or ()]
                place = (row["topic"], row["partition"], row["offset"], row["timestamp"])
                yield DeadLetter(KafkaRecord(*place, row["key"], row["value"], headers), row["reason"])

    def _read(self, names: Sequence[str], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for name in names:
            with self.files.open(name) as source:
                file = pq.ParquetFile(source, buffer_size=READ_AHEAD_BYTES, coerce_int96_timestamp_unit="us")
                for number in range(file.num_row_groups):
                    group = file.metadata.row_group(number)
                    at_once = max(
                        1, min(ROWS_AT_ONCE, BYTES_AT_ONCE * group.num_rows // _bytes(group, columns))
                    )
                    for batch in file.iter_batches(at_once, row_groups=[number], columns=list(columns)):
                        yield _in_utc(batch)


def _forked(batch: pa.RecordBatch) -> Iterator[str]:
    """Yield a text for each fork in folds."""
    for row in batch.select(["topic", "id", "forks"]).to_pylist():
        for fork in row["forks"]:
            yield (
                f"topic {row['topic']}, id {row['id']}: the append in partition {fork['partition']} at offset "
                f"{fork['offset']} begins with sequence number {fork['seq_nr']}, which the id had reached before: two "
                "writers were active, or an append was sent twice. Events of both are kept; where their times are "
                "equal, the later record's are written over the others"
            )


def _bytes(group: pq.RowGroupMetaData, columns: Sequence[str]) -> int:
    """Return the bytes that these columns have in a row group, at least one."""
    wanted, size = tuple(f"{name}." for name in columns), 0
    for part in map(group.column, range(group.num_columns)):
        if f"{part.path_in_schema}.".startswith(wanted):
            size += part.total_uncompressed_size
    return max(1, size)


def _in_utc(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose timestamps are MOMENT; INT96 has no time zone."""
    arrays = [
        column.cast(MOMENT) if pa.types.is_timestamp(column.type) else column for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)
