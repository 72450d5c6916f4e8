"""Delete the view of persistence ids or tags, so that a rebuild can make it again, or truncate a whole view.

Only rows whose events the journal still has are deleted, since no other row could be brought back. Lines of
tag_write_progress are deleted with them, except those that a rebuild needs to give surviving events the
numbers that they had: where events were deleted, or rows stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tagmill.config.settings import Settings
from tagmill.domain import identifiers
from tagmill.domain.journal_tables import WRITERS_TABLES
from tagmill.errors import GuardRefused, TagmillError, about_pipeline
from tagmill.runs import checkpoints
from tagmill.runs.workspace import silent
from tagmill.spark.materialize import materialize
from tagmill.views.sealed_build import numbering_session
from tagmill.views.selection import Selection, ViewReport
from tagmill.views.selection_base import ID, SelectionAttempt, counts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tagmill.ledger.view_builds import BuildRow
    from tagmill.runs.progress import Tell
    from tagmill.views.model import Manifest


@about_pipeline
def delete(
    settings: Settings,
    pipeline: str,
    selection: Selection,
    *,
    owner: str,
    spark: SparkSession,
    dry_run: bool = False,
    tell: Tell | None = None,
) -> ViewReport:
    """Delete rows of the view of a pipeline's journal that a rebuild can bring back; with `dry_run` only
    count them.

    Raises:
        ConfigurationError: the journal knows none of the persistence ids, or none of the tags.
        GuardRefused: the application numbered meanwhile; nothing was deleted. FenceRaised: another builder
            took over.
        LeaseTaken: the pipeline is at work. DataQualityStop: the view is in buckets of another size.
    """
    step = "" if dry_run else "views delete"
    with numbering_session(
        settings, pipeline, owner=owner, spark=lambda: spark, step=step, tell=tell or silent
    ) as numbering:
        deleter = _Deleter(numbering, selection=selection)
        return deleter.look(numbering.row) if dry_run else deleter.run(numbering.row)


@about_pipeline
def truncate(
    settings: Settings,
    pipeline: str,
    *,
    owner: str,
    spark: SparkSession,
    dry_run: bool = False,
    tell: Tell | None = None,
) -> ViewReport:
    """Empty tag_views, tag_write_progress and tag_scanning of a pipeline's journal; with `dry_run` only
    count.

    Raises:
        GuardRefused: the view has what a rebuild can't bring back, or the application numbered meanwhile;
            nothing was deleted.
        FenceRaised, LeaseTaken, DataQualityStop: as delete.
    """
    step = "" if dry_run else "views truncate"
    with numbering_session(
        settings, pipeline, owner=owner, spark=lambda: spark, step=step, tell=tell or silent
    ) as numbering:
        truncater = _Truncater(numbering, selection=Selection())
        return (
            truncater.look(numbering.row, truncater.must_come_back)
            if dry_run
            else truncater.truncate(numbering.row)
        )


class _Deleter(SelectionAttempt):
    """The deletion of what was chosen.

    `row_by_row`: rows are deleted one by one, so those written by a clock that is ahead stay, as do the rows of
    tag_scanning of persistence ids that keep all their lines.
    `counts_kept`: the lines of tag_write_progress that stay are written to `kept`, to be counted.
    """

    row_by_row, counts_kept = True, False

    def seal(self, row: BuildRow, *, dry_run: bool) -> tuple[Manifest, ViewReport, DataFrame]:
        """Write what to delete to files; return the manifest, the report, and what the plugin's tables said
        at the start.
        """
        from tagmill.views import numbering

        self.tell("looking where each persistence id stands")
        positions = self.positions()
        _, runs, events = self.staged(positions)
        standing = self.standing(positions)
        self.must_have_buckets(standing)
        self.tell("comparing")
        limits = self.limits(positions)
        begins = numbering.first_surviving(limits, runs)
        ends = numbering.cap_at_recorded(numbering.numberable_upto(runs, begins), limits, cut=True)
        if self.row_by_row:
            ends = self.but_ahead(ends, positions, f"{self.folder}/positions", self.latest(row))
        left = ends.where("reason is not null").select(ID, "upto", "reason")
        if self.row_by_row:
            left = self._with_ahead(left, standing, self.latest(row))
        left = materialize(left, f"{self.url}/left")
        lines = self._judged(standing.join(left.select(ID), ID, "left_anti"), events)
        tags, _ = counts(lines)
        begins = begins.join(left.select(ID), ID, "left_anti")
        forgotten = self._forgotten(begins, lines, runs)
        removed, lines_forgotten = sum(line.removed for line in tags), self._count("forgotten")
        if removed:
            self._write_removed(lines)
        manifest = self.manifest(
            row,
            moved=forgotten.select(ID).distinct().count() if lines_forgotten else 0,
            removed=removed,
            forgotten=lines_forgotten,
        )
        self._records(positions, forgotten)
        unknown = self.unknown(positions, runs, standing, events, tags)
        some_left = self.files.has_rows(f"{self.folder}/left")
        report = self.report(manifest, tags, lines, left, unknown, some_left=some_left, dry_run=dry_run)
        return manifest, report, positions

    def _with_ahead(self, left: DataFrame, standing: DataFrame, latest: int) -> DataFrame:
        """Add to `left` the persistence ids with a row that no deletion would cover
        (diff.written_ahead).
        """
        from pyspark.sql import functions as F

        from tagmill.views import diff
        from tagmill.views.model import Difference

        goes = standing.withColumn("what", F.lit(Difference.REMOVED.value))
        return left.unionByName(diff.written_ahead(goes, latest).join(left, ID, "left_anti"))

    def _judged(self, standing: DataFrame, events: DataFrame) -> DataFrame:
        """Return the view's rows as diff.judged leaves them."""
        from pyspark.sql import functions as F

        from tagmill.views import diff
        from tagmill.views.model import Difference

        all_of_them = standing.drop("content").withColumn("what", F.lit(Difference.REMOVED.value))
        return materialize(diff.judged(all_of_them, events), f"{self.url}/lines")

    def _write_removed(self, lines: DataFrame) -> None:
        """Write the keys of the rows to delete (`removed`)."""
        from pyspark.sql import functions as F

        from tagmill.views.model import VIEW_KEY, Difference

        removed = lines.where(F.col("what") == Difference.REMOVED.value)
        removed.select(*VIEW_KEY).write.parquet(f"{self.url}/removed")

    def _forgotten(self, begins: DataFrame, lines: DataFrame, runs: DataFrame) -> DataFrame:
        """Find the lines of tag_write_progress to delete (persistence_id, tag), and write them.

        Includes lines that only Tagmill's own record has, as after a truncation that was killed when the
        plugin's tables were empty.
        In: `begins` (numbering) without persistence ids that are left as they are.
        """
        from pyspark.sql import functions as F

        from tagmill.journal import frames
        from tagmill.views import numbering
        from tagmill.views.model import Difference

        found = begins.select(ID, "from_nr", F.explode(F.array_union("found", "base")).alias("line")).select(
            ID, "from_nr", "line.*"
        )
        chosen = self.of_tags(found, "tag").select(ID, "from_nr", "tag").distinct()
        stay = lines.where(F.col("what") == Difference.UNKNOWN.value).select(
            ID, F.col("tag_name").alias("tag")
        )
        stay = stay.union(numbering.beyond_the_journal(found, runs)).distinct()
        marked = materialize(
            chosen.join(stay.withColumn("stays", F.lit(True)), [ID, "tag"], "left").withColumn(
                "stays", F.coalesce("stays", F.lit(False)) | (F.col("from_nr") > 0)
            ),
            f"{self.url}/progress",
        )
        kept = marked.where("stays").select(ID, "tag")
        if self.selection.persistence_ids is None:
            # Persistence ids without events keep their lines, because nothing else says how far they were
            # numbered.
            kept = kept.union(
                frames.numbered(self.spark, self.journal).join(runs.select(ID), ID, "left_anti")
            )
        if self.counts_kept:
            kept.write.parquet(f"{self.url}/kept")
        return materialize(marked.where("not stays").select(ID, "tag"), f"{self.url}/forgotten")

    def _records(self, positions: DataFrame, forgotten: DataFrame) -> None:
        """Write Tagmill's own records of persistence ids with forgotten tags, with those tags as `forgotten`, and of all
        whose row of tag_scanning goes.

        Builds number no event of a persistence_id with forgotten tags, as its numbers would begin at 1.
        """
        from pyspark.sql import functions as F

        from tagmill.journal.frames import no_tags

        of_ids = forgotten.groupBy(ID).agg(F.collect_list("tag").alias("gone"))
        changed = F.col("gone").isNotNull()
        if not self.row_by_row:
            changed |= F.col("scanned").isNotNull()
        gone = F.coalesce("gone", no_tags())
        rest = F.filter("recorded", lambda line: ~F.array_contains(gone, line["tag"]))
        records = (
            self.records(positions).where("sequence_nr is not null")
            if self.ours
            else self.records(positions.where("false"))
        )
        materialize(
            records.join(of_ids, ID, "left")
            .where(changed)
            .select(
                ID,
                "sequence_nr",
                "partition_nr",
                F.lit(None).cast("bigint").alias("scanned"),
                rest.alias("progress"),
                F.array_union("forgotten", gone).alias("forgotten"),
                no_tags().alias("new"),
            ),
            f"{self.url}/records",
        )


