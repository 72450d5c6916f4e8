"""A Cassandra that takes clients with TLS and without."""

import socket
import ssl
import struct
from pathlib import Path

from local.cassandra import Cassandra

ENCRYPTION = """\
client_encryption_options:
  enabled: true
  optional: true
  require_client_auth: false
  ssl_context_factory:
    class_name: org.apache.cassandra.security.PEMBasedSslContextFactory
  keystore: {file}
"""


class SecureCassandra(Cassandra):
    """A node that shows a certificate; `certificate` has the files of the certificate and of its key."""

    certificate: tuple[Path, Path]

    def configure(self) -> None:
        """Write the configuration, with the certificate and its key in one file, as Cassandra reads them."""
        super().configure()
        shown = self.home / "shown.pem"
        shown.write_text("".join(file.read_text() for file in reversed(self.certificate)))
        with (self.home / "cassandra.yaml").open("a") as file:
            file.write(ENCRYPTION.format(file=shown))

    def healthy(self) -> bool:
        """Send a frame OPTIONS by TLS; the answer SUPPORTED (opcode 6) means that CQL is served."""
        context = ssl.create_default_context(cafile=str(self.certificate[0].with_name("ca.pem")))
        try:
            with (
                socket.create_connection(("127.0.0.1", self.port), 2) as plain,
                context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
            ):
                connection.settimeout(5)
                connection.sendall(struct.pack(">BBhBI", 4, 0, 0, 5, 0))
                return connection.recv(9)[4] == 6
        except (OSError, IndexError):
            return False
