"""Account for rows that a destination no longer has to hold: those older than the pipeline's
destination_retention_days.

A TTL or DROP PARTITION may have removed them or not: both are right. Rows within the retention are still
proven by count and checksum, against the rows of the sealed file that are within it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tagmill.clickhouse.client import ClickHouse, Totals
from tagmill.config.kafka import Stream
from tagmill.config.tag_views import PipelineSettings
from tagmill.domain import identifiers
from tagmill.domain.batches.layout import Column
from tagmill.domain.batches.states import BatchState
from tagmill.domain.documents import Batch
from tagmill.errors import SealedFileDamaged
from tagmill.ledger.batch_times import BatchTimes, Times
from tagmill.ledger.retired_batches import Retired
from tagmill.ledger.runs import BatchRow
from tagmill.runs.storage import RunFiles
from tagmill.runs.workspace import Workspace

DAY_MS = 86_400_000
# Milliseconds before their expiry from which rows count as expired: a TTL may remove them between two
# queries.
MARGIN_MS = 3_600_000
# Columns with a row's time, and how many of their units in the sealed file make a millisecond.
TIME_COLUMNS = {"event_time": 10_000, "created_at": 1}


@dataclass(frozen=True, slots=True)
class Within:
    """Count and checksum (modulo 2^64) of a batch's rows within the retention.

    `is_past`: all rows are past the retention, even without the margin.
    """

    rows: int
    checksum: int
    is_past: bool


def readable_times(files: RunFiles, batches: Iterable[Batch]) -> Iterator[tuple[int, Times]]:
    """Yield the number and times of each batch whose sealed file can be read."""
    for batch in batches:
        if batch.rows:
            with suppress(SealedFileDamaged, pa.ArrowInvalid), files.open(batch.file) as source:
                yield batch.number, times_in(source)


def times_in(source: BinaryIO) -> Times:
    """Return the times of the first and last row of a sealed file, from its footer."""
    parquet = pq.ParquetFile(source)
    name = next(name for name in parquet.schema.names if name in TIME_COLUMNS)
    at, groups = parquet.schema.names.index(name), range(parquet.num_row_groups)
    ends = [parquet.metadata.row_group(group).column(at).statistics for group in groups]
    first, last = min(end.min for end in ends), max(end.max for end in ends)
    return Times(int(first) // TIME_COLUMNS[name], int(last) // TIME_COLUMNS[name])


class Expiry:
    """The retention of one destination, by ClickHouse's clock: rows before its cutoff may be gone."""

    def __init__(self, clickhouse: ClickHouse, table: str, days: int) -> None:
        ((now,),) = clickhouse.rows("SELECT toUnixTimestamp64Milli(now64(3))")
        self.cutoff_ms = int(now) + MARGIN_MS - days * DAY_MS
        self.clickhouse, self.table = clickhouse, table
        self.column: Column = next(
            column for column in clickhouse.layout.columns if column.name in TIME_COLUMNS
        )
        self.unit = TIME_COLUMNS[self.column.name]

    @classmethod
    def declared(cls, pipeline: PipelineSettings | Stream, clickhouse: ClickHouse) -> "Expiry | None":
        """Return the expiry of a pipeline's destination, or None if no retention is declared."""
        days = pipeline.destination_retention_days
        return None if days is None else cls(clickhouse, pipeline.destination, days)

    def within(self, source: BinaryIO) -> Within:
        """Return the count and checksum of a sealed file's rows within the retention."""
        rows = pq.read_table(source, columns=[self.column.name, "row_checksum"])
        moments = rows[self.column.name].to_numpy()
        kept = moments >= self.cutoff_ms * self.unit
        checksums = rows["row_checksum"].to_numpy().astype(np.int64)[kept]
        is_past = bool((moments < (self.cutoff_ms - MARGIN_MS) * self.unit).all())
        return Within(int(kept.sum()), int(np.add.reduce(checksums).astype(np.uint64)), is_past)

    def agrees(self, batch_id: UUID, generation: int, wanted: Within) -> bool:
        """Return whether the table has exactly the wanted rows of a batch within the retention, once."""
        rows = self.clickhouse.rows(
            f"SELECT `generation`, count(), sum({self.clickhouse.layout.row_checksum_sql()}) FROM "
            f"{identifiers.sql(self.table)} "
            f"WHERE `batch_id` = {{batch:UUID}} AND {self.time_sql} >= {{cutoff:Int64}} GROUP BY "
            "`generation`",
            {"batch": str(batch_id), "cutoff": self.cutoff_ms * self.unit},
        )
        found = [Totals(int(number), int(count), int(checksum)) for number, count, checksum in rows]
        return found == ([Totals(generation, wanted.rows, wanted.checksum)] if wanted.rows else [])

    @property
    def time_sql(self) -> str:
        """ClickHouse's expression for a row's time, in the sealed file's unit."""
        return self.column.stored.format(identifiers.sql(self.column.name))

    def rows_within(self, tag_column: str) -> dict[str, int]:
        """Return how many rows within the retention the table has, by the value of an SQL expression."""
        rows = self.clickhouse.rows(
            f"SELECT {tag_column} AS tag_, count() FROM {identifiers.sql(self.table)} "
            f"WHERE {self.time_sql} >= {{cutoff:Int64}} GROUP BY tag_",
            {"cutoff": self.cutoff_ms * self.unit},
        )
        return {str(tag): int(count) for tag, count in rows}


