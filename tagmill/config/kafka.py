"""The configuration of what comes from Kafka: the brokers, and pipelines of kind kafka_journal,
kafka_journal_events and topic.
"""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, model_validator

from tagmill.config.base import Identifier, Section, fit_beside_destination
from tagmill.domain.field_path import field_path

Text = Annotated[str, Field(min_length=1)]


class KafkaSettings(Section):
    """Where topics are."""

    bootstrap_servers: list[Text] = Field(["127.0.0.1:9092"], min_length=1, description="host:port")
    tls: bool = False
    tls_ca_file: Path | None = None
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = Field(
        None, description="how user name and password are shown; left out: no login"
    )
    request_timeout_seconds: float = Field(30, gt=0)
    username: str | None = Field(None, description="from the environment or the Airflow connection only")
    password: SecretStr | None = Field(
        None, description="from the environment or the Airflow connection only"
    )
    airflow_connection: str = "tagmill_kafka"


class KafkaJournalSettings(Section):
    """A Kafka Journal: the topics that applications write to, and the keyspace that they are replicated
    to.
    """

    kind: Literal["kafka_journal"]
    keyspace: Identifier = Field(description="of journal, metajournal, pointer2, setting and locks")
    topics: list[Text] = Field(default_factory=list, description="replicated; they must exist")
    topic_prefixes: list[Text] = Field(
        default_factory=list, description="topics that begin so are replicated, too, as they appear"
    )
    schedule: str | None = "@hourly"
    purge_schedule: str | None = Field("@daily", description="of the DAG purge_expired_<pipeline>")
    segment_size: int = Field(
        10_000,
        ge=1,
        description="events in one partition of journal, for ids that are new; others keep theirs",
    )
    origin: Text = Field("tagmill", description="named in the Purge actions that purge-expired publishes")
    max_records_per_run: int = Field(5_000_000, ge=1, description="of Kafka; a backlog is many runs")
    lock_seconds: int = Field(
        120,
        ge=5,
        le=3600,
        description="after which another may create tables though the lock was not given back",
    )
    lease_seconds: int = Field(60, ge=5, le=3600)
    lease_wait_seconds: float = Field(
        0, ge=0, description="how long a command waits for another run of the pipeline"
    )

    @model_validator(mode="after")
    def _some_topics(self) -> "KafkaJournalSettings":
        if not self.topics and not self.topic_prefixes:
            raise ValueError("topics: name at least one, or one of topic_prefixes")
        return self

    def shared(self, other: "KafkaJournalSettings") -> list[str]:
        """Return the topics, or the topic prefixes, that both pipelines replicate."""
        found = set(self.topics) & set(other.topics)
        for one, two in ((self, other), (other, self)):
            found |= {
                text
                for text in [*one.topics, *one.topic_prefixes]
                if text.startswith(tuple(two.topic_prefixes))
            }
        return sorted(found)


COLUMN_TYPES = (
    "String", "LowCardinality(String)", "Int8", "Int16", "Int32", "Int64", "Float64", "Bool", "DateTime64(3, 'UTC')", "Date", "UUID",
)  # fmt: skip
# A decimal type as ClickHouse writes it: digits in all, and digits behind the point.
DECIMAL = re.compile(r"Decimal\((\d+), (\d+)\)")
MOST_DIGITS = 76


def decimal_digits(column_type: str) -> tuple[int, int] | None:
    """Return precision and scale of a decimal type, as ClickHouse writes it; None for any other type."""
    match = DECIMAL.fullmatch(column_type)
    precision, scale = map(int, match.groups()) if match else (0, 0)
    return (precision, scale) if 1 <= precision <= MOST_DIGITS and scale <= precision else None


def _column_type(text: str) -> str:
    """Return a column's type as ClickHouse writes it; raises ValueError."""
    spaced = re.sub(r"\s*,\s*", ", ", text)
    if spaced not in COLUMN_TYPES and decimal_digits(spaced) is None:
        raise ValueError(
            f"{text!r} is none of {', '.join(COLUMN_TYPES)}, Decimal(1 to {MOST_DIGITS}, 0 to that)"
        )
    return spaced


FieldPath = Annotated[str, AfterValidator(field_path)]
# Columns that every destination of a topic has in front of the configured ones.
OWN_COLUMNS = ("unique_id", "created_at", "topic", "partition", "offset", "schema_version", "payload")
# Columns that Tagmill's files and pushed rows have in addition.
BESIDE_COLUMNS = ("kind", "shard", "reason", "key", "headers", "row_checksum", "batch_id", "generation")


