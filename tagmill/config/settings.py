"""The configuration: one typed model, read from one TOML file and the environment.

`TAGMILL_<SECTION>__<KEY>` in the environment overrides a key of the file; user names and passwords come from
there only, or from files that `TAGMILL_<SECTION>__PASSWORD_FILE` and `…__USERNAME_FILE` name. Unknown keys are errors that name the key.
"""

import logging
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from tagmill.config import tls
from tagmill.config.airflow import AirflowSettings as AirflowSettings
from tagmill.config.airflow import DagSettings
from tagmill.config.base import (
    ConnectTimeoutSeconds,
    Host,
    Identifier,
    Password,
    Section,
    Tls,
    TlsCaFile,
    TlsCertificateFile,
    TlsKeyFile,
    TlsKeyPassword,
    Username,
)
from tagmill.config.environment import SECRETS, environment_source, variables_of
from tagmill.config.kafka import (
    KafkaJournalEventsSettings,
    KafkaJournalSettings,
    KafkaSettings,
    Stream,
    TopicSettings,
)
from tagmill.config.known_keys import keys_at
from tagmill.config.tag_views import PipelineSettings
from tagmill.domain.journal_tables import JournalTables
from tagmill.domain.nearest import did_you_mean
from tagmill.errors import ConfigurationError

log = logging.getLogger(__name__)
CONFIG_VARIABLE = "TAGMILL_CONFIG"
# By a pipeline's kind: the field of Settings that holds the pipelines of that kind.
KINDS = {
    "tag_views": "pipelines",
    "kafka_journal": "kafka_journals",
    "kafka_journal_events": "kafka_journal_events",
    "topic": "topics",
}
# Kinds by the word that an earlier version had for them.
FORMER_KINDS = {"journal": "kafka_journal_events"}
# Keys of [cassandra], [clickhouse] and [kafka] that name files.
FILES_OF_STORES = ("tls_ca_file", "tls_certificate_file", "tls_key_file", "oauth_ca_file")
Consistency = Literal["ONE", "LOCAL_ONE", "TWO", "THREE", "QUORUM", "LOCAL_QUORUM", "EACH_QUORUM", "ALL"]


class Replication(Section):
    """Replication of the ledger keyspace: `replication_factor`, or datacenter names with their factors."""

    model_config = ConfigDict(extra="allow", frozen=True)
    class_: Literal["SimpleStrategy", "NetworkTopologyStrategy"] = Field(
        "SimpleStrategy",
        alias="class",
        description="Replication strategy. Further keys are its options: `replication_factor`, or a "
        "factor by datacenter.",
        examples=["NetworkTopologyStrategy"],
    )

    def options(self) -> dict[str, str]:
        """Return the replication map that CREATE KEYSPACE takes."""
        extra = self.model_extra or {}
        if self.class_ == "SimpleStrategy" and not extra:
            extra = {"replication_factor": 1}
        return {"class": self.class_, **{name: str(factor) for name, factor in extra.items()}}


class CassandraSettings(Section):
    """Where journals, views and the ledger are."""

    hosts: list[Host] = Field(
        ["127.0.0.1"],
        min_length=1,
        description="Contact points; the driver finds the other nodes.",
        examples=[["cassandra-1", "cassandra-2"]],
    )
    port: int = Field(
        9042,
        ge=1,
        le=65535,
        description="Port of the native protocol (CQL).",
        examples=[9042],
    )
    local_datacenter: str = Field(
        "datacenter1",
        description="Datacenter that Tagmill's clients connect to.",
        examples=["eu-west"],
    )
    ledger_keyspace: Identifier = Field(
        "tagmill",
        description="Keyspace of Tagmill's own tables.",
        examples=["tagmill"],
    )
    replication: Replication = Field(
        default_factory=lambda: Replication.model_validate({"class": "SimpleStrategy"}),
        description="Replication of keyspaces that Tagmill creates: the ledger's, and a Kafka Journal's.",
        examples=[{"class": "NetworkTopologyStrategy", "eu-west": 3}],
    )
    read_consistency: Consistency = Field(
        "LOCAL_QUORUM",
        description="Consistency of reads of the application's tables; it must overlap its writes.",
        examples=["LOCAL_QUORUM"],
    )
    request_timeout_seconds: float = Field(
        60,
        gt=0,
        description="Seconds until a request without an answer fails.",
        examples=[60],
    )
    connect_timeout_seconds: ConnectTimeoutSeconds = 10
    max_clock_difference_seconds: float = Field(
        60,
        gt=0,
        description="Seconds by which the clocks of this machine, Cassandra and ClickHouse may differ. "
        "Beyond, each step stops before it writes.",
        examples=[60],
    )
    max_write_bytes: int | None = Field(
        None,
        ge=128 * 1024,
        description="Bytes that Cassandra takes in one write. Left out: what the server says "
        "(`system_views.settings`), else 16 MiB. A larger record is a dead letter without its "
        "bytes.",
        examples=[16777216],
    )
    tls: Tls = False
    tls_ca_file: TlsCaFile = None
    tls_certificate_file: TlsCertificateFile = None
    tls_key_file: TlsKeyFile = None
    tls_key_password: TlsKeyPassword = None
    username: Username = None
    password: Password = None
    airflow_connection: str = Field(
        "tagmill_cassandra",
        description="Airflow connection of type cassandra or generic: user name, password, TLS, and the address "
        "where this section has none. DAGs use it where it exists.",
        examples=["tagmill_cassandra"],
    )

    @property
    def own_consistency(self) -> str:
        """The consistency of reads of Tagmill's own tables: it overlaps their writes at LOCAL_QUORUM, so that
        no read misses them.
        """
        return self.read_consistency if self.read_consistency in ("EACH_QUORUM", "ALL") else "LOCAL_QUORUM"


