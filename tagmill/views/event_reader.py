"""Read the new events of each persistence_id by key, from where its build ended; if there are no records yet,
read the whole table.

An atomic write is in the partition of its highest sequence_nr, so partition_nr is never computed: behind an
event of partition n, the next one is in n, n + 1 or, where a write fills the rest of n and all of n + 1, in n
+ 2. For each known persistence_id, its first new event is asked for; where it is the next one, the events from there
on are read, REACH partitions at a time.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from tagmill.cassandra.client import Cassandra, connected
from tagmill.config.settings import CassandraSettings
from tagmill.domain.journal_tables import OLD_TAGS, JournalTables
from tagmill.journal.frames import ID, JournalSchema, all_events, event_tags
from tagmill.journal.tag_view_reader import SEARCHED_PARTITIONS
from tagmill.runs.progress import Tell
from tagmill.runs.storage import RunFiles
from tagmill.spark.arrow_chunks import in_python

REACH = 3
# Sequence_nrs within which the first new event of an id is to be. One that is further away is staged alone: it shows
# that events in front of it are missing.
NEAR = 2
# Partitions that one query looks for events in.
PARTITIONS_AT_ONCE = 64
# Known persistence ids whose first new events this process asks for itself, without a worker.
FEW_IDS = 20_000


class Stages(Protocol):
    """Writes rows of messages to files, as staging.Staging does for builds."""

    @property
    def journal(self) -> JournalSchema:
        """The journal."""

    @property
    def files(self) -> RunFiles:
        """The storage."""

    def of_rows(self, rows: DataFrame, folder: str) -> list[str]:
        """Write these rows to files and return the files; none of them is empty."""

    def of_table(self, spark: SparkSession, folder: str) -> list[str]:
        """Write all of messages to files and return the files."""


class Reader:
    """Stages the new events of many persistence ids, pass by pass, below one folder: `files`.

    `terms`: CQL to read beside the columns, for events that are read by key.
    """

    def __init__(
        self,
        spark: SparkSession,
        cassandra: Cassandra,
        staging: Stages,
        folder: str,
        tell: Tell,
        **terms: str,
    ) -> None:
        self.spark, self.cassandra, self.staging = spark, cassandra, staging
        self.terms: dict[str, Any] = dict(terms)
        self.journal = journal = staging.journal
        self.folder = folder
        self.tell = tell
        self.passes = 0
        self.files: list[str] = []
        self.numbered: DataFrame | None = None
        self.messages = journal.table(journal.names.messages)

    def stage(self, starting_points: DataFrame) -> bool:
        """Write all new events to files below `folder`/pass-N and return whether there are any.

        In: what frames.build_positions returns.

        The files of a first build may have events of other persistence ids, too; numbering leaves them out.
        An event of an adopted persistence_id is written without the tags for which the application has numbered
        it, in later builds as well if it waited in the one that adopted.
        """
        open_ids = starting_points.where("reason is null")
        any_known, deleted, numbered, *of_ways = _parts(
            starting_points.withColumn("first", F.col("partition_nr")),
            F.expr("known"),
            F.expr("reason is null and from_nr > 0"),
            F.expr("reason is null and exists(progress, line -> line.sequence_nr > from_nr)"),
            *map(F.expr, WAYS),
        )
        if numbered is not None:
            last = F.transform("progress", lambda line: F.struct(line["tag"], line["sequence_nr"]))
            self.numbered = numbered.rows.select(ID, F.map_from_entries(last).alias("numbered"))
        if any_known is None:
            return self._whole_table(open_ids, some_deleted=deleted is not None)
        return self._by_key(*of_ways)

    def stage_by_key(self, starting_points: DataFrame) -> bool:
        """Write all new events of these persistence ids, as `stage` does, but never read the whole table."""
        return self._by_key(
            *_parts(starting_points.withColumn("first", F.col("partition_nr")), *map(F.expr, WAYS))
        )

    def _by_key(self, known: "_Part | None", new: "_Part | None", jumped: "_Part | None") -> bool:
        """Write the new events of the persistence ids of each of WAYS, and return whether there are any."""
        if known is not None:
            self._known(known.rows.select(*BEHIND), known.count)
        unknown = [] if new is None else [new.rows.select(*BEHIND)]
        if jumped is not None:
            unknown.append(self._behind_deletions(jumped.rows.select(*BEHIND)))
        if unknown:
            self._partitions(reduce(DataFrame.unionByName, unknown))
        return self.passes > 0

    def stage_again(self, ids: DataFrame, *, by_key: bool, some_deleted: bool) -> None:
        """Write all events behind from_nr, as `stage` does.

        In: persistence_id, from_nr, `numbered_to` (sequence_nr, null: none). Unless `some_deleted`, from_nr is 0.

        Without `by_key`, the whole table is read, and the files have events of other persistence ids, too.
        """
        if not by_key:
            self._whole_table(ids, some_deleted=some_deleted)
            return
        first = ids.select(ID, "from_nr", F.lit(0).cast("bigint").alias("first"))
        self._partitions(
            first.where("from_nr = 0").unionByName(self._behind_deletions(first.where("from_nr > 0")))
        )
        self._behind_gaps(ids)

    def _behind_gaps(self, ids: DataFrame) -> None:
        """Read on behind empty partitions where an event that was numbered has not been read: it is behind
        them, or is deleted.

        Do so, too, where no event has been read or numbered, so that it isn't known whether all of them are
        deleted.
        """
        met = self._keys(self.files) if self.files else self.spark.createDataFrame([], EVENT_KEYS)
        met = met.groupBy(ID).agg(
            F.max("sequence_nr").alias("last"), F.max("partition_nr").alias("partition_nr")
        )
        from_nr, first = (
            F.coalesce("last", "from_nr"),
            F.coalesce(F.col("partition_nr") + 1, F.lit(0).cast("bigint")),
        )
        further = ids.join(met, ID, "left").where(
            "numbered_to > coalesce(last, from_nr) or (numbered_to is null and last is null)"
        )
        further = self._settled(further.select(ID, from_nr.alias("from_nr"), first.alias("first")))
        if not further.take(1):
            return
        ahead = in_lots(F.col("first"), F.col("first") + (SEARCHED_PARTITIONS - 1))
        found = self._kept(self._behind(further.select(ID, "from_nr", ahead)))
        if found is not None:
            self._partitions(self._settled(_onward(further, found)))

    def _whole_table(self, open_ids: DataFrame, *, some_deleted: bool) -> bool:
        """Read the whole table, which costs less than asking for each partition, and return whether it has
        any of these events.
        """
        if not some_deleted and self.numbered is None:
            return self._met(self.staging.of_table(self.spark, self._next())) is not None
        rows = all_events(self.spark, self.journal)
        if some_deleted:
            deleted = open_ids.where("from_nr > 0").select(ID, "from_nr")
            rows = rows.join(deleted, ID, "left").where("from_nr is null or sequence_nr > from_nr")
        return self._kept(rows) is not None

    def _behind_deletions(self, ids: DataFrame) -> DataFrame:
        """Move `first` to the partition of the first event behind deleted_to; leave it where that event isn't
        found.

        In and out: persistence_id, from_nr, first (partition_nr).
        """
        if not ids.take(1):
            return ids
        until = F.col("first") + F.least(F.col("from_nr"), F.lit(SEARCHED_PARTITIONS))
        next_nr = (F.col("from_nr") + 1).alias("sequence_nr")
        keys = self._spread(ids.select(ID, next_nr, in_lots(F.col("first"), until)))
        wanted = {f"{ID} =": ID, "partition_nr IN": "partitions", "sequence_nr =": "sequence_nr"}
        found = self.messages.rows_of(keys, [], *EVENT, where=wanted)
        from_nr = (F.col("sequence_nr") - 1).alias("from_nr")
        exact = found.groupBy(ID, from_nr).agg(F.min("partition_nr").alias("first"))
        # No event has the next sequence_nr: all are deleted, or there is a gap. Then only the first
        # partitions are looked at.
        rest = ids.join(exact.select(ID), ID, "left_anti")
        return exact.unionByName(rest)

    def _known(self, ids: DataFrame, count: int) -> None:
        """Look up the new events of `count` known persistence ids.

        In: persistence_id, from_nr, first (partition_nr of the last event built).
        """
        if count <= FEW_IDS:
            lines = [line.asDict() for line in ids.collect()]
            found = first_new_events(self.journal.names, self.cassandra, lines)
            if not found:
                return
            values = [tuple(line[name] for name in FIRST_NEW.names) for line in found]
            new = self.spark.createDataFrame(values, from_arrow_schema(FIRST_NEW))
        else:
            ask = partial(_first_new, self.journal.names, self.cassandra.settings)
            new = self._settled(in_python(self._spread(ids), ask, from_arrow_schema(FIRST_NEW)))
        is_near = F.col("sequence_nr") <= F.col("from_nr") + NEAR
        near, gap_in_front = _parts(new, is_near, ~is_near)
        if gap_in_front is not None:
            keys = self._spread(gap_in_front.rows.select(*EVENT))
            others = (name for name in self.journal.columns if name not in EVENT)
            self._kept(self.messages.rows_of(keys, EVENT, *others, **self.terms))
        if near is not None:
            self._partitions(near.rows.select(*BEHIND))

    def _partitions(self, ids: DataFrame) -> None:
        """Read the events behind from_nr in the partitions from `first` on. In: persistence_id, from_nr, first."""
        while ids.take(1):
            reach = F.sequence("first", F.col("first") + (REACH - 1)).alias("partitions")
            found = self._kept(self._behind(ids.select(ID, "from_nr", reach)))
            if found is None:
                return
            ids = self._settled(_onward(ids, found))

    def _behind(self, ids: DataFrame) -> DataFrame:
        """Return the events behind from_nr in `partitions`. In: persistence_id, from_nr, partitions (partition_nrs)."""
        wanted = {f"{ID} =": ID, "partition_nr IN": "partitions", "sequence_nr >": "from_nr"}
        columns = self.journal.columns
        return self.messages.rows_of(self._spread(ids), [], *columns, where=wanted, **self.terms)

    def _spread(self, keys: DataFrame) -> DataFrame:
        """Spread keys over all cores: Spark would see few bytes, but what the keys fetch is large."""
        return keys.repartition(4 * self.spark.sparkContext.defaultParallelism)

    def _settled(self, ids: DataFrame) -> DataFrame:
        """Compute ids once, so that later evaluations see the same rows whatever the application writes
        meanwhile.
        """
        return ids.localCheckpoint()

    def _kept(self, rows: DataFrame) -> DataFrame | None:
        """Write the rows of a pass and return their keys, or None when there are none."""
        if self.numbered is not None:
            rows = rows.join(self.numbered, ID, "left")
            ahead = F.filter(
                event_tags(self.journal.columns),
                lambda tag: F.coalesce(F.col("numbered")[tag], F.lit(0)) < F.col("sequence_nr"),
            )
            rows = rows.withColumn("tags", ahead).drop("numbered", *OLD_TAGS)
        columns = [name for name in (*self.journal.columns, *self.terms) if name in rows.columns]
        return self._met(self.staging.of_rows(rows.select(*columns), self._next()))

    def _next(self) -> str:
        """Return the folder of the next pass."""
        return f"{self.folder}/pass-{self.passes + 1}"

    def _met(self, made: list[str]) -> DataFrame | None:
        """Count a pass by its files and return their keys, or None when there are none."""
        if not made:
            return None
        self.passes += 1
        self.files += made
        self.tell(f"reading, pass {self.passes}")
        return self._keys(made)

    def _keys(self, files: list[str]) -> DataFrame:
        return self.spark.read.schema(EVENT_KEYS).parquet(*map(self.staging.files.url, files))


# How the first new event of a persistence_id is found: behind the last one read, from the first partition on, or behind
# what is deleted.
WAYS = (
    "reason is null and deleted_to <= sequence_nr and known",
    "reason is null and deleted_to <= sequence_nr and not known",
    "reason is null and deleted_to > sequence_nr",
)
BEHIND, EVENT = (ID, "from_nr", "first"), (ID, "partition_nr", "sequence_nr")
EVENT_KEYS = f"{ID} string, partition_nr bigint, sequence_nr bigint"
FIRST_NEW = pa.schema(
    {ID: pa.string(), **dict.fromkeys(("from_nr", "first", "partition_nr", "sequence_nr"), pa.int64())}
)


def _first_new(
    journal: JournalTables, settings: CassandraSettings, ids: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the persistence ids that have events behind from_nr, each with the key of the first one.

    In: persistence_id, from_nr, first (partition_nr). Out: FIRST_NEW.
    """
    cassandra = connected(settings)
    for batch in ids:
        if found := first_new_events(journal, cassandra, batch.to_pylist()):
            yield pa.RecordBatch.from_pylist(found, FIRST_NEW)


