"""Read the certificate with which Tagmill proves itself to a server, and its private key."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from tagmill.config.base import TlsKeys
from tagmill.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """The certificate and its private key; `between` are the authorities between it and one that servers know."""

    certificate: x509.Certificate
    between: tuple[x509.Certificate, ...]
    key: PrivateKeyTypes

    @property
    def subject(self) -> str:
        """The name that the certificate is for."""
        return self.certificate.subject.rfc4514_string()

    @property
    def begin(self) -> datetime:
        """The moment from which the certificate is valid."""
        return self.certificate.not_valid_before_utc

    @property
    def end(self) -> datetime:
        """The moment until which the certificate is valid."""
        return self.certificate.not_valid_after_utc


def client_certificate(section: str, keys: TlsKeys) -> ClientCertificate | None:
    """Return the client certificate of a section; None if it names none.

    Raises ConfigurationError if a file can't be used, or the key is not that of the certificate.
    """
    file = keys.tls_certificate_file
    if file is None:
        return None
    name = f"{section}.tls_certificate_file"
    content = _content(name, file)
    try:
        certificate, *between = x509.load_pem_x509_certificates(content)
    except ValueError:
        raise ConfigurationError(f"{name}: {file} holds no certificate in PEM") from None
    key = _key(section, keys, file)
    if _public(key.public_key()) != _public(certificate.public_key()):
        raise ConfigurationError(
            f"{section}.tls_key_file: {keys.tls_key_file or file} is not the key of the certificate in {file}"
        )
    return ClientCertificate(certificate, tuple(between), key)


def _key(section: str, keys: TlsKeys, certificate_file: Path) -> PrivateKeyTypes:
    """Return the private key, decrypted; a password that the key doesn't need is ignored."""
    name, file = f"{section}.tls_key_file", keys.tls_key_file or certificate_file
    variable = f"TAGMILL_{section.upper()}__TLS_KEY_PASSWORD"
    content = _content(name, file)
    password = keys.tls_key_password.get_secret_value() if keys.tls_key_password else ""
    try:
        return load_pem_private_key(content, None)
    except TypeError:  # the key is encrypted
        if not password:
            raise ConfigurationError(
                f"{name}: {file} is encrypted; set {variable}, or {variable}_FILE"
            ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigurationError(f"{name}: {file} holds no private key in PEM") from None
    try:
        return load_pem_private_key(content, password.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigurationError(f"{name}: {file} can't be decrypted; correct {variable}") from None


def _content(name: str, file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise ConfigurationError(f"{name}: {file} is not there") from None
    except OSError as error:
        raise ConfigurationError(f"{name}: {file} can't be read: {error.strerror}") from None


def _public(key: object) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined, no-any-return]
