"""TLS connections that can't succeed by a retry end in one line with exit status 2, whichever server it
is.
"""

import time

import pytest

from tagmill.cassandra.client import Cassandra
from tagmill.clickhouse.client import ClickHouse
from tagmill.config.kafka import KafkaSettings
from tagmill.config.settings import CassandraSettings, ClickHouseSettings, Settings
from tagmill.errors import ConfigurationError
from tagmill.kafka.client import Kafka
from tests.support.certificates import Authority, tls_server

STORES = ("cassandra", "clickhouse", "kafka")


def connect(store, port, ca_file):
    """Connect as a command does."""
    if store == "cassandra":
        Cassandra(CassandraSettings(port=port, tls=True, tls_ca_file=ca_file, connect_timeout_seconds=5))
    elif store == "clickhouse":
        ClickHouse(ClickHouseSettings(port=port, tls=True, tls_ca_file=ca_file, connect_timeout_seconds=5))
    else:
        servers = [f"127.0.0.1:{port}"]
        settings = KafkaSettings(
            bootstrap_servers=servers, tls=True, tls_ca_file=ca_file, request_timeout_seconds=3
        )
        with Kafka(settings) as kafka:
            kafka.topics()


def refused(store, port, ca_file):
    """Return the one line that refuses the connection, after checking that it came soon."""
    begin = time.monotonic()
    with pytest.raises(ConfigurationError) as error:
        connect(store, port, ca_file)
    said = str(error.value)
    assert "\n" not in said and f":{port}" in said and error.value.exit_code == 2
    assert time.monotonic() - begin < 20
    return said


@pytest.mark.parametrize("store", STORES)
def test_wrong_authority_is_named_with_its_key(store, tmp_path):
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs", "other")
    with tls_server(theirs.issue("127.0.0.1")) as port:
        said = refused(store, port, ours.file)
    assert f"from no authority in {ours.file}" in said and f"correct {store}.tls_ca_file" in said


@pytest.mark.parametrize("store", STORES)
def test_certificate_for_another_name_is_told(store, tmp_path):
    authority = Authority(tmp_path)
    with tls_server(authority.issue("db.example.org")) as port:
        said = refused(store, port, authority.file)
    assert "its certificate is for another name than 127.0.0.1" in said


@pytest.mark.parametrize("store", STORES)
def test_client_certificate_asked_for_is_told(store, tmp_path):
    authority = Authority(tmp_path)
    with tls_server(authority.issue("127.0.0.1"), clients_of=authority.file) as port:
        said = refused(store, port, authority.file)
    assert "asks for a client certificate" in said


@pytest.mark.parametrize("store", STORES)
def test_authorities_not_there_are_named_at_load(store, tmp_path):
    """Name the file and its key when the configuration is read, before anything is connected to."""
    for content, words in ((None, "is not there"), ("nothing", "holds no certificate in PEM")):
        if content:
            (tmp_path / "ca.pem").write_text(content)
        file = tmp_path / "tagmill.toml"
        file.write_text(f'[{store}]\ntls = true\ntls_ca_file = "ca.pem"\n')
        with pytest.raises(
            ConfigurationError, match=rf"tagmill.toml: {store}.tls_ca_file: .*ca.pem {words}$"
        ):
            Settings.load(file)
