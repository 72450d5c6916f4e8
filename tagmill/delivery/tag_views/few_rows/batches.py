"""Write the batches of few rows, and how far each persistence_id is delivered behind each of them."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa

from tagmill.arrow import schema_of
from tagmill.delivery.tag_views import batch_contents, progress_steps, seal_outputs
from tagmill.delivery.tag_views.batch_contents import JUDGED_STREAMS, Contents, CutTotal
from tagmill.delivery.tag_views.few_rows.judgement import Verdict
from tagmill.delivery.tag_views.few_rows.staging import StagedFile
from tagmill.delivery.tag_views.file_summaries import FileTotal
from tagmill.delivery.tag_views.gap_evidence import Backfilled
from tagmill.delivery.tag_views.judge import FROM_JOURNAL, Key
from tagmill.delivery.tag_views.sealing import Sealing
from tagmill.delivery.tag_views.staged_rows import STAGED, with_checksums
from tagmill.domain.batches.cutting import cut
from tagmill.domain.time_buckets import month
from tagmill.runs.parquet_files import write_table

PROGRESS = schema_of(progress_steps.COLUMNS)
# A row in a rewritten file: `file` and `row_index` say where it comes from, `at` in which stream and cut it is.
Placed = dict[str, Any]


class Batches:
    """The batches of one run: staged files as they are, and rewritten ones below `folder`/recut."""

    def __init__(
        self,
        sealing: Sealing,
        staged: Sequence[StagedFile],
        summaries: pa.Table,
        totals: list[FileTotal],
        verdict: Verdict,
        backfilled: Sequence[Backfilled],
    ) -> None:
        self.sealing, self.plan, self.pipeline = sealing, sealing.plan, sealing.pipeline
        self.verdict = verdict
        self.summaries = summaries.to_pylist()
        self.totals = totals
        self.tables = {file.name: file.rows for file in staged}
        if backfilled:
            self.tables[FROM_JOURNAL] = seal_outputs.backfilled_rows(backfilled)
        self.placed: list[Placed] = []

    def write(self) -> Contents:
        """Choose the staged files that become batches as they are, write the other rows into new files, and return
        all files.
        """
        touched = {
            line["file"]
            for line in self.summaries
            if (line["tag"], line["persistence_id"]) in self.verdict.excluded
        }
        fitting = batch_contents.fit(self.totals, self.pipeline.batch_bytes)
        as_they_are = [total for total in fitting if total.file not in touched]
        anew = [total for total in self.totals if total.is_new and total not in as_they_are]
        self.placed = list(self._placed(anew))
        cuts = [
            self._cut(at, list(rows), anew) for at, rows in groupby(self.placed, itemgetter("stream", "cut"))
        ]
        return Contents(self.totals, as_they_are, cuts, None, f"{self.sealing.folder}/staged")

    def _placed(self, anew: Sequence[FileTotal]) -> Iterator[Placed]:
        """Yield the rows that go into new files, stream by stream, in the order of their batches."""
        for stream, total in enumerate(anew):
            yield from self._streamed(stream, self._staying(total.file))
        for number, tag in enumerate(sorted(self.plan.tags)):
            delivered = [
                {**record, "late": int(record["action"] == "late")}
                for record in self.verdict.records
                if record["kind"] == "row"
                and record["action"] in seal_outputs.DELIVERED
                and record["tag"] == tag
            ]
            order = itemgetter("order_ticks", "persistence_id", "tag_pid_sequence_nr")
            yield from self._streamed(JUDGED_STREAMS + number, sorted(delivered, key=order))

    def _staying(self, file: str) -> Iterator[Placed]:
        columns = [
            "tag",
            "persistence_id",
            "tag_pid_sequence_nr",
            "sequence_nr",
            "offset",
            "event_time",
            "size",
        ]
        for index, row in enumerate(self.tables[file].select(columns).to_pylist()):
            if (row["tag"], row["persistence_id"]) not in self.verdict.excluded:
                yield {**row, "file": file, "row_index": index, "late": 0, "ticks": row["event_time"]}

    def _streamed(self, stream: int, rows: Iterator[Placed] | Sequence[Placed]) -> Iterator[Placed]:
        ordered = list(rows)
        shape = ((row["size"], month(max(row["ticks"], 0))) for row in ordered)
        cuts = cut(shape, self.pipeline.batch_rows, self.pipeline.batch_bytes)
        for row, number in zip(ordered, cuts, strict=True):
            yield {**row, "stream": stream, "cut": number}

    def _cut(self, at: tuple[int, int], rows: Sequence[Placed], anew: Sequence[FileTotal]) -> CutTotal:
        """Write one batch to its file, with `late` and the checksums as they are now."""
        stream, number = at
        parts = [
            self.tables[file].take(pa.array([row["row_index"] for row in of_file], pa.int64()))
            for file, of_file in groupby(rows, itemgetter("file"))
        ]
        late = pa.array([row["late"] for row in rows], STAGED.field("late").type)
        whole = pa.concat_tables(parts).set_column(STAGED.get_field_index("late"), STAGED.field("late"), late)
        (batch,) = whole.combine_chunks().to_batches()
        made = with_checksums(batch).select(list(batch_contents.PAYLOAD_OF))
        file = f"{self.sealing.folder}/recut/stream={stream}/cut={number}/part-00000.parquet"
        write_table(self.sealing.files, file, made)
        return CutTotal(
            order=batch_contents.order(stream, number, list(anew)),
            stream=stream,
            cut=number,
            tag=made["tag"][0].as_py(),
            file=file,
            rows=made.num_rows,
            checksum=int(made["row_checksum"].to_numpy().sum()),  # wraps
        )

    def write_progress(self, folder: str, numbers: Mapping[str, int]) -> None:
        """Write the progress of each persistence_id behind each batch, as ProgressSteps.write does."""
        lines = [*self._of_files(numbers), *self._of_cuts(numbers), *self._judged(numbers)]
        last = dict[Key, tuple[int, int]]()
        for line in lines:
            key, place = (line["tag"], line["persistence_id"]), (line["number"], line["batch"])
            last[key] = max(last.get(key, place), place)
        for line in lines:
            line["last"] = (line["number"], line["batch"]) == last[line["tag"], line["persistence_id"]]
        rows = pa.Table.from_pylist(lines, PROGRESS)
        write_table(self.sealing.files, f"{folder}/part-00000.parquet", rows)

    def _of_files(self, numbers: Mapping[str, int]) -> Iterator[dict[str, Any]]:
        for line in self.summaries:
            key = (line["tag"], line["persistence_id"])
            if line["file"] in numbers and key not in self.verdict.excluded:
                yield self._line(
                    key, line["high"], line["high_sequence_nr"], line["high_offset"], numbers[line["file"]]
                )

    def _of_cuts(self, numbers: Mapping[str, int]) -> Iterator[dict[str, Any]]:
        highest = dict[tuple[int, int, Key], Placed]()
        for row in self.placed:
            if row["stream"] < JUDGED_STREAMS:
                at = (row["stream"], row["cut"], (row["tag"], row["persistence_id"]))
                known = highest.get(at, row)
                highest[at] = max(known, row, key=itemgetter("tag_pid_sequence_nr"))
        for (stream, number, key), row in highest.items():
            batch = numbers[f"{stream}/{number}"]
            yield self._line(key, row["tag_pid_sequence_nr"], row["sequence_nr"], row["offset"], batch)

    def _judged(self, numbers: Mapping[str, int]) -> Iterator[dict[str, Any]]:
        batches = defaultdict[Key, int](int)
        for row in self.placed:
            if row["stream"] >= JUDGED_STREAMS:
                key = (row["tag"], row["persistence_id"])
                batches[key] = max(batches[key], numbers[f"{row['stream']}/{row['cut']}"])
        for record in self.verdict.records:
            if record["kind"] == "progress":
                key = (record["tag"], record["persistence_id"])
                yield {
                    **self._line(
                        key,
                        record["tag_pid_sequence_nr"],
                        record["sequence_nr"],
                        record["offset"],
                        batches[key],
                    ),
                    "missing": record["missing"],
                }

    def _line(self, key: Key, number: int, sequence_nr: int, offset: str, batch: int) -> dict[str, Any]:
        return {
            "tag": key[0],
            "persistence_id": key[1],
            "number": number,
            "sequence_nr": sequence_nr,
            "offset": offset,
            "missing": self.verdict.missing.get(key, ""),
            "batch": batch,
        }
