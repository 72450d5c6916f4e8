"""Stage the rows of a run with Spark: each task reads one unit, and writes its rows and their summaries to files.

A task that is tried again writes other files. Files that no task has named are never read.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from tagmill.arrow import row_groups
from tagmill.cassandra.paging import Pages, kept_pages
from tagmill.config.settings import CassandraSettings
from tagmill.delivery.tag_views.file_summaries import COLUMNS, SUMMARY, FileTotal, Windows, summary, total_of
from tagmill.delivery.tag_views.model import ScanUnit
from tagmill.delivery.tag_views.staged_rows import STAGED, as_batch_rows
from tagmill.domain.time_buckets import BucketSize
from tagmill.journal.tag_view_reader import VIEW_COLUMNS, bounds
from tagmill.runs.parquet_files import write_table
from tagmill.runs.storage import RunFiles
from tagmill.spark.task_files import Target

TOTALS = pa.schema({"total": pa.string()})
# Columns to encode with a dictionary, since their values repeat.
REPEATED = (
    "unit tag persistence_id timebucket writer_uuid ser_id ser_manifest event_manifest meta_ser_id "
    "meta_ser_manifest late".split()
)


@dataclass(frozen=True, slots=True)
class Staging:
    """How the rows of one run are staged below `folder`.

    `view`: the table, quoted for CQL; `latest_ticks`: that an offset may have; `windows`: of look-back, by tag;
    `file_rows`: that a file has at most.
    """

    cassandra: CassandraSettings
    view: str
    files: RunFiles
    folder: str
    latest_ticks: int
    windows: Windows
    size: BucketSize
    file_rows: int

    def stage(self, spark: SparkSession, units: list[ScanUnit]) -> "StagedRun":
        """Read all units, one task each, and return what was written."""
        totals = list[FileTotal]()
        if units:
            each = F.from_json(F.lit(json.dumps([unit.model_dump_json() for unit in units])), "array<string>")
            tasks = spark.range(0, len(units), 1, len(units))
            rows = tasks.select(F.element_at(each, (F.col("id") + 1).cast("int")).alias("unit"))
            answers = rows.mapInArrow(partial(_stage, self), from_arrow_schema(TOTALS)).collect()
            totals = sorted(map(_total, answers), key=lambda total: (total.tag, total.unit, total.file))
        names = [total.file for total in totals]
        rows, summaries = (
            target.frame(spark, [f"{target.folder}/{name}" for name in names])
            for target in (self.staged, self.summaries)
        )
        return StagedRun(rows, summaries, totals, self.summaries)

    @property
    def staged(self) -> Target:
        """Where the rows are written."""
        return Target(self.files, f"{self.folder}/staged", STAGED, REPEATED)

    @property
    def summaries(self) -> Target:
        """Where the summaries of each file are written."""
        return Target(self.files, f"{self.folder}/summaries", SUMMARY, ["unit", "file", "tag"])


@dataclass(frozen=True, slots=True)
class StagedRun:
    """The staged rows (STAGED), the summaries of their files (SUMMARY), the totals of the files by tag, unit and
    name, and where the summaries lie.
    """

    rows: DataFrame
    summaries: DataFrame
    totals: list[FileTotal]
    written: Target

    def count_summaries(self) -> int:
        """Return the number of summaries, by the files' footers."""
        return self.written.files.count_rows(self.written.folder)

    def read_new_summaries(self) -> pa.Table:
        """Return the summaries of new files, for few of them."""
        found = [SUMMARY.empty_table()]
        for total in self.totals:
            if total.is_new:
                with self.written.files.open(f"{self.written.folder}/{total.file}") as source:
                    found.append(pq.read_table(source))
        return pa.concat_tables(found)


def _stage(staging: Staging, units: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    pages = kept_pages(staging.cassandra)
    for batch in units:
        for document in batch["unit"].to_pylist():
            unit = ScanUnit.model_validate_json(document)
            totals = [json.dumps(asdict(total)) for total in _written(staging, pages, unit)]
            yield pa.RecordBatch.from_pydict({"total": totals}, TOTALS)


def _total(line: Iterable[str]) -> FileTotal:
    (document,) = line
    fields = json.loads(document)
    return FileTotal(**{**fields, "hours": tuple(map(tuple, fields["hours"]))})


def _written(staging: Staging, pages: Pages, unit: ScanUnit) -> Iterator[FileTotal]:
    """Write the rows of a unit in Cassandra's order, and the summaries of each file; yield the files' totals."""
    groups = row_groups(_read(staging.view, pages, unit))
    rows = (as_batch_rows(group, unit.number, unit.tag, staging.latest_ticks) for group in groups)
    new = {unit.number} if unit.kind == "new" else set()
    for number, parts in groupby(_in_files(rows, staging.file_rows), itemgetter(0)):
        keys = list[pa.Table]()
        prefix = f"part-{unit.number:05d}-{number:05d}-"
        path = staging.staged.write(_noting(parts, keys), prefix)
        if path is None:
            continue
        name, noted = path.rpartition("/")[2], pa.concat_tables(keys)
        summaries = summary(noted, name, staging.windows)
        write_table(staging.files, f"{staging.summaries.folder}/{name}", pa.Table.from_batches([summaries]))
        yield total_of(summaries, noted, new, staging.size)


def _noting(parts: Iterable[tuple[int, pa.Table]], keys: list[pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows of a file, and note their key columns (COLUMNS)."""
    for _, rows in parts:
        keys.append(rows.select(COLUMNS))
        yield rows


def _in_files(tables: Iterable[pa.Table], most: int) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows with the number of the file that they belong to: a file has at most so many."""
    number, room = 0, most
    for table in tables:
        begin = 0
        while begin < table.num_rows:
            part = table.slice(begin, room)
            yield number, part
            begin, room = begin + part.num_rows, room - part.num_rows
            if not room:
                number, room = number + 1, most


def _read(view: str, pages: Pages, unit: ScanUnit) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a unit's slices, one slice after the other."""
    selected = ", ".join(name for name in VIEW_COLUMNS if name != "tag_name")
    query = f"SELECT {selected} FROM {view} WHERE tag_name = ? AND timebucket = ?"
    for whole, slices in groupby(unit.slices, key=lambda part: part.whole):
        if whole:
            yield from pages.of_each(query, ((unit.tag, part.timebucket) for part in slices))
        else:
            each = ((unit.tag, part.timebucket, *bounds(part.after, part.until)) for part in slices)
            yield from pages.of_each(f"{query} AND timestamp > ? AND timestamp <= ?", each)
