"""Connections of the stores' official types, as Airflow's own forms make them, become Tagmill's settings."""

import json

import pytest

pytest.importorskip("airflow")

from tagmill.airflow.connections import load_settings, spark_environment
from tagmill.config import tls
from tagmill.config.settings import Settings
from tagmill.errors import ConfigurationError
from tests.support.certificates import Authority

URL = "sasl.oauthbearer.token.endpoint.url"
OIDC = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "reader",
    "sasl.oauthbearer.client.secret": "s3cr3t",
    URL: "https://login.example.org/token",
}


@pytest.fixture
def connect(config, monkeypatch):
    """Return connect(store, **connection), which makes a connection of a store."""

    def make(store, **connection):
        monkeypatch.setenv(f"AIRFLOW_CONN_TAGMILL_{store.upper()}", json.dumps(connection))

    return make


def test_official_connections_are_understood(connect, tmp_path, monkeypatch):
    """Address, login and TLS of each store come from the connection; the jobs get them by their environment."""
    authority = str(Authority(tmp_path / "authority").file)
    login = {"login": "reader", "password": "s3cr3t"}
    ssl = {"ssl_options": {"ca_certs": authority}, "protocol_version": 4}
    connect("cassandra", conn_type="cassandra", host="c-1, c-2", port=9142, schema="k", extra=ssl, **login)
    secure = {"secure": True, "verify": True, "ca_cert": authority, "connect_timeout": 3}
    connect("clickhouse", conn_type="clickhouse", host="ch-1", port=8443, extra=secure, **login)
    kafka = {
        "bootstrap.servers": "k-1:9093,k-2:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "reader",
        "sasl.password": "s3cr3t",
        "ssl.ca.location": authority,
        "group.id": "g",
    }
    connect("kafka", conn_type="kafka", extra=kafka)
    settings = load_settings()
    cassandra, clickhouse, brokers = settings.cassandra, settings.clickhouse, settings.kafka
    assert (cassandra.hosts, cassandra.port) == (["c-1", "c-2"], 9142)
    assert (clickhouse.host, clickhouse.port) == ("ch-1", 8443)
    assert (brokers.bootstrap_servers, brokers.sasl_mechanism) == (["k-1:9093", "k-2:9093"], "SCRAM-SHA-512")
    for store in (cassandra, clickhouse, brokers):
        assert (store.username, store.password.get_secret_value()) == ("reader", "s3cr3t")
        assert store.tls and str(store.tls_ca_file) == authority
    for name, value in spark_environment(settings, "cassandra", "clickhouse", "kafka").items():
        monkeypatch.setenv(name, value)
    of_job = Settings.load()
    for section in ("cassandra", "clickhouse", "kafka"):
        assert getattr(of_job, section) == getattr(settings, section)


def loaded_by_job(settings, monkeypatch):
    """Return the settings that a job loads from the environment that it is given."""
    for name, value in spark_environment(settings, "cassandra", "clickhouse", "kafka").items():
        monkeypatch.setenv(name, value)
    return Settings.load()


def test_client_certificates_of_connections_reach_jobs(connect, tmp_path, monkeypatch):
    """Certificate, key and its password come from each official type; only the environment has the password."""
    authority = Authority(tmp_path / "authority")
    certificate, key = map(str, authority.issue("tagmill", password="s3cr3t"))
    ssl = {"ca_certs": str(authority.file), "certfile": certificate, "keyfile": key}
    connect("cassandra", conn_type="cassandra", extra={"ssl_options": ssl, "tls_key_password": "s3cr3t"})
    secure = {
        "secure": True,
        "client_cert": certificate,
        "client_cert_key": key,
        "tls_key_password": "s3cr3t",
    }
    connect("clickhouse", conn_type="clickhouse", extra=secure)
    names = {"certificate.location": certificate, "key.location": key, "key.password": "s3cr3t"}
    connect(
        "kafka",
        conn_type="kafka",
        extra={"security.protocol": "SSL", **{f"ssl.{name}": value for name, value in names.items()}},
    )
    settings = load_settings()
    of_job = loaded_by_job(settings, monkeypatch)
    for section in ("cassandra", "clickhouse", "kafka"):
        store = getattr(settings, section)
        assert store.tls and (str(store.tls_certificate_file), str(store.tls_key_file)) == (certificate, key)
        assert store.tls_key_password.get_secret_value() == "s3cr3t" and "s3cr3t" not in repr(store)
        assert getattr(of_job, section) == store
        assert tls.context(section, store)


