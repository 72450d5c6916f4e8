"""Connect to servers by TLS: which authorities are trusted, and why a server and Tagmill can't agree on a
connection.
"""

import socket
import ssl
from contextlib import suppress
from pathlib import Path

from tagmill.errors import ConfigurationError

# Seconds to wait for a refusal: a server that asks for a client's certificate refuses only after the
# handshake (TLS 1.3).
REFUSAL_SECONDS = 2
# OpenSSL's codes: the name or the address is not in the certificate; the certificate has expired.
OTHER_NAME, EXPIRED = frozenset({62, 64}), 10
CLIENT_CERTIFICATE = ("CERTIFICATE_REQUIRED", "BAD_CERTIFICATE", "HANDSHAKE_FAILURE")


def context(section: str, ca_file: Path | None) -> ssl.SSLContext:
    """Return the TLS context that checks a server's certificate; raises ConfigurationError if the file of
    authorities can't be used.
    """
    try:
        return ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
    except FileNotFoundError:
        raise ConfigurationError(f"{section}.tls_ca_file: {ca_file} is not there") from None
    except ssl.SSLError:
        raise ConfigurationError(f"{section}.tls_ca_file: {ca_file} holds no certificate in PEM") from None
    except OSError as error:
        raise ConfigurationError(
            f"{section}.tls_ca_file: {ca_file} can't be read: {error.strerror}"
        ) from None


def refusal(
    section: str, where: str, address: tuple[str, int], ca_file: Path | None, seconds: float
) -> ConfigurationError | None:
    """Return the error that explains why a TLS connection to a server fails at every try; None if it is not
    TLS that fails.

    Args:
        section: of the configuration, for the message.
        where: the server, for the message.
        address: host and port, asked once more.
        ca_file: the authorities that are trusted, None for the system's.
        seconds: longest wait for the server.
    """
    host = address[0]
    try:
        with (
            socket.create_connection(address, seconds) as plain,
            context(section, ca_file).wrap_socket(plain, server_hostname=host) as connection,
        ):
            connection.settimeout(min(seconds, REFUSAL_SECONDS))
            with suppress(TimeoutError):
                connection.recv(1)
    except ssl.SSLCertVerificationError as error:
        return ConfigurationError(f"{where}: {_untrusted(section, host, ca_file, error)}. Nothing was done")
    except ssl.SSLError as error:
        return ConfigurationError(f"{where}: {_disagreement(section, error)}. Nothing was done")
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


def _disagreement(section: str, error: ssl.SSLError) -> str:
    reason = error.reason or str(error)
    if any(text in reason for text in CLIENT_CERTIFICATE):
        return (
            "it asks for a client certificate, which Tagmill has none of; let it accept clients without one"
        )
    if reason in ("WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING", "RECORD_LAYER_FAILURE"):
        return f"nothing speaks TLS there; correct {section}.tls, or the port"
    return f"no TLS connection ({reason}); correct {section}.tls and {section}.tls_ca_file"
