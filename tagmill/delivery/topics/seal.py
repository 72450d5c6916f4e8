"""Seal a run of a topic or a Kafka Journal: read the plan's ranges, leave out known events, and write the
batches.

The commit is PLANNED → SEALED. After it, the new ids are written to deduplication from the committed files: a
known id counts only if another batch owns it, so a retry never drops its own events.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from tagmill.cassandra.bulk_writer import Target
from tagmill.config.kafka import KafkaJournalEventsSettings, TopicSettings
from tagmill.delivery.topics import kafka_journal_source, staging
from tagmill.delivery.topics.batch_writer import BESIDE, Cutter, chosen_rows
from tagmill.delivery.topics.dedup import KEY, LOOKED_UP_AT_ONCE, unknown, write_firsts, write_unknown
from tagmill.delivery.topics.formats import schema_contents
from tagmill.delivery.topics.model import TopicCounts, TopicManifest, TopicPlan
from tagmill.delivery.topics.plan import must_be_as_planned
from tagmill.delivery.topics.reader_notes import Notes, warnings
from tagmill.delivery.topics.run_files import ids_noted, note_ids_done, read_manifest, read_plan
from tagmill.delivery.topics.schema_evolution import kinds
from tagmill.delivery.topics.staged_files import ADDRESS, Mask, Source, StagedFile, masks, stage, write_kind
from tagmill.delivery.topics.table_columns import layout
from tagmill.domain.batches.states import BatchState, RunState
from tagmill.domain.documents import Batch
from tagmill.errors import FenceRaised, RecordsLost
from tagmill.kafka.client import Kafka
from tagmill.kafka.offset_ranges import lost_records
from tagmill.kafka.worker_source import RecordsByTasks, records
from tagmill.ledger.dedup import Deduplication
from tagmill.runs import checkpoints
from tagmill.runs.ledger_comparison import require_unsent
from tagmill.runs.sealed_files import write_document
from tagmill.runs.workspace import Workspace
from tagmill.spark.bulk_load import Part, load
from tagmill.spark.errors import explained
from tagmill.spark.materialize import materialize

# Columns of deduplication that are read from a batch's file, in which the ids of a shard follow each other;
# created_at is in milliseconds.
IN_FILES = [*KEY, "created_at", "schema_version", "payload"]
# Columns of an unreadable record that its dead letter is made from.
LETTER = ["topic", "partition", "offset", "created_at", "reason", "key", "payload", "headers"]


def seal(workspace: Workspace, spark: Callable[[], SparkSession], run: int, fence: int) -> TopicManifest:
    """Seal a planned run and note its ids; of a run that is already sealed, only note the ids, unless they
    are noted.

    `spark` returns the session; it is called only if the records or their ids are too many for this process.

    Raises FenceRaised when the run was taken over, GuardRefused when Kafka lost records before they were
    read, ConfigurationError when ids or columns would be made in another way than the run was planned with.
    """
    ledger, name = workspace.ledger, workspace.name
    files = workspace.files
    row = ledger.current(name, run, fence)
    if row.state == RunState.ABANDONED:
        raise FenceRaised(
            f"run {run} of pipeline {name} was abandoned ({row.reason}). Nothing was sealed",
            pipeline=name,
            run=run,
        )
    if row.state == RunState.PLANNED:
        require_unsent(workspace, run)
        plan = read_plan(files, row)
        must_be_as_planned(workspace, plan)
        with explained(workspace.cassandra.where):
            manifest = _Sealing(workspace, spark, plan).run()
        checkpoints.reached("seal.before_commit")
        file = f"{files.folder(name, run)}/attempt-{manifest.attempt}/manifest.json"
        if ledger.seal(name, run, fence, file, write_document(files, file, manifest)):
            checkpoints.reached("seal.after_commit")
        row = ledger.current(name, run, fence)
    manifest = read_manifest(files, row)
    if row.state == RunState.SEALED and workspace.stream.rule:
        note_ids(workspace, spark, manifest, read_plan(files, row))
    return manifest


def note_ids(
    workspace: Workspace, spark: Callable[[], SparkSession], manifest: TopicManifest, plan: TopicPlan
) -> None:
    """Write the ids of a sealed run's batches to deduplication, unless they are noted; writing them again is
    safe.
    """
    if not ids_noted(workspace.files, manifest):
        note_ids_again(workspace, spark, manifest, plan)


def note_ids_again(
    workspace: Workspace, spark: Callable[[], SparkSession], manifest: TopicManifest, plan: TopicPlan
) -> None:
    """Write the ids even if a mark says that they are noted; leave out those of void batches, whose events
    are delivered again.
    """
    ledger, files = workspace.ledger, workspace.files
    void = {
        row.number for row in ledger.batches(plan.pipeline, manifest.run) if row.state == BatchState.VOIDED
    }
    batches = [batch for batch in manifest.batches if batch.number not in void]
    if batches:
        shared = {"pipeline": plan.pipeline, "rule": plan.rule, "seen_at": plan.planned_at, "run": plan.run}
        parts = [Part(batch.file, {**shared, "batch_id": UUID(batch.batch_id)}) for batch in batches]
        written = ledger.delivered.write_times.of(plan.pipeline, manifest.run)
        to = Target(workspace.ledger_keyspace, "deduplication", written)
        load(spark, workspace.settings.cassandra, files, parts, to, IN_FILES, own=workspace.cassandra)
    checkpoints.reached("seal.after_ids")
    note_ids_done(files, manifest)


class _Sealing:
    """One attempt to seal one run."""

    def __init__(self, workspace: Workspace, spark: Callable[[], SparkSession], plan: TopicPlan) -> None:
        self.settings, self.pipeline = workspace.settings, workspace.stream
        self.ledger, self.files, self._spark, self.plan = workspace.ledger, workspace.files, spark, plan
        self.attempt = uuid4().hex[:12]
        self.folder = f"{self.files.folder(plan.pipeline, plan.run)}/attempt-{self.attempt}"

    @property
    def spark(self) -> SparkSession:
        """The session, which is made when it is first needed."""
        return self._spark()

    def run(self) -> TopicManifest:
        """Read, judge and cut the records into batch files, and return the manifest that the caller
        commits.
        """
        source, staged = self._staged()
        checkpoints.reached("seal.staged")
        kept, distinct = self._new(source, staged)
        checkpoints.reached("seal.judged")
        batches = self._cut(staged, kept)
        counts = self._counts(staged, distinct, sum(batch.rows for batch in batches))
        letters, replayed = f"{self.folder}/letters", f"{self.folder}/replayed"
        columns = [source.schema.field(name) for name in LETTER if name in source.schema.names]
        write_kind(self.files, staged, "unreadable", pa.schema(columns), letters)
        if self.plan.letters:
            write_kind(self.files, staged, "event", pa.schema(columns[:3]), replayed)
        sha256 = {
            file: self.files.digest(file)[1]
            for part in (letters, replayed)
            for file in self.files.parquet(part)
        }
        return TopicManifest(
            pipeline=self.plan.pipeline,
            run=self.plan.run,
            sealed_at=datetime.now(UTC),
            attempt=self.attempt,
            generation=1,
            ranges=self.plan.ranges,
            batches=batches,
            counts=counts,
            columns=list(layout(self.pipeline).names),
            required=list(layout(self.pipeline).required),
            letters=letters,
            replayed=replayed,
            sha256=sha256,
            warnings=[*self.plan.warnings, *self._warnings(staged)],
            more=self.plan.more,
        )

    def _new(self, source: Source, staged: list[StagedFile]) -> tuple[list[Mask] | None, int | None]:
        """Return which rows of each staged file are new, and the number of distinct events; None in either
        place means all.
        """
        if isinstance(self.pipeline, TopicSettings):
            distinct = write_firsts(self.files, staged, f"{self.folder}/firsts")
            return masks(self.files, staged, self._unknown()), distinct
        if not self.plan.delivered:
            return None, None
        same = list(layout(self.pipeline).identity)
        there = self.spark.read.parquet(*map(self.files.url, self.plan.delivered)).select(*same)
        rows = staging.placed(self._read(source, staged), [one.name for one in staged], same)
        self._materialized(rows.join(there, same, "left_anti").select(ADDRESS), "new")
        return masks(self.files, staged, f"{self.folder}/new"), None

    def _staged(self) -> tuple[Source, list[StagedFile]]:
        cassandra = self.ledger.cassandra
        if isinstance(self.pipeline, KafkaJournalEventsSettings):
            source = kafka_journal_source.staged_here(cassandra, self.pipeline, self.plan)
            return self._stage(
                source
                or kafka_journal_source.staged(
                    self.spark, cassandra, self.pipeline, self.plan, self._materialized
                )
            )
        if self.plan.letters:
            return self._decode(staging.dead_letters(self.spark, cassandra, self.plan.pipeline))
        with Kafka(self.settings.kafka) as kafka:
            try:
                if self.plan.records <= self.pipeline.small_run_rows:
                    return self._decode([records(kafka, part) for part in self.plan.ranges])
                with explained(kafka.where):
                    return self._decode(RecordsByTasks(self.spark, self.settings.kafka, self.plan.ranges))
            except RecordsLost:
                self._nothing_gone(kafka)
                raise

    def _decode(
        self, raw: DataFrame | RecordsByTasks | Sequence[Iterable[pa.RecordBatch]]
    ) -> tuple[Source, list[StagedFile]]:
        assert isinstance(self.pipeline, TopicSettings)
        contents, largest = schema_contents(self.pipeline.schema_files), self.ledger.cassandra.largest_row
        return self._stage(staging.decoded(raw, self.pipeline, contents, self.plan.apart, largest))

    def _stage(self, source: Source) -> tuple[Source, list[StagedFile]]:
        return source, stage(source, self.files, f"{self.folder}/staged")

    def _nothing_gone(self, kafka: Kafka) -> None:
        """Raise RecordsLost if Kafka no longer has all records of the plan; the message says which are gone
        and how to go on.
        """
        gone = lost_records(self.plan.ranges, kafka.spans([one.topic_partition for one in self.plan.ranges]))
        if gone:
            name = self.plan.pipeline
            raise RecordsLost(
                f"{name}: {kafka.where} has no more all records that run {self.plan.run} is to read: "
                f"{'; '.join(gone)}. Nothing was "
                f"sealed, and offsets stay. Give the run up: tagmill run abandon --pipeline {name} --why "
                "…; then go on with what is there: "
                f"tagmill run deliver --pipeline {name} --accept-lost",
                pipeline=name,
                run=self.plan.run,
            )

    def _read(self, source: Source, staged: list[StagedFile]) -> DataFrame:
        """Return the rows of the staged files, of which there is at least one, as a DataFrame."""
        schema = from_arrow_schema(source.staged_schema)
        return self.spark.read.schema(schema).parquet(*(self.files.url(one.name) for one in staged))

    def _unknown(self) -> str:
        """Return the folder with the ADDRESS of each id's first event, for ids that were not seen in the
        window; write it if needed.
        """
        cassandra, pipeline, rule = self.settings.cassandra, self.plan.pipeline, self.plan.rule
        ledger, firsts = cassandra.ledger_keyspace, f"{self.folder}/firsts"
        assert isinstance(self.pipeline, TopicSettings)
        ids = Deduplication(self.ledger.cassandra, ledger, pipeline, rule)
        if not ids.has_any(self.pipeline.shards):
            return firsts  # a first run: it may be the largest, and no id can be known
        new = f"{self.folder}/new"
        since = datetime.fromtimestamp(self.plan.known_since / 1000, UTC)
        written_to = self.ledger.delivered.write_times.of(pipeline, self.plan.run)
        given_up = self.plan.apart.batches
        if self.files.count_rows(firsts) <= LOOKED_UP_AT_ONCE:
            write_unknown(self.files, firsts, new, ids, since, written_to, given_up)
        else:
            rows = self.spark.read.parquet(self.files.url(firsts))
            self._materialized(
                unknown(rows, cassandra, ledger, pipeline, rule, since, written_to, given_up), "new"
            )
        return new

    def _cut(self, staged: list[StagedFile], masks: list[Mask] | None) -> list[Batch]:
        columns = [*layout(self.pipeline).names, *(BESIDE if self.pipeline.rule else BESIDE[-1:])]
        with ThreadPoolExecutor(1) as writer:
            cutter = Cutter(
                self.files,
                f"{self.folder}/batches",
                columns,
                self.pipeline.batch_rows,
                self.pipeline.batch_bytes,
                writer,
            )
            for number, one in enumerate(staged):
                if masks is None or masks[number].any():
                    with self.files.open(one.name) as source:
                        for rows in chosen_rows(
                            pq.ParquetFile(source), columns, None if masks is None else masks[number]
                        ):
                            cutter.add(rows)
            return cutter.end()

    def _counts(self, staged: list[StagedFile], distinct: int | None, new: int) -> TopicCounts:
        events = sum(one.event for one in staged)
        different = events if distinct is None else distinct
        return TopicCounts(
            records=sum(one.rows for one in staged),
            new=new,
            twice=events - different,
            known=different - new,
            unreadable=sum(one.unreadable for one in staged),
            tombstones=sum(one.tombstone for one in staged),
            nulled=Notes.from_rows(staged).nulled.total(),
        )

    def _warnings(self, staged: list[StagedFile]) -> list[str]:
        """Return warnings about the columns of a topic's events: nulled values, and paths that match
        nothing.
        """
        if not isinstance(self.pipeline, TopicSettings) or not any(one.event for one in staged):
            return []
        known = {
            path
            for one in kinds(self.pipeline, schema_contents(self.pipeline.schema_files)).values()
            for path in one
        }
        return list(warnings(Notes.from_rows(staged), self.pipeline, known, self.plan.apart.columns))

    def _materialized(self, rows: DataFrame, name: str) -> DataFrame:
        return materialize(rows, self.files.url(f"{self.folder}/{name}"))
