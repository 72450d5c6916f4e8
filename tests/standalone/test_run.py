"""bin/run as a person starts it: it delivers, reports, stays up and leaves no process; a second start
delivers nothing twice.
"""

import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import jsonschema
import psutil
import pytest

from local.layout import ROOT
from local.processes import MARKER
from tests.support.delivery import without_moment
from tests.support.stack import free_port

TAG = {
    "type": "object",
    "additionalProperties": False,
    "required": ["tag", "in_view", "delivered", "held", "batches", "clickhouse_rows", "verdict"],
    "properties": {
        name: {"type": "integer"} for name in ("in_view", "delivered", "held", "batches", "clickhouse_rows")
    }
    | {name: {"type": "string"} for name in ("tag", "verdict")},
}
REPORT = {
    "type": "object",
    "additionalProperties": False,
    "required": ["ok", "seconds", "tags"],
    "properties": {
        "ok": {"type": "boolean"},
        "seconds": {"type": "number"},
        "tags": {"type": "array", "items": TAG, "minItems": 1},
    },
}


@pytest.fixture
def environment(tmp_path):
    """Return an environment with free ports and a home of its own."""
    ports = {
        "CASSANDRA": free_port(beside=10000),
        "CLICKHOUSE": free_port(),
        "AIRFLOW": free_port(),
        "KAFKA": free_port(beside=10000),
    }
    variables = {f"TAGMILL_LOCAL_{name}_PORT": str(port) for name, port in ports.items()}
    return {**os.environ, **variables, "TAGMILL_HOME": str(tmp_path / "home")}


def remaining(home):
    """Return the processes of a home that still run."""
    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.environ().get(MARKER, "").startswith(home)
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


def table_of(text, number):
    """Return the rows of a table in the output: the plugin's view (0), the built one (1) or the topic (2)."""
    rows = [without_moment(line).split() for line in text.splitlines() if "exactly once" in line]
    return rows[3 * number : 3 * number + 3]


@pytest.mark.timeout(1500)
def test_run_again_delivers_nothing_twice(environment, tmp_path):
    """Start bin/run, stop it with Ctrl-C and run it again; compare both reports."""
    home, report = environment["TAGMILL_HOME"], tmp_path / "report.json"
    command = [ROOT / "bin" / "run", "--report", report]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    watchdog = threading.Timer(900, process.terminate)
    watchdog.start()
    seen = []
    for line in process.stdout:
        seen.append(line)
        if "Ctrl-C stops it" in line:
            process.send_signal(signal.SIGINT)
    watchdog.cancel()
    assert process.wait(60) == 0, "".join(seen)
    assert remaining(home) == []
    text = "".join(seen)
    assert (
        "equals the journal, row for row" in text
        and "login admin / " in text
        and "['billing','order']" in text
    )
    first = json.loads(report.read_text())
    jsonschema.validate(first, REPORT)
    assert first["ok"] and {row["tag"]: row["clickhouse_rows"] for row in first["tags"]} == dict.fromkeys(
        ("billing", "order", "shipping"), 7200
    )
    # Tagmill built the views of the same journal and delivered them.
    assert "built by Tagmill" in text and table_of(text, 1) == table_of(text, 0) != []
    # The topic's duplicates and broken records are left out.
    assert table_of(text, 2) == [
        "│ products │ 0       │ 6,000     │ 1       │ 6,000           │ 4            │ exactly once; 4 "
        "dead letters │".split()
    ]

    again = subprocess.run([*command, "--once"], env=environment, capture_output=True, text=True, timeout=600)
    assert again.returncode == 0, again.stdout + again.stderr
    assert remaining(home) == []
    second = json.loads(report.read_text())
    for row in (*first["tags"], *second["tags"]):
        row["verdict"] = without_moment(row["verdict"])
    assert second["tags"] == first["tags"] and table_of(again.stdout, 1) == table_of(text, 0)
    assert table_of(again.stdout, 2) == table_of(text, 2)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_run_server_killed_ends_with_one_line(environment):
    home = Path(environment["TAGMILL_HOME"])
    process = subprocess.Popen(
        [ROOT / "bin" / "run", "--once"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    watchdog = threading.Timer(600, process.terminate)
    watchdog.start()
    for line in process.stdout:
        if "Airflow delivers" in line:
            os.kill(int((home / "cassandra" / "pid").read_text()), signal.SIGKILL)
            killed = time.monotonic()
    errors = [line for line in process.stderr.read().splitlines() if not line.startswith("  deliver_")]
    watchdog.cancel()
    assert process.wait(60) == 75
    assert time.monotonic() - killed < 120  # it does not wait for the retries of its tasks
    assert (
        len(errors) == 1
        and errors[0].startswith("error: cassandra has ended: ")
        and "Run it again" in errors[0]
    ), errors
    assert remaining(str(home)) == []


def test_run_busy_port_is_one_line(environment, stack):
    environment["TAGMILL_LOCAL_AIRFLOW_PORT"] = str(stack.clickhouse.port)
    done = subprocess.run(
        [ROOT / "bin" / "run", "--once"], env=environment, capture_output=True, text=True, timeout=300
    )
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert (done.returncode, len(lines)) == (2, 1), done.stderr
    assert f"airflow: port {stack.clickhouse.port} is in use" in lines[0]
    assert remaining(environment["TAGMILL_HOME"]) == []
