"""The way to a server, against real sockets: names, ports, TLS on one side only."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tagmill.config.settings import CassandraSettings
from tagmill.doctor import network
from tagmill.doctor.model import Finding, Level
from tests.support.certificates import Authority, tls_server


def reached(**keys: Any) -> tuple[list[Finding], bool]:
    """Return the findings for a section [cassandra], and whether a login can be tried."""
    made, reach = (
        [],
        network.reach(network.way_to_cassandra(CassandraSettings(connect_timeout_seconds=1, **keys))),
    )
    while True:
        try:
            made.append(next(reach))
        except StopIteration as ended:
            return made, ended.value


@pytest.fixture
def port() -> Iterator[int]:
    """Yield the port of a server that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_unknown_host_is_wrong_unless_another_resolves(port: int) -> None:
    found, goes_on = reached(hosts=["no-such-host.invalid"], port=port)
    assert [(one.check, one.level) for one in found] == [("cassandra names", Level.WRONG)] and not goes_on
    assert "no-such-host.invalid" in found[0].said and "cassandra.hosts" in found[0].cure
    found, goes_on = reached(hosts=["no-such-host.invalid", "127.0.0.1"], port=port)
    assert [one.level for one in found] == [Level.WARNING, Level.WARNING, Level.FINE] and goes_on


def test_closed_port_is_wrong(port: int) -> None:
    found, goes_on = reached(port=1)
    assert [one.level for one in found] == [Level.FINE, Level.WRONG] and not goes_on
    assert "127.0.0.1:1 (Connection refused)" in found[1].said


def test_tls_failures_are_named(tmp_path, port: int) -> None:
    """An authority that is not trusted, one that is, TLS to a server without it, and none to one that wants it."""
    right, other = Authority(tmp_path / "right"), Authority(tmp_path / "other", "other")
    with tls_server(right.issue("127.0.0.1")) as secure:
        found, goes_on = reached(port=secure, tls=True, tls_ca_file=other.file)
        assert found[-1].level is Level.WRONG and "tls_ca_file" in found[-1].cure and not goes_on
        found, goes_on = reached(port=secure, tls=True, tls_ca_file=right.file)
        assert found[-1].level is Level.FINE and goes_on
        way = network.way_to_cassandra(CassandraSettings(port=secure))
        (refused,) = network.refused_login(way, ValueError("closed"), "some cure")
        assert refused.cure == "set cassandra.tls = true"
    (refused,) = network.refused_login(
        network.way_to_cassandra(CassandraSettings(port=1)), ValueError("closed"), "some cure"
    )
    assert (refused.said, refused.cure) == ("closed", "some cure")


@pytest.mark.parametrize(
    ("days", "begin_days", "level", "words"),
    [
        (90, -1, Level.FINE, "CN=us, valid until 20"),
        (29, -1, Level.WARNING, "expires on 20"),
        (-1, -2, Level.WRONG, "has expired on 20"),
        (90, 1, Level.WRONG, "is not valid before 20"),
    ],
    ids=["valid", "ends soon", "expired", "not yet"],
)
def test_client_certificate_dates_are_told(tmp_path, days, begin_days, level, words) -> None:
    """One that has expired is found before the server is asked, and one that ends within 30 days is a warning."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("us", days=days, begin_days=begin_days)
    with tls_server(authority.issue("127.0.0.1"), clients_of=authority.file) as port:
        found, goes_on = reached(
            port=port,
            tls=True,
            tls_ca_file=authority.file,
            tls_certificate_file=certificate,
            tls_key_file=key,
        )
    (shown,) = (one for one in found if one.check == "cassandra client certificate")
    assert (shown.level, goes_on) == (level, level is not Level.WRONG) and words in shown.said, shown
    assert shown.cure or level is Level.FINE


def test_client_certificate_faults_are_findings(tmp_path) -> None:
    """A key of another certificate, one that all users can read, a certificate without TLS, and none at all."""
    authority = Authority(tmp_path)
    (certificate, key), (_, other) = authority.issue("us", days=90), authority.issue("other")
    with tls_server(authority.issue("127.0.0.1"), clients_of=authority.file) as port:
        common = {"port": port, "tls": True, "tls_ca_file": authority.file}
        found, goes_on = reached(**common, tls_certificate_file=certificate, tls_key_file=other)
        assert found[-1].level is Level.WRONG and "is not the key of" in found[-1].said and not goes_on
        key.chmod(0o644)
        found, goes_on = reached(**common, tls_certificate_file=certificate, tls_key_file=key)
        assert found[-2].level is Level.WARNING and found[-2].cure == f"chmod o-rwx {key}" and goes_on
        found, goes_on = reached(port=port, tls_certificate_file=certificate, tls_key_file=key)
        assert found[-2].level is Level.WARNING and found[-2].cure == "set cassandra.tls = true"
        found, goes_on = reached(**common)
        assert found[-1].level is Level.WRONG and "asks for a client certificate" in found[-1].said
        assert "cassandra.tls_certificate_file" in found[-1].cure and not goes_on


def test_password_in_the_clear_warns_elsewhere(monkeypatch) -> None:
    """A password without TLS is a warning, but for servers of this machine."""
    monkeypatch.setattr(network, "_unresolved", lambda _: "")
    monkeypatch.setattr(network, "_closed", lambda *_: "")
    for hosts, level in ((["cassandra-1"], Level.WARNING), (["127.0.0.1", "localhost"], Level.FINE)):
        found, goes_on = reached(hosts=hosts, username="u", password="sesame-4711")
        assert (found[-1].level, goes_on) == (level, True)
        assert "sesame" not in repr(found)


def test_user_name_without_password_is_wrong() -> None:
    way = network.way_to_cassandra(CassandraSettings())
    (found,) = network.half_login(way, "worker", None)
    assert found.level is Level.WRONG and found.cure == "set TAGMILL_CASSANDRA__PASSWORD"
    assert list(network.half_login(way, "worker", "x")) == list(network.half_login(way, None, None)) == []
