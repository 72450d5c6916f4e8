"""Check the way to a server: its name, its port, and TLS."""

import ipaddress
import shlex
import socket
import ssl
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tagmill.config import tls
from tagmill.config.base import TlsKeys
from tagmill.config.client_certificate import client_certificate
from tagmill.config.kafka import KafkaSettings
from tagmill.config.settings import CassandraSettings, ClickHouseSettings
from tagmill.doctor.model import Checked, Finding, Findings, Level, fine, said_of, warning, wrong
from tagmill.errors import ClientCertificateRefused, ConfigurationError

Address = tuple[str, int]
# Seconds to wait for a handshake where the configuration says no TLS.
HANDSHAKE_SECONDS = 2
# A client certificate that ends sooner is a warning.
SOON = timedelta(days=30)
# Mode of a file that users outside of its group may read.
READ_BY_OTHERS = 0o004


@dataclass(frozen=True, slots=True)
class Way:
    """The way to the servers of a section: addresses, the keys of TLS, and what travels there.

    `secret`: whether a password, or a token, is sent as it is.
    """

    section: str
    title: str
    hosts_key: str
    addresses: Sequence[Address]
    keys: TlsKeys
    seconds: float
    secret: bool

    @property
    def where(self) -> str:
        """The addresses, for messages."""
        return ", ".join(f"{host}:{port}" for host, port in self.addresses)


def way_to_cassandra(configured: CassandraSettings) -> Way:
    """Return the way to the contact points."""
    return Way(
        section="cassandra",
        title="Cassandra",
        hosts_key="cassandra.hosts",
        addresses=[(host, configured.port) for host in configured.hosts],
        keys=configured,
        seconds=configured.connect_timeout_seconds,
        secret=configured.password is not None,
    )


def way_to_clickhouse(configured: ClickHouseSettings) -> Way:
    """Return the way to the server."""
    return Way(
        section="clickhouse",
        title="ClickHouse",
        hosts_key="clickhouse.host",
        addresses=[(configured.host, configured.port)],
        keys=configured,
        seconds=configured.connect_timeout_seconds,
        secret=configured.password is not None,
    )


def way_to_kafka(configured: KafkaSettings, seconds: float) -> Way:
    """Return the way to the bootstrap servers; one without a port has port 0, which nothing answers."""
    split = (server.rpartition(":") for server in configured.bootstrap_servers)
    return Way(
        section="kafka",
        title="Kafka",
        hosts_key="kafka.bootstrap_servers",
        addresses=[(host.strip("[]"), int(port) if port.isdigit() else 0) for host, _, port in split],
        keys=configured,
        seconds=seconds,
        secret=configured.sasl_mechanism in ("PLAIN", "OAUTHBEARER"),
    )


def reach(way: Way) -> Checked[bool]:
    """Check name resolution, port and TLS; return whether a login can be tried."""
    with ThreadPoolExecutor(len(way.addresses)) as pool:
        unknown = [said for said in pool.map(_unresolved, way.addresses) if said]
        yield _some(way, "names", unknown, "resolved", f"correct {way.hosts_key}, or the name service")
        if len(unknown) == len(way.addresses):
            return False
        silent = [
            said for said in pool.map(_closed, way.addresses, [way.seconds] * len(way.addresses)) if said
        ]
    cure = f"start {way.title}, open the firewall, or correct {way.hosts_key} and the port"
    yield _some(way, "port", silent, "answers", cure)
    if len(silent) == len(way.addresses):
        return False
    return (yield from _tls(way))


def _some(way: Way, check: str, failed: list[str], verb: str, cure: str) -> Finding:
    """Return a finding that is wrong if no address does it, and a warning if some don't."""
    name = f"{way.section} {check}"
    if not failed:
        return fine(name, f"{way.where}: {verb}")
    level = wrong if len(failed) == len(way.addresses) else warning
    return level(name, "; ".join(failed), cure)


def _unresolved(address: Address) -> str:
    try:
        socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return f"host {address[0]!r} has no address ({getattr(error, 'strerror', None) or error})"
    return ""


