"""Troubles of the local stack are one line each that says what happened, what was left untouched, and what to
do.
"""

import errno
import shutil
from collections import namedtuple

import pytest

from local import java
from local.errors import explained, one_line, require_room, require_space
from local.layout import PORTS, Ports, StackLayout, resolve
from tagmill.errors import ConfigurationError

Usage = namedtuple("Usage", "total used free")


def test_a_missing_java_names_what_was_looked_at(monkeypatch):
    """Name the places that were searched for Java, and what is wrong with each."""
    java.find_java.cache_clear()
    monkeypatch.setattr(java, "_candidates", lambda: iter([("JAVA_HOME", "/nowhere/bin/java")]))
    with pytest.raises(
        ConfigurationError,
        match=r"Java 17 is missing \(found: JAVA_HOME: /nowhere/bin/java is no working Java\).*Nothing",
    ):
        java.find_java((17,))
    java.find_java.cache_clear()


def test_too_little_space_is_said_before_anything_starts(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**10, 10**10, 10**6))
    with pytest.raises(ConfigurationError, match="0.0 GB free.*Nothing was started.*--home"):
        require_space(tmp_path / "not" / "there" / "yet")


def test_require_room_full_disk_is_named(monkeypatch, tmp_path):
    """Name a disk that has filled up meanwhile, whatever the servers say."""
    require_room(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**10, 10**10, 10**6))
    with pytest.raises(
        ConfigurationError, match="the disk of .* is full.*Free some space, then run it again"
    ):
        require_room(tmp_path)


def test_a_full_disk_is_named():
    assert "the disk is full (/x/spool)" in str(explained(OSError(errno.ENOSPC, "No space left", "/x/spool")))


def test_one_line_is_last_telling_line():
    """Pick the last line of a log that names a fault, not a stack frame or information."""
    log = "INFO starting\nERROR port taken: Address already in use\n\tat java.base/Foo\n  File x\nINFO bye\n"
    assert one_line(log) == "ERROR port taken: Address already in use"
    assert one_line("") == "nothing in the log"


def test_resolve_ports_by_precedence(tmp_path, monkeypatch):
    """Ports come from options, else from the environment, else from what was started, else from the
    defaults.
    """
    assert resolve(tmp_path).ports == Ports(**PORTS)
    StackLayout(tmp_path, Ports(20001, 20002, 20003)).remember()
    monkeypatch.setenv("TAGMILL_LOCAL_CLICKHOUSE_PORT", "20102")
    assert resolve(tmp_path, {"airflow": 20203, "cassandra": None}).ports == Ports(20001, 20102, 20203)


def test_a_port_that_is_none_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("TAGMILL_LOCAL_AIRFLOW_PORT", "eighty")
    with pytest.raises(ConfigurationError, match="TAGMILL_LOCAL_AIRFLOW_PORT=eighty is no port"):
        resolve(tmp_path)
