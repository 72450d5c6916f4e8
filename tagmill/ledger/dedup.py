"""The ids of delivered events by shard, the rule that makes them, and the offsets up to which topics are
delivered.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, islice
from uuid import UUID

from cassandra import ConsistencyLevel

from tagmill.cassandra.client import Cassandra
from tagmill.domain import identifiers
from tagmill.kafka.client import Partition
from tagmill.ledger.write_times import NOT_AS_WRITTEN, WriteTimes, foreign

SERIAL = ConsistencyLevel.SERIAL
# Ids of one shard that one query asks for.
AT_ONCE = 200


def shards_of(rule: str) -> int:
    """Return the number of shards that a rule, which ends in %<number>, spreads its ids over."""
    return int(rule.rpartition("%")[2])


class Deduplication:
    """The ids that one rule of one pipeline has made."""

    def __init__(self, cassandra: Cassandra, ledger_keyspace: str, pipeline: str, rule: str) -> None:
        self.cassandra, self.ledger, self.pipeline, self.rule = (
            cassandra,
            identifiers.cql(ledger_keyspace),
            pipeline,
            rule,
        )

    def expired(self, shard: int, before: datetime, kept_runs: frozenset[int]) -> Iterator[tuple[str, int]]:
        """Yield unique_id and write time of the ids of a shard delivered before a moment by a run not in
        `kept_runs`.
        """
        floor = before.replace(tzinfo=None)
        for row in self.cassandra.stream(
            f"SELECT unique_id, seen_at, run, WRITETIME(seen_at) AS written FROM {self.ledger}.deduplication"
            " WHERE pipeline = ? AND rule = ? AND shard = ?",
            self.pipeline,
            self.rule,
            shard,
        ):
            if row.seen_at is not None and row.seen_at < floor and row.run not in kept_runs:
                yield row.unique_id, row.written

    def written(self, shards: int) -> Iterator[tuple[str, int]]:
        """Yield all ids of the rule's shards as text for a message, with their write times."""
        for shard in range(shards):
            for row in self.cassandra.stream(
                f"SELECT unique_id, WRITETIME(seen_at) AS written FROM {self.ledger}.deduplication"
                " WHERE pipeline = ? AND rule = ? AND shard = ?",
                self.pipeline,
                self.rule,
                shard,
            ):
                yield f"the deduplication of id {row.unique_id}", row.written or 0

    def forget(self, ids: Iterable[tuple[int, str, int]]) -> int:
        """Delete ids (shard, unique_id, write time), except those written later; return how many were
        given.
        """
        return self.cassandra.write_many(
            f"DELETE FROM {self.ledger}.deduplication USING TIMESTAMP ? WHERE pipeline = ? AND rule = ? "
            "AND shard = ? AND unique_id = ?",
            ((written, self.pipeline, self.rule, shard, one) for shard, one, written in ids),
        )

    def forget_all(self, shards: int, written: int) -> None:
        """Delete all ids of this rule's shards with a write time up to `written`."""
        self.cassandra.write_many(
            f"DELETE FROM {self.ledger}.deduplication USING TIMESTAMP ? WHERE pipeline = ? AND rule = ? "
            "AND shard = ?",
            ((written, self.pipeline, self.rule, shard) for shard in range(shards)),
        )

    def has_any(self, shards: int) -> bool:
        """Return whether any of the rule's shards has an id, however old."""
        asked = ((self.pipeline, self.rule, shard) for shard in range(shards))
        statement = (
            f"SELECT unique_id FROM {self.ledger}.deduplication WHERE pipeline = ? AND rule = ? "
            "AND shard = ? LIMIT 1"
        )
        return any(self.cassandra.execute_many(statement, asked))

    def known(
        self,
        ids: Iterable[tuple[int, str]],
        since: datetime,
        written_to: int,
        given_up: Collection[UUID] = (),
    ) -> Iterator[str]:
        """Yield those of these ids that were delivered at or after `since`, except ids of batches that were
        given up.

        Args:
            ids: (shard, unique_id), each once, the ids of a shard one after the other.
            since: the moment from which on an id counts as known.
            written_to: the write time of the newest run; an id with a later one raises ForeignWriteTime.
            given_up: the ids of the batches that were given up.
        """
        asked = (
            (self.pipeline, self.rule, shard, [one for _, one in part])
            for shard, of_shard in groupby(ids, key=lambda one: one[0])
            for part in iter(lambda of_shard=of_shard: list(islice(of_shard, AT_ONCE)), [])  # type: ignore[misc]
        )
        found = self.cassandra.execute_many(
            "SELECT unique_id, seen_at, batch_id, WRITETIME(seen_at) AS written FROM "
            f"{self.ledger}.deduplication"
            " WHERE pipeline = ? AND rule = ? AND shard = ? AND unique_id IN ?",
            asked,
            concurrency=32,
        )
        floor = since.replace(tzinfo=None)
        for rows in found:
            if other := next(
                (row for row in rows if row.written is not None and row.written > written_to), None
            ):
                raise foreign(self.pipeline, f"the deduplication of id {other.unique_id}")
            seen = (row for row in rows if row.seen_at is not None and row.seen_at >= floor)
            yield from (row.unique_id for row in seen if row.batch_id not in given_up)


