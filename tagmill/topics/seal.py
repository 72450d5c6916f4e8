"""Seals a run of a topic or a Kafka Journal: reads the plan's ranges, takes out what is known, and fixes the batches.

The commit is PLANNED → SEALED. Behind it the new ids go into deduplication, from the committed files: a known id counts only if another
batch owns it, so a retry never drops its own events.
"""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from tagmill import checkpoints
from tagmill.batches.states import RunState
from tagmill.delivery.model import Batch
from tagmill.delivery.runfiles import write_document
from tagmill.errors import FenceRaised, GuardRefused
from tagmill.kafka.ranges import went
from tagmill.kafka.source import explained, kafka_records
from tagmill.kafkasettings import JournalSettings, TopicSettings
from tagmill.settings import Settings
from tagmill.stores.deduplication import Deduplication
from tagmill.stores.files import RunFiles
from tagmill.stores.kafka import Kafka
from tagmill.stores.ledger import Ledger
from tagmill.topics import journal, staging
from tagmill.topics.columns import layout
from tagmill.topics.cutting import BESIDE, Cutter, chosen_rows, staged_in_order
from tagmill.topics.formats import schema_contents
from tagmill.topics.model import TopicCounts, TopicManifest, TopicPlan
from tagmill.topics.runfiles import ids_noted, note_ids_done, read_manifest, read_plan
from tagmill.views.writing import append

# what is cut has a row group in memory; the first look at its size comes behind so many rows, which may have a megabyte each
ROW_GROUPS = {"parquet.block.size": str(32 * 1024 * 1024), "parquet.page.size.row.check.min": "10"}


def seal(settings: Settings, ledger: Ledger, spark: SparkSession, name: str, run: int, fence: int) -> TopicManifest:
    """Seal a planned run and note its ids; of one that is sealed already only the latter, if it isn't done yet.

    Raises FenceRaised when the run was taken over, GuardRefused when records went from Kafka before they were read.
    """
    files = RunFiles(settings.storage.root)
    row = ledger.current(name, run, fence)
    if row.state == RunState.ABANDONED:
        raise FenceRaised(f"run {run} of pipeline {name} was abandoned ({row.reason}). Nothing was sealed")
    if row.state == RunState.PLANNED:
        manifest = _Sealing(settings, ledger, files, spark, read_plan(files, row)).run()
        checkpoints.reached("seal.before_commit")
        file = f"{files.folder(name, run)}/attempt-{manifest.attempt}/manifest.json"
        if ledger.seal(name, run, fence, file, write_document(files, file, manifest)):
            checkpoints.reached("seal.after_commit")
        row = ledger.current(name, run, fence)
    manifest = read_manifest(files, row)
    if row.state == RunState.SEALED and settings.stream(name).rule:
        note_ids(settings, files, spark, manifest, read_plan(files, row))
    return manifest


def note_ids(settings: Settings, files: RunFiles, spark: SparkSession, manifest: TopicManifest, plan: TopicPlan) -> None:
    """Write the ids of a sealed run's batches; doing it again writes the same."""
    if ids_noted(files, manifest):
        return
    if manifest.batches:
        rows = staging.rows_of_ids(spark, files, manifest, plan)
        append(rows, settings.cassandra.ledger_keyspace, "deduplication", manifest.run)
    checkpoints.reached("seal.after_ids")
    note_ids_done(files, manifest)


