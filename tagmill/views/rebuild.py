"""Rebuild the view of persistence ids from the journal: add missing rows, delete wrong ones, and keep the
numbers.

Rows that are right are not written again. After deleted events, the numbers are counted back from
tag_write_progress. Rows of events that the journal no longer has, or whose tags it no longer knows, are left
alone. A rebuild is numbered, committed and written like a build (sealed_build.py), so it may be killed at any
instruction: the next build or rebuild finishes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tagmill.config.settings import Settings
from tagmill.errors import about_pipeline
from tagmill.runs.workspace import silent
from tagmill.spark.materialize import materialize
from tagmill.views.sealed_build import numbering_session
from tagmill.views.selection import Selection, TagChange, ViewReport
from tagmill.views.selection_base import ID, SelectionAttempt, all_added, counts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tagmill.ledger.view_builds import BuildRow
    from tagmill.runs.progress import Tell
    from tagmill.views.model import Manifest
    from tagmill.views.run_numbering import Sums

ROWS_AT_ONCE = 100_000


@about_pipeline
def rebuild(
    settings: Settings,
    pipeline: str,
    selection: Selection,
    *,
    owner: str,
    spark: SparkSession,
    dry_run: bool = False,
    tell: Tell | None = None,
) -> ViewReport:
    """Rebuild the view of a pipeline's journal; with `dry_run` only count what would change.

    Where Tagmill numbers (views = "tagmill"), events that are not built yet are built, too, unless only some
    tags are chosen.

    Raises:
        ConfigurationError: the journal knows none of the persistence ids, or none of the tags.
        GuardRefused: the application numbered meanwhile; nothing was written. FenceRaised: another builder
            took over.
        LeaseTaken: the pipeline is at work. DataQualityStop: the view is in buckets of another size.
    """
    step = "" if dry_run else "views rebuild"
    with numbering_session(
        settings, pipeline, owner=owner, spark=lambda: spark, step=step, tell=tell or silent
    ) as numbering:
        rebuilder = _Rebuilder(numbering, selection=selection)
        return rebuilder.look(numbering.row) if dry_run else rebuilder.run(numbering.row)


@dataclass(frozen=True, slots=True)
class _Changes:
    """The result of comparing the numbered rows with the view.

    `lines`: as diff.judged leaves them; `rows_in`: the folder with the rows to write ("rows" if the
    view has none: then all numbered rows are new); `in_the_way`: persistence_id, upto and reason of those
    that the view's own rows are in the way of, or None; `tags` and `late_from`: as `counts` returns them.
    """

    lines: DataFrame
    rows_in: str
    in_the_way: DataFrame | None
    tags: list[TagChange]
    late_from: dict[str, int]

    @property
    def written(self) -> int:
        """The number of rows to write."""
        return sum(line.added + line.changed for line in self.tags)

    @property
    def removed(self) -> int:
        """The number of rows to delete."""
        return sum(line.removed + line.changed for line in self.tags)


class _Rebuilder(SelectionAttempt):
    """The rebuild of the chosen persistence ids and tags."""

    def seal(self, row: BuildRow, *, dry_run: bool) -> tuple[Manifest, ViewReport, DataFrame]:
        """Write what changes to files; return the manifest, the report, and what the plugin's tables said at
        the start.
        """
        from pyspark.sql import functions as F

        from tagmill.views import numbering

        self.tell("looking where each persistence id stands")
        positions = self.positions()
        limits = self.limits(positions)
        staged, runs, events = self.staged(positions)
        standing = self.standing(positions)
        self.must_have_buckets(standing)
        self.tell("numbering")
        numbers = standing.select(
            ID, F.col("tag_name").alias("tag"), "sequence_nr", F.col("tag_pid_sequence_nr").alias("number")
        )
        keep = partial(materialize, url=f"{self.url}/short")
        starting_points = materialize(
            numbering.starting_numbers(limits, runs, events, numbers, keep), f"{self.url}/starting-points"
        )
        ends = numbering.cap_at_recorded(
            numbering.numberable_upto(runs, starting_points), limits, cut=bool(self.selection.tags)
        )
        ends = self.but_ahead(ends, positions, f"{self.folder}/positions", self.latest(row))
        ends = materialize(ends, f"{self.url}/ends")
        whole = ends.where("reason is null")
        records, sums = self.numbered(self.folder, staged, runs, whole, starting_points)
        self.tell("comparing")
        left = ends.where("reason is not null").select(ID, "upto", "reason")
        standing_of_whole = standing.join(left.select(ID), ID, "left_anti")
        changes = self._compared(standing_of_whole, events, whole, limits, sums, self.latest(row))
        tags = changes.tags
        if (in_the_way := changes.in_the_way) is not None:
            left, records = left.unionByName(in_the_way), records.join(in_the_way.select(ID), ID, "left_anti")
        manifest = self.manifest(
            row,
            moved=self._moved(positions, records, limits),
            rows=changes.written,
            removed=changes.removed,
            late_from=changes.late_from,
            rows_in=changes.rows_in,
        )
        unknown = self.unknown(positions, runs, standing, events, tags)
        some_left = in_the_way is not None or self.files.largest(f"{self.folder}/ends", "reason") is not None
        report = self.report(
            manifest, tags, changes.lines, left, unknown, some_left=some_left, dry_run=dry_run
        )
        return manifest, report, positions

    def _compared(
        self,
        standing: DataFrame,
        events: DataFrame,
        whole: DataFrame,
        limits: DataFrame,
        sums: Sums,
        latest: int,
    ) -> _Changes:
        """Compare the numbered rows with the view; save the rows to write (`changes`) and the keys to delete
        (`removed`) in files, if there are any.
        """
        from pyspark.sql import functions as F

        from tagmill.journal import frames
        from tagmill.ledger.cleanups import CleanupLog
        from tagmill.runs.parquet_files import BY_SPARK
        from tagmill.views import diff
        from tagmill.views.model import VIEW_KEY, Difference

        rows = self.of_tags(self._rows())
        workspace, view = self.workspace, self.pipeline.view
        log = CleanupLog(workspace.cassandra, workspace.ledger_keyspace, self.journal.keyspace, view)
        expired_to = self.pipeline.expired_to(workspace.cassandra.now())
        is_lost = not self.selection.tags and not self._count("standing")
        if is_lost and not expired_to and not log.any_of(sums.rows):
            # The view is lost as a whole or was never there, so all numbered rows are new and no comparison
            # is needed.
            added = rows.select(*VIEW_KEY, "sequence_nr", F.lit(Difference.ADDED.value).alias("what"))
            return _Changes(added, "rows", None, *all_added(sums))
        cleaned_of = frames.cleaned(self.spark, log)
        of_whole = whole.select(ID, "from_nr", "upto")
        right = diff.with_content(rows, meta=self.journal.meta)
        compared = diff.compared(right, standing, cleaned_of, self.pipeline.bucket_size)
        if expired_to:
            last = F.explode("base").alias("line")
            numbered = limits.select(ID, last).select(
                F.col("line.tag").alias("tag_name"), ID, F.col("line.sequence_nr").alias("numbered_to")
            )
            compared = diff.with_expired(compared, numbered, expired_to)
        compared = materialize(compared, f"{self.url}/compared")
        known = (
            events.join(of_whole, ID)
            .where("sequence_nr > from_nr and sequence_nr <= upto")
            .select(ID, "sequence_nr")
        )
        changes = self._possible(self._judged(compared, known), latest)
        lines = changes.lines
        if changes.written:
            of_lines = lines.where(F.col("what").isin(Difference.ADDED.value, Difference.CHANGED.value))
            written = rows.join(of_lines.select(*VIEW_KEY), list(VIEW_KEY), "left_semi")
            in_order = written.sortWithinPartitions("tag_name", "timebucket", "timestamp")
            in_order.write.options(**BY_SPARK).parquet(f"{self.url}/changes")
        if changes.removed:
            of_lines = lines.where(F.col("what").isin(Difference.REMOVED.value, Difference.CHANGED.value))
            of_lines.select(*VIEW_KEY).write.parquet(f"{self.url}/removed")
        return changes

    def _judged(self, compared: DataFrame, known: DataFrame) -> _Changes:
        """Return the lines as diff.judged leaves them, with their counts."""
        from tagmill.views import diff

        tags, late_from = counts(compared)
        if not any(line.removed for line in tags):
            return _Changes(compared, "changes", None, tags, late_from)
        lines = materialize(diff.judged(compared, known), f"{self.url}/lines")
        return _Changes(lines, "changes", None, *counts(lines))

    def _possible(self, judged: _Changes, latest: int) -> _Changes:
        """Split off the persistence ids that a row of the view is in the way of, by diff.number_taken
        and written_ahead.
        """
        from tagmill.views import diff

        newest = self.files.largest(f"{self.folder}/compared", "written")
        if (newest or 0) <= latest and not any(line.unknown for line in judged.tags):
            return judged
        lines = judged.lines
        taken, ahead = diff.number_taken(lines), diff.written_ahead(lines, latest)
        in_the_way = materialize(
            taken.unionByName(ahead.join(taken, ID, "left_anti")), f"{self.url}/in_the_way"
        )
        lines = lines.join(in_the_way.select(ID), ID, "left_anti")
        return _Changes(lines, "changes", in_the_way, *counts(lines))

    def _rows(self) -> DataFrame:
        """Return the rows of tag_views that were numbered from the journal."""
        from tagmill.journal.tag_view_reader import view_columns

        if self.files.names(f"{self.folder}/rows"):
            return self.spark.read.parquet(f"{self.url}/rows")
        view = self.journal.table(self.journal.view_table)
        return view.rows(self.spark, *view_columns(meta=self.journal.meta)).where("false")

    def _moved(self, positions: DataFrame, records: DataFrame, limits: DataFrame) -> int:
        """Write the records, with `new` as the tags whose progress differs from tag_write_progress, and `forgotten` as
        those that are still not rebuilt; return how many differ from before.
        """
        import pyarrow.compute as pc
        from pyspark.sql import functions as F

        def has_chosen(tag: Any) -> Any:
            return tag.isin(list(self.selection.tags)) if self.selection.tags else F.lit(True)

        def is_chosen(line: Any) -> Any:
            return has_chosen(line["tag"])

        def is_new(line: Any) -> Any:
            return F.array_contains("new", line["tag"]) & is_chosen(line) & ~F.array_contains("found", line)

        ours, others = F.filter("progress", is_chosen), F.filter("base", lambda line: ~is_chosen(line))
        found = (
            records.join(positions.select(ID, "found"), ID)
            .join(limits.select(ID, "base", "forgotten"), ID)
            .withColumn("new", F.transform(F.filter("progress", is_new), lambda line: line["tag"]))
            .withColumn("moves", (F.size("new") > 0) | F.exists("forgotten", has_chosen))
            .withColumn("forgotten", F.filter("forgotten", lambda tag: ~has_chosen(tag)))
            .withColumn("progress", F.array_sort(F.concat(ours, others)))
            .drop("found", "base")
        )
        materialize(found, f"{self.url}/records")
        parts = self.files.record_batches(f"{self.folder}/records", ROWS_AT_ONCE, ["moves"])
        return sum(pc.sum(part["moves"]).as_py() or 0 for part in parts)