class ExpiredRows:
    """The rows of delivered batches that are gone because they are past the retention, by the batch times in
    the ledger.
    """

    def __init__(self, workspace: Workspace, expiry: Expiry | None) -> None:
        self.workspace, self.expiry = workspace, expiry
        self.last_run = workspace.ledger.last_run(workspace.name) if expiry else 0
        self.times = workspace.store(BatchTimes).read(self.last_run) if expiry else {}

    @classmethod
    def declared(cls, workspace: Workspace, clickhouse: ClickHouse) -> "ExpiredRows":
        """Return the expired rows of a pipeline; without a declared retention no row ever expires."""
        return cls(workspace, Expiry.declared(workspace.delivering, clickhouse))

    def count(
        self, run: int, batch: BatchRow, expected: list[Totals], stored: list[Totals], sealed: Batch | None
    ) -> int:
        """Return how many rows of a batch are gone if all missing ones are past the retention, else 0.

        If a batch was cleaned up so long ago that neither its times nor its `sealed` file are known, its
        missing rows count as past.
        """
        if self.expiry is None or not expected or stored == expected:
            return 0
        (wanted,) = expected
        missing = wanted.rows - sum(total.rows for total in stored)
        times, cutoff = self.times.get((run, batch.number)), self.expiry.cutoff_ms
        if missing <= 0 or [total.generation for total in stored] not in ([], [wanted.generation]):
            return 0
        if times and times.last_ms < cutoff or (not times and sealed is None):
            return missing
        if sealed is None:
            return missing if times and times.first_ms < cutoff else 0
        with self.workspace.files.open_sealed(sealed.file, sealed.sha256) as source:
            within = self.expiry.within(source)
        agrees = within.rows < wanted.rows and self.expiry.agrees(batch.batch_id, wanted.generation, within)
        return missing if agrees else 0

    def by_tag(self, counted: Mapping[str, tuple[int, int]]) -> dict[str, int]:
        """Return how many rows of each tag are gone because they are past the retention, judged by counts
        alone.

        In: rows delivered and rows in ClickHouse by tag; batches of topics and Kafka journals have the tag
        ''. A tag has no expired rows if it lacks more rows than its batches past the retention have, or if it
        lacks rows within the retention.
        """
        missing = {tag: delivered - rows for tag, (delivered, rows) in counted.items() if delivered > rows}
        if self.expiry is None or not missing:
            return {}
        past, certain = Counter[str](), Counter[str]()
        for run, number, tag, rows in self._batches():
            times = self.times.get((run, number))
            (past if times is None or times.first_ms < self.expiry.cutoff_ms else certain)[tag] += rows
        tagged = "tag" in self.expiry.clickhouse.layout.names and "" not in counted
        within = self.expiry.rows_within("toString(`tag`)" if tagged else "''")
        return {
            tag: rows
            for tag, rows in missing.items()
            if rows <= past[tag] and certain[tag] <= within.get(tag, 0)
        }

    def _batches(self) -> Iterator[tuple[int, int, str, int]]:
        """Yield run, number, tag and rows of each delivered batch."""
        retired = self.workspace.store(Retired)
        known = set()
        for batch in retired.batches(self.last_run):
            known.add((batch.run, batch.number))
            yield batch.run, batch.number, batch.tag, batch.rows
        numbers = range(retired.up_to() + 1, self.last_run + 1)
        for run, batches in self.workspace.ledger.batches_of_many(self.workspace.name, numbers):
            for row in batches:
                if row.state == BatchState.IN_CLICKHOUSE and (run, row.number) not in known:
                    yield run, row.number, row.tag, row.rows
