"""The configuration: one typed model, read from one TOML file and the environment.

`TAGMILL_<SECTION>__<KEY>` in the environment overrides a key of the file; user names and passwords come from there only.
Unknown keys are errors that name the key.
"""

import os
import tomllib
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from tagmill.buckets import BucketSize, View
from tagmill.errors import ConfigurationError
from tagmill.journaltables import ALL_PERSISTENCE_IDS, MESSAGES, METADATA, VIEW_TABLE, JournalTables
from tagmill.kafkasettings import JournalSettings, KafkaJournalSettings, KafkaSettings, Stream, TopicSettings
from tagmill.names import identifier
from tagmill.section import Identifier, Section
from tagmill.timeuuid import from_datetime

CONFIG_VARIABLE = "TAGMILL_CONFIG"
# a pipeline's kind, and the field of Settings that holds those of it
KINDS = {"tag_views": "pipelines", "kafka_journal": "kafka_journals", "journal": "journals", "topic": "topics"}
Consistency = Literal["ONE", "LOCAL_ONE", "TWO", "THREE", "QUORUM", "LOCAL_QUORUM", "EACH_QUORUM", "ALL"]
FirstSeen = Literal["require_one", "assume_first", "scan"]
WhoNumbers = Literal["application", "tagmill"]


def moment(value: Any) -> Any:
    """Accept the plugin's yyyyMMddTHH:mm and TOML's dates beside ISO 8601; without a zone it is UTC."""
    if isinstance(value, str) and len(value) == 14 and value[8] == "T":
        value = datetime.strptime(value, "%Y%m%dT%H:%M").isoformat()
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if isinstance(value, datetime) and value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    return value


Moment = Annotated[datetime, BeforeValidator(moment)]


class Replication(Section):
    """Replication of the ledger keyspace: `replication_factor`, or datacenter names with their factors."""

    model_config = ConfigDict(extra="allow", frozen=True)
    class_: Literal["SimpleStrategy", "NetworkTopologyStrategy"] = Field("SimpleStrategy", alias="class")

    def options(self) -> dict[str, str]:
        """The map that CREATE KEYSPACE takes."""
        extra = self.model_extra or {}
        if self.class_ == "SimpleStrategy" and not extra:
            extra = {"replication_factor": 1}
        return {"class": self.class_, **{name: str(factor) for name, factor in extra.items()}}


class CassandraSettings(Section):
    """Where journals, views and the ledger are."""

    hosts: list[str] = Field(["127.0.0.1"], min_length=1)
    port: int = Field(9042, ge=1, le=65535)
    local_datacenter: str = "datacenter1"
    ledger_keyspace: Identifier = "tagmill"
    replication: Replication = Field(default_factory=lambda: Replication.model_validate({"class": "SimpleStrategy"}))
    read_consistency: Consistency = Field(
        "LOCAL_QUORUM", description="of journal and view reads; must overlap the application's writes"
    )
    request_timeout_seconds: float = Field(60, gt=0)
    connect_timeout_seconds: float = Field(10, gt=0)
    tls: bool = False
    tls_ca_file: Path | None = None
    username: str | None = Field(None, description="from the environment or the Airflow connection only")
    password: SecretStr | None = Field(None, description="from the environment or the Airflow connection only")
    airflow_connection: str = "tagmill_cassandra"


class ClickHouseSettings(Section):
    """Where the batches go."""

    host: str = "127.0.0.1"
    port: int = Field(8123, ge=1, le=65535)
    database: Identifier = "default"
    tls: bool = False
    tls_ca_file: Path | None = None
    request_timeout_seconds: float = Field(300, gt=0)
    connect_timeout_seconds: float = Field(10, gt=0)
    username: str | None = Field(None, description="from the environment or the Airflow connection only")
    password: SecretStr | None = Field(None, description="from the environment or the Airflow connection only")
    cluster: Identifier | None = Field(None, description="replicated tables: the cluster that the DDL is sent ON")
    airflow_connection: str = "tagmill_clickhouse"


