"""What an Airflow connection says about a store, in the keys of that store's settings.

Connections are of the store's official type (`cassandra`, `clickhouse`, `kafka`), or of any other, whose extra may hold
`tls`, `tls_ca_file`, and `tls_certificate_file`, `tls_key_file` and `tls_key_password` of a client certificate.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from airflow.sdk import Connection
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tagmill.config.kafka import HttpUrl, KafkaSettings, SaslMechanism
from tagmill.config.settings import CassandraSettings, ClickHouseSettings
from tagmill.errors import ConfigurationError

# The keys of a store's settings that say where it is.
ADDRESSES = frozenset({"hosts", "host", "port", "bootstrap_servers"})
StoreSettings = CassandraSettings | ClickHouseSettings | KafkaSettings
Keys = dict[str, Any]
Extra = TypeVar("Extra", bound=BaseModel)


class _Extra(BaseModel):
    """Keys that the extra of any connection may have; a misspelt key is refused, since it must not mean
    'no TLS'.
    """

    model_config = ConfigDict(extra="forbid")

    tls: bool | None = None
    tls_ca_file: Path | None = None
    tls_certificate_file: Path | None = None
    tls_key_file: Path | None = None
    tls_key_password: str | None = None


class _SslOptions(BaseModel):
    """The key `ssl_options` of a connection of type cassandra; without an authority's file, the system's count."""

    model_config = ConfigDict(extra="forbid")

    ca_certs: Path | None = None
    certfile: Path | None = None
    keyfile: Path | None = None
    ssl_version: Any = None
    cert_reqs: Any = None


class _CassandraExtra(_Extra):
    """Extra of a connection of type cassandra; how the driver balances its load is Tagmill's own matter."""

    ssl_options: _SslOptions | None = None
    load_balancing_policy: Any = None
    load_balancing_policy_args: Any = None
    protocol_version: Any = None


class _ClickHouseExtra(_Extra):
    """Extra of a connection of type clickhouse, in the words of clickhouse-connect."""

    model_config = ConfigDict(extra="ignore")

    secure: bool | None = None
    verify: bool | None = None
    ca_cert: Path | None = None
    client_cert: Path | None = None
    client_cert_key: Path | None = None


class _KafkaExtra(BaseModel):
    """Extra of a connection of type kafka: settings of librdkafka, of which those for a login and TLS count."""

    model_config = ConfigDict(extra="allow")

    servers: str | None = Field(None, alias="bootstrap.servers")
    protocol: str | None = Field(None, alias="security.protocol")
    mechanism: str | None = Field(None, alias="sasl.mechanism")
    mechanisms: str | None = Field(None, alias="sasl.mechanisms")
    username: str | None = Field(None, alias="sasl.username")
    password: str | None = Field(None, alias="sasl.password")
    ca_file: Path | None = Field(None, alias="ssl.ca.location")
    certificate_file: Path | None = Field(None, alias="ssl.certificate.location")
    key_file: Path | None = Field(None, alias="ssl.key.location")
    key_password: str | None = Field(None, alias="ssl.key.password")
    oauth_method: str | None = Field(None, alias="sasl.oauthbearer.method")
    client_id: str | None = Field(None, alias="sasl.oauthbearer.client.id")
    client_secret: str | None = Field(None, alias="sasl.oauthbearer.client.secret")
    token_url: HttpUrl | None = Field(None, alias="sasl.oauthbearer.token.endpoint.url")
    scope: str | None = Field(None, alias="sasl.oauthbearer.scope")
    extensions: str | None = Field(None, alias="sasl.oauthbearer.extensions")
    oauth_ca_file: Path | None = Field(None, alias="https.ca.location")


def keys_of(connection: Connection, store: StoreSettings) -> Keys:
    """Return what a connection says about a store, without the keys that it leaves open; the password is a text.

    Raises ConfigurationError for a connection of another store's type, and for what Tagmill can't do as it says.
    """
    own, read = READERS[type(store)]
    kind = connection.conn_type
    if kind != own and kind in {official for official, _ in READERS.values()}:
        raise ConfigurationError(
            f"Airflow connection {connection.conn_id} is of type {kind}. Nothing was done. Make it of type {own} or generic"
        )
    keys = {"username": connection.login, "password": connection.password, **_address(connection, store)}
    keys |= read(connection) if kind == own else _tls(_parsed(connection, _Extra))
    return {key: value for key, value in keys.items() if value not in (None, "", [], {})}