class ClickHouseSettings(Section):
    """Where the batches go."""

    host: Host = Field(
        "127.0.0.1",
        description="Host of one server; of a cluster one replica, not a balancer.",
        examples=["clickhouse-1"],
    )
    port: int = Field(
        8123,
        ge=1,
        le=65535,
        description="Port of the HTTP interface.",
        examples=[8443],
    )
    database: Identifier = Field(
        "default",
        description="Database of the destination tables.",
        examples=["analytics"],
    )
    tls: Tls = False
    tls_ca_file: TlsCaFile = None
    tls_certificate_file: TlsCertificateFile = None
    tls_key_file: TlsKeyFile = None
    tls_key_password: TlsKeyPassword = None
    request_timeout_seconds: float = Field(
        300,
        gt=0,
        description="Seconds until a request without an answer fails.",
        examples=[300],
    )
    connect_timeout_seconds: ConnectTimeoutSeconds = 10
    username: Username = None
    password: Password = None
    cluster: Identifier | None = Field(
        None,
        description="Cluster that DDL is sent ON, for replicated tables. Left out: one server.",
        examples=["main"],
    )
    airflow_connection: str = Field(
        "tagmill_clickhouse",
        description="Airflow connection of type clickhouse or generic: user name, password, TLS, and the address "
        "where this section has none. DAGs use it where it exists.",
        examples=["tagmill_clickhouse"],
    )


class SparkSettings(Section):
    """How the Spark session of a job is made; where it runs is the master's, in Airflow the connection's,
    business.
    """

    master: str = Field(
        "local[2]",
        description="Master URL. In Airflow the Spark connection says it, where it exists.",
        examples=["spark://spark-master:7077"],
    )
    driver_memory: str = Field(
        "2g",
        pattern=r"(?i)^[1-9]\d*[kmgt]$",
        description="Heap of a job's driver, as Java writes sizes: a number, then k, m, g or t.",
        examples=["4g"],
    )
    small_job_rows: int = Field(
        50_000,
        ge=0,
        description="Rows up to which a build, an audit or another operation gets a session that starts fast; "
        "0: never.",
        examples=[50_000],
    )
    jars: Path | None = Field(
        None,
        description="Folder of jars that jobs need besides those of PySpark: of the file system of `storage.root`.",
        examples=["/opt/jars"],
    )
    conf: dict[str, str] = Field(
        default_factory=dict,
        description="Further settings of Spark.",
        examples=[{"spark.executor.memory": "4g"}],
    )
    environment: Path | None = Field(
        None,
        description="Folder of the Python environment with `tagmill[spark]` in which Airflow's workers run jobs. Left "
        "out: `/opt/tagmill` if it has PySpark, else that of the first `spark-submit` on PATH.",
        examples=["/srv/venvs/tagmill"],
    )
    class_archive: Path | None = Field(
        None,
        description="Java class data archive (-XX:ArchiveClassesAtExit) of a job's classes. A job starts "
        "some seconds sooner with it.",
        examples=["build/spark-classes.jsa"],
    )
    airflow_connection: str = Field(
        "tagmill_spark",
        description="Airflow connection of type Spark, which names the master.",
        examples=["tagmill_spark"],
    )


