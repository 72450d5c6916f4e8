"""Connect to servers by TLS: which authorities are trusted, which certificate is shown, and why a server and
Tagmill can't agree on a connection.
"""

import re
import socket
import ssl
from contextlib import suppress
from pathlib import Path

from tagmill.config.base import TlsKeys
from tagmill.config.client_certificate import client_certificate
from tagmill.errors import ClientCertificateRefused, ConfigurationError

# Seconds to wait for a refusal: a server that asks for a client's certificate refuses only after the
# handshake (TLS 1.3).
REFUSAL_SECONDS = 2
# OpenSSL's codes: the name or the address is not in the certificate; the certificate has expired.
OTHER_NAME, EXPIRED = frozenset({62, 64}), 10
# What servers answer to a client without a certificate, or with one that they don't accept.
CLIENT_CERTIFICATE = re.compile(
    r"CERTIFICATE_REQUIRED|BAD_CERTIFICATE|UNSUPPORTED_CERTIFICATE|HANDSHAKE_FAILURE"
    r"|ALERT_(?:CERTIFICATE_\w+|UNKNOWN_CA|ACCESS_DENIED|DECRYPT_ERROR)"
)


def authorities(section: str, ca_file: Path | None, *, key: str = "tls_ca_file") -> ssl.SSLContext:
    """Return the TLS context that checks a server's certificate; raises ConfigurationError if the file of
    authorities, which `key` names, can't be used.
    """
    try:
        return ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
    except FileNotFoundError:
        raise ConfigurationError(f"{section}.{key}: {ca_file} is not there") from None
    except ssl.SSLError:
        raise ConfigurationError(f"{section}.{key}: {ca_file} holds no certificate in PEM") from None
    except OSError as error:
        raise ConfigurationError(f"{section}.{key}: {ca_file} can't be read: {error.strerror}") from None


def context(section: str, keys: TlsKeys) -> ssl.SSLContext:
    """Return the TLS context that checks a server's certificate and shows Tagmill's own, if one is configured.

    Raises ConfigurationError if a file can't be used.
    """
    made = authorities(section, keys.tls_ca_file)
    if file := keys.tls_certificate_file:
        # Checked first: OpenSSL doesn't say which file is wrong, and asks the terminal for a password.
        client_certificate(section, keys)
        try:
            made.load_cert_chain(
                file,
                keys.tls_key_file,
                keys.tls_key_password.get_secret_value() if keys.tls_key_password else None,
            )
        except (ssl.SSLError, OSError) as error:
            raise ConfigurationError(
                f"{section}.tls_certificate_file: {file} can't be used: {getattr(error, 'reason', None) or error}"
            ) from None
    return made


def refusal(
    section: str, where: str, address: tuple[str, int], keys: TlsKeys, seconds: float
) -> ConfigurationError | None:
    """Return the error that explains why a TLS connection to a server fails at every try; None if it is not
    TLS that fails.

    Args:
        section: of the configuration, for the message.
        where: the server, for the message.
        address: host and port, asked once more.
        keys: the authorities that are trusted, and the certificate that is shown.
        seconds: longest wait for the server.
    """
    host = address[0]
    try:
        with (
            socket.create_connection(address, seconds) as plain,
            context(section, keys).wrap_socket(plain, server_hostname=host) as connection,
        ):
            connection.settimeout(min(seconds, REFUSAL_SECONDS))
            with suppress(TimeoutError):
                connection.recv(1)
    except ssl.SSLCertVerificationError as error:
        return ConfigurationError(
            f"{where}: {_untrusted(section, host, keys.tls_ca_file, error)}. Nothing was done"
        )
    except ssl.SSLError as error:
        kind = ClientCertificateRefused if CLIENT_CERTIFICATE.search(_reason(error)) else ConfigurationError
        return kind(f"{where}: {_disagreement(section, keys, error)}. Nothing was done")
    except OSError:
        return None
    return None


def _untrusted(section: str, host: str, ca_file: Path | None, error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code in OTHER_NAME:
        return (
            f"its certificate is for another name than {host}; give the name that it is for as the "
            f"host in [{section}]"
        )
    if error.verify_code == EXPIRED:
        return "its certificate has expired; it needs another one"
    trusted = f"in {ca_file}" if ca_file else "that this machine trusts"
    return (
        f"its certificate is from no authority {trusted} ({error.verify_message}); correct "
        f"{section}.tls_ca_file"
    )


def _reason(error: ssl.SSLError) -> str:
    return error.reason or str(error)


def _disagreement(section: str, keys: TlsKeys, error: ssl.SSLError) -> str:
    reason = _reason(error)
    if CLIENT_CERTIFICATE.search(reason):
        if file := keys.tls_certificate_file:
            said = reason.partition("ALERT_")[2].replace("_", " ").lower() or reason
            return (
                f"it refuses the client certificate of {file} ({said}); name one in "
                f"{section}.tls_certificate_file that it accepts"
            )
        return (
            "it asks for a client certificate, and none is configured; name its files in "
            f"{section}.tls_certificate_file and {section}.tls_key_file"
        )
    if reason in ("WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING", "RECORD_LAYER_FAILURE"):
        return f"nothing speaks TLS there; correct {section}.tls, or the port"
    return f"no TLS connection ({reason}); correct {section}.tls and {section}.tls_ca_file"
