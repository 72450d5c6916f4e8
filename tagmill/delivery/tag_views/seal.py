"""Seal a run: read the plan's slices, judge them, and fix the batches.

The commit is one conditional update, PLANNED → SEALED.

Everything is written under a folder of this attempt; files of attempts that don't commit are never read.
"""

from collections import Counter
from dataclasses import dataclass, replace
from itertools import chain
from uuid import uuid4

import pyarrow.compute as pc
import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from tagmill.clickhouse.client import ClickHouse
from tagmill.config.settings import Settings
from tagmill.delivery.tag_views import (
    batch_contents,
    lives,
    new_holds,
    recut,
    scan,
    seal_outputs,
    stops,
    suspects,
    working_rows,
)
from tagmill.delivery.tag_views.file_summaries import SUMMARY, FileTotal, summarise, windows
from tagmill.delivery.tag_views.gap_evidence import GapInvestigator
from tagmill.delivery.tag_views.held_row_counts import Recount
from tagmill.delivery.tag_views.judge import judged
from tagmill.delivery.tag_views.model import Manifest, Plan
from tagmill.delivery.tag_views.run_files import read_manifest, read_plan
from tagmill.delivery.tag_views.working_rows import WorkingRows
from tagmill.domain.batches.states import RunState
from tagmill.domain.time_buckets import BucketSize
from tagmill.errors import DataQualityStop, FenceRaised, GuardRefused
from tagmill.journal.tag_view_reader import VIEW_COLUMNS, Views
from tagmill.ledger.progress import HoldRow
from tagmill.ledger.runs import Ledger
from tagmill.ledger.write_times import foreign
from tagmill.quality import gate
from tagmill.quality.expectations import preload
from tagmill.quality.model import GateVerdict, Reports, SchemaColumn
from tagmill.quality.report import read_reports
from tagmill.quality.suspects import Suspects
from tagmill.runs import checkpoints
from tagmill.runs.ledger_comparison import require_unsent
from tagmill.runs.sealed_files import add_batches, write_document
from tagmill.runs.storage import RunFiles
from tagmill.spark.errors import explained

log = structlog.get_logger()
# Judgements of one run at most; each may reveal gaps that the journal has to be asked about.
MAX_PASSES = 20
KEY = list(suspects.KEY)


def seal(
    settings: Settings, ledger: Ledger, spark: SparkSession, name: str, run: int, fence: int
) -> Manifest:
    """Seal a planned run and return its manifest; leave a run that is sealed already as it is.

    Raises DataQualityStop (the run is then ABANDONED, nothing was sealed), FenceRaised if the run was taken
    over.
    """
    files = RunFiles(settings.storage.root)
    row = ledger.current(name, run, fence)
    if row.state != RunState.PLANNED:
        return _sealed_before(ledger, files, name, run, fence)
    plan = read_plan(files, row)
    _same_view(settings, plan)
    require_unsent(settings, ledger, name, run)
    with explained(ledger.cassandra.where):
        manifest = _Sealing(settings, ledger, files, spark, plan, fence).run()
    checkpoints.reached("seal.before_commit")
    file = f"{files.folder(name, run)}/attempt-{manifest.attempt}/manifest.json"
    sha256 = write_document(files, file, manifest)
    if not ledger.seal(name, run, fence, file, sha256):
        return _sealed_before(ledger, files, name, run, fence)
    checkpoints.reached("seal.after_commit")
    add_batches(ledger, manifest)
    return manifest


def _same_view(settings: Settings, plan: Plan) -> None:
    """Raise GuardRefused if the pipeline now reads another table or bucket size than the plan's slices are
    of.
    """
    now = str(settings.pipeline(plan.pipeline).view)
    if plan.view not in (None, now):
        raise GuardRefused(
            f"run {plan.run} of pipeline {plan.pipeline} was planned on {plan.view}, the pipeline now "
            f"reads {now}. Nothing was sealed. "
            "Give it up, the next run reads the same again: tagmill run abandon --pipeline "
            f"{plan.pipeline} --why …",
            pipeline=plan.pipeline,
            run=plan.run,
        )


def _sealed_before(ledger: Ledger, files: RunFiles, name: str, run: int, fence: int) -> Manifest:
    row = ledger.current(name, run, fence)
    if row.state == RunState.ABANDONED:
        raise FenceRaised(
            f"run {run} of pipeline {name} was abandoned ({row.reason}). Nothing was sealed",
            pipeline=name,
            run=run,
        )
    manifest = read_manifest(files, row)
    if row.state == RunState.SEALED:
        add_batches(ledger, manifest)
    return manifest


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


