"""TLS connections that can't succeed by a retry end in one line with exit status 2, whichever server it
is.
"""

import time

import pytest

from tagmill.cassandra.client import Cassandra
from tagmill.clickhouse.client import ClickHouse
from tagmill.config import tls
from tagmill.config.kafka import KafkaSettings
from tagmill.config.settings import CassandraSettings, ClickHouseSettings, Settings
from tagmill.errors import ConfigurationError
from tagmill.kafka.client import Kafka
from tests.support.certificates import Authority, tls_server

STORES = ("cassandra", "clickhouse", "kafka")


def connect(store, port, ca_file, **keys):
    """Connect as a command does, with these keys of the client certificate."""
    keys |= {"tls": True, "tls_ca_file": ca_file}
    if store == "cassandra":
        Cassandra(CassandraSettings(port=port, connect_timeout_seconds=5, **keys))
    elif store == "clickhouse":
        ClickHouse(ClickHouseSettings(port=port, connect_timeout_seconds=5, **keys))
    else:
        servers = [f"127.0.0.1:{port}"]
        with Kafka(KafkaSettings(bootstrap_servers=servers, request_timeout_seconds=3, **keys)) as kafka:
            kafka.topics()


def refused(store, port, ca_file, **keys):
    """Return the one line that refuses the connection, after checking that it came soon."""
    begin = time.monotonic()
    with pytest.raises(ConfigurationError) as error:
        connect(store, port, ca_file, **keys)
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
    """Name the keys for a certificate if there is none, and the file of one that the server refuses."""
    authority = Authority(tmp_path / "ours")
    with tls_server(authority.issue("127.0.0.1"), clients_of=authority.file) as port:
        said = refused(store, port, authority.file)
        assert "asks for a client certificate" in said and f"{store}.tls_certificate_file" in said
        # One authority has another name, the other one the same name with another key.
        for name in ("other", "authority"):
            certificate, key = Authority(tmp_path / name, name).issue("stranger")
            said = refused(store, port, authority.file, tls_certificate_file=certificate, tls_key_file=key)
            assert f"refuses the client certificate of {certificate}" in said


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / "us.pem").unlink(), "tls_certificate_file: .*us.pem is not there"),
        (lambda folder: (folder / "us.key").unlink(), "tls_key_file: .*us.key is not there"),
        (lambda folder: (folder / "us.pem").write_text("x"), "tls_certificate_file: .*no certificate in PEM"),
        (lambda folder: (folder / "us.key").write_text("x"), "tls_key_file: .*us.key holds no private key"),
        (lambda folder: (folder / "no.key").replace(folder / "us.key"), "us.key is not the key of the cert"),
        (
            lambda folder: (folder / "secret.key").replace(folder / "us.key"),
            "encrypted; set TAGMILL_.*PASSWORD",
        ),
        (lambda folder: _folder_for(folder / "us.key"), "us.key can't be read: Is a directory"),
    ],
    ids=[
        "no certificate",
        "no key",
        "not a certificate",
        "not a key",
        "other key",
        "encrypted",
        "unreadable",
    ],
)
def test_client_certificate_unusable_is_named(store, change, words, tmp_path):
    """Name the file and its key before anything is connected to."""
    authority = Authority(tmp_path)
    for name, password in (("no", None), ("secret", "sesame"), ("us", None)):
        certificate, key = authority.issue(name, password=password)
    change(tmp_path)
    with pytest.raises(ConfigurationError, match=f"{store}.*{words}") as error:
        connect(store, 1, authority.file, tls_certificate_file=certificate, tls_key_file=key)
    assert "\n" not in str(error.value)


def test_key_password_comes_from_environment_only(tmp_path, monkeypatch):
    """Read it from a file that a variable names; refuse it in the configuration, and name a wrong one."""
    authority = Authority(tmp_path)
    authority.issue("us", password="sesame")
    text = '[kafka]\ntls = true\ntls_ca_file = "ca.pem"\ntls_certificate_file = "us.pem"\ntls_key_file = "us.key"\n'
    file, secret = tmp_path / "tagmill.toml", tmp_path / "secret"
    file.write_text(text)
    for password in ("sesame", "no"):
        secret.write_text(f"{password}\n")
        monkeypatch.setenv("TAGMILL_KAFKA__TLS_KEY_PASSWORD_FILE", str(secret))
        kafka = Settings.load(file).kafka
        assert kafka.tls_certificate_file == tmp_path / "us.pem" and "sesame" not in repr(kafka)
        if password == "sesame":
            assert tls.context("kafka", kafka)
        else:
            with pytest.raises(
                ConfigurationError, match=r"us.key can't be decrypted; correct TAGMILL_KAFKA__TLS"
            ):
                tls.context("kafka", kafka)
    file.write_text(f'{text}tls_key_password = "sesame"\n')
    with pytest.raises(
        ConfigurationError, match="kafka.tls_key_password doesn't belong in the file"
    ) as error:
        Settings.load(file)
    assert "sesame" not in str(error.value)


def test_one_file_may_hold_certificate_and_key(tmp_path):
    authority = Authority(tmp_path)
    certificate, key = authority.issue("us")
    for parts in ((certificate, key), (key, certificate)):
        both = tmp_path / "both.pem"
        both.write_bytes(b"".join(part.read_bytes() for part in parts))
        with tls_server(authority.issue("127.0.0.1"), clients_of=authority.file) as port:
            settings = CassandraSettings(tls=True, tls_ca_file=authority.file, tls_certificate_file=both)
            assert tls.refusal("cassandra", "Cassandra", ("127.0.0.1", port), settings, 5) is None


def _folder_for(file):
    """Put a folder in a file's place: no user can read it as a file."""
    file.unlink()
    file.mkdir()


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
