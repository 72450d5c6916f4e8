"""Measure how far a topic's records reach and how far they are delivered; callers judge these facts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tagmill.kafka.client import Kafka, Partition, Span
from tagmill.kafka.offset_ranges import misplaced, with_new_partitions


@dataclass(frozen=True, slots=True)
class TopicPosition:
    """The position of one partition in offsets, of which some may hold no record.

    `delivered_to` is behind the last delivered record (None: nothing was read yet), `log_start` is the first
    record that is left, `last_stable_offset` is the end of what a reader gets, `high_watermark` is the end of
    all records. `another_life` says why the records are not those that were read; empty: they are.
    """

    topic: str
    partition: int
    delivered_to: int | None
    log_start: int
    last_stable_offset: int
    high_watermark: int
    another_life: str = ""

    @property
    def recreated(self) -> bool:
        """Whether the partition's records are not those that were read."""
        return bool(self.another_life)

    @property
    def begin(self) -> int:
        """The offset at which the next run goes on."""
        return self.log_start if self.delivered_to is None else self.delivered_to

    @property
    def waiting(self) -> int:
        """Offsets that the next run reads.

        Of a recreated topic these are all readable ones; no run reads them before a person decides.
        """
        begin = self.log_start if self.recreated else max(self.begin, self.log_start)
        return max(0, self.last_stable_offset - begin)

    @property
    def not_readable(self) -> int:
        """Offsets behind an open transaction: Kafka has them, but no reader gets them before it ends."""
        return self.high_watermark - self.last_stable_offset

    @property
    def lost(self) -> int:
        """Offsets that Kafka deleted before they were read."""
        return 0 if self.recreated else max(0, self.log_start - self.begin)

    @property
    def problem(self) -> str | None:
        """The reason why the next run stops at this partition; None: it does not stop."""
        if self.another_life:
            return self.another_life
        return misplaced((self.topic, self.partition), Span(self.log_start, self.high_watermark), self.begin)


def kafka_positions(
    kafka: Kafka,
    partitions: Sequence[Partition],
    delivered_to: Mapping[Partition, int],
    recreated: Mapping[str, str],
) -> list[TopicPosition]:
    """Return the position of each of these partitions, in order.

    `recreated` has a text by topic for each whose records are not those that were read.
    """
    spans, ends = kafka.spans(partitions), kafka.high_watermarks(partitions)
    delivered_to = with_new_partitions(delivered_to, partitions)
    return [
        TopicPosition(
            topic=partition[0],
            partition=partition[1],
            delivered_to=delivered_to.get(partition),
            log_start=span.first,
            last_stable_offset=span.end,
            high_watermark=max(ends[partition], span.end),
            another_life=recreated.get(partition[0], ""),
        )
        for partition, span in sorted(spans.items())
    ]