class StorageSettings(Section):
    """Where plans, sealed batches, manifests and Data Docs are kept."""

    root: str = Field(
        "build/data",
        min_length=1,
        description="Folder, or a URL that both Spark and Arrow can open (hdfs://, s3a://).",
        examples=["s3a://bucket/tagmill"],
    )

    @field_validator("root")
    @classmethod
    def _is_folder_or_url(cls, root: str) -> str:
        if "\0" in root:
            raise ValueError("a folder's name has no NUL")
        urlsplit(root)  # raises ValueError
        return root


class Settings(BaseSettings):
    """The whole configuration."""

    model_config = SettingsConfigDict(
        extra="forbid", frozen=True, env_prefix="TAGMILL_", env_nested_delimiter="__"
    )

    cassandra: CassandraSettings = Field(default_factory=CassandraSettings)
    clickhouse: ClickHouseSettings = Field(default_factory=ClickHouseSettings)
    spark: SparkSettings = Field(default_factory=SparkSettings)
    storage: StorageSettings = Field(default_factory=StorageSettings)
    kafka: KafkaSettings = Field(default_factory=KafkaSettings)
    airflow: AirflowSettings = Field(default_factory=AirflowSettings)
    pipelines: dict[Identifier, PipelineSettings] = Field(
        default_factory=dict, description="those of kind tag_views"
    )
    kafka_journals: dict[Identifier, KafkaJournalSettings] = Field(
        default_factory=dict, description="those of kind kafka_journal"
    )
    kafka_journal_events: dict[Identifier, KafkaJournalEventsSettings] = Field(
        default_factory=dict, description="those of kind kafka_journal_events"
    )
    topics: dict[Identifier, TopicSettings] = Field(default_factory=dict, description="those of kind topic")

    @model_validator(mode="before")
    @classmethod
    def _by_kind(cls, content: Any) -> Any:
        """Sort the file's `[pipelines.NAME]`, which are of all kinds, into one field for each kind."""
        if not isinstance(content, dict) or not isinstance(pipelines := content.get("pipelines", {}), dict):
            return content
        for field in KINDS.values():
            if not isinstance(content.get(field, {}), dict):
                raise ValueError(f"{field}: not a table")
        sorted_out: dict[str, dict[str, Any]] = {
            field: dict(content.get(field, {})) for field in KINDS.values()
        } | {"pipelines": {}}
        renamed: dict[str, list[str]] = {}
        for name, keys in pipelines.items():
            kind = keys.get("kind", "tag_views") if isinstance(keys, dict) else "tag_views"
            if isinstance(kind, str) and kind in FORMER_KINDS:
                renamed.setdefault(kind, []).append(name)
                kind = FORMER_KINDS[kind]
                keys = {**keys, "kind": kind}
            if not isinstance(kind, str) or kind not in KINDS:
                near = did_you_mean(str(kind), KINDS)
                raise ValueError(f"pipelines.{name}.kind: {kind!r} is none of {', '.join(KINDS)}{near}")
            sorted_out[KINDS[kind]][name] = keys
        for former, names in renamed.items():
            log.warning(
                '%s: kind = "%s" is deprecated; write kind = "%s"',
                ", ".join(f"pipelines.{name}" for name in names),
                former,
                FORMER_KINDS[former],
            )
        return {**content, **sorted_out}

    @model_validator(mode="after")
    def _none_for_all(self) -> "Settings":
        if "all" in {**self.pipelines, **self.kafka_journals, **self.streams}:
            raise ValueError(
                "pipelines.all: `all` means all pipelines, as in the DAG deliver_all; rename this one"
            )
        return self

    @model_validator(mode="after")
    def _apart(self) -> "Settings":
        built: dict[str, str] = {}
        for name, pipeline in self.pipelines.items():
            if pipeline.views == "tagmill" and (first := built.setdefault(pipeline.keyspace, name)) != name:
                raise ValueError(
                    f"pipelines.{name}.views: keyspace {pipeline.keyspace} is built by pipeline {first}, "
                    "for all its tags; "
                    'leave it at "application" here'
                )
        journals: dict[str, tuple[str, JournalTables]] = {}
        for name, pipeline in self.pipelines.items():
            # The view is not compared: an application has two of them while one is rebucketed.
            tables = replace(pipeline.journal, view="")
            first, others = journals.setdefault(pipeline.keyspace, (name, tables))
            if tables != others:
                raise ValueError(
                    f"pipelines.{name}: its messages_table, metadata_table and all_persistence_ids_table "
                    "must be those of pipeline "
                    f"{first}, which reads the same keyspace {pipeline.keyspace}"
                )
        return self

    @model_validator(mode="after")
    def _destinations_apart(self) -> "Settings":
        """Refuse a destination that belongs to another pipeline: what one deletes or counts there would be
        the other's.
        """
        delivering: dict[str, PipelineSettings | Stream] = {**self.pipelines, **self.streams}
        taken = {
            beside: name for name, pipeline in delivering.items() for beside in pipeline.beside_destination
        }
        own: dict[str, str] = {}
        for name, pipeline in delivering.items():
            if (other := own.setdefault(pipeline.destination, name)) != name:
                raise ValueError(
                    f"pipelines.{name}.destination: {pipeline.destination} is the destination of "
                    f"{other}; each pipeline has its own"
                )
            if other := taken.get(pipeline.destination, ""):
                raise ValueError(
                    f"pipelines.{name}.destination: {pipeline.destination} belongs to the destination of "
                    f"{other}"
                )
        return self

    @model_validator(mode="after")
    def _journals_apart(self) -> "Settings":
        """Refuse two pipelines that replicate a topic to the same keyspace: both would move the same
        pointers.
        """
        for (first, one), (name, two) in combinations(self.kafka_journals.items(), 2):
            if one.keyspace == two.keyspace and (shared := one.shared(two)):
                raise ValueError(
                    f"pipelines.{name}.topics: {', '.join(shared)} is replicated to keyspace "
                    f"{two.keyspace} by pipeline {first} already"
                )
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
        """Let the environment override the file."""
        return environment_source(settings_cls), init_settings

    @classmethod
    def load(cls, path: str | Path | None = None) -> "Settings":
        """Read the file (argument, $TAGMILL_CONFIG, ./tagmill.toml) and the environment; raises
        ConfigurationError.
        """
        file = file_of(path)
        try:
            content = read_toml(file)
        except FileNotFoundError:
            raise ConfigurationError(
                f"{file}: there is no such configuration file; give --config or set {CONFIG_VARIABLE}. To "
                "write one: tagmill init"
            ) from None
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{file}: is no text in UTF-8 (byte {error.start})") from None
        except OSError as error:
            raise ConfigurationError(f"{file}: can't be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(f"{file}: can't be read as TOML: {error}") from None
        _refuse_secrets(file, content)
        _refuse_fields(file, content)
        settings = cls.of(content, str(file))
        try:
            return settings._resolved(file.resolve().parent)
        except ConfigurationError as error:
            raise ConfigurationError(f"{file}: {error}") from None

    @classmethod
    def of(cls, content: Mapping[str, Any], source: str) -> "Settings":
        """Return the settings of this content and the environment, which wins; `source` names the content.

        Relative paths stay as they are. Raises ConfigurationError.
        """
        try:
            return cls(**content)
        except ValidationError as error:
            raise ConfigurationError(f"{source}: {_explained(error)}") from None
        except SettingsError as error:
            section = re.search(r'field "(\w+)"', str(error))
            names = ", ".join(variables_of(section[1])) if section else error
            raise ConfigurationError(
                f"environment: {names}: sections and lists are given as JSON, which this is not"
            ) from None

    def on_journal(self, keyspace: str) -> list[str]:
        """Return the names of the tag_views pipelines on a journal's keyspace, sorted."""
        return sorted(name for name, pipeline in self.pipelines.items() if pipeline.keyspace == keyspace)

    def builder(self, keyspace: str) -> str | None:
        """Return the pipeline that builds a journal's view for all pipelines on it; None if the application
        writes the view.
        """
        return next(
            (name for name in self.on_journal(keyspace) if self.pipelines[name].views == "tagmill"), None
        )

    def dags_of(self, name: str) -> DagSettings:
        """Return how the DAGs of a configured pipeline of any kind look and behave."""
        return self.airflow.of({**self.pipelines, **self.kafka_journals, **self.streams}[name].airflow)

    def pipeline(self, name: str) -> PipelineSettings:
        """Return the settings of a pipeline of kind tag_views; raises ConfigurationError if it is not
        configured.
        """
        try:
            return self.pipelines[name]
        except KeyError:
            raise self.not_there(name, "tag_views", self.pipelines) from None

    def kafka_journal(self, name: str) -> KafkaJournalSettings:
        """Return the settings of a pipeline of kind kafka_journal; raises ConfigurationError if it is not
        configured.
        """
        try:
            return self.kafka_journals[name]
        except KeyError:
            raise self.not_there(name, "kafka_journal", self.kafka_journals) from None

    def topic(self, name: str) -> TopicSettings:
        """Return the settings of a pipeline of kind topic; raises ConfigurationError if it is not
        configured.
        """
        try:
            return self.topics[name]
        except KeyError:
            raise self.not_there(name, "topic", self.topics) from None

    @property
    def streams(self) -> dict[str, Stream]:
        """The pipelines that deliver records of Kafka, of kind topic or kafka_journal_events, by name."""
        return {**self.topics, **self.kafka_journal_events}

    def stream(self, name: str) -> Stream:
        """Return the settings of a pipeline of kind topic or kafka_journal_events; raises ConfigurationError
        if it is not configured.
        """
        try:
            return self.streams[name]
        except KeyError:
            raise self.not_there(name, "topic or kafka_journal_events", self.streams) from None

    def not_there(self, name: str, kind: str, configured: Iterable[str]) -> ConfigurationError:
        """Return the error about a pipeline that is not among those `configured`, which are of this kind."""
        known = {*self.pipelines, *self.kafka_journals, *self.streams}
        if name in known:
            return ConfigurationError(
                f"pipeline {name!r} is of kind {self._kind(name)}; this is for {kind}. Nothing was done",
                pipeline=name,
            )
        return ConfigurationError(
            f"pipeline {name!r} is not in the configuration (there: {', '.join(configured) or 'none'})"
            f"{did_you_mean(name, known)}",
            pipeline=name,
        )

    def _kind(self, name: str) -> str:
        return next(kind for kind, field in KINDS.items() if name in getattr(self, field))

    def _resolved(self, folder: Path) -> "Settings":
        """Resolve relative paths against the file's folder; raises ConfigurationError if a file of
        authorities can't be read.
        """
        storage, spark, stores = self.storage, self.spark, dict[str, Any]()
        if not urlsplit(storage.root).scheme:
            storage = storage.model_copy(update={"root": str(folder / storage.root)})
        names = ("jars", "environment", "class_archive")
        files = {name: file for name in names if (file := getattr(spark, name))}
        spark = spark.model_copy(update={key: folder / file for key, file in files.items()})
        for name in ("cassandra", "clickhouse", "kafka"):
            store = getattr(self, name)
            if given := {
                key: folder / file for key in FILES_OF_STORES if (file := getattr(store, key, None))
            }:
                stores[name] = store = store.model_copy(update=given)
            if store.tls:
                tls.authorities(name, store.tls_ca_file)
        if folder_of_inputs := self.airflow.input_dir:
            stores["airflow"] = self.airflow.model_copy(update={"input_dir": folder / folder_of_inputs})
        topics = {
            name: topic.model_copy(
                update={"schema_files": {key: folder / file for key, file in topic.schema_files.items()}}
            )
            for name, topic in self.topics.items()
        }
        return self.model_copy(update={"storage": storage, "spark": spark, "topics": topics, **stores})


def file_of(path: str | Path | None) -> Path:
    """Return the configuration file: this one, else $TAGMILL_CONFIG, else ./tagmill.toml."""
    return Path(path or os.environ.get(CONFIG_VARIABLE) or "tagmill.toml")


def read_toml(file: Path) -> dict[str, Any]:
    """Return the content of a TOML file, which may begin with a byte order mark; raises OSError or ValueError."""
    return tomllib.loads(file.read_text(encoding="utf-8-sig"))


def _refuse_secrets(file: Path, content: dict[str, Any]) -> None:
    for section in ("cassandra", "clickhouse", "kafka"):
        keys = content.get(section)
        for key in SECRETS:
            if isinstance(keys, dict) and key in keys:
                raise ConfigurationError(
                    f"{file}: {section}.{key} doesn't belong in the file; "
                    f"set TAGMILL_{section.upper()}__{key.upper()} or use the Airflow connection"
                )


def _refuse_fields(file: Path, content: dict[str, Any]) -> None:
    for field in content.keys() & set(KINDS.values()) - {"pipelines"}:
        raise ConfigurationError(
            f"{file}: {field}: unknown key; a pipeline is [pipelines.NAME], and its key kind says what "
            "it reads"
        )


def _explained(error: ValidationError) -> str:
    """Return all mistakes in one line, each with its key; an unknown key also with the nearest one."""
    parts = []
    for mistake in error.errors():
        place = [str(step) for step in mistake["loc"] or [""]]
        first, *steps = place
        key = ".".join(["pipelines" if first in KINDS.values() else first, *steps])
        text = mistake["msg"].removeprefix("Value error, ")
        if mistake["type"] == "extra_forbidden":
            text = f"unknown key{_nearest(place)}"
        parts.append(f"{key}: {text}" if key else text)
    return "; ".join(parts)


def _nearest(place: list[str]) -> str:
    *above, key = place
    known = keys_at(Settings, above)
    return did_you_mean(key, known - set(KINDS.values()) | {"pipelines"} if not above else known)