def first_new_events(
    journal: JournalTables, cassandra: Cassandra, lines: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the lines that have events behind from_nr, each with the key of the first one.

    In: persistence_id, from_nr, first (partition_nr). Out: the columns of FIRST_NEW.
    """
    markers = ", ".join("?" * REACH)
    query = (
        f"SELECT partition_nr, sequence_nr FROM {journal.cql(journal.messages)} WHERE {ID} = ? "
        f"AND partition_nr IN ({markers}) AND sequence_nr > ? PER PARTITION LIMIT 1"
    )
    keys = ((line[ID], *range(line["first"], line["first"] + REACH), line["from_nr"]) for line in lines)
    found = []
    for line, rows in zip(lines, cassandra.application.execute_many(query, keys), strict=True):
        if rows:
            event = min(rows, key=lambda row: row.sequence_nr)
            found.append({**line, **event._asdict()})
    return found


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows, and how many they are."""

    rows: DataFrame
    count: int


def _parts(rows: DataFrame, *conditions: Column) -> list[_Part | None]:
    """Return the rows that satisfy each condition, counted by one job; None in place of no rows."""
    counted = rows.agg(*(F.count_if(condition) for condition in conditions)).first()
    assert counted is not None
    return [
        _Part(rows.where(condition), count) if count else None
        for condition, count in zip(conditions, counted, strict=True)
    ]


def in_lots(first: Column, last: Column) -> Column:
    """Return `partitions`: the partition_nrs from first to last, PARTITIONS_AT_ONCE in each row."""
    begins = F.sequence(first, last, F.lit(PARTITIONS_AT_ONCE))
    lots = F.transform(begins, lambda one: F.sequence(one, F.least(one + (PARTITIONS_AT_ONCE - 1), last)))
    return F.explode(lots).alias("partitions")


def _onward(ids: DataFrame, events: DataFrame) -> DataFrame:
    """Return the ids with events behind the first partition that was read; their next `first` is behind the
    last partition found.
    """
    reached = events.groupBy(ID).agg(F.max("partition_nr").alias("last"))
    return (
        ids.join(reached, ID).where("last > first").select(ID, "from_nr", (F.col("last") + 1).alias("first"))
    )
