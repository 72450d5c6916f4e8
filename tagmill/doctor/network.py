"""Check the way to a server: its name, its port, and TLS."""

import ipaddress
import socket
import ssl
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tagmill.config import tls
from tagmill.config.kafka import KafkaSettings
from tagmill.config.settings import CassandraSettings, ClickHouseSettings
from tagmill.doctor.model import Checked, Finding, Findings, fine, said_of, warning, wrong

Address = tuple[str, int]
# Seconds to wait for a handshake where the configuration says no TLS.
HANDSHAKE_SECONDS = 2


@dataclass(frozen=True, slots=True)
class Way:
    """The way to the servers of a section: addresses, TLS, and what travels there.

    `secret`: whether a password is sent as it is.
    """

    section: str
    title: str
    hosts_key: str
    addresses: Sequence[Address]
    tls: bool
    ca_file: Path | None
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
        tls=configured.tls,
        ca_file=configured.tls_ca_file,
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
        tls=configured.tls,
        ca_file=configured.tls_ca_file,
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
        tls=configured.tls,
        ca_file=configured.tls_ca_file,
        seconds=seconds,
        secret=configured.sasl_mechanism == "PLAIN",
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
    name = f"{way.section} tls"
    if way.tls:
        for address in way.addresses:
            if refused := tls.refusal(way.section, way.title, address, way.ca_file, way.seconds):
                cure = f"correct {way.section}.tls, {way.section}.tls_ca_file, or the server's certificate"
                yield wrong(name, f"{address[0]}:{address[1]}: {said_of(refused)}", cure)
                return False
        authorities = f"by {way.ca_file}" if way.ca_file else "by the system's authorities"
        yield fine(name, f"certificates are trusted {authorities}")
    elif way.secret and not all(_is_local(host) for host, _ in way.addresses):
        yield warning(name, "off: the password travels in the clear", f"set {way.section}.tls = true")
    else:
        yield fine(name, f"off ({way.section}.tls)")
    return True


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def speaks_tls(way: Way) -> bool:
    """Return whether a server speaks TLS where the configuration says none; asked only after a failed login."""
    if way.tls:
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
