"""Certificate authorities and the client certificate reach Java as stores that it can read."""

import datetime
import stat
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

from local.java import find_java
from tagmill.config.settings import CassandraSettings
from tagmill.errors import ConfigurationError
from tagmill.spark.java_stores import SSL, java_stores, key_store, trust_store
from tests.support.certificates import Authority


def authority(name: str) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(
        subject, subject, key.public_key(), x509.random_serial_number(), now, now + datetime.timedelta(1)
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def test_java_trusts_every_authority_of_the_file(tmp_path):
    (tmp_path / "ca.pem").write_bytes(authority("one") + authority("two"))
    conf = trust_store(tmp_path / "ca.pem", tmp_path)
    store, password = (
        conf[f"spark.cassandra.connection.ssl.trustStore.{name}"] for name in ("path", "password")
    )
    keytool = Path(find_java((17,))).with_name("keytool")
    if not keytool.exists():
        pytest.skip("this Java runtime has no keytool")
    listed = subprocess.run(
        [keytool, "-list", "-keystore", store, "-storepass", password],
        capture_output=True,
        text=True,
        check=True,
    )
    assert listed.stdout.count("trustedCertEntry") == 2
    assert stat.S_IMODE(Path(store).stat().st_mode) == 0o600


def test_trust_store_without_certificates_is_refused(tmp_path):
    """Name tls_ca_file in the error if the file holds no certificates."""
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(ConfigurationError, match="tls_ca_file"):
        trust_store(tmp_path / "ca.pem", tmp_path)


def test_java_shows_client_certificate_of_files(tmp_path):
    """The key store has the key, and the certificates between it and its authority; only the user may read it."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("us", password="sesame")
    certificate.write_bytes(certificate.read_bytes() + authority.pem)
    cassandra = CassandraSettings(
        tls=True,
        tls_ca_file=authority.file,
        tls_certificate_file=certificate,
        tls_key_file=key,
        tls_key_password="sesame",
    )
    conf = java_stores(cassandra, tmp_path, {})
    assert (
        conf[f"{SSL}.clientAuth.enabled"] == "true"
        and stat.S_IMODE((tmp_path / "shown.p12").stat().st_mode) == 0o600
    )
    password = conf[f"{SSL}.keyStore.password"].encode()
    read, shown, between = pkcs12.load_key_and_certificates((tmp_path / "shown.p12").read_bytes(), password)
    assert shown.public_key() == read.public_key() and len(between) == 1
    given = {f"{SSL}.trustStore.path": "/t.jks", f"{SSL}.keyStore.path": "/k.jks"}
    assert java_stores(cassandra, tmp_path, given) == {}
    assert key_store(CassandraSettings(tls=True), tmp_path) == {}
