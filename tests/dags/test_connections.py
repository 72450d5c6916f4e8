"""Connections of the stores' official types, as Airflow's own forms make them, become Tagmill's settings."""

import json

import pytest

pytest.importorskip("airflow")

from tagmill.airflow.connections import load_settings, spark_environment
from tagmill.config.settings import Settings
from tagmill.errors import ConfigurationError
from tests.support.certificates import Authority


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
            {"conn_type": "cassandra", "extra": {"ssl_options": {"certfile": "c"}}},
            "ssl_options.certfile",
        ),
        ("clickhouse", {"conn_type": "clickhouse", "extra": {"verify": False}}, "verify is false"),
        ("kafka", {"conn_type": "kafka", "extra": {"sasl.mechanism": "OAUTHBEARER"}}, "OAUTHBEARER"),
        ("kafka", {"conn_type": "kafka", "extra": {"ssl.key.location": "k"}}, "ssl.key.location"),
        ("kafka", {"conn_type": "generic", "extra": {"bootstrap.servers": "k"}}, "bootstrap.servers"),
    ],
    ids=["type", "certificate", "verify", "mechanism", "key", "generic"],
)
def test_connection_that_asks_for_more_is_refused(connect, store, connection, said):
    """What a connection asks for and Tagmill can't do is an error: it must not mean a weaker connection."""
    connect(store, **connection)
    with pytest.raises(ConfigurationError, match=f"connection tagmill_{store}.*{said}"):
        load_settings()
