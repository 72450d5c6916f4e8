"""Read what the tables hold of chosen persistence ids and tags, for a rebuild or a deletion, and report what
changes.

Refuses to write when the application has numbered events meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tagmill.errors import ApplicationAtWork, ConfigurationError
from tagmill.ledger.view_builds import BuildState
from tagmill.spark.materialize import materialize
from tagmill.views.sealed_build import Attempt, Numbering
from tagmill.views.selection import (
    EXAMPLES,
    Changed,
    Selection,
    Skipped,
    TagChange,
    Unknown,
    ViewReport,
    unknown_ids_error,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tagmill.ledger.view_builds import BuildRow
    from tagmill.views.model import Manifest
    from tagmill.views.run_numbering import Sums

ID = "persistence_id"


class SelectionAttempt(Attempt):
    """An attempt that is limited to chosen persistence ids and tags; a subclass's `seal` finds what
    changes.
    """

    def __init__(self, numbering: Numbering, selection: Selection) -> None:
        super().__init__(numbering)
        self.selection = selection
        self.ours = self.workspace.settings.builder(self.journal.keyspace) is not None
        self.folder = self.new_folder()
        self.url = self.files.url(self.folder)

    def look(self, row: BuildRow, check: Callable[[ViewReport], None] = lambda _: None) -> ViewReport:
        """Report what would change, without changing it; `check` may raise an error to refuse it."""
        try:
            _, report, _ = self.seal(row, dry_run=True)
            check(report)
            if row.state == BuildState.SEALED:
                report = report.model_copy(update={"unfinished": row.build})
        finally:
            self.files.remove_folder(self.folder)
        return report

    def run(self, row: BuildRow) -> ViewReport:
        """Finish what an earlier attempt left, then make the changes that `seal` finds and report them."""
        row, finished = self.finish_left(row)
        manifest, report, positions = self.seal(row, dry_run=False)
        if manifest.rows or manifest.removed or manifest.moved:
            self.must_be_offline(positions)
            self.write(manifest, self.commit(manifest, row))
        self.files.remove_folder(self.folder)
        return report.model_copy(update={"unfinished": finished.build}) if finished else report

    def seal(self, row: BuildRow, *, dry_run: bool) -> tuple[Manifest, ViewReport, DataFrame]:
        """Write what changes to files; return the manifest, the report, and what the plugin's tables said at
        the start.
        """
        raise NotImplementedError

    # -- state of the tables

    def positions(self) -> DataFrame:
        """Return what the plugin's tables say (frames.plugin_progress) of the chosen persistence ids."""
        from tagmill.journal import frames

        if self.selection.persistence_ids is None:
            ids = frames.with_events(self.spark, self.journal)
        else:
            ids = self.spark.createDataFrame(
                [(one,) for one in self.selection.persistence_ids], f"{ID} string"
            ).distinct()
        return materialize(frames.plugin_progress(self.spark, self.journal, ids), f"{self.url}/positions")

    def records(self, positions: DataFrame) -> DataFrame:
        """Return Tagmill's own records (frames.with_records) of the persistence ids in `positions`."""
        from tagmill.journal import frames

        return frames.with_records(
            self.spark,
            self.journal,
            positions.select(ID),
            by_key=self.selection.persistence_ids is not None,
        )

    def limits(self, positions: DataFrame) -> DataFrame:
        """Add to the positions `base` (PROGRESS to count back from), `forgotten`, and `limit` and `elsewhere`, as
        numbering.cap_at_recorded needs them.

        Where Tagmill numbers, `base`, `forgotten` and `limit` are what its builds have recorded (frames.with_records);
        else `base` is `found`, `forgotten` is empty, and `limit` is null.
        """
        from pyspark.sql import functions as F

        from tagmill.journal.frames import no_tags

        if not self.ours:
            none = F.lit(None).cast("bigint").alias("limit")
            base, forgotten = F.col("found").alias("base"), no_tags().alias("forgotten")
            return positions.select("*", base, forgotten, none, F.lit(False).alias("elsewhere"))
        limit = F.coalesce(F.col("sequence_nr"), F.lit(0).cast("bigint")).alias("limit")
        records = self.records(positions).select(
            ID, limit, F.col("recorded").alias("base"), "forgotten", F.col("scanned").alias("scanned_then")
        )
        scanned = F.coalesce(F.col("scanned") > F.greatest("scanned_then", "limit"), F.lit(False))
        ahead = F.exists(
            "found", lambda line: (line["sequence_nr"] > F.col("limit")) & ~F.array_contains("base", line)
        )
        joined = positions.join(records, ID).withColumn("elsewhere", ahead | scanned).drop("scanned_then")
        return materialize(joined, f"{self.url}/limits")

    def staged(self, positions: DataFrame) -> tuple[list[str], DataFrame, DataFrame]:
        """Stage the events behind deleted_to.

        Out: the files, their runs (run_numbering.RUNS), and persistence_id, sequence_nr, tags of the events
        with tags.
        """
        from pyspark.sql import functions as F

        from tagmill.domain.timeuuid import from_datetime

        reader = self.reader(self.folder, from_datetime(self.builds.cassandra.now()))
        numbered_to = F.array_max(F.transform("found", lambda line: line["sequence_nr"])).alias("numbered_to")
        begin = positions.select(ID, F.col("deleted_to").alias("from_nr"), numbered_to)
        some_deleted = bool(self.files.largest(f"{self.folder}/positions", "deleted_to"))
        by_key = self.selection.persistence_ids is not None
        reader.stage_again(begin, by_key=by_key, some_deleted=some_deleted)
        files, runs = reader.files, self.runs(self.folder, reader.files)
        schema = f"{ID} string, sequence_nr bigint, tags array<string>"
        urls = [self.files.url(file) for file in files]
        events = (
            self.spark.read.schema(schema).parquet(*urls) if urls else self.spark.createDataFrame([], schema)
        )
        return files, runs, events.where("size(tags) > 0")

    def standing(self, positions: DataFrame) -> DataFrame:
        """Return the view's rows of what was chosen, as diff.with_content leaves them, with
        `written`.
        """
        from pyspark.sql import functions as F

        from tagmill.journal.tag_view_reader import view_columns
        from tagmill.views.diff import with_content

        self.tell("reading the view")
        rows = self.journal.table(self.journal.view_table).rows(
            self.spark,
            *view_columns(meta=self.journal.meta),
            written_row="writetime(sequence_nr)",
            written_event="writetime(event)",
        )
        # The newer write time of two cells counts, because either cell may be null or may have been repaired.
        rows = self.of_tags(rows.withColumn("written", F.greatest("written_row", "written_event")))
        if self.selection.persistence_ids is not None:
            rows = rows.join(F.broadcast(positions.select(ID)), ID, "left_semi")
        return materialize(with_content(rows, meta=self.journal.meta), f"{self.url}/standing")

    def must_have_buckets(self, standing: DataFrame) -> None:
        """Raise DataQualityStop if the view's rows are in buckets of another size (guards.must_have_buckets)."""
        from tagmill.views import guards

        if self.files.has_rows(f"{self.folder}/standing"):
            view = f"{self.journal.keyspace}.{self.journal.view_table}"
            guards.must_have_buckets(standing, self.pipeline, view)

    def latest(self, row: BuildRow) -> int:
        """Return the write time (microseconds) up to which a commit made now would replace existing cells."""
        return max(row.written_at, self.builds.cassandra.now_microseconds())

    def of_tags(self, rows: DataFrame, column: str = "tag_name") -> DataFrame:
        """Keep the rows of the chosen tags, or all rows if no tags were chosen."""
        from pyspark.sql import functions as F

        return rows.where(F.col(column).isin(list(self.selection.tags))) if self.selection.tags else rows

    def _count(self, name: str) -> int:
        """Return the number of rows that were written to a folder of this attempt."""
        return self.files.count_rows(f"{self.folder}/{name}")

    def must_be_offline(self, positions: DataFrame) -> None:
        """Raise GuardRefused when the application has numbered events since the attempt began: its numbers
        would be overwritten.
        """
        from tagmill.journal import frames

        now = frames.plugin_progress(self.spark, self.journal, positions.select(ID))
        line = now.exceptAll(positions).select(ID).first()
        if line is not None:
            raise ApplicationAtWork(
                f"journal {self.journal.keyspace}: tag_write_progress, tag_scanning or metadata of "
                "persistence_id "
                f"{line.persistence_id!r} moved meanwhile: the application is not offline. Nothing was "
                "written; stop it, or name "
                "persistence ids that are not in use"
            )

    def manifest(
        self,
        row: BuildRow,
        *,
        moved: int,
        rows: int = 0,
        removed: int = 0,
        forgotten: int = 0,
        late_from: dict[str, int] | None = None,
        rows_in: str = "changes",
    ) -> Manifest:
        """Return the manifest to commit.

        Its `until` is that of the last build, so the view counts as built no further than before.
        """
        from tagmill.views.model import Manifest

        return Manifest(
            journal=self.journal.keyspace,
            view_table=self.journal.view_table,
            pipeline=self.name,
            build=row.build + 1,
            folder=self.folder,
            until=row.built_to or 0,
            written_at=max(row.written_at + 2, self.builds.cassandra.now_microseconds()),
            persistence_ids=self._count("positions"),
            moved=moved,
            events=0,
            rows=rows,
            rows_in=rows_in,
            removed=removed,
            forgotten=forgotten,
            recorded=self.ours,
            ttl_seconds=self.pipeline.cleanup.application_ttl_seconds,
            before_first_time_bucket=0,
            late_from=late_from or {},
            waiting={},
            examples=[],
        )

    # -- the report

    def unknown(
        self,
        positions: DataFrame,
        runs: DataFrame,
        standing: DataFrame,
        events: DataFrame,
        tags: list[TagChange],
    ) -> Unknown:
        """Return the chosen persistence ids and tags that neither the journal nor the view knows.

        In: `tags`, those whose rows stay or change. Tags of persistence ids that are left as they are count
        as known, too.
        """
        count, ids = self._unknown_ids(positions, runs, standing)
        return Unknown(count, ids, self._unknown_tags(standing, events, {line.tag for line in tags}))

    def _unknown_tags(self, standing: DataFrame, events: DataFrame, known: set[str]) -> list[str]:
        from pyspark.sql import functions as F

        if missing := sorted(set(self.selection.tags or ()) - known):
            seen = events.select(F.explode("tags").alias("tag")).union(standing.select("tag_name"))
            known = {line.tag for line in seen.where(F.col("tag").isin(missing)).distinct().collect()}
        return [tag for tag in missing if tag not in known]

    def _unknown_ids(
        self, positions: DataFrame, runs: DataFrame, standing: DataFrame
    ) -> tuple[int, list[str]]:
        if self.selection.persistence_ids is None:
            return 0, []
        unknown = positions.where("size(found) = 0 and deleted_to = 0").select(ID)
        unknown = (
            unknown.join(runs.select(ID), ID, "left_anti")
            .join(standing.select(ID), ID, "left_anti")
            .localCheckpoint()
        )
        return unknown.count(), [
            line.persistence_id for line in unknown.orderBy(ID).limit(EXAMPLES).collect()
        ]

    def report(
        self,
        manifest: Manifest,
        tags: list[TagChange],
        lines: DataFrame,
        left: DataFrame,
        unknown: Unknown,
        *,
        some_left: bool,
        dry_run: bool,
    ) -> ViewReport:
        """Return the report of what changes; raises ConfigurationError when the journal knows nothing of what
        was chosen.

        In: `lines` as diff.judged leaves them; `left` persistence_id, upto, reason, empty unless
        `some_left`.
        """
        from pyspark.sql import functions as F

        from tagmill.journal.flaws import Reason
        from tagmill.views.model import Difference

        left_first = left.orderBy(ID).limit(EXAMPLES).collect() if some_left else []
        waiting = len(left_first) if len(left_first) < EXAMPLES else left.count()
        self._must_know_some(unknown, unknown.ids == manifest.persistence_ids)
        changing = F.col("what").isin(
            *(one.value for one in (Difference.ADDED, Difference.CHANGED, Difference.REMOVED))
        )
        shown = (ID, "sequence_nr", "tag_pid_sequence_nr", "what")
        first = lines.where(changing).orderBy("tag_name", *shown).limit(EXAMPLES)
        return ViewReport(
            journal=self.journal.keyspace,
            view_table=self.journal.view_table,
            dry_run=dry_run,
            persistence_ids=manifest.persistence_ids,
            tags=tags,
            progress=manifest.moved,
            changes=[
                Changed(tag=line.tag_name, **{name: line[name] for name in shown})
                for line in (first.collect() if any(map(_changes, tags)) else ())
            ],
            left=waiting,
            left_examples=[
                Skipped(
                    persistence_id=line.persistence_id, sequence_nr=line.upto, why=Reason(line.reason).text
                )
                for line in left_first
            ],
            unknown_ids=unknown.ids,
            unknown_examples=unknown.examples,
            unknown_tags=unknown.tags,
        )

    def _must_know_some(self, unknown: Unknown, all_unknown: bool) -> None:
        if self.selection.persistence_ids is not None and all_unknown:
            raise unknown_ids_error(self.journal.keyspace, unknown.ids, unknown.examples)
        if self.selection.tags and set(self.selection.tags) == set(unknown.tags):
            raise ConfigurationError(
                f"journal {self.journal.keyspace}: no event and no row of the view has any of the tags "
                f"{', '.join(map(repr, self.selection.tags))}. Nothing was written; tagmill views tags "
                f"--pipeline {self.name} lists them",
                pipeline=self.name,
            )