class _Sealing:
    """One attempt to seal one run."""

    def __init__(
        self, settings: Settings, ledger: Ledger, files: RunFiles, spark: SparkSession, plan: Plan, fence: int
    ) -> None:
        self.settings = settings
        self.pipeline = settings.pipeline(plan.pipeline)
        self.ledger = ledger
        self.views = Views(ledger.cassandra, self.pipeline.journal)
        self.files = files
        self.spark = spark
        self.plan = plan
        self.fence = fence
        self.attempt = uuid4().hex[:12]
        self.folder = f"{files.folder(plan.pipeline, plan.run)}/attempt-{self.attempt}"
        self.working = f"{self.folder}/working"
        self.ledger_keyspace = settings.cassandra.ledger_keyspace
        self.written_to = ledger.delivered.write_times.of(plan.pipeline, plan.run)

    def run(self) -> Manifest:
        """Do everything except the commit; return the manifest."""
        preload()
        self._stop_on_wrong_schema()
        checkpoints.reached("seal.begun")
        staged_folder = f"{self.folder}/staged"
        chosen = self.pipeline
        staged = scan.stage(
            self.spark,
            self.plan,
            chosen.keyspace,
            chosen.view_table,
            self.files.url(staged_folder),
            chosen.batch_rows,
        )
        checkpoints.reached("seal.staged")
        new_units = [unit.number for unit in self.plan.units if unit.kind == "new"]
        keys = suspects.keys_of(staged, new_units)
        summaries = f"{self.folder}/summaries.parquet"
        size = self.pipeline.bucket_size
        totals = summarise(
            self.files, staged_folder, summaries, windows(self.plan, size), set(new_units), size
        )
        of_files = self.spark.read.schema(from_arrow_schema(SUMMARY)).parquet(self.files.url(summaries))
        new_files = of_files.where(F.col("unit").isin(new_units))
        investigation = GapInvestigator(self.ledger, self.views, self.plan, self.pipeline)
        verdict = self._judge(keys, new_files, investigation)
        checkpoints.reached("seal.judged")
        checked = self._gate(
            keys, verdict, [total.file for total in totals if total.is_new or self.plan.reread]
        )
        recounted = Recount(self.spark, self.ledger, self.pipeline, self.plan, verdict.frozen).rows(
            keys, verdict.frozen_rows
        )
        contents_of_run = self._cut(staged, keys, new_files, totals, verdict, investigation)
        checkpoints.reached("seal.cut")
        manifest = seal_outputs.manifest(
            seal_outputs.SealInputs(
                self.files,
                self.spark,
                self.plan,
                self.pipeline,
                self.attempt,
                self.folder,
                staged,
                contents_of_run,
                new_files,
                verdict.decisions,
                verdict.excluded,
                verdict.missing,
                verdict.frozen,
                verdict.frozen_rows,
                recounted,
                investigation.healed,
                checked.docs_page,
            )
        )
        self.spark.catalog.clearCache()
        self.files.remove_folder(self.working)
        return manifest

    # -- judging

    def _judge(self, keys: DataFrame, new_files: DataFrame, investigation: GapInvestigator) -> _Judged:
        name, first = self.plan.pipeline, self.plan.first
        runs = suspects.with_progress(
            suspects.run_summaries(new_files), self.ledger_keyspace, name, none_yet=first
        )
        runs = runs.persist()
        is_doubtful, is_missing = ~suspects.is_clean(self.written_to), F.col("known_missing") != ""
        sums = runs.agg(F.count_if(is_doubtful).alias("doubtful"), F.count_if(is_missing).alias("missing"))
        (counts,) = sums.collect()
        missing = (
            runs.where(is_missing).select(*KEY, F.col("known_missing").alias("missing"))
            if counts.missing
            else None
        )
        doubtful = runs.where(is_doubtful).select(*KEY)
        again = any(unit.kind == "again" for unit in self.plan.units)
        if again:
            doubtful = doubtful.union(self._left_over(keys)).distinct()
        if self.plan.holds:
            # These are judged even if all their rows have been delivered before: then the hold is over.
            looked = [(look.tag, look.persistence_id) for look in self.plan.holds]
            doubtful = doubtful.union(
                self.spark.createDataFrame(looked, "tag string, persistence_id string")
            ).distinct()
        waiting = self._frozen()
        frozen = (
            self.spark.createDataFrame(
                [(hold.tag, hold.persistence_id, hold.reason) for hold in waiting],
                "tag string, persistence_id string, reason string",
            )
            if waiting
            else None
        )
        held, excluded = None, None
        if frozen is not None:
            # Every row read of these holds is kept back, because what they wait for has not come.
            held = self._written(keys.join(F.broadcast(frozen), KEY), "held")
            excluded = frozen.select(*KEY)
            doubtful = doubtful.join(F.broadcast(excluded), KEY, "left_anti")
        decisions, count = None, 0
        if counts.doubtful or again or self.plan.holds:
            suspected = self._written(doubtful, "suspects")
            count = suspected.count()
            if count:
                decisions = self._decide(keys, suspected.frame, investigation)
                excluded = suspected.frame if excluded is None else suspected.frame.union(excluded)
        log.info("judged", pipeline=name, run=self.plan.run, suspects=count)
        return _Judged(decisions, excluded, waiting, held, missing)

    def _written(self, rows: DataFrame, name: str) -> WorkingRows:
        return working_rows.write(rows, self.files, f"{self.working}/{name}")

    def _left_over(self, keys: DataFrame) -> DataFrame:
        """Return the keys that have undelivered rows among the rows read again."""
        again = keys.where(~F.col("is_new"))
        known = suspects.with_progress(
            again.select(*KEY).distinct(), self.ledger_keyspace, self.plan.pipeline, none_yet=self.plan.first
        )
        return again.join(known, KEY).where(~suspects.is_delivered()).select(*KEY).distinct()

    def _frozen(self) -> list[HoldRow]:
        """Return the open holds that this run does not judge again."""
        looked = {(look.tag, look.persistence_id) for look in self.plan.holds}
        holds = self.ledger.delivered.holds(self.plan.pipeline, list(self.plan.tags))
        return [hold for hold in holds if (hold.tag, hold.persistence_id) not in looked]

    def _decide(self, keys: DataFrame, doubtful: DataFrame, investigation: GapInvestigator) -> WorkingRows:
        """Judge, ask the journal about the gaps found, and judge again with its answers, until nothing new
        turns up.
        """
        known = suspects.with_progress(
            doubtful, self.ledger_keyspace, self.plan.pipeline, none_yet=self.plan.first
        )
        rows = self._written(keys.join(known, KEY), "rows")
        self._require_own(rows)
        if not self.plan.first:
            with ClickHouse(self.settings.clickhouse) as clickhouse:
                investigation.knowledge.strangers |= lives.strangers(
                    rows.frame, clickhouse, self.pipeline.destination
                )
        policies = {tag: seal_outputs.policy(self.pipeline, self.plan, tag) for tag in self.plan.tags}
        for number in range(MAX_PASSES + 1):
            answer = judged(rows.frame, policies, investigation.knowledge)
            decisions = self._written(seal_outputs.flag_late(answer, self.plan), f"decisions-{number}")
            if number == MAX_PASSES or not investigation.ask(seal_outputs.holes(decisions)):
                break
        return decisions

    def _require_own(self, rows: WorkingRows) -> None:
        """Raise ForeignWriteTime for progress that was written later than this run writes: the run's own
        progress would be lost.
        """
        for found in rows.tables([*KEY, "known_written"], pc.field("known_written") > self.written_to):
            row = found.slice(0, 1).to_pylist()[0]
            raise foreign(self.plan.pipeline, f"progress of {row['persistence_id']!r}, tag {row['tag']!r},")

    # -- the gate

    def _stop_on_wrong_schema(self) -> None:
        """Let the gate stop the run before it reads a view that lacks columns or has other types than a run
        reads.
        """
        found = self.plan.view_columns
        if all(found.get(column) == kind for column, kind in VIEW_COLUMNS.items()):
            return
        self._enforce(Reports(self.pipeline.bucket_size, self._schema(), (), (), ()), None)

    def _schema(self) -> tuple[SchemaColumn, ...]:
        return tuple(
            SchemaColumn(column, kind, self.plan.view_columns.get(column))
            for column, kind in VIEW_COLUMNS.items()
        )

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
        reports = read_reports(rows, suspected, self._schema(), self.pipeline.bucket_size, named_rows)
        reports = replace(reports, other_size=self._other_size(reports))
        return self._enforce(reports, new_holds.Judged(verdict.decisions, rows, waiting, files))

    def _other_size(self, reports: Reports) -> BucketSize | None:
        """Return the other bucket size that fits the rows and the partitions of the view, or None.

        It tells a wrong bucket_size from a stray row. A larger size fits if all partitions are buckets of it;
        a smaller one, of which each larger bucket is the start of one too, if most are no larger bucket.
        """
        better, size = reports.better_size, self.pipeline.bucket_size.milliseconds
        if not reports.wrong_bucket or better is None:
            return None
        partitions = chain.from_iterable(self.views.buckets(list(self.plan.tags)).values())
        if better.milliseconds > size:
            return better if all(bucket % better.milliseconds == 0 for bucket in partitions) else None
        starts = Counter(bucket % size == 0 for bucket in partitions)
        return better if starts[False] > starts[True] else None

    def _enforce(self, reports: Reports, judged: new_holds.Judged | None) -> GateVerdict:
        plan = self.plan
        docs = self.files.docs(plan.pipeline)
        verdict = gate.judge(reports, self.pipeline.quality, docs_dir=docs, run_name=f"run-{plan.run:08d}")
        for warning in verdict.warnings:
            log.warning("quality", pipeline=plan.pipeline, run=plan.run, warning=warning)
        if verdict.passed:
            return verdict
        reason = "; ".join(verdict.failures)
        recorded = self._abandon(
            f"quality gate: {reason}"[:1000],
            judged if new_holds.ABOUT_IDS.issuperset(verdict.stopped_by) else None,
        )
        raise DataQualityStop(
            f"run {plan.run} of pipeline {plan.pipeline} stopped by the quality gate: {reason}. Nothing "
            "was sealed or delivered. "
            f"{recorded}See {verdict.docs_page}",
            verdict.docs_page,
            pipeline=plan.pipeline,
            run=plan.run,
        )

    def _abandon(self, reason: str, judged: new_holds.Judged | None) -> str:
        """Abandon the run and record the holds that it found, if any are worth recording; return a sentence
        about them.
        """
        plan, file = self.plan, f"{self.folder}/holds.parquet"
        count = new_holds.write(self.files, file, plan, judged) if judged else 0
        if count == 0:
            self.ledger.finish_run(
                plan.pipeline, plan.run, self.fence, RunState.PLANNED, RunState.ABANDONED, reason
            )
            self.files.remove_attempts(plan.pipeline, plan.run)  # report and page are elsewhere
            return ""
        row = self.ledger.current(plan.pipeline, plan.run, self.fence)
        stops.stop(self.ledger, self.files, row, self.attempt, file, reason)
        return (
            f"{count} holds were recorded, the next run goes on without them: tagmill holds "
            f"--pipeline {plan.pipeline}. "
        )

    # -- the files

    def _cut(
        self,
        staged: DataFrame,
        keys: DataFrame,
        new_files: DataFrame,
        totals: list[FileTotal],
        verdict: _Judged,
        investigation: GapInvestigator,
    ) -> batch_contents.Contents:
        """Choose the staged files that become batches as they are, write the other rows into new files, and
        return all files.
        """
        untouched = batch_contents.fit(totals, self.pipeline.batch_bytes)
        excluded, decisions = verdict.excluded, verdict.decisions
        touched = batch_contents.touched_files(new_files, excluded) if excluded is not None else set()
        as_they_are = [total for total in untouched if total.file not in touched]
        anew = [total for total in totals if total.is_new and total not in as_they_are]
        rows = batch_contents.rows_to_recut(
            keys,
            anew,
            excluded,
            seal_outputs.deliveries(decisions.frame) if decisions is not None else None,
            self.plan,
        )
        if rows is None:
            return batch_contents.Contents(totals, as_they_are, [], None, f"{self.folder}/staged")
        places = self._written(
            recut.placed(rows, self.pipeline.batch_rows, self.pipeline.batch_bytes), "places"
        )
        count = len(working_rows.counts(places, ["stream", "cut"]))
        target = f"{self.folder}/recut"
        if count:
            payload = batch_contents.payload(self.spark, staged, places, investigation.healed)
            recut.write(places.frame, payload, self.files.url(target), count)
        cuts = batch_contents.recut_totals(self.spark, self.files, target, anew, self.plan) if count else []
        return batch_contents.Contents(totals, as_they_are, cuts, places, f"{self.folder}/staged")
