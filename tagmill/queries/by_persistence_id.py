"""Read the events of a persistence_id: find its partitions by the last row of each, then read those by key,
in Cassandra's order.

An atomic write is in the partition of its highest sequence_nr, so partition_nr is never computed: partitions
are looked at from 0 on until two in a row are empty.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from tagmill.journal.frames import ID, JournalSchema, event_tags
from tagmill.journal.tag_view_reader import EMPTY_PARTITIONS_AT_END, SEARCHED_PARTITIONS
from tagmill.queries import columns, gaps

COLUMNS = (ID, "sequence_nr", "offset", "event_time", "tags", "partition_nr", *columns.PAYLOAD)
# Partitions of each persistence_id that are looked at in one round of queries.
LOOKED_AT = 4
PARTITIONS_PER_TASK = 64
PARTS = f"{ID} string, partition_nr bigint, from_nr bigint, to_nr bigint"


class Part(NamedTuple):
    """A partition of messages, and the first and last sequence_nr to read: what is lower was in partitions before
    it.
    """

    persistence_id: str
    partition_nr: int
    from_nr: int
    to_nr: int


@dataclass(slots=True)
class _Search:
    """The search for the partitions of one persistence_id, and those found so far."""

    persistence_id: str
    deleted_to: int
    from_nr: int
    to_nr: int
    next_partition: int = 0
    empty: int = 0
    behind_deletions: bool = False
    parts: list[Part] = field(default_factory=list)

    def ended(self) -> bool:
        """Return whether there is nothing more to find.

        Deletions may have emptied many partitions, from the first one on.
        """
        deleted = 0 if self.behind_deletions else min(self.deleted_to, SEARCHED_PARTITIONS)
        return self.from_nr > self.to_nr or self.empty >= max(EMPTY_PARTITIONS_AT_END, deleted)

    def look(self, highest: int | None) -> None:
        """Record the highest sequence_nr of the next partition; None: it has no rows."""
        if self.ended():
            return
        if highest is None:
            self.empty += 1
        else:
            self.empty = 0
            self.behind_deletions = self.behind_deletions or highest > self.deleted_to
            if highest >= self.from_nr:
                self.parts.append(Part(self.persistence_id, self.next_partition, self.from_nr, self.to_nr))
                self.from_nr = highest + 1
        self.next_partition += 1


def partitions(
    journal: JournalSchema, persistence_ids: Iterable[str], from_nr: int, to_nr: int
) -> list[Part]:
    """Return the partitions that hold events of these persistence ids between two sequence_nrs (inclusive),
    in order.
    """
    ids = list(persistence_ids)
    searches = [
        _Search(name, deleted_to, max(deleted_to + 1, from_nr, 1), to_nr)
        for name, deleted_to in zip(ids, _deleted_to(journal, ids), strict=True)
    ]
    cql = (
        f"SELECT sequence_nr FROM {journal.names.cql(journal.names.messages)} WHERE persistence_id = ? "
        "AND partition_nr = ?"
        " ORDER BY sequence_nr DESC LIMIT 1"
    )
    going = searches
    while going := [search for search in going if not search.ended()]:
        keys = [
            (one.persistence_id, one.next_partition + ahead) for one in going for ahead in range(LOOKED_AT)
        ]
        last_rows = journal.cassandra.application.execute_many(cql, keys)
        for search in going:
            for found in islice(last_rows, LOOKED_AT):
                search.look(found[0].sequence_nr if found else None)
    return [part for search in searches for part in search.parts]


def _deleted_to(journal: JournalSchema, ids: list[str]) -> Iterator[int]:
    if journal.names.metadata not in journal.tables:
        return (0 for _ in ids)
    cql = f"SELECT deleted_to FROM {journal.names.cql(journal.names.metadata)} WHERE persistence_id = ?"
    return (
        (rows[0].deleted_to or 0) if rows else 0
        for rows in journal.cassandra.application.execute_many(cql, ((name,) for name in ids))
    )


def events(spark: SparkSession, journal: JournalSchema, parts: list[Part]) -> DataFrame:
    """Return the events of partitions in their order.

    Out: COLUMNS, one row an event; key (persistence_id, sequence_nr, writer_uuid). `tags` includes those of
    tag1 to tag3, where an older plugin wrote the event; it is [] for an event without tags.
    """
    rows = _rows(spark, journal, parts, *(name for name in journal.columns if name != "message"))
    tagged = rows.withColumn("tags", event_tags(journal.columns))
    return columns.as_events(tagged, journal.messages, COLUMNS, {})


def refuse_gaps(spark: SparkSession, journal: JournalSchema, parts: list[Part]) -> None:
    """Raise EventsMissing where a sequence_nr is missing, from the first one asked for that is not
    deleted.
    """
    earlier = Window.partitionBy(ID).orderBy("sequence_nr").rowsBetween(Window.unboundedPreceding, -1)
    before = F.coalesce(F.max("sequence_nr").over(earlier), F.col("from_nr") - 1)
    judged = _rows(spark, journal, parts, "sequence_nr").withColumn("before", before)
    gaps.refuse(
        judged.select(
            ID,
            F.col("sequence_nr").alias("number"),
            "before",
            (F.col("sequence_nr") <= F.col("before")).alias("again"),
        ),
        "sequence_nr",
        f"journal {journal.keyspace}",
        "neither deleted_to nor another writer accounts for what is missing",
    )


def _rows(spark: SparkSession, journal: JournalSchema, parts: list[Part], *read: str) -> DataFrame:
    """Return the rows of messages in partitions, in their order, with the columns of PARTS and those to read."""
    tasks = min(
        len(parts), max(4 * spark.sparkContext.defaultParallelism, -(-len(parts) // PARTITIONS_PER_TASK))
    )
    keys = spark.createDataFrame(spark.sparkContext.parallelize(parts, max(1, tasks)), PARTS)
    bounds = {"sequence_nr >=": "from_nr", "sequence_nr <=": "to_nr"}
    return journal.table(journal.names.messages).rows_of(keys, [ID, "partition_nr"], *read, where=bounds)