def test_generic_connection_carries_client_certificate(connect, monkeypatch):
    files = {"tls": True, "tls_certificate_file": "/c.pem", "tls_key_file": "/c.key", "tls_key_password": "s"}
    connect("cassandra", conn_type="generic", extra=files)
    cassandra = load_settings().cassandra
    assert str(cassandra.tls_certificate_file) == "/c.pem" and str(cassandra.tls_key_file) == "/c.key"
    assert cassandra.tls_key_password.get_secret_value() == "s"


def test_token_login_of_connection_reaches_jobs(connect, monkeypatch):
    """Client id, secret, scope, extensions and endpoint of the librdkafka settings are those of the job."""
    more = {
        "sasl.oauthbearer.scope": "kafka",
        "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,poolId=p-2",
    }
    connect("kafka", conn_type="kafka", extra={**OIDC, **more})
    kafka = load_settings().kafka
    assert (kafka.username, kafka.password.get_secret_value()) == ("reader", "s3cr3t")
    assert (kafka.sasl_mechanism, kafka.oauth_token_url) == ("OAUTHBEARER", OIDC[URL])
    assert kafka.oauth_extensions == {"logicalCluster": "lkc-1", "poolId": "p-2"}
    assert loaded_by_job(load_settings(), monkeypatch).kafka == kafka


def test_addresses_of_the_configuration_hold(config, connect):
    """Host and port of the file count before those of the connection, each on its own."""
    config.write_text(config.read_text().replace("[cassandra]", '[cassandra]\nhosts = ["of-the-file"]'))
    connect("cassandra", conn_type="cassandra", host="of-the-connection", port=9142)
    connect("clickhouse", conn_type="http", host="ch-1")
    settings = load_settings()
    assert (settings.cassandra.hosts, settings.cassandra.port) == (["of-the-file"], 9142)
    assert (settings.clickhouse.host, settings.clickhouse.port) == ("ch-1", 8123)


@pytest.mark.parametrize(
    ("store", "connection", "said"),
    [
        ("cassandra", {"conn_type": "kafka"}, "is of type kafka"),
        (
            "cassandra",
            {"conn_type": "cassandra", "extra": {"ssl_options": {"ciphers": "c"}}},
            "ssl_options.ciphers",
        ),
        ("clickhouse", {"conn_type": "clickhouse", "extra": {"verify": False}}, "verify is false"),
        ("kafka", {"conn_type": "kafka", "extra": {"sasl.mechanism": "GSSAPI"}}, "GSSAPI"),
        ("kafka", {"conn_type": "kafka", "extra": {"sasl.mechanism": "OAUTHBEARER"}}, "method=default"),
        ("kafka", {"conn_type": "kafka", "extra": {**OIDC, URL: None}}, f"OAUTHBEARER needs {URL}"),
        ("kafka", {"conn_type": "kafka", "extra": {**OIDC, URL: "login.example.org"}}, "begin with https"),
        ("kafka", {"conn_type": "kafka", "extra": {"ssl.keystore.location": "k"}}, "ssl.keystore.location"),
        ("kafka", {"conn_type": "generic", "extra": {"bootstrap.servers": "k"}}, "bootstrap.servers"),
    ],
    ids=["type", "ciphers", "verify", "mechanism", "method", "no URL", "URL", "key store", "generic"],
)
def test_connection_that_asks_for_more_is_refused(connect, store, connection, said):
    """What a connection asks for and Tagmill can't do is an error: it must not mean a weaker connection."""
    connect(store, **connection)
    with pytest.raises(ConfigurationError, match=f"connection tagmill_{store}.*{said}"):
        load_settings()