class _Sealing:
    """One attempt to seal one run."""

    def __init__(self, settings: Settings, ledger: Ledger, files: RunFiles, spark: SparkSession, plan: TopicPlan) -> None:
        self.settings, self.chosen = settings, settings.stream(plan.pipeline)
        self.ledger, self.files, self.spark, self.plan = ledger, files, spark, plan
        self.attempt = uuid4().hex[:12]
        self.folder = f"{files.folder(plan.pipeline, plan.run)}/attempt-{self.attempt}"

    def run(self) -> TopicManifest:
        """All of it but the commit."""
        staged = self._staged()
        checkpoints.reached("seal.staged")
        names = self._staged_files()
        new, distinct = self._new(staged, names)
        if new is not None:
            new.repartition("file").write.partitionBy("file").parquet(self._url("new"))
        checkpoints.reached("seal.judged")
        batches = self._cut(names, all_of_it=new is None)
        counts = self._counts(staged, distinct, sum(batch.rows for batch in batches))
        letters, replayed = f"{self.folder}/letters", f"{self.folder}/replayed"
        if counts.unreadable:
            staged.where("kind = 'unreadable'").select(
                "topic", "partition", "offset", "created_at", "reason", "key", "payload", "headers"
            ).write.parquet(self.files.url(letters))
        if self.plan.letters:
            staged.where("kind = 'event'").select("topic", "partition", "offset").write.parquet(self.files.url(replayed))
        sha256 = {file: self.files.digest(file)[1] for part in (letters, replayed) for file in self.files.parquet(part)}
        return TopicManifest(
            pipeline=self.plan.pipeline, run=self.plan.run, sealed_at=datetime.now(UTC), attempt=self.attempt, generation=1,
            ranges=self.plan.ranges, batches=batches, counts=counts, columns=list(layout(self.chosen).names),
            required=list(layout(self.chosen).required), letters=letters, replayed=replayed, sha256=sha256,
            warnings=self.plan.warnings, more=self.plan.more,
        )  # fmt: skip

    def _staged_files(self) -> list[str]:
        """In Kafka's order; of a Kafka Journal a task has whole ids, whose order its files have."""
        folder = f"{self.folder}/staged"
        return list(staged_in_order(self.files, folder) if self.chosen.rule else self.files.parquet(folder))

    def _new(self, staged: DataFrame, names: list[str]) -> tuple[DataFrame | None, int | None]:
        """Where the new events are (staging.by_file; None: all are), and how many different ones there are (None: so, too)."""
        if isinstance(self.chosen, TopicSettings):
            events = staging.placed(self.spark, staged.where("kind = 'event'"), names, staging.KEY)
            firsts = self._fixed(staging.firsts(events), "firsts")
            return staging.by_file(self._unknown(firsts, self.chosen.shards)), firsts.count()
        if not self.plan.delivered:
            return None, None
        same = list(layout(self.chosen).identity)
        there = self.spark.read.parquet(*map(self.files.url, self.plan.delivered)).select(*same)
        return staging.by_file(staging.placed(self.spark, staged, names, same).join(there, same, "left_anti")), None

    def _staged(self) -> DataFrame:
        if isinstance(self.chosen, JournalSettings):
            cassandra = self.settings.cassandra
            return self._written(journal.staged(self.spark, cassandra, self.chosen, self.plan.ranges, self._fixed))
        if self.plan.letters:
            return self._decoded(staging.dead_letters(self.spark, self.settings.cassandra.ledger_keyspace, self.plan.pipeline))
        with Kafka(self.settings.kafka) as kafka:
            try:
                with explained(kafka):
                    return self._decoded(kafka_records(self.spark, kafka, self.plan.ranges))
            except GuardRefused:
                self._nothing_gone(kafka)
                raise

    def _nothing_gone(self, kafka: Kafka) -> None:
        """Raise GuardRefused, with their number and the way on, where Kafka has no more all records of the plan, which never changes."""
        gone = went(self.plan.ranges, kafka.spans([one.place for one in self.plan.ranges]))
        if gone:
            name = self.plan.pipeline
            raise GuardRefused(
                f"{name}: {kafka.where} has no more all records that run {self.plan.run} is to read: {'; '.join(gone)}. Nothing was "
                f"sealed, and offsets stay. Give the run up: tagmill run abandon --pipeline {name} --why …; then go on with what is there: "
                f"tagmill run deliver --pipeline {name} --accept-lost"
            )

    def _decoded(self, raw: DataFrame) -> DataFrame:
        assert isinstance(self.chosen, TopicSettings)
        return self._written(staging.decoded(raw, self.chosen, schema_contents(self.chosen.schema_files)))

    def _written(self, rows: DataFrame) -> DataFrame:
        rows.write.options(**ROW_GROUPS, maxRecordsPerFile=self.chosen.batch_rows).parquet(self._url("staged"))
        return self.spark.read.schema(rows.schema).parquet(self._url("staged"))

    def _unknown(self, firsts: DataFrame, shards: int) -> DataFrame:
        """Those whose ids were not seen in the window."""
        cassandra, pipeline, rule = self.settings.cassandra, self.plan.pipeline, self.plan.rule
        ledger = cassandra.ledger_keyspace
        if not Deduplication(self.ledger.cassandra, ledger, pipeline, rule).has_any(shards):
            return firsts  # a first run, which may be the largest
        since = datetime.fromtimestamp(self.plan.known_since / 1000, UTC)
        known = self._fixed(staging.known(firsts, cassandra, ledger, pipeline, rule, since), "known")
        return firsts.join(known, "unique_id", "left_anti")

    def _cut(self, names: list[str], *, all_of_it: bool) -> list[Batch]:
        columns = [*layout(self.chosen).names, *(BESIDE if self.chosen.rule else BESIDE[-1:])]
        with ThreadPoolExecutor(1) as writer:
            cutter = Cutter(
                self.files, f"{self.folder}/batches", columns, self.chosen.batch_rows, self.chosen.batch_bytes, writer
            )
            for number, name in enumerate(names):
                kept = None if all_of_it else self._kept(number)
                if kept is None or len(kept):
                    with self.files.open(name) as source:
                        for rows in chosen_rows(pq.ParquetFile(source), columns, kept):
                            cutter.add(rows)
            return cutter.end()

    def _kept(self, number: int) -> npt.NDArray[np.int64]:
        """Which rows of a staged file are new."""
        parts = self.files.record_batches(f"{self.folder}/new/file={number}", 1_000_000, ["row_index"])
        return np.sort(np.concatenate([np.empty(0, np.int64), *(part["row_index"].to_numpy() for part in parts)]))

    def _counts(self, staged: DataFrame, distinct: int | None, new: int) -> TopicCounts:
        kinds = {row["kind"]: row["count"] for row in staged.groupBy("kind").count().collect()}
        events = kinds.get("event", 0)
        different = events if distinct is None else distinct
        return TopicCounts(
            records=sum(kinds.values()), new=new, twice=events - different, known=different - new,
            unreadable=kinds.get("unreadable", 0), tombstones=kinds.get("tombstone", 0),
        )  # fmt: skip

    def _fixed(self, rows: DataFrame, name: str) -> DataFrame:
        rows.write.parquet(self._url(name))
        return self.spark.read.schema(rows.schema).parquet(self._url(name))

    def _url(self, name: str) -> str:
        return self.files.url(f"{self.folder}/{name}")
