"""Let the servers of a stack speak TLS, with clients that show a certificate of one authority only."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tagmill.runs.privacy import make_file


@dataclass(frozen=True)
class ServerTls:
    """Files in PEM: the certificate and the key of a server for 127.0.0.1, and the authority of all certificates.

    The key is not encrypted, in PKCS 8, as Java reads it.
    """

    certificate: Path
    key: Path
    authority: Path

    def server_context(self) -> ssl.SSLContext:
        """Return the context of a server that only serves clients with a certificate of the authority."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        context.load_verify_locations(self.authority)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client_context(self) -> ssl.SSLContext:
        """Return the context of a client that shows the server's own certificate, as a health check does."""
        context = ssl.create_default_context(cafile=str(self.authority))
        context.load_cert_chain(self.certificate, self.key)
        return context

    def write_for_java(self, file: Path) -> Path:
        """Write key and certificate to one file, as Cassandra and Kafka read them, and return it."""
        make_file(file)
        file.write_bytes(self.key.read_bytes() + self.certificate.read_bytes())
        return file


@contextmanager
def connected(port: int, tls: ServerTls | None) -> Iterator[socket.socket]:
    """Yield a connection to a server of this machine, for a health check, by TLS if there is one."""
    with socket.create_connection(("127.0.0.1", port), 2) as plain:
        plain.settimeout(5)
        if tls is None:
            yield plain
            return
        with tls.client_context().wrap_socket(plain, server_hostname="127.0.0.1") as connection:
            yield connection
