"""Airflow Connections as Tagmill's settings and as a Spark job's environment.

A connection gives the login, the password and TLS: by the extra keys `tls`, `tls_ca_file` and those of a client
certificate, or as the store's official connection type has them (tagmill.airflow.connection_types). Its host and
port count where the configuration has none. Without such a connection, the file and the TAGMILL_ variables hold as
they are.
"""

import json
import logging
import os
from pathlib import Path
from typing import Literal, TypeVar

from airflow.sdk import Connection
from airflow.sdk.log import mask_secret
from pydantic import SecretStr

from tagmill.airflow.compat import AirflowNotFoundException
from tagmill.airflow.connection_types import ADDRESSES, keys_of
from tagmill.config.environment import SECRETS, SECURITY
from tagmill.config.kafka import KafkaSettings
from tagmill.config.settings import CONFIG_VARIABLE, CassandraSettings, ClickHouseSettings, Settings

log = logging.getLogger(__name__)
MASKED = frozenset({"password", "tls_key_password"})
StoreName = Literal["cassandra", "clickhouse", "kafka"]
Store = TypeVar("Store", CassandraSettings, ClickHouseSettings, KafkaSettings)


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
    except ImportError:  # Airflow 3.1, outside of a task: no supervisor is there to ask for more
        return None
    return connection


def spark_environment(settings: Settings, *stores: StoreName) -> dict[str, str]:
    """Return variables that carry these stores' addresses, credentials and TLS to a Spark driver.

    Give them to the process or write them to a file of mode 0600, never to a command line.
    """
    found: dict[str, str] = {}
    for name in stores:
        store = getattr(settings, name)
        addresses = {key: getattr(store, key) for key in ADDRESSES if hasattr(store, key)}
        values = {
            **{
                key.upper(): value if isinstance(value, str) else json.dumps(value)
                for key, value in addresses.items()
            },
            **{key.upper(): _text(getattr(store, key, None)) for key in (*SECURITY, *SECRETS)},
        }
        found |= {
            f"TAGMILL_{name.upper()}__{key}": value for key, value in values.items() if value is not None
        }
    return found


def _text(value: object) -> str | None:
    """Return a value as a variable holds it; None if it is not set."""
    if value in (None, {}):
        return None
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return json.dumps(value) if isinstance(value, bool | dict) else str(value)


def _with_connection(store: Store) -> Store:
    connection = find(store.airflow_connection)
    if connection is None:
        return store
    found = keys_of(connection, store)
    for key in MASKED & found.keys():
        mask_secret(found[key])
        found[key] = SecretStr(found[key])
    for key in ADDRESSES & found.keys() & store.model_fields_set:
        given, used = found.pop(key), getattr(store, key)
        if given != used and key != "port":
            log.warning(
                "connection %s: its host %s is not used, the configuration's is: %s",
                connection.conn_id,
                given,
                used,
            )
    return store.model_copy(update=found)
