"""Read one id of a Kafka Journal as its own readers see it: from Cassandra, and from Kafka what is not
replicated yet.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from tagmill.cassandra.client import Cassandra, utc
from tagmill.config.settings import Settings
from tagmill.errors import about_pipeline
from tagmill.kafka.client import Kafka, KafkaRecord, Partition, Span
from tagmill.kafka.offset_ranges import partitions_of
from tagmill.kafka.partitioner import layout_of
from tagmill.kafka_journal import wire_format
from tagmill.kafka_journal.fold import Entry, Fold, Position, Record, entry_segments, of_this_life, segment_of
from tagmill.kafka_journal.model import Head, HeadEvent
from tagmill.kafka_journal.tables import KafkaJournalTables, Pointer, milliseconds, uuid

# Segments that are looked up at once, at most. The first look-up takes one segment and each further one twice
# as many: unless sequence numbers skip, the first segments have enough events.
SEGMENTS_AT_ONCE = 1024


@about_pipeline
def heads(settings: Settings, pipeline: str, key: str, *, most: int = 100, seconds: float = 30) -> list[Head]:
    """Return the id's state in each of the pipeline's topics that knows it, with its first `most` events.

    Nothing is written.

    Kafka is read from behind the pointers to its end, as Kafka Journal's own readers do: that takes long if
    replication is far behind. Events in Cassandra are searched for at most `seconds` in a topic: where
    sequence numbers skip, all segments in between are looked up.

    Raises ConfigurationError: a named topic doesn't exist.
    """
    chosen = settings.kafka_journal(pipeline)
    with Cassandra(settings.cassandra) as cassandra, Kafka(settings.kafka) as kafka:
        tables = KafkaJournalTables(cassandra, chosen.keyspace)
        there = tables.there()
        found: dict[str, list[Partition]] = {}
        for partition in partitions_of(kafka, pipeline, chosen.topics, chosen.topic_prefixes):
            found.setdefault(partition[0], []).append(partition)
        readers = (
            _Reader(tables if there else None, kafka, topic, parts, seconds) for topic, parts in found.items()
        )
        every = (reader.head(key, most) for reader in readers)
        return [one for one in every if one.seq_nr is not None or one.unreplicated]


class _Reader:
    """Reads one id of one topic from Cassandra and Kafka."""

    def __init__(
        self,
        tables: KafkaJournalTables | None,
        kafka: Kafka,
        topic: str,
        parts: Sequence[Partition],
        seconds: float,
    ) -> None:
        self.tables, self.kafka, self.topic, self.parts, self.seconds = tables, kafka, topic, parts, seconds
        self.looked_to: int | None = None

    def head(self, key: str, most: int) -> Head:
        # Pointers are read first, so that a record that is replicated meanwhile is read twice, not missed.
        pointers = self.tables.pointers(self.parts) if self.tables else {}
        before = self._entry(key)
        fold = Fold(before, 1)
        fresh: list[tuple[Position, HeadEvent]] = []
        count = 0
        for record in self._behind(key, pointers):
            count += 1
            fresh += self._folded(fold, record)
        if fold.entry is None:
            return Head(topic=self.topic, id=key, unreplicated=count)
        old = (
            []
            if fold.purged or before is None
            else self._events(key, before, max(before.delete_to or 0, fold.cut_to))
        )
        new = (
            event
            for at, event in fresh
            if (fold.dropped is None or at > fold.dropped) and event.seq_nr > _deleted_to(fold, at)
        )
        events, more = _first(old, new, fold.entry.delete_to or 0, most)
        entry = fold.entry
        return Head(
            topic=self.topic,
            id=key,
            seq_nr=entry.seq_nr,
            delete_to=entry.delete_to,
            created=entry.created,
            updated=entry.updated,
            expire_on=entry.expire_on,
            unreplicated=count,
            events=events,
            more=more or self.looked_to is not None,
            looked_to=self.looked_to,
        )

    def _entry(self, key: str) -> Entry | None:
        row = self.tables.entry(self.topic, entry_segments(key), key) if self.tables else None
        if row is None:
            return None
        return Entry(
            row.partition,
            row.offset,
            row.segment_size,
            row.seq_nr,
            row.delete_to,
            utc(row.created),
            utc(row.updated),
            row.origin,
            uuid(row.record_id),
            milliseconds(row.expire_after),
            row.expire_on.date() if row.expire_on else None,
        )

    def _behind(self, key: str, pointers: Mapping[Partition, Pointer]) -> Iterator[KafkaRecord]:
        """Yield the id's records that are not replicated yet, partition by partition, in the order in which
        the id was in them.
        """
        wanted = key.encode()
        in_order = sorted(self.parts, key=lambda partition: layout_of(wanted, partition[1], len(self.parts)))
        for partition, span in self.kafka.spans(in_order).items():
            begin = max(span.first, pointers[partition].offset + 1) if partition in pointers else span.first
            yield from (
                one for one in self.kafka.read(*partition, Span(begin, span.end)) if one.key == wanted
            )

    def _folded(self, fold: Fold, record: KafkaRecord) -> Iterator[tuple[Position, HeadEvent]]:
        """Fold a journal record, and yield its events; skip a record that can't be read."""
        try:
            action = wire_format.decode_action(
                next((value for name, value in record.headers if name == wire_format.ACTION), None)
            )
            found = (
                wire_format.decode_events(action, record.value)
                if isinstance(action, wire_format.Append)
                else None
            )
        except wire_format.Undecodable:
            return
        if action is None:
            return
        kind = wire_format.kind_of(action)
        to = found.last if found else getattr(action, "to", 0)
        after = found.expire_after_ms if found else None
        fold.add(
            Record(
                kind,
                record.topic,
                record.partition,
                record.offset,
                record.timestamp,
                found.first if found else 0,
                to,
                action.origin,
                after,
            )
        )
        at = Position(len(fold.partitions) - 1, record.offset)
        for event in found.events if found else ():
            payload = event.data.hex() if event.data is not None else event.text
            yield (
                at,
                HeadEvent(
                    seq_nr=event.seq_nr,
                    timestamp=record.timestamp,
                    tags=sorted(set(event.tags)),
                    payload_type=event.payload_type,
                    payload=payload,
                    replicated=False,
                ),
            )

    def _events(self, key: str, entry: Entry, after: int) -> Iterator[HeadEvent]:
        assert self.tables is not None
        left = range(
            segment_of(after + 1, entry.segment_size), segment_of(entry.seq_nr, entry.segment_size) + 1
        )
        end, at_once = time.monotonic() + self.seconds, 1
        while left:
            if time.monotonic() > end:
                self.looked_to = left.start * entry.segment_size
                return
            filled = self.tables.filled(key, self.topic, left[:at_once], after)
            for row in self.tables.events(key, self.topic, filled, after):
                if of_this_life(entry.record_id, row.meta_record_id):
                    yield _event(row)
            left, at_once = left[at_once:], min(2 * at_once, SEGMENTS_AT_ONCE)


def _event(row: Any) -> HeadEvent:
    payload = row.payload_bin.hex() if row.payload_bin is not None else row.payload_txt
    return HeadEvent(
        seq_nr=row.seq_nr,
        timestamp=utc(row.timestamp),
        tags=sorted(row.tags or ()),
        payload_type=row.payload_type,
        payload=payload,
        replicated=True,
    )


def _deleted_to(fold: Fold, at: Position) -> int:
    return next((to for behind, to in fold.deletes if behind > at), 0)


def _first(
    old: Iterable[HeadEvent], new: Iterable[HeadEvent], delete_to: int, most: int
) -> tuple[list[HeadEvent], bool]:
    """Return the first `most` events that a reader sees (those above delete_to), and whether there are
    more.
    """
    found = [*_some(old, delete_to, most + 1), *_some(new, delete_to, most + 1)]
    return found[:most], len(found) > most


def _some(events: Iterable[HeadEvent], delete_to: int, most: int) -> Iterator[HeadEvent]:
    return islice((event for event in events if event.seq_nr > delete_to), most)