def _closed(address: Address, seconds: float) -> str:
    try:
        socket.create_connection(address, seconds).close()
    except TimeoutError:
        return f"{address[0]}:{address[1]} does not answer within {seconds:g} s"
    except OSError as error:
        return f"nothing answers at {address[0]}:{address[1]} ({error.strerror or error})"
    return ""


def _tls(way: Way) -> Checked[bool]:
    name, keys = f"{way.section} tls", way.keys
    if keys.tls_certificate_file:
        shown = _client_certificate(way)
        yield shown
        if shown.level is Level.WRONG:
            return False
    if keys.tls:
        for address in way.addresses:
            if refused := tls.refusal(way.section, way.title, address, keys, way.seconds):
                cure = f"correct {way.section}.tls, {way.section}.tls_ca_file, or the server's certificate"
                if isinstance(refused, ClientCertificateRefused):
                    cure = f"correct {way.section}.tls_certificate_file and {way.section}.tls_key_file"
                yield wrong(name, f"{address[0]}:{address[1]}: {said_of(refused)}", cure)
                return False
        trusted = f"by {keys.tls_ca_file}" if keys.tls_ca_file else "by the system's authorities"
        yield fine(name, f"certificates are trusted {trusted}")
    elif way.secret and not all(is_local(host) for host, _ in way.addresses):
        yield warning(name, "off: the password travels in the clear", f"set {way.section}.tls = true")
    else:
        yield fine(name, f"off ({way.section}.tls)")
    return True


def _client_certificate(way: Way) -> Finding:
    """Return the finding for the certificate that servers are shown: its files, and how long it is valid."""
    name, keys = f"{way.section} client certificate", way.keys
    file, key_file = keys.tls_certificate_file, keys.tls_key_file or keys.tls_certificate_file
    if not keys.tls:
        return warning(name, f"not shown: {way.section}.tls is off", f"set {way.section}.tls = true")
    try:
        tls.context(way.section, keys)
        shown = client_certificate(way.section, keys)
        mode = key_file.stat().st_mode if key_file else 0
    except ConfigurationError as error:
        cure = f"correct {way.section}.tls_certificate_file, {way.section}.tls_key_file, or the files"
        return wrong(name, said_of(error), cure)
    assert shown is not None
    now, renew = datetime.now(UTC), f"get another certificate, and replace {file} and its key"
    if shown.end <= now:
        return wrong(name, f"{file} has expired on {shown.end:%Y-%m-%d}", renew)
    if shown.begin > now:
        return wrong(name, f"{file} is not valid before {shown.begin:%Y-%m-%d}", renew)
    if shown.end - now < SOON:
        return warning(name, f"{file} expires on {shown.end:%Y-%m-%d}", renew)
    if mode & READ_BY_OTHERS:
        return warning(
            name, f"every user can read the key in {key_file}", f"chmod o-rwx {shlex.quote(str(key_file))}"
        )
    return fine(name, f"{shown.subject}, valid until {shown.end:%Y-%m-%d}")


def is_local(host: str) -> bool:
    """Return whether a host is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def speaks_tls(way: Way) -> bool:
    """Return whether a server speaks TLS where the configuration says none; asked only after a failed login."""
    if way.keys.tls:
        return False
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent over it
    for address in way.addresses:
        with suppress(OSError):
            with socket.create_connection(address, HANDSHAKE_SECONDS) as plain, context.wrap_socket(plain):
                return True
    return False


def refused_login(way: Way, error: Exception, cure: str) -> Findings:
    """Yield the finding of a failed login; where the server speaks TLS, that is the cure."""
    name = f"{way.section} login"
    if speaks_tls(way):
        yield wrong(
            name, f"{way.where} speaks TLS, the configuration says none", f"set {way.section}.tls = true"
        )
    else:
        yield wrong(name, said_of(error), cure)


def half_login(way: Way, username: str | None, password: object) -> Findings:
    """Yield a finding if only one of user name and password is given: then the login would go without both."""
    if (username is None) != (password is None):
        given, missing = ("PASSWORD", "USERNAME") if username is None else ("USERNAME", "PASSWORD")
        prefix = f"TAGMILL_{way.section.upper()}__"
        yield wrong(
            f"{way.section} login",
            f"{prefix}{given} is set without {prefix}{missing}",
            f"set {prefix}{missing}",
        )
