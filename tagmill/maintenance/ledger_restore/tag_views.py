"""Brings the ledger of a pipeline of tag views forward to what ClickHouse has.

Progress comes from ClickHouse's own rows, so that nothing is delivered again; watermarks stay where the
ledger has them, so that the next runs read again what the lost runs had read, and nothing is lost. Runs whose
manifests are in the storage become runs of the ledger again.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq

from tagmill.clickhouse.client import ClickHouse
from tagmill.delivery.tag_views.model import Manifest, Plan
from tagmill.domain import identifiers
from tagmill.domain.batches.states import RunState
from tagmill.domain.continuity.merging import merge
from tagmill.domain.continuity.model import Progress
from tagmill.ledger.progress import Watermark, read_intervals
from tagmill.ledger.retired_batches import Retired, RetiredBatch
from tagmill.maintenance.ledger_restore import runs
from tagmill.maintenance.ledger_restore.unknown_batches import UnknownBatch, belongs, manifest_files
from tagmill.runs import checkpoints
from tagmill.runs.workspace import Workspace

ROWS_AT_ONCE = 5000
# more batches than this are not named in a query: then progress of all persistence ids is made
MAX_NAMED = 2000


class ViewRestore:
    """The ledger of one pipeline and the batches that it doesn't know."""

    def __init__(self, workspace: Workspace, clickhouse: ClickHouse, batches: list[UnknownBatch]) -> None:
        self.workspace, self.ledger, self.name = workspace, workspace.ledger, workspace.name
        self.pipeline, self.files = workspace.pipeline, workspace.files
        self.clickhouse, self.batches = clickhouse, batches

    def run(self, last_run: int) -> None:
        """Write progress, watermarks and runs, as of the run that will be the ledger's last; doing it again
        writes the same.
        """
        self.ledger.delivered.write_progress(self.name, last_run, self._progress())
        checkpoints.reached("restore.progress_written")
        self._watermarks(last_run)
        checkpoints.reached("restore.watermarks_written")
        for run, of_run in groupby(self.batches, key=lambda batch: batch.origin.run):
            self._record(run, list(of_run))

    def _progress(self) -> Iterator[tuple[str, str, Progress]]:
        """Yield progress of each persistence id that has a row in the unknown batches, from all its rows in
        ClickHouse.
        """
        file = f"{self.name}/restore/progress-{uuid4().hex[:12]}.parquet"
        where, values = self._named()
        of_ids = (
            f"WHERE (`tag`, `persistence_id`) IN (SELECT `tag`, `persistence_id` FROM {self._table} {where})"
            if where
            else ""
        )
        pairs = "arrayZip(arrayPushFront(arrayPopBack(numbers), toInt64(0)), numbers)"
        query = (
            "SELECT toString(`tag`) AS of_tag, `persistence_id`, "
            "arraySort(groupUniqArray(`tag_pid_sequence_nr`)) AS numbers, max(`tag_pid_sequence_nr`) AS "
            "number, "
            "argMax(`sequence_nr`, `tag_pid_sequence_nr`) AS last_sequence_nr, "
            "argMax(toString(`offset`), `tag_pid_sequence_nr`) AS last_offset, "
            "arrayStringConcat(arrayMap(p -> concat(toString(p.1 + 1), '-', toString(p.2 - 1)), "
            f"arrayFilter(p -> p.2 > p.1 + 1, {pairs})), ',') AS missing "
            f"FROM {self._table} {of_ids} GROUP BY `tag`, `persistence_id`"
        )
        outer = (
            "SELECT of_tag AS tag, `persistence_id`, number, last_sequence_nr, last_offset, missing "
            f"FROM ({query})"
        )
        with self.files.create(file) as sink:
            self.clickhouse.save(
                outer,
                values,
                sink,
                {"optimize_aggregation_in_order": 1, "output_format_parquet_string_as_string": 1},
            )
        with self.files.open(file) as source:
            for part in pq.ParquetFile(source).iter_batches(ROWS_AT_ONCE):
                yield from self._merged(part.to_pylist())
        self.files.remove(file)

    def _merged(self, rows: list[dict[str, Any]]) -> Iterator[tuple[str, str, Progress]]:
        known = self.ledger.delivered.progress(
            self.name, [(row["tag"], row["persistence_id"]) for row in rows]
        )
        for row, of_ledger in zip(rows, known, strict=True):
            there = Progress(
                row["number"], row["last_sequence_nr"], 0, row["last_offset"], read_intervals(row["missing"])
            )
            yield row["tag"], row["persistence_id"], merge(of_ledger, there)

    def _watermarks(self, last_run: int) -> None:
        """Count what is delivered; where a tag is to be read from stays."""
        marks = self.ledger.delivered.watermarks(self.name)
        for tag, rows, batches in self.by_tag():
            start = self.pipeline.start_ticks(tag) - 1
            mark = marks.get(tag) or Watermark(tag, start, 0, start, 0, None, 0, 0)
            if mark.run < last_run:
                counted = replace(
                    mark, run=last_run, delivered=mark.delivered + rows, batches=mark.batches + batches
                )
                self.ledger.delivered.write_watermark(self.name, counted)

    def by_tag(self) -> Iterator[tuple[str, int, int]]:
        """Yield each tag with the rows and the number of its unknown batches."""
        of_tag: dict[str, list[UnknownBatch]] = {}
        for batch in self.batches:
            of_tag.setdefault(batch.origin.tag, []).append(batch)
        for tag, batches in sorted(of_tag.items()):
            yield tag, sum(batch.totals.rows for batch in batches), len(batches)

    def _record(self, run: int, batches: list[UnknownBatch]) -> None:
        """Write the run from its manifest, or what proves its batches where there is none."""
        if self.ledger.run(self.name, run) is None and (file := self._manifest(run, batches)):
            manifest = Manifest.model_validate_json(self.files.read(file))
            runs.add_batches(self.ledger, self.name, run, manifest.batches, batches)
            runs.add_run(self.workspace, run, RunState.CLOSED, file, self._plan(run, manifest))
            return
        self.workspace.store(Retired).keep(
            RetiredBatch(
                one.origin.run,
                one.origin.number,
                one.batch_id,
                one.totals.generation,
                one.origin.tag,
                one.totals.rows,
                one.totals.checksum,
            )
            for one in batches
        )

    def _manifest(self, run: int, batches: list[UnknownBatch]) -> str | None:
        for file in manifest_files(self.files, self.name, run):
            if belongs(Manifest.model_validate_json(self.files.read(file)), batches):
                return file
        return None

    def _plan(self, run: int, manifest: Manifest) -> str | None:
        ends = {tag: (done.after, done.until) for tag, done in manifest.tags.items()}

        def fits(content: bytes) -> bool:
            return {
                tag: (span.after, span.until) for tag, span in Plan.model_validate_json(content).tags.items()
            } == ends

        return runs.plan_file(self.files, self.name, run, fits)

    def _named(self) -> tuple[str, dict[str, Any]]:
        if len(self.batches) > MAX_NAMED:
            return "", {}
        return "WHERE `batch_id` IN %(batches)s", {
            "batches": tuple(str(batch.batch_id) for batch in self.batches)
        }

    @property
    def _table(self) -> str:
        return identifiers.sql(self.pipeline.destination)