def _address(connection: Connection, store: StoreSettings) -> Keys:
    if isinstance(store, CassandraSettings):
        hosts = [host.strip() for host in (connection.host or "").split(",") if host.strip()]
        return {"hosts": hosts, "port": connection.port}
    if isinstance(store, ClickHouseSettings):
        return {"host": connection.host, "port": connection.port}
    return {"bootstrap_servers": [f"{connection.host}:{connection.port or 9092}"] if connection.host else []}


def _tls(extra: _Extra) -> Keys:
    names = ("tls", "tls_ca_file", "tls_certificate_file", "tls_key_file", "tls_key_password")
    return {name: getattr(extra, name) for name in names}


def _cassandra(connection: Connection) -> Keys:
    extra = _parsed(connection, _CassandraExtra)
    if (options := extra.ssl_options) is None:
        return _tls(extra)
    return {
        **_tls(extra),
        "tls": True,
        "tls_ca_file": options.ca_certs,
        "tls_certificate_file": options.certfile or extra.tls_certificate_file,
        "tls_key_file": options.keyfile or extra.tls_key_file,
    }


def _clickhouse(connection: Connection) -> Keys:
    extra = _parsed(connection, _ClickHouseExtra)
    if extra.verify is False:
        raise ConfigurationError(
            f"Airflow connection {connection.conn_id}: verify is false, and Tagmill connects to no server that it "
            "can't verify. Nothing was done. Name the authority's file in ca_cert"
        )
    return {
        **_tls(extra),
        "tls": extra.secure if extra.tls is None else extra.tls,
        "tls_ca_file": extra.ca_cert or extra.tls_ca_file,
        "tls_certificate_file": extra.client_cert or extra.tls_certificate_file,
        "tls_key_file": extra.client_cert_key or extra.tls_key_file,
    }


def _kafka(connection: Connection) -> Keys:
    extra = _parsed(connection, _KafkaExtra)
    unknown = [key for key in extra.model_extra or () if key.startswith(("ssl.", "sasl."))]
    mechanism = extra.mechanism or extra.mechanisms
    if mechanism and mechanism not in get_args(SaslMechanism):
        unknown.append(f"sasl.mechanism={mechanism}")
    by_token = mechanism == "OAUTHBEARER"
    if by_token and extra.oauth_method != "oidc":
        unknown.append(f"sasl.oauthbearer.method={extra.oauth_method or 'default'}")
    if unknown:
        raise ConfigurationError(
            f"Airflow connection {connection.conn_id}: Tagmill can't do {', '.join(unknown)}. Nothing was done. It logs "
            f"in by {', '.join(get_args(SaslMechanism))} (by sasl.oauthbearer.method=oidc), and takes ssl.ca.location, "
            "ssl.certificate.location, ssl.key.location and ssl.key.password of TLS"
        )
    if by_token and not extra.token_url:
        raise ConfigurationError(
            f"Airflow connection {connection.conn_id}: OAUTHBEARER needs sasl.oauthbearer.token.endpoint.url. Nothing "
            "was done. Add it to the extra"
        )
    keys: Keys = {
        "bootstrap_servers": [text.strip() for text in (extra.servers or "").split(",") if text.strip()],
        "tls": extra.protocol.upper().endswith("SSL") if extra.protocol else None,
        "sasl_mechanism": mechanism,
        "username": extra.client_id if by_token else extra.username,
        "password": extra.client_secret if by_token else extra.password,
        "tls_ca_file": extra.ca_file,
        "tls_certificate_file": extra.certificate_file,
        "tls_key_file": extra.key_file,
        "tls_key_password": extra.key_password,
    }
    if by_token:
        keys |= {
            "oauth_token_url": extra.token_url,
            "oauth_scope": extra.scope,
            "oauth_extensions": dict(
                part.strip().split("=", 1) for part in (extra.extensions or "").split(",") if "=" in part
            ),
            "oauth_ca_file": extra.oauth_ca_file,
        }
    return {key: value for key, value in keys.items() if value not in (None, [], {})}


def _parsed(connection: Connection, model: type[Extra]) -> Extra:
    try:
        return model.model_validate_json(connection.extra or "{}")
    except ValidationError as error:
        mistakes = "; ".join(f"{'.'.join(map(str, m['loc'])) or 'extra'}: {m['msg']}" for m in error.errors())
        fields = ", ".join(field.alias or name for name, field in model.model_fields.items())
        raise ConfigurationError(
            f"Airflow connection {connection.conn_id}: {mistakes}. Its extra may hold {fields}"
        ) from None


# By a store's settings: the official type of its connections, and what reads one.
READERS: Mapping[type[StoreSettings], tuple[str, Callable[[Connection], Keys]]] = {
    CassandraSettings: ("cassandra", _cassandra),
    ClickHouseSettings: ("clickhouse", _clickhouse),
    KafkaSettings: ("kafka", _kafka),
}
