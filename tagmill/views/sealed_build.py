"""Number a journal's events in three phases: write the numbers to files, commit them, write them to
Cassandra.

Builds, rebuilds and deletions share this code. The commit is one conditional update in view_builds. Before
it, nothing is written into the journal's keyspace. After it, nothing is computed again: an attempt that goes
on writes the same rows, with the same timestamp, from the same files (docs/decisions/0010).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING
from uuid import uuid4

from tagmill.cassandra.write_limits import BESIDE_VIEW_ROW
from tagmill.config.settings import Settings
from tagmill.errors import TagmillError
from tagmill.ledger.attempts import counted, of_builds
from tagmill.ledger.failures import forget_failures, noted
from tagmill.ledger.same_tables import note_numbered, require_same_tables
from tagmill.ledger.view_builds import BuildRow, Builds, BuildState
from tagmill.runs import checkpoints
from tagmill.runs.sealed_files import way_out
from tagmill.runs.workspace import Workspace, open_step, silent
from tagmill.spark.session import setting

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tagmill.journal.frames import JournalSchema
    from tagmill.runs.progress import Tell
    from tagmill.views.event_reader import Reader
    from tagmill.views.model import Manifest
    from tagmill.views.run_numbering import Sums
    from tagmill.views.staging import Staging


# The step of a build: its failures are noted. What a person starts is reported to that person.
BUILD = "views build"


@dataclass(frozen=True, slots=True)
class Numbering:
    """What numbers one journal, while it holds the fence that `row` has; a dry run holds none. `spark` returns the
    session, and starts it if need be.
    """

    workspace: Workspace
    builds: Builds
    journal: JournalSchema
    row: BuildRow
    spark: Callable[[], SparkSession]


class Attempt:
    """One attempt at numbering events of one journal."""

    def __init__(self, numbering: Numbering) -> None:
        workspace = self.workspace = numbering.workspace
        self.files, self.tell = workspace.files, workspace.tell
        self.name, self.pipeline = workspace.name, workspace.pipeline
        self.builds, self.journal, self.row = numbering.builds, numbering.journal, numbering.row
        self._spark = numbering.spark
        self.home = f"{self.name}/views"

    @property
    def spark(self) -> SparkSession:
        """The session; the first use may start it."""
        return self._spark()

    def finish_left(self, row: BuildRow) -> tuple[BuildRow, Manifest | None]:
        """Write what an earlier attempt has committed and not finished; return the build's row then, and the
        manifest written or None.
        """
        finished = None
        if row.state == BuildState.SEALED:
            finished = self._read(row)
            self.tell(f"finishing build {row.build}")
            self.write(finished, row)
        left = self.files.folders(self.home)
        row = self.builds.current(row.fence)
        self.sweep(left)
        return row, finished

    def end(self, row: BuildRow, built_to: int) -> None:
        """Mark a build as done and remove the files of all builds up to it; raises FenceRaised."""
        left = self.files.folders(self.home)
        self.builds.finish(row, built_to)
        self.sweep(left)

    def sweep(self, folders: Sequence[str]) -> None:
        """Remove the files of builds that are done or were never committed: their builders can no longer
        commit.

        The folders are listed before the fence is looked at: a builder that takes over later has others, also if
        this one sleeps before it removes them.
        """
        for folder in folders:
            self.files.remove_folder(f"{self.home}/{folder}")

    # -- before the commit

    def new_folder(self) -> str:
        """Return a new name for the folder of this attempt's files."""
        return f"{self.home}/attempt-{uuid4().hex[:12]}"

    def reader(self, folder: str, until: int) -> Reader:
        """Return a reader that stages events below `folder`/events; events after `until` (ticks) are too
        young to be numbered.
        """
        from tagmill.views.event_reader import Reader

        return Reader(self.spark, self.builds.cassandra, self.staging(until), f"{folder}/events", self.tell)

    def staging(self, until: int) -> Staging:
        """Return how the journal's events are staged."""
        from tagmill.views.staging import Staging

        largest_row = self.builds.cassandra.largest_write - BESIDE_VIEW_ROW
        return Staging(self.journal, self.files, until, largest_row)

    def runs(self, folder: str, staged: list[str]) -> DataFrame:
        """Find the runs in staged files, write them below `folder`/runs, and return them
        (run_numbering.RUNS).
        """
        from tagmill.views import run_numbering

        run_numbering.find_runs(self.files, staged, f"{folder}/runs")
        return self.of_files(f"{folder}/runs", run_numbering.RUNS)

    def numbered(
        self, folder: str, staged: list[str], runs: DataFrame, ends: DataFrame, starting_points: DataFrame
    ) -> tuple[DataFrame, Sums]:
        """Number the staged events up to `ends`; return the new records (numbering.records) and the totals
        (run_numbering.Sums).
        """
        from tagmill.views import numbering, run_numbering

        url = self.files.url(folder)
        numbering.run_start_numbers(runs, ends, starting_points).repartition("file").write.partitionBy(
            "file"
        ).parquet(f"{url}/starts")
        sums = self.number_rows(folder, staged)
        reached = self.of_files(f"{folder}/reached", run_numbering.REACHED)
        return numbering.records(reached, ends, starting_points), sums

    def number_rows(self, folder: str, staged: list[str]) -> Sums:
        """Number the staged events from the starts that were written to `folder` (run_numbering.number_rows)."""
        from tagmill.views import run_numbering

        return run_numbering.number_rows(
            self.files,
            staged,
            folder,
            self.pipeline.bucket_size,
            meta=self.journal.meta,
            first_ticks=self.pipeline.first_ticks,
        )

    def but_ahead(self, ends: DataFrame, positions: DataFrame, folder: str, latest: int) -> DataFrame:
        """Return what diff.but_ahead does; `positions` are the rows that were written to `folder`."""
        from tagmill.views import diff

        if (self.files.largest(folder, "written") or 0) <= latest:
            return ends
        return diff.but_ahead(ends, positions, latest)

    def of_files(self, folder: str, columns: pa.Schema) -> DataFrame:
        """Return the rows that counting wrote to a folder; none if no event was staged."""
        from pyspark.sql.pandas.types import from_arrow_schema

        schema = from_arrow_schema(columns)
        if not self.files.names(folder):
            return self.spark.createDataFrame([], schema)
        return self.spark.read.schema(schema).parquet(self.files.url(folder))

    # -- the commit and what follows it

    def commit(self, manifest: Manifest, row: BuildRow) -> BuildRow:
        """Commit the manifest: from then on its numbers are final. Raises FenceRaised."""
        from tagmill.views.sealed_manifest import write_manifest

        file, sha256 = write_manifest(self.files, manifest)
        checkpoints.reached("build.before_commit")
        sealed = self.builds.seal(row, file, sha256, manifest.written_at)
        checkpoints.reached("build.after_commit")
        return sealed

    def write(self, manifest: Manifest, row: BuildRow) -> None:
        """Write a committed build into Cassandra, note its late rows, mark it as done and remove its
        files.
        """
        from tagmill.views import writer

        writer.write(self._spark, self.builds.cassandra, self.files, manifest, self.tell)
        self.builds.add_late(manifest.build, manifest.late_from)
        checkpoints.reached("build.before_end")
        self.end(row, manifest.until)

    def _read(self, row: BuildRow) -> Manifest:
        from tagmill.views.sealed_manifest import read_manifest

        with way_out(self.name):
            return read_manifest(self.files, row)