class TopicColumn(Section):
    """A column of the destination that is a field of the event."""

    name: Identifier
    path: FieldPath | None = Field(
        None,
        description="dotted path of the field, a name with a dot in double quotes; left out: the "
        "column's name",
    )
    type: Annotated[str, AfterValidator(_column_type)] = Field(
        "String", description="a type of ClickHouse; docs/topics.md has all"
    )
    nullable: bool = Field(
        True,
        description="a value that the column can't hold is null, and counted; false: its event, or one "
        "without it, is a dead letter",
    )


class ToClickHouse(Section):
    """What all pipelines have that deliver records of Kafka."""

    destination: Identifier = Field(description="table, of this pipeline only")
    schedule: str | None = "@hourly"
    cleanup_schedule: str | None = Field(
        None,
        description="of the DAG ttl_cleanup_<pipeline>: what is past retention_days goes; left out: by "
        "hand only",
    )
    max_records_per_run: int = Field(5_000_000, ge=1, description="offsets of Kafka; a backlog is many runs")
    batch_rows: int = Field(100_000, ge=1)
    batch_bytes: int = Field(256 * 1024 * 1024, ge=1, description="before compression")
    batch_min_rows: int = Field(
        10_000, ge=1, description="fewer records wait for more, but no longer than max_wait_seconds"
    )
    max_wait_seconds: float = Field(3600, ge=0)
    seconds_between_inserts: float = Field(1, ge=0, description="at least, for one table")
    lease_seconds: int = Field(60, ge=5, le=3600)
    lease_wait_seconds: float = Field(
        0, ge=0, description="how long a command waits for another run of the pipeline"
    )
    retention_days: int = Field(30, ge=1, description="sealed files and ledger rows of closed runs")
    destination_retention_days: int | None = Field(
        None,
        ge=1,
        description="rows whose created_at is older may be gone from ClickHouse (TTL, DROP PARTITION); "
        "left out: all stay",
    )

    @model_validator(mode="after")
    def _consistent_batches(self) -> "ToClickHouse":
        if self.batch_min_rows > self.batch_rows:
            raise ValueError(f"batch_min_rows: must be at most batch_rows ({self.batch_rows})")
        fit_beside_destination(*self.beside_destination)
        return self

    @property
    def beside_destination(self) -> tuple[str, ...]:
        """The tables of void batches and of sent ones."""
        return f"{self.destination}_voided", f"{self.destination}_batches"


class KafkaJournalEventsSettings(ToClickHouse):
    """The tables of a Kafka Journal, whoever replicates to them: the events of its ids go to one destination
    table.
    """

    kind: Literal["kafka_journal_events"]
    keyspace: Identifier = Field(description="of journal, metajournal and pointer2")
    topics: list[Text] = Field(
        default_factory=list, description="delivered; left out: all that have a pointer"
    )
    tags: list[Text] = Field(
        default_factory=list,
        description="delivered, a row for each of an event's; left out: all events, and those without a "
        "tag under ''",
    )
    max_records_per_run: int = Field(50_000_000, ge=1, description="offsets of Kafka; a backlog is many runs")
    batch_min_rows: int = Field(
        1, ge=1, description="fewer records wait for more, but no longer than max_wait_seconds"
    )

    @property
    def rule(self) -> str:
        """Empty: the journal has each event once already, so no ids are made."""
        return ""


