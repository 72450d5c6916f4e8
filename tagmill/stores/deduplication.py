"""The ids of delivered events, by shard: which are known, how they are made, and what a topic's runs have read."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, islice
from uuid import UUID

from cassandra import ConsistencyLevel

from tagmill import names
from tagmill.ledger.write_times import NOT_AS_WRITTEN, WriteTimes, foreign
from tagmill.stores.cassandra import Cassandra
from tagmill.stores.kafka import Place

SERIAL = ConsistencyLevel.SERIAL
# ids of one shard that are asked for at once
AT_ONCE = 200


def shards_of(rule: str) -> int:
    """Return how many shards the ids of a rule are in."""
    return int(rule.rpartition("%")[2])


class Deduplication:
    """Ids that one rule of one pipeline makes."""

    def __init__(self, cassandra: Cassandra, ledger_keyspace: str, pipeline: str, rule: str) -> None:
        self.cassandra, self.ledger, self.pipeline, self.rule = cassandra, names.cql(ledger_keyspace), pipeline, rule

    def expired(self, shard: int, before: datetime, kept_runs: frozenset[int]) -> Iterator[tuple[str, int]]:
        """The ids of a shard that were delivered before that moment, by a run that is not among those: unique_id and its write time."""
        floor = before.replace(tzinfo=None)
        for row in self.cassandra.stream(
            f"SELECT unique_id, seen_at, run, WRITETIME(seen_at) AS written FROM {self.ledger}.deduplication"
            " WHERE pipeline = ? AND rule = ? AND shard = ?",
            self.pipeline, self.rule, shard,
        ):  # fmt: skip
            if row.seen_at is not None and row.seen_at < floor and row.run not in kept_runs:
                yield row.unique_id, row.written

    def written(self, shards: int) -> Iterator[tuple[str, int]]:
        """Yield all ids of so many shards by name, with their write times."""
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
        """Delete ids (shard, unique_id, write time); one that was written later stays. How many were asked for."""
        return self.cassandra.write_many(
            f"DELETE FROM {self.ledger}.deduplication USING TIMESTAMP ? WHERE pipeline = ? AND rule = ? AND shard = ? AND unique_id = ?",
            ((written, self.pipeline, self.rule, shard, one) for shard, one, written in ids),
        )

    def forget_all(self, shards: int, written: int) -> None:
        """Delete all ids of this rule, which had so many shards, that were written up to then."""
        self.cassandra.write_many(
            f"DELETE FROM {self.ledger}.deduplication USING TIMESTAMP ? WHERE pipeline = ? AND rule = ? AND shard = ?",
            ((written, self.pipeline, self.rule, shard) for shard in range(shards)),
        )

    def has_any(self, shards: int) -> bool:
        """Whether any of so many shards has an id, however old."""
        asked = ((self.pipeline, self.rule, shard) for shard in range(shards))
        statement = f"SELECT unique_id FROM {self.ledger}.deduplication WHERE pipeline = ? AND rule = ? AND shard = ? LIMIT 1"
        return any(self.cassandra.execute_many(statement, asked))

    def known(
        self, ids: Iterable[tuple[int, str]], since: datetime, written_to: int, given_up: Collection[UUID] = ()
    ) -> Iterator[str]:
        """Yield which of these ids were seen since then, those of batches that were given up left out.

        In: (shard, unique_id), each once, the ids of a shard one after the other. Raises ForeignWriteTime for one that was written
        later than `written_to`, the write time of the newest run.
        """
        asked = (
            (self.pipeline, self.rule, shard, [one for _, one in part])
            for shard, of_shard in groupby(ids, key=lambda one: one[0])
            for part in iter(lambda of_shard=of_shard: list(islice(of_shard, AT_ONCE)), [])  # type: ignore[misc]
        )
        found = self.cassandra.execute_many(
            f"SELECT unique_id, seen_at, batch_id, WRITETIME(seen_at) AS written FROM {self.ledger}.deduplication"
            " WHERE pipeline = ? AND rule = ? AND shard = ? AND unique_id IN ?",
            asked,
            concurrency=32,
        )
        floor = since.replace(tzinfo=None)
        for rows in found:
            if other := next((row for row in rows if row.written is not None and row.written > written_to), None):
                raise foreign(self.pipeline, f"the deduplication of id {other.unique_id}")
            seen = (row for row in rows if row.seen_at is not None and row.seen_at >= floor)
            yield from (row.unique_id for row in seen if row.batch_id not in given_up)


@dataclass(frozen=True, slots=True)
class RuleRow:
    """How the ids of a pipeline are made; `before`: how they were made, as long as the ids of that are still there."""

    rule: str
    before: str | None


class Rules:
    """By what rule the ids that a pipeline's deduplication has are made."""

    def __init__(self, cassandra: Cassandra, ledger_keyspace: str, pipeline: str) -> None:
        self.cassandra, self.ledger, self.pipeline = cassandra, names.cql(ledger_keyspace), pipeline

    def current(self) -> RuleRow | None:
        """None: there are no ids yet."""
        rows = self.cassandra.execute(
            f"SELECT rule, before FROM {self.ledger}.topic_rules WHERE pipeline = ?", self.pipeline, consistency=SERIAL
        )
        return RuleRow(rows[0].rule, rows[0].before) if rows else None

    def begin(self, rule: str) -> RuleRow:
        """The rule in force: this one if there was none."""
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
        """The commit of a rekeying; False: another rule than `old` is in force."""
        return self.cassandra.transact(
            f"UPDATE {self.ledger}.topic_rules SET rule = ?, before = ? WHERE pipeline = ? IF rule = ?", new, old, self.pipeline, old,
            landed=lambda: self.current() == RuleRow(new, old),
        )  # fmt: skip

    def forget(self, rule: str) -> None:
        """The ids of this former rule are gone."""
        self.cassandra.transact(
            f"UPDATE {self.ledger}.topic_rules SET before = null WHERE pipeline = ? IF before = ?", self.pipeline, rule,
            landed=lambda: True,
        )  # fmt: skip


class TopicOffsets:
    """How far each partition of a pipeline's topics is delivered."""

    def __init__(self, cassandra: Cassandra, ledger_keyspace: str, pipeline: str) -> None:
        self.cassandra, self.pipeline = cassandra, pipeline
        self.table = f"{names.cql(ledger_keyspace)}.topic_offsets"
        self.write_times = WriteTimes(cassandra, ledger_keyspace)

    def read_to(self) -> dict[Place, int]:
        """The offset behind the last delivered record."""
        rows = self.cassandra.stream(f"SELECT topic, partition, offset FROM {self.table} WHERE pipeline = ?", self.pipeline)
        return {(row.topic, row.partition): row.offset for row in rows}

    def moved_by(self, run: int) -> bool:
        """Tell if this run has moved an offset."""
        rows = self.cassandra.stream(f"SELECT run FROM {self.table} WHERE pipeline = ?", self.pipeline)
        return any(row.run == run for row in rows)

    def write(self, run: int, offsets: Mapping[Place, int]) -> None:
        """Write offsets, never back behind what a later run has written; raise ForeignWriteTime where they do not read back."""
        written = self.write_times.of(self.pipeline, run)
        self.cassandra.write_many(
            f"INSERT INTO {self.table} (pipeline, topic, partition, offset, run) VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ?",
            ((self.pipeline, *place, offset, run, written) for place, offset in offsets.items()),
        )
        stored = self.read_to()
        for (topic, partition), offset in offsets.items():
            if stored.get((topic, partition)) != offset:
                raise foreign(self.pipeline, f"the offset of {topic}-{partition}", NOT_AS_WRITTEN)
