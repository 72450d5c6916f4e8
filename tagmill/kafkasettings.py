"""The configuration of what comes from Kafka: the brokers, and pipelines of kind kafka_journal."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, model_validator

from tagmill.section import Identifier, Section

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
    password: SecretStr | None = Field(None, description="from the environment or the Airflow connection only")
    airflow_connection: str = "tagmill_kafka"


class KafkaJournalSettings(Section):
    """A Kafka Journal: the topics that applications write to, and the keyspace that they are replicated to."""

    kind: Literal["kafka_journal"]
    keyspace: Identifier = Field(description="of journal, metajournal, pointer2, setting and locks")
    topics: list[Text] = Field(default_factory=list, description="replicated; they must exist")
    topic_prefixes: list[Text] = Field(
        default_factory=list, description="topics that begin so are replicated, too, as they appear"
    )
    schedule: str | None = "@hourly"
    purge_schedule: str | None = Field("@daily", description="of the DAG purge_expired_<pipeline>")
    segment_size: int = Field(
        10_000, ge=1, description="events in one partition of journal, for ids that are new; others keep theirs"
    )
    origin: Text = Field("tagmill", description="named in the Purge actions that purge-expired publishes")
    max_records_per_run: int = Field(5_000_000, ge=1, description="of Kafka; a backlog is many runs")
    lock_seconds: int = Field(
        120, ge=5, le=3600, description="after which another may create tables though the lock was not given back"
    )
    lease_seconds: int = Field(60, ge=5, le=3600)
    lease_wait_seconds: float = Field(0, ge=0, description="how long a command waits for another run of the pipeline")

    @model_validator(mode="after")
    def _some_topics(self) -> "KafkaJournalSettings":
        if not self.topics and not self.topic_prefixes:
            raise ValueError("topics: name at least one, or one of topic_prefixes")
        return self