@dataclass(frozen=True, slots=True)
class RuleRow:
    """The rule that makes the ids of a pipeline; `before` is the former rule as long as its ids are not
    deleted.
    """

    rule: str
    before: str | None


class Rules:
    """The rule by which the ids in a pipeline's deduplication are made."""

    def __init__(self, cassandra: Cassandra, ledger_keyspace: str, pipeline: str) -> None:
        self.cassandra, self.ledger, self.pipeline = cassandra, identifiers.cql(ledger_keyspace), pipeline

    def current(self) -> RuleRow | None:
        """Return the rule in force and the former one; None: the pipeline has no rule yet, so no ids."""
        rows = self.cassandra.execute(
            f"SELECT rule, before FROM {self.ledger}.topic_rules WHERE pipeline = ?",
            self.pipeline,
            consistency=SERIAL,
        )
        return RuleRow(rows[0].rule, rows[0].before) if rows else None

    def begin(self, rule: str) -> RuleRow:
        """Put this rule in force if the pipeline has none, and return the one in force."""
        self.cassandra.transact(
            f"INSERT INTO {self.ledger}.topic_rules (pipeline, rule) VALUES (?, ?) IF NOT EXISTS",
            self.pipeline,
            rule,
            landed=lambda: True,
        )
        found = self.current()
        assert found
        return found

    def switch(self, old: str, new: str) -> bool:
        """Commit a rekeying: put `new` in force in place of `old`; return False if another rule than `old` is
        in force.
        """
        return self.cassandra.transact(
            f"UPDATE {self.ledger}.topic_rules SET rule = ?, before = ? WHERE pipeline = ? IF rule = ?",
            new,
            old,
            self.pipeline,
            old,
            landed=lambda: self.current() == RuleRow(new, old),
        )

    def forget(self, rule: str) -> None:
        """Record that the ids of this former rule are deleted."""
        self.cassandra.transact(
            f"UPDATE {self.ledger}.topic_rules SET before = null WHERE pipeline = ? IF before = ?",
            self.pipeline,
            rule,
            landed=lambda: True,
        )


class TopicOffsets:
    """The offset up to which each partition of a pipeline's topics is delivered."""

    def __init__(self, cassandra: Cassandra, ledger_keyspace: str, pipeline: str) -> None:
        self.cassandra, self.pipeline = cassandra, pipeline
        self.table = f"{identifiers.cql(ledger_keyspace)}.topic_offsets"
        self.write_times = WriteTimes(cassandra, ledger_keyspace)

    def read_to(self) -> dict[Partition, int]:
        """Return for each (topic, partition) the offset behind its last delivered record."""
        rows = self.cassandra.stream(
            f"SELECT topic, partition, offset FROM {self.table} WHERE pipeline = ?", self.pipeline
        )
        return {(row.topic, row.partition): row.offset for row in rows}

    def moved_by(self, run: int) -> bool:
        """Return whether this run was the last to move the offset of any partition."""
        rows = self.cassandra.stream(f"SELECT run FROM {self.table} WHERE pipeline = ?", self.pipeline)
        return any(row.run == run for row in rows)

    def write(self, run: int, offsets: Mapping[Partition, int]) -> None:
        """Write offsets, except where a later run has written one; raises ForeignWriteTime if they do not
        read back as written.
        """
        written = self.write_times.of(self.pipeline, run)
        self.cassandra.write_many(
            f"INSERT INTO {self.table} (pipeline, topic, partition, offset, run) VALUES (?, ?, ?, ?, ?) "
            "USING TIMESTAMP ?",
            ((self.pipeline, *partition, offset, run, written) for partition, offset in offsets.items()),
        )
        stored = self.read_to()
        for (topic, partition), offset in offsets.items():
            if stored.get((topic, partition)) != offset:
                raise foreign(self.pipeline, f"the offset of {topic}-{partition}", NOT_AS_WRITTEN)
