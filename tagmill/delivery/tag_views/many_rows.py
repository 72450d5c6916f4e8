"""Judge the rows of a run with Spark, and fix its batches."""

from dataclasses import dataclass
from functools import partial, reduce

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from tagmill.clickhouse.client import ClickHouse
from tagmill.delivery.tag_views import (
    batch_contents,
    lives,
    new_holds,
    recut,
    seal_outputs,
    suspects,
    working_rows,
)
from tagmill.delivery.tag_views.few_rows import judgement
from tagmill.delivery.tag_views.file_summaries import windows
from tagmill.delivery.tag_views.gap_evidence import MAX_PASSES, Backfilled, GapInvestigator
from tagmill.delivery.tag_views.held_row_counts import Recount
from tagmill.delivery.tag_views.judge import FROM_JOURNAL, judged
from tagmill.delivery.tag_views.model import Manifest
from tagmill.delivery.tag_views.progress_steps import ProgressSteps, write_of_files
from tagmill.delivery.tag_views.sealing import Sealing
from tagmill.delivery.tag_views.staging import StagedRun, Staging
from tagmill.delivery.tag_views.working_rows import WorkingRows
from tagmill.domain.timeuuid import FUTURE_TICKS, from_datetime
from tagmill.ledger.progress import HoldRow
from tagmill.ledger.write_times import foreign
from tagmill.quality.model import GateVerdict
from tagmill.quality.report import read_reports
from tagmill.quality.suspects import Suspects
from tagmill.runs import checkpoints
from tagmill.runs.parquet_files import write_table

log = structlog.get_logger()
KEY = list(suspects.KEY)
KEY_FRAME = "tag string, persistence_id string"
# Summaries of files by persistence_id, up to which this process finds the keys in doubt without a job of Spark.
FEW_SUMMARIES = 200_000


@dataclass(slots=True)
class _Judged:
    """The answer of the rules.

    `decisions` is JUDGED_SCHEMA (None: nothing was in doubt); `excluded` are the keys whose rows leave their
    staged files (None: no key does); `frozen_rows` are the key rows of the holds that wait (`frozen`), with
    `reason`; `missing` are numbers that progress lacks.
    """

    decisions: WorkingRows | None
    excluded: DataFrame | None
    frozen: list[HoldRow]
    frozen_rows: WorkingRows | None
    missing: DataFrame | None