def _changes(line: TagChange) -> int:
    return line.added + line.changed + line.removed


def counts(lines: DataFrame) -> tuple[list[TagChange], dict[str, int]]:
    """Count rows by tag and difference, and find the earliest row written of each tag (ticks).

    In: `lines` as diff.judged leaves them.
    """
    from pyspark.sql import functions as F

    from tagmill.spark.columns import offset_ticks
    from tagmill.views.model import Difference

    found: dict[str, dict[str, int]] = {}
    late_from: dict[str, int] = {}
    earliest = F.min(offset_ticks(F.col("timestamp"))).alias("ticks")
    for line in lines.groupBy("tag_name", "what").agg(F.count("*").alias("rows"), earliest).collect():
        found.setdefault(line.tag_name, {})[line.what] = line["rows"]
        if line.what in (Difference.ADDED, Difference.CHANGED):
            late_from[line.tag_name] = min(line.ticks, late_from.get(line.tag_name, line.ticks))
    return [TagChange(tag=tag, **of_tag) for tag, of_tag in sorted(found.items())], late_from


def all_added(sums: Sums) -> tuple[list[TagChange], dict[str, int]]:
    """Return what `counts` returns if every row that was numbered is new."""
    return [TagChange(tag=tag, added=rows) for tag, rows in sorted(sums.rows.items())], sums.earliest
