"""Turn one record's value into a row of a batch: decode it, make its id, take its fields. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tagmill.config.kafka import TopicSettings
from tagmill.delivery.topics.avro import parse_schema
from tagmill.delivery.topics.event_ids import UniqueId, unique_id
from tagmill.delivery.topics.fields import BEHIND_LAST_MS, InvalidRecord, finder, key_reader, milliseconds
from tagmill.delivery.topics.formats import (
    Decoded,
    Decoder,
    avro_decoder,
    framed_protobuf_decoder,
    json_decoder,
    protobuf_decoder,
)
from tagmill.delivery.topics.record_limits import Limits
from tagmill.delivery.topics.table_columns import fields
from tagmill.errors import ConfigurationError


class RecordDecoder:
    """Reads the values of one pipeline's topics.

    `contents`: its schema files by version; raises ConfigurationError for wrong ones.

    `note` gets all decoded events; an event may be decoded, and so noted, more than once.
    """

    def __init__(
        self,
        pipeline: TopicSettings,
        contents: Mapping[str, bytes],
        note: Callable[[Iterable[Any]], None] = lambda _: None,
    ) -> None:
        self.pipeline, self.key, self.note = pipeline, key_reader(pipeline.key), note
        self.decode = decoder(pipeline, {version: contents[version] for version in pipeline.versions})
        older = {version: contents[version] for version in contents if version not in pipeline.versions}
        self.older = {version: decoder(pipeline, {version: content}) for version, content in older.items()}
        columns = fields(pipeline.columns)
        self.names = (
            "unique_id",
            "shard",
            "created_at",
            "schema_version",
            *(field.name for field in columns),
        )
        self._nulled = list[tuple[str, str]]()
        self.fields = [field.reader(lambda *pair: self._nulled.append(pair)) for field in columns]
        self.moment = finder(pipeline.created_at) if pipeline.created_at else None

    def nulled(self) -> list[tuple[str, str]]:
        """Return and forget the values that became null since the last call, each as its column and the
        reason.
        """
        found, self._nulled[:] = self._nulled.copy(), []
        return found

    def decoded(self, values: Sequence[bytes]) -> list[Decoded]:
        """Decode values into events with the versions of their schemas, and note the events; raises InvalidRecord."""
        found = list(map(self.decode, values))
        self.note(event for event, _ in found)
        return found

    def id_of(self, value: bytes, schema_version: str) -> UniqueId:
        """Return the id of an event that was read with a schema of this version; raises InvalidRecord."""
        if (
            self.pipeline.format == "avro"
            and not self.pipeline.framed
            and schema_version not in self.pipeline.schema_files
        ):
            raise InvalidRecord(f"its schema, {schema_version}, is not among schema_files")
        decode = self.older.get(schema_version, self.decode)
        return unique_id(self.key(decode(value).event), self.pipeline.shards)

    def read(self, value: bytes, timestamp_ms: int) -> tuple[Any, ...]:
        """Return one record's values in the order of `names`, created_at in milliseconds since 1970; raises
        InvalidRecord.
        """
        nulled = len(self._nulled)
        [(event, version)] = self.decoded([value])
        shard, one = unique_id(self.key(event), self.pipeline.shards)
        created_at = self.created_at(event, timestamp_ms)
        try:
            return (one, shard, created_at, version, *[read(event) for read in self.fields])
        except InvalidRecord:
            del self._nulled[nulled:]
            raise

    def created_at(self, event: Mapping[str, Any], timestamp_ms: int) -> int:
        """Return the creation time (milliseconds since 1970) of an event: the configured field, or Kafka's
        timestamp; raises InvalidRecord.
        """
        where, found = "Kafka's timestamp", timestamp_ms
        if self.moment is not None:
            where, value = f"field {self.pipeline.created_at}", self.moment(event)
            if value is None:
                raise InvalidRecord(f"{where} is missing")
            try:
                found = milliseconds(value)
            except (ValueError, OverflowError) as error:
                raise InvalidRecord(f"{where} is no moment: {error}") from None
        if not 0 <= found < BEHIND_LAST_MS:
            raise InvalidRecord(f"{where} is not between 1970 and 2100")
        return found


def decoder(pipeline: TopicSettings, contents: Mapping[str, bytes]) -> Decoder:
    """Return the decoder of the pipeline's format; raises ConfigurationError if a schema file is not a
    schema.
    """
    limits = Limits(pipeline.max_record_bytes, pipeline.max_record_values, pipeline.max_record_depth)
    if pipeline.format == "json":
        return json_decoder(pipeline.version_field, limits)
    if pipeline.format == "avro":
        schemas = {version: read_avro(version, content) for version, content in contents.items()}
        return avro_decoder(schemas, limits, framed=pipeline.framed)
    if pipeline.framed:
        return framed_protobuf_decoder(contents, str(pipeline.message_type), pipeline.key, limits)
    (version, content), *_ = contents.items()
    return protobuf_decoder(content, str(pipeline.message_type), version, pipeline.key, limits)


def read_avro(version: str, content: bytes) -> Any:
    """Parse a schema file of Avro; raises ConfigurationError if it is not a record's schema."""
    try:
        return parse_schema(content)
    except ValueError as error:
        raise ConfigurationError(f"schema_files.{version}: {error}") from None