class SparkSettings(Section):
    """How the Spark session of a job is made; where it runs is the master's, in Airflow the connection's, business."""

    master: str = "local[2]"
    driver_memory: str = "2g"
    jars: Path = Path("build/jars/spark")
    conf: dict[str, str] = Field(default_factory=dict, description="further Spark settings")
    class_archive: Path | None = Field(
        None,
        description="a Java class data archive (-XX:ArchiveClassesAtExit) of the classes of a job: it starts some seconds sooner",
    )
    airflow_connection: str = "tagmill_spark"


class StorageSettings(Section):
    """Where plans, sealed batches, manifests and Data Docs are kept."""

    root: str = Field("build/data", description="folder, or a URL that Spark and Arrow both know (hdfs://, s3a://)")


class QualitySettings(Section):
    """What the gate tolerates before it stops a run."""

    max_held_share_percent: float = Field(10.0, ge=0, le=100, description="of the new rows of a run")
    max_wrong_bucket_share_percent: float = Field(
        10.0, ge=0, le=100, description="rows outside their bucket: more means a wrong bucket size"
    )
    min_ttl_warning_seconds: int = Field(86_400, ge=0, description="warn when undelivered rows expire sooner")
    named_rows: int = Field(20, ge=1, le=1000, description="offending rows named on a page")
    max_partition_rows: int = Field(100_000, ge=1, description="an audit warns of larger partitions of tag_views")
    max_partition_bytes: int = Field(100 * 1024 * 1024, ge=1, description="of payload and keys; an audit warns of larger ones")


class OffsetStore(Section):
    """Where a Pekko or Akka Projection on Cassandra keeps its offsets."""

    keyspace: Identifier
    table: Identifier = "offset_store"
    projection_name: str = Field(min_length=1)
    projection_key: str | None = Field(None, description="of its ProjectionId; left out: the tag")