class TopicSettings(ToClickHouse):
    """Plain Kafka topics, whose distinct events go to one destination table."""

    kind: Literal["topic"]
    topics: list[Text] = Field(default_factory=list, description="read; they must exist")
    topic_prefixes: list[Text] = Field(
        default_factory=list, description="topics that begin so are read, too, as they appear"
    )
    format: Literal["json", "avro", "protobuf"]
    schema_files: dict[str, Path] = Field(
        default_factory=dict,
        description="by version (framed: by registry id): Avro schemas or Protobuf descriptor sets",
    )
    framed: bool = Field(
        False,
        description="Avro, Protobuf: each value begins with a schema registry's frame (a zero byte, the "
        "schema's id)",
    )
    schema_version: str | None = Field(
        None,
        description="Avro without frames: which of schema_files records are of; ids of older events are "
        "made again by the others",
    )
    message_type: str | None = Field(None, description="Protobuf: full name of the message")
    version_field: FieldPath | None = Field(None, description="JSON: the field that says the schema_version")
    unique_id: list[FieldPath] = Field(
        ["project", "event_type", "product_id"], description="fields that make an event unique"
    )
    producer_id: FieldPath | None = Field(
        None,
        description="field with the producer's own id, unique within what unique_id names (unique_id = "
        "[]: everywhere)",
    )
    shards: int = Field(
        1024,
        ge=1,
        le=1_000_000,
        description="partitions of deduplication; another number: tagmill dedup rekey",
    )
    created_at: FieldPath | None = Field(
        None, description="field with the event's time; left out: Kafka's timestamp"
    )
    columns: list[TopicColumn] = Field(default_factory=list)
    max_record_bytes: int = Field(
        64 * 1024 * 1024, ge=1, description="of a record's value; one with more is a dead letter"
    )
    max_record_values: int = Field(
        1_000_000,
        ge=1,
        description="fields and items that a record may hold, nested ones too; one with more is a dead "
        "letter",
    )
    max_record_depth: int = Field(
        100,
        ge=1,
        le=150,
        description="objects and lists within each other; a record that is nested deeper is a dead letter",
    )
    window_days: int = Field(
        60, ge=1, description="an event whose id was seen within it is not delivered again"
    )
    expire_schedule: str | None = Field(
        None, description="of the DAG dedup_expire_<pipeline>; left out: by hand only"
    )

    @model_validator(mode="after")
    def _consistent(self) -> "TopicSettings":
        if not self.topics and not self.topic_prefixes:
            raise ValueError("topics: name at least one, or one of topic_prefixes")
        if not self.unique_id and self.producer_id is None:
            raise ValueError("unique_id: name at least one field, or producer_id")
        # Spark ignores the case of column names.
        names = [
            name.lower()
            for name in (*OWN_COLUMNS, *BESIDE_COLUMNS, *(column.name for column in self.columns))
        ]
        if twice := sorted({column.name for column in self.columns if names.count(column.name.lower()) > 1}):
            raise ValueError(f"columns: {', '.join(twice)} is there twice, or belongs to Tagmill")
        self._consistent_format()
        return self

    def _consistent_format(self) -> None:
        if self.format == "json" and (self.schema_files or self.framed or self.message_type):
            raise ValueError("format: JSON has no schema_files, framed or message_type")
        if self.format == "avro" and not self.schema_files:
            raise ValueError("schema_files: Avro needs one, or, framed, one by each registry id")
        if (
            self.format == "avro"
            and not self.framed
            and len(self.schema_files) > 1
            and self.schema_version is None
        ):
            raise ValueError(
                "schema_version: say which of schema_files records are of (framed records say so themselves)"
            )
        if self.framed and (wrong := [key for key in self.schema_files if not _is_registry_id(key)]):
            raise ValueError(
                f"schema_files: {', '.join(wrong)} is no id of a schema registry, a number below 2^32, "
                "which frames have"
            )
        if self.schema_version is not None and (
            self.format != "avro" or self.framed or self.schema_version not in self.schema_files
        ):
            raise ValueError("schema_version: it is a key of schema_files, for Avro without frames")
        if self.format == "protobuf" and not self.message_type:
            raise ValueError("message_type: Protobuf needs the full name of the message")
        if self.format == "protobuf" and not self.schema_files:
            raise ValueError(
                "schema_files: Protobuf needs a descriptor set, or, framed, one by each registry id"
            )
        if self.format == "protobuf" and not self.framed and len(self.schema_files) > 1:
            raise ValueError(
                "schema_files: Protobuf without frames has one descriptor set, for records don't say "
                "which they are of"
            )
        if self.format != "json" and self.version_field:
            raise ValueError(
                "version_field: only JSON has it; the version of a schema file is its key in schema_files"
            )

    @property
    def versions(self) -> list[str]:
        """The keys of schema_files that records are read with."""
        return [self.schema_version] if self.schema_version is not None else list(self.schema_files)

    @property
    def key(self) -> list[str]:
        """The paths of the fields that make an event unique, in the order in which they are hashed."""
        return [*self.unique_id, *([self.producer_id] if self.producer_id else [])]

    @property
    def rule(self) -> str:
        """The rule by which ids are made, as the ledger keeps it; another rule makes other ids.

        Separators within a part are quoted.
        """
        fields = "+".join(map(_quoted, self.unique_id))
        return f"{fields}{'/' + _quoted(self.producer_id) if self.producer_id else ''}%{self.shards}"


def _is_registry_id(key: str) -> bool:
    return key.isascii() and key.isdecimal() and str(int(key)) == key and int(key) < 2**32


def _quoted(path: str) -> str:
    return path.translate({ord(sign): f"%{ord(sign):02X}" for sign in "%+/"})


Stream = TopicSettings | KafkaJournalEventsSettings
