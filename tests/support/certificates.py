"""Make certificates for a test, and run a TLS server that presents one and sends nothing else."""

import datetime
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PEM = serialization.Encoding.PEM

SIGNS = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


class Authority:
    """A certificate authority; `ca.pem` in its folder holds its certificate."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.name = folder, _name(name)
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.file = folder / "ca.pem"
        self.pem = self._sign(self.name, self.key.public_key(), None, True).public_bytes(PEM)
        self.file.write_bytes(self.pem)

    def issue(
        self, *names: str, password: str | None = None, begin_days: float = -1 / 24, days: float = 1
    ) -> tuple[Path, Path]:
        """Make a certificate for addresses or host names; return the files of the certificate and of its
        key.

        Args:
            names: what the certificate is for; the first one names the files, too.
            password: encrypts the key.
            begin_days: days from now to the certificate's begin.
            days: days from now to its end.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(_name(names[0]), key.public_key(), names, False, begin_days, days)
        files = self.folder / f"{names[0]}.pem", self.folder / f"{names[0]}.key"
        files[0].write_bytes(certificate.public_bytes(PEM))
        format_ = serialization.PrivateFormat.PKCS8
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            encryption = serialization.BestAvailableEncryption(password.encode())
        files[1].touch(mode=0o600)
        files[1].write_bytes(key.private_bytes(PEM, format_, encryption))
        return files

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        names: tuple[str, ...] | None,
        is_authority: bool,
        begin_days: float = -1 / 24,
        days: float = 1,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        begin, end = (now + datetime.timedelta(days=number) for number in (begin_days, days))
        builder = x509.CertificateBuilder(self.name, subject, key, x509.random_serial_number(), begin, end)
        builder = builder.add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False
            )
        # Since Python 3.13 clients refuse certificates without these.
        of_authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = builder.add_extension(of_authority, critical=False)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        if is_authority:
            builder = builder.add_extension(SIGNS, critical=True)
        return builder.sign(self.key, hashes.SHA256())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


@contextmanager
def tls_server(certificate: tuple[Path, Path], clients_of: Path | None = None) -> Iterator[int]:
    """Serve TLS on a port of 127.0.0.1, and yield the port; with `clients_of`, only clients with a
    certificate of that authority.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    if clients_of:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients_of)
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=_serve, args=(listening, context), daemon=True)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(10)


def _serve(listening: socket.socket, context: ssl.SSLContext) -> None:
    with suppress(OSError):
        while True:
            plain, _ = listening.accept()
            threading.Thread(target=_shake, args=(plain, context), daemon=True).start()


def _shake(plain: socket.socket, context: ssl.SSLContext) -> None:
    plain.settimeout(5)
    with suppress(OSError), context.wrap_socket(plain, server_side=True) as connection:
        connection.recv(1)