class OtherReader(Section):
    """A reader of the same view that is not Tagmill: a projection of the application. One of `read_to` and `offset_store`."""

    name: str = Field(min_length=1)
    tags: list[str] | None = Field(None, description="that it reads; left out: all tags of the pipeline")
    read_to: Moment | None = Field(None, description="it has read everything up to here and never goes back")
    offset_store: OffsetStore | None = Field(
        None, description="where it keeps its offset: keyspace, table (`offset_store`), projection_name, projection_key (the tag)"
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> "OtherReader":
        if (self.read_to is None) == (self.offset_store is None):
            raise ValueError(f"reader {self.name}: say either read_to or offset_store")
        return self


class CleanupSettings(Section):
    """What is deleted once it is proven delivered, and how old it must be."""

    enabled: bool = Field(False, description="off: nothing is ever deleted, a dry run by hand says what would be")
    schedule: str | None = "@daily"
    older_than_days: int | None = Field(None, ge=1, description="TTL of view rows; left out: rows of the view stay")
    other_readers: list[OtherReader] | None = Field(
        None, description="who else reads the view; [] states that nobody does. Left out: rows of the view stay"
    )
    application_ttl_seconds: int | None = Field(
        None, ge=1, description="events-by-tag.time-to-live of the application; left out: not known, or there is none"
    )
    max_buckets_per_run: int = Field(1000, ge=1, le=100_000, description="partitions that one cleanup deletes")
    deletes_per_second: float = Field(20, gt=0, description="partitions, so that the application's own reads are not crowded out")
    persistence_ids_per_second: float = Field(
        200, gt=0, description="that `tagmill journal clean` works through, for the same reason"
    )


class PipelineSettings(Section):
    """One source, its tags, one destination table, one schedule."""

    kind: Literal["tag_views"] = "tag_views"
    keyspace: Identifier
    view_table: Identifier = Field(VIEW_TABLE, description="events-by-tag.table of the application")
    messages_table: Identifier = Field(MESSAGES, description="journal.table of the application")
    metadata_table: Identifier = Field(METADATA, description="journal.metadata-table of the application")
    all_persistence_ids_table: Identifier = Field(
        ALL_PERSISTENCE_IDS, description="journal.all-persistence-ids-table of the application"
    )
    bucket_size: BucketSize = Field(description="events-by-tag.bucket-size of the application")
    tags: list[Annotated[str, Field(min_length=1)]] = Field(min_length=1)
    first_time_bucket: Moment = Field(description="events-by-tag.first-time-bucket of the application")
    start_from: dict[str, Moment] = Field(default_factory=dict, description="per tag: deliver only what is later")
    destination: Identifier
    views: WhoNumbers = Field(
        "application", description="who writes tag_views; tagmill: built before each run, the application has events-by-tag off"
    )
    schedule: str | None = "@hourly"
    audit_schedule: str | None = Field("@daily", description="of the DAG audit_<pipeline>")
    eventual_consistency_delay_seconds: float = Field(10, ge=0)
    look_back_seconds: float = Field(120, ge=0, description="read again in each run for rows that arrived late")
    long_look_back_seconds: float = Field(3600, ge=0, description="the same, once an hour")
    first_seen: FirstSeen = "require_one"
    gap_timeout_seconds: float = Field(3600, ge=0, description="a deleted hole is closed after this age")
    max_hold_age_seconds: float = Field(7 * 86_400, gt=0, description="an older hold fails the check")
    max_missing_to_search: int = Field(5000, ge=0, description="a wider hole is held without looking into the journal")
    repair_rows_per_second: float = Field(2000, gt=0, description="the pace at which audit --repair mends tag_views")
    repair_view: bool = Field(True, description="write healed events back into tag_views")
    snapshot_keyspace: Identifier | None = Field(
        None, description="of the application's snapshots; left out: that of the journal with `_snapshot` behind it"
    )
    snapshot_table: Identifier = "snapshots"
    text_serializers: list[int] = Field(
        default_factory=list, description="ser_ids whose payloads are text; empty: found by content"
    )
    max_slices_per_run: int = Field(2000, ge=1)
    max_rows_per_run: int = Field(5_000_000, ge=1)
    batch_rows: int = Field(250_000, ge=1)
    batch_bytes: int = Field(256 * 1024 * 1024, ge=1, description="of payload and keys, before compression")
    parallel_inserts: int = Field(2, ge=1, le=64)
    lease_seconds: int = Field(60, ge=5, le=3600)
    lease_wait_seconds: float = Field(0, ge=0, description="how long a command waits for another run of the pipeline")
    retention_days: int = Field(30, ge=1, description="sealed files and ledger rows of closed runs")
    quality: QualitySettings = Field(default_factory=QualitySettings)
    cleanup: CleanupSettings = Field(default_factory=CleanupSettings)

    @model_validator(mode="after")
    def _consistent(self) -> "PipelineSettings":
        if len(set(self.tags)) != len(self.tags):
            raise ValueError("tags: a tag is named twice")
        if unknown := set(self.start_from) - set(self.tags):
            raise ValueError(f"start_from: not among the tags: {', '.join(sorted(unknown))}")
        if self.long_look_back_seconds < self.look_back_seconds:
            raise ValueError(f"long_look_back_seconds: must be at least look_back_seconds ({self.look_back_seconds:g})")
        self._consistent_cleanup()
        for beside in self.beside_destination:
            try:
                identifier(beside)
            except ValueError as error:
                raise ValueError(f"destination: too long for what stands beside it: {error}") from None
        return self

    def _consistent_cleanup(self) -> None:
        ttl, delay = self.cleanup.application_ttl_seconds, self.eventual_consistency_delay_seconds
        if ttl is not None and ttl <= delay:
            raise ValueError(
                f"cleanup.application_ttl_seconds: a TTL shorter than the delay ({ttl} s, eventual_consistency_delay_seconds "
                f"{delay:g}): rows expire before any run may deliver them; raise events-by-tag.time-to-live, or lower the delay"
            )
        days, needed = self.cleanup.older_than_days, delay + self.long_look_back_seconds
        if days is not None and days * 86_400 <= needed:
            raise ValueError(
                f"cleanup.older_than_days: a TTL shorter than the delay and long_look_back_seconds together ({needed:g} s): "
                "runs still read those rows; raise it"
            )
        for reader in self.cleanup.other_readers or ():
            if unknown := set(reader.tags or ()) - set(self.tags):
                raise ValueError(f"cleanup.other_readers: {reader.name}: not among the tags: {', '.join(sorted(unknown))}")

    @property
    def view(self) -> View:
        """The table of tag views, and the size of its buckets."""
        return View(self.view_table, self.bucket_size)

    @property
    def journal(self) -> JournalTables:
        """The journal's tables."""
        return JournalTables(
            self.keyspace, self.view_table, self.messages_table, self.metadata_table, self.all_persistence_ids_table
        )

    @property
    def beside_destination(self) -> tuple[str, str]:
        """The view of each event once, and the table of void batches."""
        return f"{self.destination}_events", f"{self.destination}_voided"

    def start_ticks(self, tag: str) -> int:
        """Where a tag's delivery begins: start_from, else the first time bucket (ticks since 1970)."""
        return from_datetime(max(self.first_time_bucket, self.start_from.get(tag, self.first_time_bucket)))


class Settings(BaseSettings):
    """The whole configuration."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True, env_prefix="TAGMILL_", env_nested_delimiter="__")

    cassandra: CassandraSettings = Field(default_factory=CassandraSettings)
    clickhouse: ClickHouseSettings = Field(default_factory=ClickHouseSettings)
    spark: SparkSettings = Field(default_factory=SparkSettings)
    storage: StorageSettings = Field(default_factory=StorageSettings)
    kafka: KafkaSettings = Field(default_factory=KafkaSettings)
    pipelines: dict[Identifier, PipelineSettings] = Field(default_factory=dict, description="those of kind tag_views")
    kafka_journals: dict[Identifier, KafkaJournalSettings] = Field(
        default_factory=dict, description="those of kind kafka_journal"
    )

    journals: dict[Identifier, JournalSettings] = Field(default_factory=dict, description="those of kind journal")
    topics: dict[Identifier, TopicSettings] = Field(default_factory=dict, description="those of kind topic")

    @model_validator(mode="before")
    @classmethod
    def _by_kind(cls, content: Any) -> Any:
        """In the file, pipelines of all kinds are `[pipelines.NAME]`."""
        if not isinstance(content, dict) or not isinstance(pipelines := content.get("pipelines", {}), dict):
            return content
        sorted_out: dict[str, dict[str, Any]] = {field: dict(content.get(field, {})) for field in KINDS.values()} | {
            "pipelines": {}
        }
        for name, keys in pipelines.items():
            kind = keys.get("kind", "tag_views") if isinstance(keys, dict) else "tag_views"
            if kind not in KINDS:
                raise ValueError(f"pipelines.{name}.kind: {kind!r} is none of {', '.join(KINDS)}")
            sorted_out[KINDS[kind]][name] = keys
        return {**content, **sorted_out}

    @model_validator(mode="after")
    def _apart(self) -> "Settings":
        built: dict[str, str] = {}
        for name, pipeline in self.pipelines.items():
            if pipeline.views == "tagmill" and (first := built.setdefault(pipeline.keyspace, name)) != name:
                raise ValueError(
                    f"pipelines.{name}.views: keyspace {pipeline.keyspace} is built by pipeline {first}, for all its tags; "
                    'leave it at "application" here'
                )
        journals: dict[str, tuple[str, JournalTables]] = {}
        for name, pipeline in self.pipelines.items():
            tables = replace(pipeline.journal, view="")  # while a view is rebucketed, there are two
            first, others = journals.setdefault(pipeline.keyspace, (name, tables))
            if tables != others:
                raise ValueError(
                    f"pipelines.{name}: its messages_table, metadata_table and all_persistence_ids_table must be those of pipeline "
                    f"{first}, which reads the same keyspace {pipeline.keyspace}"
                )
        taken = {beside: name for name, pipeline in self.pipelines.items() for beside in pipeline.beside_destination}
        for name, pipeline in self.pipelines.items():
            if other := taken.get(pipeline.destination):
                raise ValueError(f"pipelines.{name}.destination: {pipeline.destination} belongs to the destination of {other}")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment comes before the file."""
        return env_settings, init_settings

    @classmethod
    def load(cls, path: str | Path | None = None) -> "Settings":
        """Read the file (argument, $TAGMILL_CONFIG, ./tagmill.toml) and the environment; raises ConfigurationError."""
        file = Path(path or os.environ.get(CONFIG_VARIABLE) or "tagmill.toml")
        try:
            content = tomllib.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigurationError(
                f"{file}: there is no such configuration file; give --config or set {CONFIG_VARIABLE}"
            ) from None
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigurationError(f"{file}: can't be read as TOML: {error}") from None
        _refuse_secrets(file, content)
        _refuse_fields(file, content)
        try:
            return cls(**content)._resolved(file.resolve().parent)
        except ValidationError as error:
            raise ConfigurationError(f"{file}: {_explained(error)}") from None
        except SettingsError as error:
            raise ConfigurationError(f"environment: {error}; sections and lists are given as JSON") from None

    def on_journal(self, keyspace: str) -> list[str]:
        """The pipelines on a journal, in the order of their names."""
        return sorted(name for name, pipeline in self.pipelines.items() if pipeline.keyspace == keyspace)

    def pipeline(self, name: str) -> PipelineSettings:
        """Settings of one pipeline; raises ConfigurationError when it is not configured."""
        try:
            return self.pipelines[name]
        except KeyError:
            raise self._not_there(name, "tag_views", self.pipelines) from None

    def kafka_journal(self, name: str) -> KafkaJournalSettings:
        """The same of a pipeline of kind kafka_journal."""
        try:
            return self.kafka_journals[name]
        except KeyError:
            raise self._not_there(name, "kafka_journal", self.kafka_journals) from None

    def topic(self, name: str) -> TopicSettings:
        """The same of a pipeline of kind topic."""
        try:
            return self.topics[name]
        except KeyError:
            raise self._not_there(name, "topic", self.topics) from None

    @property
    def streams(self) -> dict[str, Stream]:
        """The pipelines that deliver records of Kafka, of kind topic or journal, by name."""
        return {**self.topics, **self.journals}

    def stream(self, name: str) -> Stream:
        """Settings of one of them; raises ConfigurationError when it is not configured."""
        try:
            return self.streams[name]
        except KeyError:
            raise self._not_there(name, "topic or journal", self.streams) from None

    def _not_there(self, name: str, kind: str, there: Iterable[str]) -> ConfigurationError:
        if name in {*self.pipelines, *self.kafka_journals, *self.streams}:
            return ConfigurationError(f"pipeline {name!r} is of another kind than {kind}, which this is for. Nothing was done")
        return ConfigurationError(f"pipeline {name!r} is not in the configuration (there: {', '.join(there) or 'none'})")

    def _resolved(self, folder: Path) -> "Settings":
        """Relative paths count from the folder of the file."""
        storage, spark = self.storage, self.spark
        if not urlsplit(storage.root).scheme:
            storage = storage.model_copy(update={"root": str(folder / storage.root)})
        archive = folder / spark.class_archive if spark.class_archive else None
        spark = spark.model_copy(update={"jars": folder / spark.jars, "class_archive": archive})
        return self.model_copy(update={"storage": storage, "spark": spark})


def _refuse_secrets(file: Path, content: dict[str, Any]) -> None:
    for section in ("cassandra", "clickhouse", "kafka"):
        keys = content.get(section)
        for key in ("username", "password"):
            if isinstance(keys, dict) and key in keys:
                raise ConfigurationError(
                    f"{file}: {section}.{key} doesn't belong in the file; "
                    f"set TAGMILL_{section.upper()}__{key.upper()} or use the Airflow connection"
                )


def _refuse_fields(file: Path, content: dict[str, Any]) -> None:
    for field in content.keys() & set(KINDS.values()) - {"pipelines"}:
        raise ConfigurationError(
            f"{file}: {field}: unknown key; a pipeline is [pipelines.NAME], and its key kind says what it reads"
        )


def _explained(error: ValidationError) -> str:
    """One line for all mistakes, each with its key."""
    parts = []
    for mistake in error.errors():
        first, *steps = (str(step) for step in mistake["loc"] or [""])
        key = ".".join(["pipelines" if first in KINDS.values() else first, *steps])
        text = "unknown key" if mistake["type"] == "extra_forbidden" else mistake["msg"].removeprefix("Value error, ")
        parts.append(f"{key}: {text}" if key else text)
    return "; ".join(parts)
