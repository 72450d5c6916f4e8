"""Make the trust store and the key store by which Spark's Cassandra connector connects by TLS."""

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12
from cryptography.x509 import load_pem_x509_certificates

from tagmill.config.client_certificate import client_certificate
from tagmill.config.settings import CassandraSettings
from tagmill.errors import ConfigurationError

SSL = "spark.cassandra.connection.ssl"
# Without them the connector offers two suites only, which TLS 1.3 and certificates with elliptic curves don't have.
CIPHER_SUITES = (
    "TLS_AES_256_GCM_SHA384",
    "TLS_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
)


def java_stores(cassandra: CassandraSettings, folder: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Write the stores that the settings call for to a folder, and return the settings that name them.

    Executors on other machines don't see the folder: for them, `given` settings of Spark name stores that they
    have, and those stay as they are.

    Raises ConfigurationError if a file of TLS can't be used.
    """
    conf = dict[str, str]()
    if cassandra.tls_ca_file and f"{SSL}.trustStore.path" not in given:
        conf |= trust_store(cassandra.tls_ca_file, folder)
    if f"{SSL}.keyStore.path" not in given:
        conf |= key_store(cassandra, folder)
    return conf


def trust_store(ca_file: Path, folder: Path) -> dict[str, str]:
    """Convert a PEM file of certificate authorities to a Java trust store in a folder, and return the
    settings that name it.
    """
    try:
        authorities = load_pem_x509_certificates(ca_file.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"cassandra.tls_ca_file: {ca_file} can't be read as PEM certificates: {error}"
        ) from None
    entries = [
        pkcs12.PKCS12Certificate(authority, f"ca-{i}".encode()) for i, authority in enumerate(authorities)
    ]
    password = secrets.token_urlsafe(16)
    content = pkcs12.serialize_java_truststore(entries, BestAvailableEncryption(password.encode()))
    return _stored(folder / "trusted.p12", content, password, "trustStore")


def key_store(cassandra: CassandraSettings, folder: Path) -> dict[str, str]:
    """Write client certificate and key as a Java key store to a folder, and return the settings that name it.

    There are none without a client certificate. Raises ConfigurationError if a file can't be used.
    """
    shown = client_certificate("cassandra", cassandra)
    if shown is None:
        return {}
    password = secrets.token_urlsafe(16)
    content = pkcs12.serialize_key_and_certificates(
        b"tagmill",
        cast(pkcs12.PKCS12PrivateKeyTypes, shown.key),
        shown.certificate,
        list(shown.between) or None,
        BestAvailableEncryption(password.encode()),
    )
    named = _stored(folder / "shown.p12", content, password, "keyStore")
    return {**named, f"{SSL}.clientAuth.enabled": "true"}


def _stored(file: Path, content: bytes, password: str, store: str) -> dict[str, str]:
    file.touch(mode=0o600)
    file.write_bytes(content)
    return {
        f"{SSL}.{store}.path": str(file),
        f"{SSL}.{store}.password": password,
        f"{SSL}.{store}.type": "PKCS12",
    }