@contextmanager
def numbering_session(
    settings: Settings,
    pipeline: str,
    *,
    owner: str,
    spark: Callable[[], SparkSession],
    step: str,
    adopt: bool = False,
    tell: Tell = silent,
) -> Iterator[Numbering]:
    """Hold the lease and the fence of a pipeline's journal, so that nothing else numbers it; give the lease
    back on success.

    `step` is counted as an attempt. Empty is a dry run: it is not counted, and raises no fence, since another
    pipeline may build the journal. Failures are noted of a BUILD only. With `adopt`, the journal's tables may be
    others than those that were numbered before.

    Raises FenceRaised: another builder took over. LeaseTaken: the pipeline is at work. ConfigurationError: a
    table is missing. GuardRefused: the journal's tables were created again.
    """
    from tagmill.journal.frames import JournalSchema
    from tagmill.spark.errors import explained

    chosen, name = settings.pipeline(pipeline), of_builds(pipeline)
    with open_step(settings, pipeline, owner=owner, wait=True, tell=tell) as workspace:
        with (
            noted(settings, workspace.cassandra, name, step if step == BUILD else ""),
            counted(settings, workspace.cassandra, name, step),
        ):
            builds = workspace.journal_store(Builds)
            require_same_tables(settings, workspace.cassandra, pipeline, "Nothing was written", adopt=adopt)
            if step and not adopt:
                note_numbered(settings, workspace.cassandra, pipeline)
            journal = JournalSchema.load_checked(workspace.cassandra, chosen.journal)
            size, where = chosen.bucket_size.value, workspace.cassandra.where
            row = builds.take_over(owner, size) if step else builds.look(size)
            fenced = _fenced(builds, row) if step else nullcontext()
            with ExitStack() as stack, fenced, explained(where, builds.untouched):
                yield Numbering(workspace, builds, journal, row, cache(partial(_wide_joins, spark, stack)))
            if adopt:
                note_numbered(settings, workspace.cassandra, pipeline, adopt=True)
        if step == BUILD:
            forget_failures(settings, workspace.cassandra, name)
        workspace.give_back()


@contextmanager
def _fenced(builds: Builds, row: BuildRow) -> Iterator[None]:
    """Raise FenceRaised in place of an unexpected error if another builder took over, since it may have
    removed this builder's files.
    """
    try:
        yield
    except TagmillError:
        raise
    except Exception:
        builds.current(row.fence)
        raise


def _wide_joins(spark: Callable[[], SparkSession], stack: ExitStack) -> SparkSession:
    """Return the session; until the stack ends, its joins use rows that are partitioned by only some of the keys,
    without another shuffle.
    """
    session = spark()
    stack.enter_context(setting(session, "spark.sql.requireAllClusterKeysForCoPartition", "false"))
    return session
