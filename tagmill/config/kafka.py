"""The configuration of what comes from Kafka: the brokers, and pipelines of kind kafka_journal,
kafka_journal_events and topic.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator

from tagmill.config.airflow import PipelineDagSettings
from tagmill.config.base import (
    DeliverySchedule,
    Identifier,
    LeaseSeconds,
    LeaseWaitSeconds,
    Password,
    RetentionDays,
    Schedule,
    Section,
    Tls,
    TlsCaFile,
    TlsCertificateFile,
    TlsKeyFile,
    TlsKeyPassword,
    Username,
    fit_beside_destination,
)
from tagmill.config.kafka_properties import Value, permitted
from tagmill.domain.field_path import field_path

Text = Annotated[str, Field(min_length=1)]


SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
OAUTH_KEYS = ("oauth_token_url", "oauth_scope", "oauth_extensions", "oauth_ca_file")
ExtensionName = Annotated[str, Field(pattern="^[A-Za-z]+$")]
ExtensionValue = Annotated[str, Field(pattern=r"^[^,=\s]+$")]


def _http_url(text: str) -> str:
    """Return a URL of HTTP without a login; raises ValueError."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("it must begin with https:// or http:// and name a host")
    if parts.username is not None or parts.password is not None:
        raise ValueError("a login doesn't belong in it")
    return text


HttpUrl = Annotated[
    str, AfterValidator(_http_url), WithJsonSchema({"type": "string", "pattern": "^https?://"})
]


class KafkaSettings(Section):
    """Where topics are."""

    bootstrap_servers: list[Text] = Field(
        ["127.0.0.1:9092"],
        min_length=1,
        description="Brokers to begin with, each as host:port.",
        examples=[["kafka-1:9092", "kafka-2:9092"]],
    )
    tls: Tls = False
    tls_ca_file: TlsCaFile = None
    tls_certificate_file: TlsCertificateFile = None
    tls_key_file: TlsKeyFile = None
    tls_key_password: TlsKeyPassword = None
    sasl_mechanism: SaslMechanism | None = Field(
        None,
        description="SASL mechanism of the login with `username` and `password`. PLAIN sends the password "
        "itself, so use `tls` with it; the SCRAM ones only prove it. OAUTHBEARER gets a token from "
        "`oauth_token_url` by them, the client's id and secret. Left out: no login.",
        examples=["SCRAM-SHA-512"],
    )
    oauth_token_url: HttpUrl | None = Field(
        None,
        description="OAUTHBEARER: the token endpoint of the identity provider (OpenID Connect).",
        examples=["https://login.example.org/oauth2/token"],
    )
    oauth_scope: Text | None = Field(
        None,
        description="OAUTHBEARER: scope that the token is asked for. Left out: the provider's default.",
        examples=["kafka"],
    )
    oauth_extensions: dict[ExtensionName, ExtensionValue] = Field(
        default_factory=dict,
        description="OAUTHBEARER: SASL extensions, which some brokers ask for.",
        examples=[{"logicalCluster": "lkc-1"}],
    )
    oauth_ca_file: Path | None = Field(
        None,
        description="OAUTHBEARER: file of the certificate authorities (PEM) that sign the token endpoint's "
        "certificate. Left out: those of the system.",
        examples=["certificates/login-ca.pem"],
    )
    properties: Annotated[dict[str, Value], AfterValidator(permitted)] = Field(
        default_factory=dict,
        description="Further properties of librdkafka (docs/clusters.md). Secrets, and what Tagmill sets itself, are "
        "errors.",
        examples=[{"client.rack": "eu-west-1a"}],
    )
    request_timeout_seconds: float = Field(
        30,
        gt=0,
        description="Seconds until a request without an answer fails.",
        examples=[30],
    )
    username: Username = None
    password: Password = None
    airflow_connection: str = Field(
        "tagmill_kafka",
        description="Airflow connection of type kafka or generic: user name, password, TLS, and the address "
        "where this section has none. DAGs use it where it exists.",
        examples=["tagmill_kafka"],
    )

    @model_validator(mode="after")
    def _oauth_is_whole(self) -> "KafkaSettings":
        given = [key for key in OAUTH_KEYS if getattr(self, key)]
        if self.sasl_mechanism != "OAUTHBEARER" and given:
            raise ValueError(f'{given[0]}: only sasl_mechanism = "OAUTHBEARER" has it')
        if self.sasl_mechanism == "OAUTHBEARER" and not self.oauth_token_url:
            raise ValueError("oauth_token_url: OAUTHBEARER needs it")
        return self


