"""Records that can't be read, kept as they came: one partition a topic's partition, written as often as one likes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tagmill import names
from tagmill.stores.cassandra import Cassandra, utc
from tagmill.stores.kafka import KafkaRecord

COLUMNS = ("topic", "partition", "offset", "timestamp", "reason", "key", "value", "headers")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record, and why it could not be read."""

    record: KafkaRecord
    reason: str


class DeadLetters:
    """Those of one pipeline."""

    def __init__(self, cassandra: Cassandra, ledger_keyspace: str, pipeline: str) -> None:
        self.cassandra, self.ledger, self.pipeline = cassandra, names.cql(ledger_keyspace), pipeline

    def add(self, letters: Iterable[DeadLetter]) -> int:
        """Keep them; returns how many."""
        places = set[tuple[str, int]]()

        def values() -> Iterator[tuple[Any, ...]]:
            for letter in letters:
                one = letter.record
                places.add((one.topic, one.partition))
                yield (
                    self.pipeline, one.topic, one.partition, one.offset, one.timestamp, letter.reason, one.key, one.value, one.headers,
                )  # fmt: skip

        count = self.cassandra.write_many(
            f"INSERT INTO {self.ledger}.dead_letters (pipeline, {', '.join(COLUMNS)}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            values(),
        )
        self.cassandra.write_many(
            f"INSERT INTO {self.ledger}.dead_letter_places (pipeline, topic, partition) VALUES (?, ?, ?)",
            ((self.pipeline, *place) for place in sorted(places)),
        )
        return count

    def forget(self, places: Iterable[tuple[str, int, int]]) -> int:
        """Delete those of (topic, partition, offset), which were read after all; how many were asked for."""
        return self.cassandra.write_many(
            f"DELETE FROM {self.ledger}.dead_letters WHERE pipeline = ? AND topic = ? AND partition = ? AND offset = ?",
            ((self.pipeline, *place) for place in places),
        )

    def any(self) -> bool:
        """Whether there are any."""
        return next(self._offsets(), None) is not None

    def count(self) -> int:
        """How many there are; their bytes are not read."""
        return sum(1 for _ in self._offsets())

    def listed(self) -> Iterator[DeadLetter]:
        """All of them, by topic, partition and offset."""
        for place in self._places():
            for row in self.cassandra.stream(
                f"SELECT {', '.join(COLUMNS)} FROM {self.ledger}.dead_letters WHERE pipeline = ? AND topic = ? AND partition = ?",
                self.pipeline, place.topic, place.partition, page=100,
            ):  # fmt: skip
                record = KafkaRecord(
                    row.topic,
                    row.partition,
                    row.offset,
                    utc(row.timestamp),
                    row.key,
                    row.value,
                    [tuple(one) for one in row.headers or ()],
                )
                yield DeadLetter(record, row.reason)

    def _places(self) -> Iterator[Any]:
        return self.cassandra.stream(
            f"SELECT topic, partition FROM {self.ledger}.dead_letter_places WHERE pipeline = ?", self.pipeline
        )

    def _offsets(self) -> Iterator[int]:
        for place in self._places():
            for row in self.cassandra.stream(
                f"SELECT offset FROM {self.ledger}.dead_letters WHERE pipeline = ? AND topic = ? AND partition = ?",
                self.pipeline, place.topic, place.partition,
            ):  # fmt: skip
                yield row.offset