class _Truncater(_Deleter):
    """The truncation of the view's tables, which covers rows whenever they were written."""

    row_by_row, counts_kept = False, True

    def truncate(self, row: BuildRow) -> ViewReport:
        """Finish what an earlier attempt left, empty the tables, and note in Tagmill's own record what is
        gone.
        """
        row, _ = self.finish_left(row)
        manifest, report, positions = self.seal(row, dry_run=False)
        self.must_come_back(report)
        self.must_be_offline(positions)
        emptied = list[str]()
        with self._naming(emptied):
            for table in (self.journal.view_table, *WRITERS_TABLES):
                if table in self.journal.tables:
                    self.tell(f"truncating {table}")
                    self._truncate(table, row, emptied)
                checkpoints.reached("truncate.after_table")
            # The tables are empty, so only Tagmill's own record is left to write.
            self.write(manifest, self.commit(manifest.model_copy(update={"removed": 0, "forgotten": 0}), row))
        return report

    def _truncate(self, table: str, row: BuildRow, emptied: list[str]) -> None:
        """Empty a table, unless another process has been at work since: it may have built the table again.

        Raises LeaseTaken, FenceRaised. A process that freezes between the look and the TRUNCATE behind it still
        truncates.
        """
        checkpoints.reached("truncate.before_table")
        self.workspace.require_leases()
        self.builds.current(row.fence)
        emptied.append(table)
        self.builds.cassandra.execute(f"TRUNCATE {identifiers.cql(self.journal.keyspace)}.{table}")

    @contextmanager
    def _naming(self, emptied: list[str]) -> Iterator[None]:
        """Add to an error which tables were truncated before it, and how to make them again."""
        from tagmill.spark.errors import explained

        try:
            with explained(self.builds.cassandra.where, self.builds.untouched):
                yield
        except TagmillError as error:
            if emptied:
                error.args = (
                    f"{error}. Before that, {' and '.join(emptied)} of journal {self.journal.keyspace} were "
                    f"truncated: tagmill views rebuild --pipeline {self.name} --offline makes them again",
                )
            raise

    def must_come_back(self, report: ViewReport) -> None:
        """Raise GuardRefused when a rebuild could not make the whole view again."""
        kept = self._count("kept")
        if report.total("unknown") or kept or report.left:
            raise GuardRefused(
                f"journal {self.journal.keyspace}: {report.total('unknown')} rows of tag_views are of "
                "events that the journal doesn't "
                f"know (any more), {kept} lines of tag_write_progress hold numbers that can't be counted "
                "anew, since events were "
                f"deleted, and {report.left} persistence ids can't be rebuilt. Nothing was deleted; "
                f"tagmill views delete --pipeline {self.name} --offline leaves those and deletes the rest",
                pipeline=self.name,
            )