class KafkaJournalSettings(Section):
    """A Kafka Journal: the topics that applications write to, and the keyspace that they are replicated
    to.
    """

    kind: Literal["kafka_journal"] = Field(
        description="The pipeline replicates a Kafka Journal to Cassandra.",
        examples=["kafka_journal"],
    )
    keyspace: Identifier = Field(
        description="Keyspace of the tables journal, metajournal, pointer2, setting and locks.",
        examples=["carts"],
    )
    topics: list[Text] = Field(
        default_factory=list,
        description="Topics that are replicated; they must exist.",
        examples=[["journal-cart"]],
    )
    topic_prefixes: list[Text] = Field(
        default_factory=list,
        description="Topics that begin with one of these are replicated too, as they appear.",
        examples=[["journal-"]],
    )
    schedule: Schedule | None = Field(
        "@hourly",
        description="When Airflow runs the DAG replicate_<pipeline>: a preset or a cron expression, in UTC.",
        examples=["*/10 * * * *"],
    )
    purge_schedule: Schedule | None = Field(
        "@daily",
        description="When Airflow runs the DAG purge_<pipeline>: a preset or a cron expression, in UTC.",
        examples=["@daily"],
    )
    cleanup_schedule: Schedule | None = Field(
        None,
        description="When Airflow runs the DAG cleanup_<pipeline>, which deletes what is past "
        "`retention_days`. Left out: by hand only.",
        examples=["@weekly"],
    )
    retention_days: int = Field(
        30,
        ge=1,
        description="Days that reports of Airflow's jobs are kept.",
        examples=[30],
    )
    segment_size: int = Field(
        10_000,
        ge=1,
        le=2**31 - 1,
        description="Events in one partition of the table journal, for new ids. Other ids keep theirs.",
        examples=[10000],
    )
    origin: Text = Field(
        "tagmill",
        description="Origin that the Purge actions of `purge-expired` name.",
        examples=["tagmill"],
    )
    max_records_per_run: int = Field(
        5_000_000,
        ge=1,
        description="Records of Kafka that one run reads at most. A backlog takes several runs.",
        examples=[5000000],
    )
    small_run_rows: int = Field(
        20_000,
        ge=0,
        le=20_000,
        description="Records up to which a run is replicated without Spark; 0: always with Spark.",
        examples=[20000],
    )
    lock_seconds: int = Field(
        120,
        ge=5,
        le=3600,
        description="Seconds after which another replicator may create tables though the lock was not "
        "given back.",
        examples=[120],
    )
    airflow: PipelineDagSettings = Field(
        default_factory=PipelineDagSettings,
        description="Keys of `[airflow]` that are others for the DAGs of this pipeline.",
        examples=[{"owner": "orders-team"}],
    )
    lease_seconds: LeaseSeconds = 60
    lease_wait_seconds: LeaseWaitSeconds = 0

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


COLUMN_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string", "enum": list(COLUMN_TYPES)},
        {"type": "string", "pattern": r"^Decimal\(\d+\s*,\s*\d+\)$"},
    ]
}


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

    name: Identifier = Field(
        description="Name of the column.",
        examples=["country"],
    )
    path: FieldPath | None = Field(
        None,
        description="Dotted path of the field; a name with a dot is written in double quotes. Left out: "
        "the column's name.",
        examples=["customer.country"],
    )
    type: Annotated[str, AfterValidator(_column_type), WithJsonSchema(COLUMN_SCHEMA)] = Field(
        "String",
        description="Type of ClickHouse; docs/topics.md lists those that are possible.",
        examples=["LowCardinality(String)"],
    )
    nullable: bool = Field(
        True,
        description="True: a value that the column can't hold is null, and counted. False: such an event, "
        "or one without the value, is a dead letter.",
        examples=[False],
    )


