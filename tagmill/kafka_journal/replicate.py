"""Replicate a Kafka Journal's topics to Cassandra, in pieces that are sealed before anything of them is
written.

A piece is sealed when its records are decoded, their effect on each id is computed, and both are stored in
files; the commit is one conditional update in replications. Before the commit, nothing is written into the
journal's keyspace. After it, nothing is computed again: every process that goes on writes the same rows with
the same timestamp. Pointers are written last, so what was not finished is read again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from tagmill.cassandra.client import Cassandra
from tagmill.config.settings import Settings
from tagmill.errors import GuardRefused, SealedFileDamaged, TagmillError, TopicRecreated, about_pipeline
from tagmill.kafka.client import Kafka, Partition, Span
from tagmill.kafka.offset_ranges import Range, capped, partitions_of, unread
from tagmill.kafka.positions import TopicPosition, kafka_positions
from tagmill.kafka.set_apart import Apart, within
from tagmill.kafka_journal.model import Counts, Manifest, PartitionStatus, ReplicationReport, Tell
from tagmill.kafka_journal.piece_files import PieceFiles
from tagmill.kafka_journal.records import Records
from tagmill.kafka_journal.tables import KafkaJournalTables, Pointer
from tagmill.kafka_journal.write_times import Overwritten, WriteTimes, ahead
from tagmill.ledger.attempts import counted
from tagmill.ledger.dead_letters import DeadLetters
from tagmill.ledger.failures import forget_failures, noted
from tagmill.ledger.journal_tables import JournalTableIds
from tagmill.ledger.replications import SEALED, ReplicationRow, Replications
from tagmill.ledger.set_apart import Kind, SetApart
from tagmill.ledger.topic_ids import TopicIds, recreated_topics, same_topics
from tagmill.runs import checkpoints
from tagmill.runs.sealed_files import read_document, way_out, write_document
from tagmill.runs.storage import RunFiles
from tagmill.runs.workspace import Workspace, open_workspace, silent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tagmill.kafka_journal.pieces import Move

# The table whose entries say what is replicated.
ENTRIES = ("metajournal",)
# The latest write time that Cassandra can store, in microseconds.
HIGHEST = 2**63 - 1


@about_pipeline
def replicate(
    settings: Settings,
    pipeline: str,
    *,
    owner: str,
    spark: Callable[[], SparkSession],
    accept_lost: bool = False,
    write_after: datetime | None = None,
    tell: Tell | None = None,
) -> ReplicationReport:
    """Replicate everything that is committed in Kafka now to the tables.

    Safe to stop and to start again at any moment.

    `spark` is asked for a session only if there is anything to do. All rows are written with a time later
    than `write_after`.

    Raises GuardRefused: records are gone from Kafka that were not replicated (unless `accept_lost`), or a row
    has a later write time than what is written. LeaseTaken, FenceRaised: another replicator is at work.
    ConfigurationError: a topic or the ledger's tables are missing.
    """
    from tagmill.spark.errors import explained

    sealed_stays = "What was sealed is written by the next replication"

    settings.kafka_journal(pipeline)  # raises before anything is opened
    with (
        open_workspace(settings, pipeline, owner=owner, leases=[pipeline], tell=tell or silent) as workspace,
        Kafka(settings.kafka) as kafka,
        explained(workspace.cassandra.where, sealed_stays),
    ):
        cassandra = workspace.cassandra
        attempt = _Attempt(workspace, kafka, spark, WriteTimes(pipeline, write_after))
        with (
            noted(settings, cassandra, pipeline, "replicate"),
            counted(settings, cassandra, pipeline, "replicate"),
            explained(cassandra.where, sealed_stays),  # before it is noted
        ):
            done = attempt.run(accept_lost)
            forget_failures(settings, cassandra, pipeline)
            return done


@about_pipeline
def status(settings: Settings, pipeline: str) -> list[PartitionStatus]:
    """Return how far each partition of the pipeline's topics is replicated, and what stops the next
    replication. Nothing is written.

    Raises ConfigurationError: a named topic or the ledger's tables don't exist.
    """
    chosen = settings.kafka_journal(pipeline)
    with Cassandra(settings.cassandra) as cassandra, Kafka(settings.kafka) as kafka:
        tables = KafkaJournalTables(cassandra, chosen.keyspace)
        found = partitions_of(kafka, pipeline, chosen.topics, chosen.topic_prefixes)
        pointers = tables.pointers(found) if tables.there() else {}
        before = TopicIds(cassandra, settings.cassandra.ledger_keyspace, pipeline).read()
        now = kafka.topic_ids({topic for topic, _ in found})
        anew = recreated_topics(now, before, pointers)
        if tables.there():
            anew |= _behind_old_entries(
                _table_ids(settings, cassandra, pipeline), pipeline, now, before, pointers
            )
        replicated_to = {partition: one.offset + 1 for partition, one in pointers.items()}
        return [_status(one) for one in kafka_positions(kafka, found, replicated_to, anew)]


def _status(position: TopicPosition) -> PartitionStatus:
    return PartitionStatus(
        topic=position.topic,
        partition=position.partition,
        replicated_to=position.delivered_to,
        first=position.log_start,
        end=position.last_stable_offset,
        waiting=position.waiting,
        not_readable=position.not_readable,
        problem=position.problem,
    )


@about_pipeline
def pending(settings: Settings, pipeline: str) -> bool:
    """Return whether there are records to replicate, a sealed replication to write, or a problem that
    replicating would report.
    """
    with Cassandra(settings.cassandra) as cassandra:
        row = Replications(cassandra, settings.cassandra.ledger_keyspace, pipeline).newest()
    return (row is not None and row.state == SEALED) or any(
        one.waiting or one.problem for one in status(settings, pipeline)
    )


class _Attempt:
    """One attempt at replicating, under the lease."""

    def __init__(
        self, workspace: Workspace, kafka: Kafka, spark: Callable[[], SparkSession], times: WriteTimes
    ) -> None:
        self.workspace, self.name, self.tell = workspace, workspace.name, workspace.tell
        self.settings, self.cassandra, self.files = workspace.settings, workspace.cassandra, workspace.files
        self.pipeline = self.settings.kafka_journal(self.name)
        self.kafka, self.spark, self.times = kafka, spark, times
        self.warnings, self.partitions = list[str](), Counter[str]()
        self.moves: list[Move] | None = None
        self.tables = KafkaJournalTables(self.cassandra, self.pipeline.keyspace)
        self.replications = workspace.store(Replications)
        self.apart = workspace.store(SetApart)
        self.home = f"{self.name}/replications"
        self.go_on = f"tagmill kafka-journal replicate --pipeline {self.name} --accept-lost"

    def run(self, accept_lost: bool) -> ReplicationReport:
        """Finish a sealed replication, then replicate piece by piece up to the end that Kafka had at the
        beginning.
        """
        done = list[Manifest]()
        row = self.replications.take_over(self.workspace.owner)
        with self._fenced(row.fence):
            if row.state == SEALED:
                self._make_tables()
                self.tell(f"finishing replication {row.replication}")
                done.append(_read(self.files, row))
                if self.times.least > row.written_at:
                    row = self.replications.restamp(row, self.times.least)
                row = self._write(done[-1], row)
            left = self.files.folders(self.home)
            row = self.replications.current(row.fence)
            self._sweep(left)
            chosen = partitions_of(self.kafka, self.name, self.pipeline.topics, self.pipeline.topic_prefixes)
            self._make_tables()
            ends, self.partitions = self.kafka.spans(chosen), Counter(topic for topic, _ in chosen)
            self.warnings += self._same_topics(ends, accept_lost)
            while (next_piece := self._unread(ends, accept_lost))[0]:
                manifest, row = self._seal(*next_piece, row)
                row = self._write(manifest, row)
                done.append(manifest)
        return ReplicationReport(
            pipeline=self.name,
            keyspace=self.pipeline.keyspace,
            replications=len(done),
            ranges=_joined(done),
            counts=_sum(done),
            warnings=list(dict.fromkeys([*self.warnings, *(text for one in done for text in one.warnings)])),
        )

    def _make_tables(self) -> None:
        """Create missing tables, and add columns that tables of an earlier release of Kafka Journal lack."""
        there = self.tables.there()
        self.tables.require_writable()
        outdated = self.tables.outdated() if there else []
        if outdated:
            self.tell(f"adding to tables of an earlier release: {', '.join(outdated)}")
        if outdated or not there:
            replication = self.settings.cassandra.replication.options()
            owner, lock_seconds = self.workspace.owner, self.pipeline.lock_seconds
            self.tables.create(replication, owner=owner, lock_seconds=lock_seconds)

    def _same_topics(self, ends: Mapping[Partition, Span], accept_lost: bool) -> list[str]:
        ids = self.workspace.store(TopicIds)
        tables = _table_ids(self.settings, self.cassandra, self.name)
        read = self.tables.pointers(list(ends))
        now = self.kafka.topic_ids({topic for topic, _ in ends})
        hidden = list(_behind_old_entries(tables, self.name, now, ids.read(), read).values())
        if hidden and not accept_lost:
            raise TopicRecreated(
                f"{self.name}: {hidden[0]}. Nothing was read. Drop the tables of keyspace {self.tables.name} for the "
                f"new life. If they are empty: {self.go_on}",
                pipeline=self.name,
            )
        warnings = same_topics(
            self.kafka, ids, self.name, read, ends, accept_lost=accept_lost, go_on=self.go_on
        )
        tables.accept(self.name, ENTRIES)
        return [*hidden, *warnings]

    def _unread(self, ends: Mapping[Partition, Span], accept_lost: bool) -> tuple[list[Range], list[str]]:
        """Return the ranges of the next piece to replicate, none if everything is replicated, and
        warnings.
        """
        read_to = {partition: one.offset + 1 for partition, one in self.tables.pointers(list(ends)).items()}
        ranges, warnings = unread(self.name, ends, read_to, accept_lost=accept_lost, go_on=self.go_on)
        pieces = capped(ranges, self.pipeline.max_records_per_run)
        if pieces == ranges:
            return pieces, warnings

        from tagmill.kafka_journal.pieces import cut, find_moves

        if self.moves is None:
            self.tell("looking for ids that moved between partitions")
            self.moves = find_moves(self.spark(), self.kafka, ranges, self.partitions)
        return cut(pieces, self.moves, read_to), warnings

    def _seal(
        self, ranges: list[Range], warnings: list[str], row: ReplicationRow
    ) -> tuple[Manifest, ReplicationRow]:
        from tagmill.kafka_journal.staging import decoded

        piece = PieceFiles(self.files, f"{self.home}/attempt-{uuid4().hex[:12]}")
        records = self._records(ranges, piece)
        self.tell(f"reading {sum(one.end - one.first for one in ranges)} records of {len(ranges)} partitions")
        checkpoints.reached("replicate.planned")
        apart = Apart(records=within(self.apart.items(Kind.RECORD), ranges))
        largest = self.cassandra.largest_row
        decode = partial(decoded, partitions=self.partitions, largest=largest, apart=apart.reasons)
        records.stage(self.kafka, ranges, decode)
        checkpoints.reached("replicate.staged")
        self.tell("finding out what they do")
        records.fold(self.pipeline.segment_size)
        counts, found = piece.counts()
        written_at, told = self.times.choose(self._newest(piece), row.written_at + 2)
        manifest = Manifest(
            replication=row.replication + 1,
            folder=piece.folder,
            written_at=written_at,
            ranges=ranges,
            counts=counts,
            warnings=[*warnings, *apart.warnings(), *found, *told],
        )
        file = f"{piece.folder}/manifest.json"
        sha256 = write_document(self.files, file, manifest)
        checkpoints.reached("replicate.before_commit")
        sealed = self.replications.seal(row, file, sha256, manifest.written_at)
        checkpoints.reached("replicate.after_commit")
        return manifest, sealed

    def _write(self, manifest: Manifest, row: ReplicationRow) -> ReplicationRow:
        """Write everything that a sealed replication says, the pointers last, and finish the replication."""
        from tagmill.kafka_journal.writer import Writing

        piece = PieceFiles(self.files, manifest.folder)
        writing = Writing(
            self._records(manifest.ranges, piece),
            piece,
            self.tables,
            manifest.counts,
            row.written_at,
            self.times,
            self.tell,
        )
        with way_out(self.name):
            writing.write()
            self.replications.current(row.fence)
            if manifest.counts.unreadable:
                self.workspace.store(DeadLetters).add(piece.dead_letters())
        self._point(manifest.ranges, row.written_at + 1)
        for topic, partition, offset, _ in within(self.apart.items(Kind.RECORD), manifest.ranges):
            self.apart.remove(Kind.RECORD, f"{topic}/{partition}/{offset}")
        checkpoints.reached("replicate.before_end")
        left = self.files.folders(self.home)
        done = self.replications.finish(row)
        self._sweep(left)
        return done

    def _records(self, ranges: Sequence[Range], piece: PieceFiles) -> Records:
        """Return the records of a piece: as this process reads them if they are few, else as Spark does."""
        from tagmill.kafka_journal.few_records import FewRecords

        def many() -> Records:
            from tagmill.kafka_journal.many_records import ManyRecords

            return ManyRecords(self.spark(), self.tables, piece)

        if sum(one.end - one.first for one in ranges) > self.pipeline.small_run_rows:
            return many()
        return FewRecords(self.tables, piece, many)

    def _newest(self, piece: PieceFiles) -> Overwritten | None:
        """Return the entry with the latest write time among those that are written over; None if none is."""
        newest = piece.newest_overwritten()
        if newest is None:
            return None
        return Overwritten(f"the row of id {newest[0]!r} in {self.tables.name}.metajournal", newest[1])

    def _point(self, ranges: list[Range], written_at: int) -> None:
        """Move the pointers forward, each with a later write time than it has, and read them back; raise
        GuardRefused if one did not move.

        A pointer that is there already, or further, stays: another process may have gone on since the fence
        was read.
        """
        partitions, now = [one.topic_partition for one in ranges], self.cassandra.now()
        known, moved = self.tables.pointers(partitions), dict[Partition, Pointer]()
        for one in ranges:
            before = known.get(one.topic_partition, Pointer(-1, now, 0))
            if before.offset >= one.end - 1:
                continue
            if before.written >= written_at:
                self.warnings.append(ahead(Overwritten(self._pointer(one.topic_partition), before.written)))
            moved[one.topic_partition] = Pointer(
                one.end - 1, before.created, max(written_at, min(before.written + 1, HIGHEST))
            )
        self.tables.point(moved.items())
        standing = self.tables.pointers(partitions)
        for partition, pointer in moved.items():
            if (now_there := standing.get(partition)) is None or now_there.offset < pointer.offset:
                raise self.times.outranked(self._pointer(partition), now_there.written if now_there else None)

    def _pointer(self, partition: Partition) -> str:
        return f"the row of topic {partition[0]}, partition {partition[1]} in {self.tables.name}.pointer2"

    def _sweep(self, folders: Sequence[str]) -> None:
        """Remove the files of attempts that are finished, or were never committed and can no longer be.

        The folders are listed before the fence is looked at: a process that takes over later has others.
        """
        for folder in folders:
            self.files.remove_folder(f"{self.home}/{folder}")

    @contextmanager
    def _fenced(self, fence: int) -> Iterator[None]:
        """Raise FenceRaised in place of an unexpected error, a missing file or an outranked row if another process
        took over: it may have removed this attempt's files, and written later rows.
        """
        try:
            yield
        except Exception as error:
            if not isinstance(error, TagmillError) or isinstance(error, SealedFileDamaged | GuardRefused):
                self.replications.current(fence)
            raise


def _table_ids(settings: Settings, cassandra: Cassandra, pipeline: str) -> JournalTableIds:
    keyspace = settings.kafka_journal(pipeline).keyspace
    return JournalTableIds(cassandra, settings.cassandra.ledger_keyspace, keyspace)


def _behind_old_entries(
    tables: JournalTableIds,
    pipeline: str,
    now: Mapping[str, str],
    before: Mapping[str, str],
    pointers: Mapping[Partition, Pointer],
) -> dict[str, str]:
    """Return a text for each topic that is another one by now, without a pointer, in the tables of the old
    one.

    Entries of the old topic have later offsets, so its first records would count as replicated.

    In: the topics' ids now and before, and the pointers of all partitions.
    """
    pointed = {topic for topic, _ in pointers}
    anew = sorted(topic for topic in now.keys() - pointed if before.get(topic, now[topic]) != now[topic])
    if not anew or tables.changed(pipeline, ENTRIES):
        return {}
    return {
        topic: f"topic {topic} was made anew since it was replicated, and pointer2 has no row of it: entries of "
        "the old one would hide its first records"
        for topic in anew
    }


def _read(files: RunFiles, row: ReplicationRow) -> Manifest:
    of = f"replication {row.replication} of {row.pipeline}"
    with way_out(row.pipeline):
        return read_document(files, Manifest, str(row.manifest_file), row.manifest_sha256, of=of)


def _sum(done: list[Manifest]) -> Counts:
    """Return the sum of what several replications counted; an id of two of them counts twice."""
    total = Counts()
    for one in done:
        total = total.plus(one.counts)
    return total


def _joined(done: list[Manifest]) -> list[Range]:
    """Join the ranges of successive pieces into one range for each partition."""
    found: dict[tuple[str, int], Range] = {}
    for one in (part for manifest in done for part in manifest.ranges):
        partition = (one.topic, one.partition)
        found[partition] = found[partition].model_copy(update={"end": one.end}) if partition in found else one
    return [found[partition] for partition in sorted(found)]
