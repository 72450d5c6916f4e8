"""Airflow Connections as Tagmill's settings and as a Spark job's environment.

Of a connection count the login, the password and the extra keys `tls` and `tls_ca_file`; hosts and ports are
the configuration file's. Without such a connection, the file and the TAGMILL_ variables hold as they are.
"""

import json
import logging
import os
from pathlib import Path
from typing import Any, Literal, TypeVar

from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import mask_secret
from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError

from tagmill.config.kafka import KafkaSettings
from tagmill.config.settings import CONFIG_VARIABLE, CassandraSettings, ClickHouseSettings, Settings
from tagmill.errors import ConfigurationError

log = logging.getLogger(__name__)
StoreName = Literal["cassandra", "clickhouse", "kafka"]
Store = TypeVar("Store", CassandraSettings, ClickHouseSettings, KafkaSettings)


class _Extra(BaseModel):
    """Keys that the extra of a store's connection may have; a misspelt key is refused, since it must not mean
    'no TLS'.
    """

    model_config = ConfigDict(extra="forbid")

    tls: bool | None = None
    tls_ca_file: Path | None = None


def config_file() -> Path:
    """Return the path of the configuration file that Settings.load() reads without an argument."""
    return Path(os.environ.get(CONFIG_VARIABLE) or "tagmill.toml").resolve()


def load_settings() -> Settings:
    """Load the configuration with credentials and TLS of the Airflow connections that it names.

    Raises ConfigurationError if the file, or the extra of a connection, is wrong.
    """
    settings = Settings.load()
    return settings.model_copy(
        update={
            "cassandra": _with_connection(settings.cassandra),
            "clickhouse": _with_connection(settings.clickhouse),
            "kafka": _with_connection(settings.kafka),
        }
    )


def find(conn_id: str) -> Connection | None:
    """Return an Airflow connection, or None if it does not exist."""
    try:
        connection: Connection = Connection.get(conn_id)
    except AirflowNotFoundException:
        return None
    return connection


def spark_environment(settings: Settings, *stores: StoreName) -> dict[str, str]:
    """Return variables that carry these stores' credentials and TLS to a Spark driver.

    Give them to the process or write them to a file of mode 0600, never to a command line.
    """
    found: dict[str, str] = {}
    for name in stores:
        store = getattr(settings, name)
        values = {
            "USERNAME": store.username,
            "PASSWORD": store.password.get_secret_value() if store.password else None,
            "TLS": json.dumps(store.tls),
            "TLS_CA_FILE": str(store.tls_ca_file) if store.tls_ca_file else None,
        }
        found |= {
            f"TAGMILL_{name.upper()}__{key}": value for key, value in values.items() if value is not None
        }
    return found


def _with_connection(store: Store) -> Store:
    connection = find(store.airflow_connection)
    if connection is None:
        return store
    found: dict[str, Any] = _tls(connection)
    if connection.login:
        found["username"] = connection.login
    if connection.password:
        mask_secret(connection.password)
        found["password"] = SecretStr(connection.password)
    known = _hosts(store)
    if connection.host and connection.host not in known:
        log.warning(
            "connection %s: its host %s is not used, the configuration's is: %s",
            connection.conn_id,
            connection.host,
            known,
        )
    return store.model_copy(update=found)


def _hosts(store: CassandraSettings | ClickHouseSettings | KafkaSettings) -> list[str]:
    if isinstance(store, KafkaSettings):
        return [server.rpartition(":")[0] for server in store.bootstrap_servers]
    return store.hosts if isinstance(store, CassandraSettings) else [store.host]


def _tls(connection: Connection) -> dict[str, Any]:
    try:
        extra = _Extra.model_validate_json(connection.extra or "{}")
    except ValidationError as error:
        mistakes = "; ".join(f"{'.'.join(map(str, m['loc'])) or 'extra'}: {m['msg']}" for m in error.errors())
        raise ConfigurationError(
            f"Airflow connection {connection.conn_id}: {mistakes}. Its extra may hold tls and tls_ca_file"
        ) from None
    return extra.model_dump(exclude_none=True)