class ToClickHouse(Section):
    """What all pipelines have that deliver records of Kafka."""

    destination: Identifier = Field(
        description="Table of ClickHouse, of this pipeline only.",
        examples=["products"],
    )
    schedule: DeliverySchedule = "@hourly"
    cleanup_schedule: Schedule | None = Field(
        None,
        description="When Airflow runs the DAG cleanup_<pipeline>, which deletes what is past "
        "`retention_days`. Left out: by hand only.",
        examples=["@weekly"],
    )
    max_records_per_run: int = Field(
        5_000_000,
        ge=1,
        description="Offsets of Kafka that one run covers at most. A backlog takes several runs.",
        examples=[5000000],
    )
    small_run_rows: int = Field(
        20_000,
        ge=0,
        le=20_000,
        description="Records up to which a run is read without Spark; 0: always with Spark.",
        examples=[20000],
    )
    batch_rows: int = Field(
        100_000,
        ge=1,
        description="Rows that a batch may have.",
        examples=[100000],
    )
    batch_bytes: int = Field(
        256 * 1024 * 1024,
        ge=1,
        description="Bytes that a batch may have before compression.",
        examples=[268435456],
    )
    batch_min_rows: int = Field(
        10_000,
        ge=1,
        description="Records that a run needs. Fewer wait for more, but no longer than `max_wait_seconds`.",
        examples=[10000],
    )
    max_wait_seconds: float = Field(
        3600,
        ge=0,
        description="Seconds that records fewer than `batch_min_rows` wait at most.",
        examples=[3600],
    )
    seconds_between_inserts: float = Field(
        1,
        ge=0,
        description="Seconds between two inserts into the table, at least.",
        examples=[1],
    )
    airflow: PipelineDagSettings = Field(
        default_factory=PipelineDagSettings,
        description="Keys of `[airflow]` that are others for the DAGs of this pipeline.",
        examples=[{"owner": "orders-team"}],
    )
    lease_seconds: LeaseSeconds = 60
    lease_wait_seconds: LeaseWaitSeconds = 0
    retention_days: RetentionDays = 30
    destination_retention_days: int | None = Field(
        None,
        ge=1,
        description="Age in days of `created_at` beyond which rows may be gone from ClickHouse (TTL, DROP "
        "PARTITION). Left out: all rows stay.",
        examples=[365],
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

    kind: Literal["kafka_journal_events"] = Field(
        description="The pipeline delivers the events of a Kafka Journal, from its tables in Cassandra.",
        examples=["kafka_journal_events"],
    )
    keyspace: Identifier = Field(
        description="Keyspace of the tables journal, metajournal and pointer2.",
        examples=["carts"],
    )
    topics: list[Text] = Field(
        default_factory=list,
        description="Topics whose events are delivered. Empty: all that have a pointer.",
        examples=[["journal-cart"]],
    )
    tags: list[Text] = Field(
        default_factory=list,
        description="Tags that are delivered; an event has a row for each of its own. Empty: all events, "
        "those without a tag under ''.",
        examples=[["checkout"]],
    )
    max_records_per_run: int = Field(
        50_000_000,
        ge=1,
        description="Offsets of Kafka that one run covers at most. A backlog takes several runs.",
        examples=[50000000],
    )
    batch_min_rows: int = Field(
        1,
        ge=1,
        description="Records that a run needs. Fewer wait for more, but no longer than `max_wait_seconds`.",
        examples=[1],
    )

    @property
    def rule(self) -> str:
        """Empty: the journal has each event once already, so no ids are made."""
        return ""


class TopicSettings(ToClickHouse):
    """Plain Kafka topics, whose distinct events go to one destination table."""

    kind: Literal["topic"] = Field(
        description="The pipeline delivers plain topics of Kafka.",
        examples=["topic"],
    )
    topics: list[Text] = Field(
        default_factory=list,
        description="Topics that are read; they must exist.",
        examples=[["products"]],
    )
    topic_prefixes: list[Text] = Field(
        default_factory=list,
        description="Topics that begin with one of these are read too, as they appear.",
        examples=[["products-"]],
    )
    format: Literal["json", "avro", "protobuf"] = Field(
        description="Format of the records' values.",
        examples=["avro"],
    )
    schema_files: dict[str, Path] = Field(
        default_factory=dict,
        description="Avro schemas or Protobuf descriptor sets, by version. With `framed`: by registry id.",
        examples=[{"1": "schemas/product.avsc"}],
    )
    framed: bool = Field(
        False,
        description="Avro, Protobuf: each value begins with a schema registry's frame (a zero byte, the "
        "schema's id).",
        examples=[True],
    )
    schema_version: str | None = Field(
        None,
        description="Avro without frames: key of the schema file that records are written with. The "
        "others make ids of older events again.",
        examples=["2"],
    )
    message_type: str | None = Field(
        None,
        description="Protobuf: full name of the message.",
        examples=["shop.Product"],
    )
    version_field: FieldPath | None = Field(
        None,
        description="JSON: path of the field that holds `schema_version`.",
        examples=["meta.version"],
    )
    unique_id: list[FieldPath] = Field(
        ["project", "event_type", "product_id"],
        description="Paths of the fields that make an event unique.",
        examples=[["project", "event_type", "product_id"]],
    )
    producer_id: FieldPath | None = Field(
        None,
        description="Path of the producer's own id, unique within the fields of `unique_id`. With "
        "`unique_id = []`: unique everywhere.",
        examples=["event_id"],
    )
    shards: int = Field(
        1024,
        ge=1,
        le=1_000_000,
        description="Partitions of deduplication. After a change, `tagmill dedup rekey` makes the ids again.",
        examples=[1024],
    )
    created_at: FieldPath | None = Field(
        None,
        description="Path of the field with the event's time. Left out: Kafka's timestamp.",
        examples=["meta.created_at"],
    )
    columns: list[TopicColumn] = Field(
        default_factory=list,
        description="Columns of the destination from fields of the event, one table each (below).",
        examples=[[{"name": "price", "type": "Float64"}]],
    )
    max_record_bytes: int = Field(
        64 * 1024 * 1024,
        ge=1,
        description="Bytes of a record's value. A larger record is a dead letter.",
        examples=[67108864],
    )
    max_record_values: int = Field(
        1_000_000,
        ge=1,
        description="Fields and items that a record may hold, nested ones too. A record with more is a "
        "dead letter.",
        examples=[1000000],
    )
    max_record_depth: int = Field(
        100,
        ge=1,
        le=150,
        description="Levels of objects and lists within each other. A record that is nested deeper is a "
        "dead letter.",
        examples=[100],
    )
    window_days: int = Field(
        60,
        ge=1,
        description="Days within which an event whose id was seen is not delivered again.",
        examples=[60],
    )
    expire_schedule: Schedule | None = Field(
        None,
        description="When Airflow runs the DAG expire_<pipeline>. Left out: by hand only.",
        examples=["@weekly"],
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
