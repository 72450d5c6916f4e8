"""Records that can't be decoded, kept as they came: one Cassandra partition per Kafka partition.

Writing one twice changes nothing.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tagmill.cassandra.client import Cassandra, utc
from tagmill.cassandra.write_limits import BESIDE_CELL
from tagmill.domain import identifiers
from tagmill.kafka.client import KafkaRecord

# Start of the reason of a record that is too large for Cassandra; its key, value and headers are null.
NOT_KEPT = "not kept: "
COLUMNS = ("topic", "partition", "offset", "timestamp", "reason", "key", "value", "headers")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record, and the reason why it could not be read."""

    record: KafkaRecord
    reason: str

    @property
    def bytes(self) -> int:
        """The number of bytes that its row has in Cassandra."""
        one = self.record
        headers = sum(
            len((name or "").encode()) + len(value or b"") + BESIDE_CELL for name, value in one.headers
        )
        return len(one.key or b"") + len(one.value or b"") + headers + len(self.reason.encode())

    def without_content(self, largest: int) -> "DeadLetter":
        """Return a copy without key, value and headers, whose reason says where the record is and how
        large.
        """
        where = f"in Kafka at {self.record.topic}/{self.record.partition}/{self.record.offset}"
        said = (
            f"{NOT_KEPT}{self.bytes} bytes with key and headers, {where}, and Cassandra takes "
            f"{largest} in one write: {self.reason}"
        )
        return DeadLetter(replace(self.record, key=None, value=None, headers=[]), said)


class DeadLetters:
    """The dead letters of one pipeline."""

    def __init__(self, cassandra: Cassandra, ledger_keyspace: str, pipeline: str) -> None:
        self.cassandra, self.ledger, self.pipeline = cassandra, identifiers.cql(ledger_keyspace), pipeline

    def add(self, letters: Iterable[DeadLetter]) -> int:
        """Write dead letters, those that are too large for Cassandra without their content; return how
        many.
        """
        partitions, largest = set[tuple[str, int]](), self.cassandra.largest_row

        def values() -> Iterator[tuple[Any, ...]]:
            for letter in letters:
                if letter.bytes > largest:
                    letter = letter.without_content(largest)
                one = letter.record
                partitions.add((one.topic, one.partition))
                yield (
                    self.pipeline,
                    one.topic,
                    one.partition,
                    one.offset,
                    one.timestamp,
                    letter.reason,
                    one.key,
                    one.value,
                    one.headers,
                )

        count = self.cassandra.write_many(
            f"INSERT INTO {self.ledger}.dead_letters (pipeline, {', '.join(COLUMNS)}) VALUES (?, ?, ?, "
            "?, ?, ?, ?, ?, ?)",
            values(),
        )
        self.cassandra.write_many(
            f"INSERT INTO {self.ledger}.dead_letter_places (pipeline, topic, partition) VALUES (?, ?, ?)",
            ((self.pipeline, *partition) for partition in sorted(partitions)),
        )
        return count

    def forget(self, positions: Iterable[tuple[str, int, int]]) -> int:
        """Delete the dead letters at (topic, partition, offset), which were read after all; return how many
        were given.
        """
        return self.cassandra.write_many(
            f"DELETE FROM {self.ledger}.dead_letters WHERE pipeline = ? AND topic = ? AND partition = ? "
            "AND offset = ?",
            ((self.pipeline, *position) for position in positions),
        )

    def any(self) -> bool:
        """Return whether any dead letter can be read again, since its content was kept."""
        return any(
            not row.reason.startswith(NOT_KEPT)
            for partition in self._partitions()
            for row in self.cassandra.stream(
                f"SELECT reason FROM {self.ledger}.dead_letters WHERE pipeline = ? AND topic = ? AND "
                "partition = ?",
                self.pipeline,
                partition.topic,
                partition.partition,
            )
        )

    def count(self) -> int:
        """Return the number of dead letters without reading their content."""
        return sum(1 for _ in self.positions())

    def positions(self, topic: str | None = None) -> Iterator[tuple[str, int, int]]:
        """Yield topic, partition and offset of the dead letters, of all topics or of this one, without reading
        their content.
        """
        for partition in self._partitions():
            if topic in (None, partition.topic):
                for row in self.cassandra.stream(
                    f"SELECT offset FROM {self.ledger}.dead_letters WHERE pipeline = ? AND topic = ? AND "
                    "partition = ?",
                    self.pipeline,
                    partition.topic,
                    partition.partition,
                ):
                    yield partition.topic, partition.partition, row.offset

    def listed(self) -> Iterator[DeadLetter]:
        """Yield all dead letters, by topic, partition and offset."""
        for partition in self._partitions():
            for row in self.cassandra.stream(
                f"SELECT {', '.join(COLUMNS)} FROM {self.ledger}.dead_letters WHERE pipeline = ? AND "
                "topic = ? AND partition = ?",
                self.pipeline,
                partition.topic,
                partition.partition,
                page=100,
            ):
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

    def _partitions(self) -> Iterator[Any]:
        return self.cassandra.stream(
            f"SELECT topic, partition FROM {self.ledger}.dead_letter_places WHERE pipeline = ?", self.pipeline
        )
