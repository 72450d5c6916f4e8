"""Make the sections of pipelines for a topic from a sample of its records."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tagmill.config.kafka import TopicSettings
from tagmill.delivery.topics.formats import message_of, schema_contents
from tagmill.errors import ConfigurationError
from tagmill.onboarding.column_types import MOST_COLUMNS, Column, columns_of, created_at, event_key, fields_of
from tagmill.onboarding.draft import Draft
from tagmill.onboarding.questions import Ask, Question
from tagmill.onboarding.toml_file import Section, quoted
from tagmill.onboarding.topic_survey import Guess, TopicSample, decoded, guess_format

MANY_RECORDS = 100


def topic_draft(
    sample: TopicSample,
    pipeline: str,
    destination: str,
    ask: Ask,
    *,
    schema_files: Mapping[str, Path] | None = None,
    message_type: str | None = None,
    unique_id: Sequence[str] = (),
) -> Draft:
    """Return the pipeline of a plain topic.

    Args:
        sample: records of the topic.
        pipeline: name of the pipeline.
        destination: table of ClickHouse.
        ask: answers what the servers can't.
        schema_files: Avro schemas or Protobuf descriptor sets by version, or by registry id.
        message_type: Protobuf's message.
        unique_id: fields that make an event unique; empty: those that tell the sampled events apart.

    Raises ConfigurationError: the format can't be told, or no record can be read.
    """
    guess = guess_format(sample.records)
    keys = _format_keys(sample, guess, dict(schema_files or {}), message_type)
    settings = _settings(sample.topic, keys, ["unknown"])
    contents = schema_contents(settings.schema_files)
    if settings.format == "protobuf":
        kind = message_of(next(iter(contents.values())), str(message_type))
        settings = _settings(sample.topic, keys, [field.name for field in kind.DESCRIPTOR.fields])
    events, reasons = decoded(settings, contents, sample.records)
    if sample.records and guess.format != "none" and not events:
        raise ConfigurationError(
            f"topic {sample.topic}: none of {len(sample.records)} sampled records can be read as "
            f"{settings.format} ({'; '.join(reasons)}). Nothing was written"
        )
    return _Proposal(sample, pipeline, destination, ask).draft(guess, keys, events, reasons, unique_id)


def _format_keys(
    sample: TopicSample, guess: Guess, schema_files: Mapping[str, Path], message_type: str | None
) -> dict[str, Any]:
    """Return the keys of the pipeline that say how values are read."""
    if guess.format == "json" or (guess.format == "none" and not schema_files):
        return {"format": "json"}
    if not schema_files:
        ids = ", ".join(f"--schema-file {one}=FILE" for one in list(guess.registry_ids)[:5])
        way = f"Give the schemas: {ids}" if ids else "Give a schema: --schema-file 1=FILE"
        raise ConfigurationError(
            f"topic {sample.topic}: {guess.reason}; what they hold only a schema says. Nothing was written. "
            f"{way} (Avro, or a Protobuf descriptor set with --message-type)"
        )
    framed = guess.format == "framed"
    keys: dict[str, Any] = {
        "format": "protobuf" if message_type else "avro",
        "schema_files": {version: str(file.resolve()) for version, file in schema_files.items()},
    }
    if message_type:
        keys["message_type"] = message_type
    if framed:
        keys["framed"] = True
    elif len(schema_files) > 1 and not message_type:
        keys["schema_version"] = list(schema_files)[-1]
    return keys


def _settings(topic: str, keys: Mapping[str, Any], unique_id: Sequence[str]) -> TopicSettings:
    try:
        return TopicSettings.model_validate(
            {
                "kind": "topic",
                "topics": [topic],
                "destination": "sample",
                "unique_id": list(unique_id),
                **keys,
            }
        )
    except ValidationError as error:
        text = "; ".join(mistake["msg"].removeprefix("Value error, ") for mistake in error.errors())
        raise ConfigurationError(f"topic {topic}: {text}. Nothing was written") from None


class _Proposal:
    def __init__(self, sample: TopicSample, pipeline: str, destination: str, ask: Ask) -> None:
        self.sample, self.ask, self.pipeline = sample, ask, pipeline
        self.section = Section(f"pipelines.{pipeline}")
        self.section.add("kind", "topic")
        self.section.add("topics", [sample.topic])
        self.section.add("destination", destination, "Table of ClickHouse, of this pipeline only.")
        self.made = Draft([self.section], pipelines=[pipeline], commands=[f"run deliver -p {pipeline}"])

    def draft(
        self,
        guess: Guess,
        keys: Mapping[str, Any],
        events: Sequence[Mapping[str, Any]],
        reasons: Sequence[str],
        unique_id: Sequence[str],
    ) -> Draft:
        sample = self.sample
        read = f"{len(sample.records):,} of {sample.offsets:,} records in {sample.partitions} partitions"
        self.section.comments.append(f"A sample of {read}: {guess.reason}.")
        self.made.facts.append(f"topic {sample.topic}: {read}; {guess.reason}")
        self.made.warnings += [f"dead letters in the sample: {reason}" for reason in reasons]
        if sample.tombstones:
            self.made.facts.append(f"{sample.tombstones} of them are tombstones, which are not delivered")
        if guess.format == "none":
            self.made.not_told.append(f"format: {guess.reason}; {keys['format']} was taken")
        for name, value in keys.items():
            self.section.add(name, value)
        fields = fields_of(events)
        self._key(events, unique_id)
        moment = created_at(fields, len(events)) if events else None
        if moment:
            self.section.add("created_at", moment, "A time in every event of the sample.")
        else:
            self.made.not_told.append(
                "created_at: no field has a time in every event; Kafka's timestamp counts"
            )
        columns = columns_of(fields)
        self._columns(columns, len(events))
        if len(fields) > len(columns):
            self.made.not_told.append(
                f"columns: of {len(fields)} fields the first {MOST_COLUMNS} were taken; the payload has all"
            )
        return self.made

    def _key(self, events: Sequence[Mapping[str, Any]], named: Sequence[str]) -> None:
        found = event_key(fields_of(events), events) if events and not named else None
        if found and found.producer_id:
            self.section.add("unique_id", [], "Check this: what makes an event unique is yours to say.")
            self.section.add("producer_id", found.producer_id, f"{_sentence(found.reason)}.")
        elif found:
            self.section.add("unique_id", list(found.unique_id), f"Check this: {found.reason}.")
        elif named:
            self.section.add("unique_id", list(named))
        else:
            text = f"Fields that make an event of topic {self.sample.topic} unique, with commas between them"
            answer = self.ask(Question(text, None, option="--unique-id"))
            paths = [path for part in answer.split(",") if (path := part.strip())]
            self.section.add("unique_id", paths)
        if found:
            few = f" (only {len(events)} events were seen)" if len(events) < MANY_RECORDS else ""
            self.made.not_told.append(
                f"unique_id: {found.reason}{few}; whether that always holds is yours to say"
            )

    def _columns(self, columns: Sequence[Column], events: int) -> None:
        values = []
        comments = [f"How many of {events:,} events have a value:"] if columns else []
        for column in columns:
            value = {"name": column.name, "type": column.type}
            if column.path != column.name:
                value["path"] = column.path
            values.append(value)
            note = f"; {column.note}" if column.note else ""
            comments.append(f"  {quoted(column.path)}: {column.events:,}{note}")
            if column.note:
                self.made.facts.append(f"column {column.name}: {column.type}, {column.note}")
        self.section.add("columns", values, *comments)
        self.made.facts.append(f"{len(columns)} columns")


def _sentence(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).strip('"')


def kafka_journal_draft(
    sample: TopicSample, pipeline: str, keyspace: str, destination: str, *, replicated: bool
) -> Draft:
    """Return the pipelines of a Kafka Journal's topic: one that replicates it (unless `replicated`: the
    keyspace has its tables), and one that delivers its events.
    """
    made = Draft(facts=[f"topic {sample.topic}: a Kafka Journal, {sample.offsets:,} records"])
    if not replicated:
        section = Section(f"pipelines.{pipeline}", ["Replicates the Kafka Journal to Cassandra."])
        section.add("kind", "kafka_journal")
        section.add("topics", [sample.topic])
        section.add("keyspace", keyspace, "Keyspace that Tagmill replicates to.")
        made.sections.append(section)
        made.pipelines.append(pipeline)
        made.commands.append(f"kafka-journal replicate -p {pipeline}")
    made.extend(kafka_journal_events_draft(f"{pipeline}_events", keyspace, destination, [sample.topic]))
    return made


def kafka_journal_events_draft(
    pipeline: str, keyspace: str, destination: str, topics: Sequence[str] = ()
) -> Draft:
    """Return the pipeline that delivers the events of a replicated Kafka Journal."""
    section = Section(f"pipelines.{pipeline}", ["Delivers the events of the replicated Kafka Journal."])
    section.add("kind", "kafka_journal_events")
    section.add("keyspace", keyspace)
    if topics:
        section.add("topics", list(topics))
    section.add("destination", destination, "Table of ClickHouse, of this pipeline only.")
    return Draft(
        [section],
        facts=[f"keyspace {keyspace}: the tables of a Kafka Journal"],
        pipelines=[pipeline],
        commands=[f"run deliver -p {pipeline}"],
    )
