"""Repair tag_views by the findings of an audit, so that it holds what the journal says, as the plugin would
have written it.

The findings say where to look. What is written is read from `messages` by its key at that moment, and only a
row that was read just before is deleted. In each group of findings the right rows are written before the
wrong ones go. So a kill leaves a row too many, never one too few, and doing it all again does no harm. A
number is given only if the writer of numbers (the plugin, or our build) has reached it.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from uuid import UUID

from cassandra import ConsistencyLevel
from cassandra.query import UNSET_VALUE
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tagmill.audit.model import Kind
from tagmill.cassandra.client import Cassandra
from tagmill.clickhouse.client import ClickHouse
from tagmill.config.settings import Settings
from tagmill.config.tag_views import PipelineSettings
from tagmill.domain import identifiers
from tagmill.domain.batches.layout import EventKey
from tagmill.domain.journal_tables import event_tags, tag_columns
from tagmill.domain.timeuuid import ticks
from tagmill.journal.frames import JournalSchema
from tagmill.journal.tag_view_reader import VIEW_COLUMNS, written_with
from tagmill.runs import checkpoints
from tagmill.runs.storage import RunFiles

IN_VIEW = (
    Kind.MISSING_IN_VIEW, Kind.EXTRA_IN_VIEW, Kind.DUPLICATED_IN_VIEW, Kind.MISPLACED, Kind.DIFFERS_IN_VIEW,
    Kind.WRONG_NUMBER,
)  # fmt: skip
KEY = ("tag_name", "timebucket", "timestamp", "persistence_id", "tag_pid_sequence_nr")
PAYLOAD = tuple(name for name in VIEW_COLUMNS if name not in KEY)
META = ("meta_ser_id", "meta_ser_manifest", "meta")
# Findings that are worked on as a group, requests under way at once, and findings that one task sorts.
AT_ONCE, REQUESTS, ROWS_PER_TASK = 500, 32, 200_000
Row = dict[str, Any]


class Left(StrEnum):
    """The reason for which a finding in the view was left as it is."""

    NOT_IN_JOURNAL = "the journal has no such event; the row may be all that is left of it"
    CHANGED = "the journal is not what the audit saw; audit again"
    TWO_WRITERS = "two writers wrote this sequence_nr; which one counts is for the application's owner to say"
    NO_TAGS = "the journal doesn't say which tags the event has (an older layout); migrate it first"
    NO_EVENT = "the journal's own row has no event or no serializer id"
    NO_NUMBER = "its number can't be told from the journal"
    TAKEN = "its number belongs to another event too"
    NOT_NUMBERED = (
        "the plugin has not numbered it yet; it writes the row when that persistence_id recovers next"
    )
    NOT_BUILT = "no build has reached it; the next one writes the row"
    WRITTEN_AHEAD = (
        "the row was written by a clock that is ahead: nothing replaces it until that time has come"
    )
    BUCKET_SIZE = "so many rows are outside their bucket that bucket_size itself looks wrong"


@dataclass(slots=True)
class Repaired:
    """The outcome of the repair of a view.

    `buckets`: (tag, timebucket) of the repaired rows; `batches`: those of ClickHouse that have one of them
    under another number.
    """

    repaired: Counter[Kind] = field(default_factory=Counter)
    left: Counter[tuple[Kind, str]] = field(default_factory=Counter)
    examples: dict[tuple[Kind, str], str] = field(default_factory=dict)
    buckets: set[tuple[str, int]] = field(default_factory=set)
    batches: set[UUID] = field(default_factory=set)

    def leave(self, finding: Row, why: str) -> None:
        """Count a finding that is left as it is, and keep the first one as an example."""
        key = (Kind(finding["kind"]), why)
        self.left[key] += 1
        self.examples.setdefault(
            key,
            f"tag {finding['tag']!r}, {finding['persistence_id']!r}, sequence_nr {finding['sequence_nr']}",
        )


def stage(spark: SparkSession, audit: str, target: str) -> None:
    """Write the findings in the view of an audit (`audit` is its URL) to `target`, by partition of the view.

    Each says where the journal has its event, and has `taken`: another event claims its number.
    """
    found = spark.read.parquet(f"{audit}/findings").where(
        F.col("kind").isin([kind.value for kind in IN_VIEW])
    )
    events = (
        spark.read.parquet(f"{audit}/journal")
        .groupBy("persistence_id", "sequence_nr")
        .agg(F.min_by("partition_nr", "offset").alias("partition_nr"), F.min("offset").alias("offset"))
    )
    rows = (
        found.join(events, ["persistence_id", "sequence_nr"], "left")
        .withColumn("journal_partition_nr", F.coalesce("journal_partition_nr", "partition_nr"))
        .withColumn("journal_offset", F.coalesce("journal_offset", "offset"))
        .drop("partition_nr", "offset")
    )
    count = found.count()
    claims = _claims(rows)
    marked = rows.join(claims, ["tag", "persistence_id", "expected_number"], "left").withColumn(
        "taken", F.coalesce("taken", F.lit(False))
    )
    by_partition = marked.repartitionByRange(
        -(-max(count, 1) // ROWS_PER_TASK), "tag", "timebucket", "persistence_id"
    )
    by_partition.sortWithinPartitions("tag", "timebucket", "persistence_id", "sequence_nr").write.mode(
        "overwrite"
    ).parquet(target)


def _claims(findings: DataFrame) -> DataFrame:
    """Return the numbers that more than one event claims: tag, persistence_id, expected_number, taken.

    An event without an expected number claims the one that it has in the view.
    """
    keys = ("tag", "persistence_id", "sequence_nr")
    claimed = findings.select(*keys, F.coalesce("expected_number", "view_number").alias("expected_number"))
    return (
        claimed.groupBy("tag", "persistence_id", "expected_number")
        .agg((F.countDistinct("sequence_nr") > 1).alias("taken"))
        .where("taken")
    )


class ViewRepairer:
    """The repair of one pipeline's view by its staged findings."""

    def __init__(
        self,
        settings: Settings,
        name: str,
        cassandra: Cassandra,
        clickhouse: ClickHouse,
        *,
        journal: JournalSchema,
        tell: Callable[[str], None],
    ) -> None:
        self.pipeline: PipelineSettings = settings.pipeline(name)
        self.ours = settings.builder(self.pipeline.keyspace) is not None
        self.cassandra = cassandra
        self.clickhouse = clickhouse
        self.messages = journal.names.cql(journal.names.messages)
        self.tag_columns = tag_columns(journal.messages)
        self.view = identifiers.cql_table(self.pipeline.keyspace, self.pipeline.view_table)
        self.ledger = identifiers.cql(settings.cassandra.ledger_keyspace)
        self.payload = [column for column in PAYLOAD if journal.meta or column not in META]
        self.tell = tell
        self.done = Repaired()

    def run(self, files: RunFiles, staged: str) -> Repaired:
        """Repair the view by all staged findings, at most repair_rows_per_second; return what became of
        them.
        """
        seen, begun = 0, time.monotonic()
        for findings in (part.to_pylist() for part in files.record_batches(staged, AT_ONCE)):
            self._mend(findings)
            seen += len(findings)
            self.tell(f"repairing the view: {seen} findings looked at")
            time.sleep(max(0.0, begun + seen / self.pipeline.repair_rows_per_second - time.monotonic()))
        return self.done

    def _mend(self, findings: list[Row]) -> None:
        """Repair the view by a group of findings: judge them, read the present rows, write the right ones,
        delete the wrong ones.

        All have the write time of the begin: what is deleted meanwhile, such as by an erasure, stays deleted.
        """
        now = time.time_ns() // 1000
        known = [finding for finding in findings if self._is_known(finding)]
        sound: list[tuple[Row, Row | None]] = []
        for finding, events in zip(known, self._events(known), strict=True):
            why, row = self._right_row(finding, events)
            if why:
                self.done.leave(finding, why)
            else:
                sound.append((finding, row))
        sound = self._replaceable(self._numbered(sound), now)
        rights = [row for _, row in sound if row is not None]
        standing = list(self._standing(rights))
        checkpoints.reached("repair.before_rows")
        self._write(list(zip(rights, standing, strict=True)), now)
        checkpoints.reached("repair.rows_written")
        named = [(finding, _named(finding), row) for finding, row in sound]
        wrong = [
            (finding, key)
            for finding, key, row in named
            if key is not None and (row is None or key != _key(row))
        ]
        there = list(self._standing([dict(zip(KEY, key, strict=True)) for _, key in wrong]))
        own = [
            key
            for (finding, key), row in zip(wrong, there, strict=True)
            if row and row["sequence_nr"] == finding["sequence_nr"]
        ]
        where = " AND ".join(f"{name} = ?" for name in KEY)
        self._do(f"DELETE FROM {self.view} USING TIMESTAMP ? WHERE {where}", ((now, *key) for key in own))
        renumbered = {
            _event(row): row["tag_pid_sequence_nr"]
            for finding, row in sound
            if row is not None and finding["view_number"] not in (None, row["tag_pid_sequence_nr"])
        }
        self.done.batches |= self.clickhouse.batches_with_other_numbers(self.pipeline.destination, renumbered)
        for finding, row in sound:
            self.done.repaired[Kind(finding["kind"])] += 1
            if row is not None:
                self.done.buckets.add((row["tag_name"], row["timebucket"]))

    # -- judging

    def _is_known(self, finding: Row) -> bool:
        if finding["journal_partition_nr"] is None or finding["journal_offset"] is None:
            self.done.leave(finding, Left.NOT_IN_JOURNAL)
            return False
        return True

    def _events(self, findings: list[Row]) -> Iterator[list[Any]]:
        columns = ", ".join(["timestamp", *self.tag_columns, *self.payload])
        return self.cassandra.application.execute_many(
            f"SELECT {columns} FROM {self.messages} WHERE persistence_id = ? AND partition_nr = ? AND "
            "sequence_nr = ?",
            ((f["persistence_id"], f["journal_partition_nr"], f["sequence_nr"]) for f in findings),
            concurrency=REQUESTS,
        )

    def _right_row(self, finding: Row, events: list[Any]) -> tuple[str | None, Row | None]:
        """Return why a finding has to stay, or None and the row that the view should have (None: it should
        have none).
        """
        why: str | None = None
        tags = event_tags(events[0]) if events else frozenset()
        if len(events) > 1:
            why = Left.TWO_WRITERS
        elif not events or str(events[0].timestamp) != finding["journal_offset"]:
            why = Left.CHANGED
        elif not tags:
            why = Left.NO_TAGS
        elif finding["tag"] not in tags:
            return None, None
        elif events[0].event is None or events[0].ser_id is None:
            why = Left.NO_EVENT
        elif finding["expected_number"] is None:
            why = Left.NO_NUMBER
        elif finding["taken"]:
            why = Left.TAKEN
        if why:
            return why, None
        (event,) = events
        key = {
            "tag_name": finding["tag"],
            "timebucket": self.pipeline.bucket_size.start(ticks(event.timestamp)),
            "timestamp": event.timestamp,
            "persistence_id": finding["persistence_id"],
            "tag_pid_sequence_nr": finding["expected_number"],
        }
        return None, {**key, **{name: getattr(event, name) for name in self.payload}}

    def _numbered(self, sound: list[tuple[Row, Row | None]]) -> list[tuple[Row, Row | None]]:
        """Return the findings whose event the writer of numbers has reached; leave the others."""
        if self.ours:
            cql = (
                f"SELECT sequence_nr AS reached FROM {self.ledger}.view_progress WHERE journal = ? AND "
                "persistence_id = ?"
            )
            keys = [(self.pipeline.keyspace, finding["persistence_id"]) for finding, _ in sound]
        else:
            progress = identifiers.cql_table(self.pipeline.keyspace, "tag_write_progress")
            cql = (
                f"SELECT tag_pid_sequence_nr AS reached FROM {progress} WHERE persistence_id = ? AND tag = ?"
            )
            keys = [(finding["persistence_id"], finding["tag"]) for finding, _ in sound]
        kept = []
        for (finding, row), found in zip(
            sound, self.cassandra.execute_many(cql, keys, concurrency=REQUESTS), strict=True
        ):
            reached = found[0].reached if found else 0
            if (
                row is not None
                and (finding["sequence_nr"] if self.ours else finding["expected_number"]) > reached
            ):
                self.done.leave(finding, Left.NOT_BUILT if self.ours else Left.NOT_NUMBERED)
            else:
                kept.append((finding, row))
        return kept

    def _replaceable(self, sound: list[tuple[Row, Row | None]], now: int) -> list[tuple[Row, Row | None]]:
        """Return the findings whose rows can be replaced; leave those with a row that was written after `now`
        (microseconds).
        """
        touched = [
            list(dict.fromkeys(key for key in (_named(finding), row and _key(row)) if key is not None))
            for finding, row in sound
        ]
        standing = self._standing([dict(zip(KEY, key, strict=True)) for keys in touched for key in keys])
        kept = list[tuple[Row, Row | None]]()
        for (finding, row), keys in zip(sound, touched, strict=True):
            rights = [row if row is not None and key == _key(row) else None for key in keys]
            if any([self._outranks(next(standing), right, now) for right in rights]):
                self.done.leave(finding, Left.WRITTEN_AHEAD)
            else:
                kept.append((finding, row))
        return kept

    def _outranks(self, standing: Row | None, right: Row | None, now: int) -> bool:
        """Return whether a row that has to change was written later than `now`, so that a change would have
        no effect.

        `right` is what the row has to become; None: it has to go.
        """
        if standing is None or max(standing["row_written"] or 0, standing["event_written"] or 0) <= now:
            return False
        return right is None or any(standing[name] != right[name] for name in self.payload)

    # -- the view

    def _standing(self, rows: list[Row]) -> Iterator[Row | None]:
        """Yield the row that the view has under each key now, with its write times, or None."""
        where = " AND ".join(f"{name} = ?" for name in KEY)
        found = self.cassandra.application.execute_many(
            f"SELECT {', '.join(self.payload)}, WRITETIME(sequence_nr) AS row_written, WRITETIME(event) "
            "AS event_written"
            f" FROM {self.view} WHERE {where}",
            (_key(row) for row in rows),
            concurrency=REQUESTS,
        )
        return (rows[0]._asdict() if rows else None for rows in found)

    def _write(self, rows: list[tuple[Row, Row | None]], now: int) -> None:
        """Write the rows that the view does not have as they should be, with `now` as their write time.

        A null column stays unset (no tombstones), unless the view has a value there that has to go.
        """
        columns = (*KEY, *self.payload)

        def value(name: str, right: Row, present: Row | None) -> Any:
            return (
                UNSET_VALUE
                if right[name] is None and (present is None or present.get(name) is None)
                else right[name]
            )

        using, times = written_with(now, self.pipeline.cleanup.application_ttl_seconds)
        values = (
            (*(value(name, right, there) for name in columns), *times)
            for right, there in rows
            if there is None or any(there[name] != right[name] for name in self.payload)
        )
        marks = ", ".join("?" for _ in columns)
        self._do(f"INSERT INTO {self.view} ({', '.join(columns)}) VALUES ({marks}) {using}", values)

    def _do(self, cql: str, values: Iterable[tuple[Any, ...]]) -> None:
        for _ in self.cassandra.execute_many(cql, values, ConsistencyLevel.LOCAL_QUORUM, REQUESTS):
            pass


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEY)


def _event(row: Row) -> EventKey:
    return row["tag_name"], row["persistence_id"], row["sequence_nr"], row["writer_uuid"] or ""


def _named(finding: Row) -> tuple[Any, ...] | None:
    """Return the key of the view's row that a finding names, or None if it names none."""
    place = (finding["view_timebucket"], finding["view_offset"], finding["view_number"])
    if None in place:
        return None
    return (finding["tag"], place[0], UUID(place[1]), finding["persistence_id"], place[2])