class ManyRows:
    """An attempt to seal a run with Spark."""

    def __init__(self, sealing: Sealing, spark: SparkSession) -> None:
        self.sealing, self.spark = sealing, spark
        self.settings, self.ledger, self.files = sealing.settings, sealing.ledger, sealing.files
        self.pipeline, self.views, self.plan = sealing.pipeline, sealing.views, sealing.plan
        self.folder, self.working = sealing.folder, f"{sealing.folder}/working"
        # Those of the new files (file_summaries.SUMMARY), if they are few.
        self.summaries: pa.Table | None = None

    def seal(self) -> Manifest:
        """Do everything except the commit; return the manifest."""
        staged = Staging(
            self.settings.cassandra,
            self.views.view,
            self.files,
            self.folder,
            from_datetime(self.plan.planned_at) + FUTURE_TICKS,
            windows(self.plan, self.pipeline.bucket_size),
            self.pipeline.bucket_size,
            self.pipeline.batch_rows,
        ).stage(self.spark, self.plan.units)
        checkpoints.reached("seal.staged")
        new_units = [unit.number for unit in self.plan.units if unit.kind == "new"]
        keys = suspects.keys_of(staged.rows, new_units)
        new_files = staged.summaries.where(F.col("unit").isin(new_units))
        investigation = GapInvestigator(self.ledger, self.views, self.plan, self.pipeline)
        verdict = self._judge(keys, staged, new_files, investigation)
        checkpoints.reached("seal.judged")
        checked = self._gate(
            keys, verdict, [total.file for total in staged.totals if total.is_new or self.plan.reread]
        )
        recounted = Recount(self.spark, self.ledger, self.pipeline, self.plan, verdict.frozen).rows(
            keys, verdict.frozen_rows
        )
        contents_of_run = self._cut(staged, keys, new_files, verdict, investigation)
        checkpoints.reached("seal.cut")
        steps = ProgressSteps(
            self.files,
            staged.rows,
            new_files,
            verdict.decisions,
            verdict.excluded,
            verdict.missing,
            contents_of_run.places,
        )
        write_progress = steps.write
        as_they_are = (verdict.excluded, verdict.missing, contents_of_run.places) == (None, None, None)
        if self.summaries is not None and as_they_are:
            write_progress = partial(write_of_files, self.files, self.summaries)
        manifest = seal_outputs.manifest(
            seal_outputs.SealInputs(
                self.files,
                self.plan,
                self.pipeline,
                self.sealing.attempt,
                self.folder,
                contents_of_run,
                verdict.decisions,
                verdict.frozen,
                verdict.frozen_rows,
                recounted,
                investigation.backfilled,
                checked.docs_page,
                write_progress,
            )
        )
        self.spark.catalog.clearCache()
        self.files.remove_folder(self.working)
        return manifest

    # -- judging

    def _judge(
        self, keys: DataFrame, staged: StagedRun, new_files: DataFrame, investigation: GapInvestigator
    ) -> _Judged:
        doubtful, missing = self._doubts(staged, new_files)
        parts = [] if doubtful is None else [doubtful]
        if any(unit.kind == "again" for unit in self.plan.units):
            parts.append(self._left_over(keys))
        if self.plan.holds:
            # These are judged even if all their rows have been delivered before: then the hold is over.
            looked = [(look.tag, look.persistence_id) for look in self.plan.holds]
            parts.append(self.spark.createDataFrame(looked, KEY_FRAME))
        waiting = self.sealing.frozen()
        frozen = (
            self.spark.createDataFrame(
                [(hold.tag, hold.persistence_id, hold.reason) for hold in waiting],
                f"{KEY_FRAME}, reason string",
            )
            if waiting
            else None
        )
        held, excluded = None, None
        if frozen is not None:
            # Every row read of these holds is kept back, because what they wait for has not come.
            held = self._written(keys.join(F.broadcast(frozen), KEY), "held")
            excluded = frozen.select(*KEY)
        decisions, count = None, 0
        if parts:
            every = reduce(DataFrame.union, parts).distinct()
            if excluded is not None:
                every = every.join(F.broadcast(excluded), KEY, "left_anti")
            suspected = self._written(every, "suspects")
            count = suspected.count()
            if count:
                decisions = self._decide(keys, suspected.frame, investigation)
                excluded = suspected.frame if excluded is None else suspected.frame.union(excluded)
        log.info("judged", pipeline=self.plan.pipeline, run=self.plan.run, suspects=count)
        return _Judged(decisions, excluded, waiting, held, missing)

    def _doubts(self, staged: StagedRun, new_files: DataFrame) -> tuple[DataFrame | None, DataFrame | None]:
        """Return the keys that the rules must judge, and those with `missing`, the numbers that progress lacks; None:
        there are no such keys.
        """
        if staged.count_summaries() <= FEW_SUMMARIES:
            return self._doubts_here(staged)
        runs = suspects.with_progress(
            suspects.run_summaries(new_files),
            self.ledger.cassandra,
            self.plan.pipeline,
            none_yet=self.plan.first,
        ).persist()
        is_doubtful, is_missing = ~suspects.is_clean(self.sealing.written_to), F.col("known_missing") != ""
        sums = runs.agg(F.count_if(is_doubtful).alias("doubtful"), F.count_if(is_missing).alias("missing"))
        (counts,) = sums.collect()
        doubtful = runs.where(is_doubtful).select(*KEY)
        missing = runs.where(is_missing).select(*KEY, F.col("known_missing").alias("missing"))
        return (doubtful if counts.doubtful else None), (missing if counts.missing else None)

    def _doubts_here(self, staged: StagedRun) -> tuple[DataFrame | None, DataFrame | None]:
        """Do what `_doubts` does without a job of Spark."""
        self.summaries = staged.read_new_summaries()
        of_keys = judgement.by_key(self.summaries)
        known = judgement.known_progress(self.sealing, list(of_keys))
        doubtful, missing = judgement.doubts(of_keys, known, self.sealing.written_to)
        lacking = [(*key, numbers) for key, numbers in missing.items()]
        return (
            self.spark.createDataFrame(sorted(doubtful), KEY_FRAME) if doubtful else None,
            self.spark.createDataFrame(lacking, f"{KEY_FRAME}, missing string") if missing else None,
        )

    def _written(self, rows: DataFrame, name: str) -> WorkingRows:
        return working_rows.write(rows, self.files, f"{self.working}/{name}")

    def _left_over(self, keys: DataFrame) -> DataFrame:
        """Return the keys that have undelivered rows among the rows read again."""
        again = keys.where(~F.col("is_new"))
        known = suspects.with_progress(
            again.select(*KEY).distinct(), self.ledger.cassandra, self.plan.pipeline, none_yet=self.plan.first
        )
        return again.join(known, KEY).where(~suspects.is_delivered()).select(*KEY).distinct()

    def _decide(self, keys: DataFrame, doubtful: DataFrame, investigation: GapInvestigator) -> WorkingRows:
        """Judge, ask the journal about the gaps found, and judge again with its answers, until nothing new
        turns up.
        """
        known = suspects.with_progress(
            doubtful, self.ledger.cassandra, self.plan.pipeline, none_yet=self.plan.first
        )
        rows = self._written(keys.join(known, KEY), "rows")
        self._require_own(rows)
        if not self.plan.first:
            with ClickHouse(self.settings.clickhouse) as clickhouse:
                investigation.knowledge.strangers |= lives.strangers(
                    lives.in_doubt(rows.frame), clickhouse, self.pipeline
                )
        policies = {tag: seal_outputs.policy(self.pipeline, self.plan, tag) for tag in self.plan.tags}
        for number in range(MAX_PASSES + 1):
            answer = judged(rows.frame, policies, investigation.knowledge)
            decisions = self._written(seal_outputs.flag_late(answer, self.plan), f"decisions-{number}")
            if number == MAX_PASSES or not investigation.ask(seal_outputs.gaps(decisions)):
                break
        return decisions

    def _require_own(self, rows: WorkingRows) -> None:
        """Raise ForeignWriteTime for progress that was written later than this run writes: the run's own
        progress would be lost.
        """
        for found in rows.tables(
            [*KEY, "known_written"], pc.field("known_written") > self.sealing.written_to
        ):
            row = found.slice(0, 1).to_pylist()[0]
            raise foreign(self.plan.pipeline, f"progress of {row['persistence_id']!r}, tag {row['tag']!r},")

    # -- the gate

    def _gate(self, keys: DataFrame, verdict: _Judged, files: list[str]) -> GateVerdict:
        """Let the gate judge what was read; rows that were read (look-back) or held before this run don't
        count again.
        """
        holds = new_holds.open_holds(self.plan, verdict.frozen)
        waiting = self.spark.createDataFrame(holds, "tag string, persistence_id string") if holds else None
        read = keys.where(F.col("file").isin(files))
        rows = batch_contents.for_gate(read, self.plan, waiting)
        named_rows = self.pipeline.quality.named_rows
        suspected = Suspects(named_rows, holds)
        for table in seal_outputs.dispositions(verdict.decisions, verdict.frozen_rows, files):
            suspected.add(table)
        reports = read_reports(rows, suspected, self.sealing.schema(), self.pipeline.bucket_size, named_rows)
        judged = new_holds.Judged(verdict.decisions, rows, waiting, files)
        return self.sealing.enforce(reports, partial(new_holds.found, self.plan, judged))

    # -- the files

    def _backfilled(self, backfilled: list[Backfilled]) -> DataFrame | None:
        """Return events of the journal as staged rows, by way of a file; None: there are none."""
        if not backfilled:
            return None
        rows, file = seal_outputs.backfilled_rows(backfilled), f"{self.working}/backfilled.parquet"
        rows = rows.append_column("file", pa.repeat(FROM_JOURNAL, rows.num_rows))
        rows = rows.append_column("row_index", pa.array(range(rows.num_rows), pa.int64()))
        write_table(self.files, file, rows)
        return self.spark.read.schema(from_arrow_schema(rows.schema)).parquet(self.files.url(file))

    def _cut(
        self,
        staged: StagedRun,
        keys: DataFrame,
        new_files: DataFrame,
        verdict: _Judged,
        investigation: GapInvestigator,
    ) -> batch_contents.Contents:
        """Choose the staged files that become batches as they are, write the other rows into new files, and
        return all files.
        """
        untouched = batch_contents.fit(staged.totals, self.pipeline.batch_bytes)
        excluded, decisions = verdict.excluded, verdict.decisions
        touched = batch_contents.touched_files(new_files, excluded) if excluded is not None else set()
        as_they_are = [total for total in untouched if total.file not in touched]
        anew = [total for total in staged.totals if total.is_new and total not in as_they_are]
        rows = batch_contents.rows_to_recut(
            keys,
            anew,
            excluded,
            seal_outputs.deliveries(decisions.frame) if decisions is not None else None,
            self.plan,
        )
        if rows is None:
            return batch_contents.Contents(staged.totals, as_they_are, [], None, f"{self.folder}/staged")
        places = self._written(
            recut.placed(rows, self.pipeline.batch_rows, self.pipeline.batch_bytes), "places"
        )
        count = len(working_rows.counts(places, ["stream", "cut"]))
        target = f"{self.folder}/recut"
        if count:
            payload = batch_contents.payload(staged.rows, places, self._backfilled(investigation.backfilled))
            recut.write(places.frame, payload, self.files.url(target), count)
        cuts = batch_contents.recut_totals(self.spark, self.files, target, anew, self.plan) if count else []
        return batch_contents.Contents(staged.totals, as_they_are, cuts, places, f"{self.folder}/staged")
