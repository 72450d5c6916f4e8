"""Sample the newest records of a topic, and tell their format."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from tagmill.config.kafka import TopicSettings
from tagmill.delivery.topics.fields import InvalidRecord
from tagmill.delivery.topics.formats import FRAME_BYTES, MAGIC
from tagmill.delivery.topics.record_decoder import decoder
from tagmill.errors import ConfigurationError
from tagmill.kafka.client import Kafka, KafkaRecord, Span
from tagmill.kafka_journal.wire_format import ACTION, Undecodable, decode_action

# Limits of a sample: records, partitions, bytes.
MOST_RECORDS, MOST_PARTITIONS, MOST_BYTES = 500, 20, 32 * 1024**2
# Share of values that must have a format.
MOST = 0.9
AVRO_FILE = b"Obj\x01"
Format = Literal["json", "framed", "journal", "unknown", "none"]


@dataclass(frozen=True, slots=True)
class Guess:
    """The format of a topic's values.

    `registry_ids`: the schema ids of framed values with their counts. `reason`: what speaks for it.
    """

    format: Format
    reason: str
    registry_ids: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicSample:
    """The newest records of some partitions of a topic; `offsets`: how many offsets the topic has."""

    topic: str
    partitions: int
    offsets: int
    records: Sequence[KafkaRecord]
    tombstones: int = 0


def sample(kafka: Kafka, topic: str) -> TopicSample:
    """Read the newest records of a topic; raises ConfigurationError if it does not exist, and names topics
    that do.
    """
    topics = kafka.topics()
    if topic not in topics:
        names = ", ".join(sorted(topics)[:10]) or "none"
        raise ConfigurationError(f"{kafka.where} has no topic {topic}. Nothing was written. It has: {names}")
    spans = kafka.spans((topic, partition) for partition in range(topics[topic]))
    filled = [(place, span) for place, span in spans.items() if span.first < span.end]
    step = max(1, -(-len(filled) // MOST_PARTITIONS))
    chosen = filled[::step]
    each = max(1, MOST_RECORDS // max(1, len(chosen)))
    records, size, tombstones = list[KafkaRecord](), 0, 0
    for (_, partition), span in chosen:
        for record in kafka.read(topic, partition, Span(max(span.first, span.end - each), span.end)):
            size += len(record.value or b"")
            if size > MOST_BYTES and records:
                break
            tombstones += record.value is None
            records.append(record)
    total = sum(span.end - span.first for span in spans.values())
    return TopicSample(topic, topics[topic], total, records, tombstones)


def guess_format(records: Sequence[KafkaRecord]) -> Guess:
    """Tell the format of records: of a Kafka Journal, JSON objects, framed by a schema registry, or unknown."""
    if not records:
        return Guess("none", "the topic has no records")
    if sum(map(_is_action, records)) >= MOST * len(records):
        return Guess("journal", f"records have the header {ACTION} of a Kafka Journal")
    values = [record.value for record in records if record.value is not None]
    if not values:
        return Guess("none", "all sampled records are tombstones")
    objects = sum(map(_is_object, values))
    if objects >= MOST * len(values):
        return Guess("json", f"{objects} of {len(values)} values are JSON objects")
    ids = Counter(
        int.from_bytes(value[1:FRAME_BYTES], "big")
        for value in values
        if len(value) > FRAME_BYTES and value[0] == MAGIC
    )
    if ids.total() >= MOST * len(values):
        names = ", ".join(str(one) for one, _ in ids.most_common(5))
        return Guess("framed", f"values begin with a schema registry's frame (ids {names})", ids)
    return Guess("unknown", _oddity(values))


def _oddity(values: Sequence[bytes]) -> str:
    if sum(value.startswith(AVRO_FILE) for value in values) >= MOST * len(values):
        return "values are whole Avro files, which no pipeline reads"
    if sum(map(_is_json, values)) >= MOST * len(values):
        return "values are JSON, but no objects, which no pipeline reads"
    return "values are neither JSON objects nor framed: Avro or Protobuf without a frame, or another format"


def _is_action(record: KafkaRecord) -> bool:
    header = next((value for name, value in record.headers if name == ACTION), None)
    try:
        return decode_action(header) is not None
    except Undecodable:
        return True


_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_any = msgspec.json.Decoder(msgspec.Raw)


def _is_object(value: bytes) -> bool:
    return _decodes(_object, value)


def _is_json(value: bytes) -> bool:
    return _decodes(_any, value)


def _decodes(json: Any, value: bytes) -> bool:
    try:
        json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def decoded(
    settings: TopicSettings, contents: Mapping[str, bytes], records: Sequence[KafkaRecord]
) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Return the events of the records that the settings can read, and the reasons of the others, each once."""
    decode = decoder(settings, {version: contents[version] for version in settings.versions})
    events, reasons = list[Mapping[str, Any]](), Counter[str]()
    for record in records:
        if record.value is None:
            continue
        try:
            events.append(decode(record.value).event)
        except InvalidRecord as error:
            reasons[error.reason] += 1
    return events, [f"{count} records: {reason}" for reason, count in reasons.most_common(3)]
