"""What bin/run checks before it starts anything: no second run, a writable report, different ports, known
options.
"""

import os
import signal
import subprocess
import sys
import threading

import pytest
from typer.testing import CliRunner

from local import demo
from local.config import write_config
from local.layout import PORTS, ROOT, Ports, StackLayout
from local.stack import Stack
from tagmill.config.settings import Settings
from tagmill.errors import ConfigurationError, LeaseTaken

HOLDER = """
import subprocess, sys, time
from pathlib import Path
from local.demo import alone
from local.layout import Ports, StackLayout
with alone(StackLayout(Path(sys.argv[1]), Ports())) as lock:
    guard = subprocess.Popen(["sleep", "60"], pass_fds=[lock.fileno()])  # stands for it
    print(guard.pid, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def layout(tmp_path):
    return StackLayout(tmp_path / "home", Ports())


def test_alone_refuses_second_waits_for_killed(layout, capsys):
    """Refuse a second run. After a killed run, wait until its guard has stopped what it left."""
    command = [sys.executable, "-c", HOLDER, str(layout.home)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as other:
        guard = int(other.stdout.readline())
        with pytest.raises(LeaseTaken, match="another bin/run uses .*it was left alone"), demo.alone(layout):
            pass
        other.kill()
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # The process is dead, and still a zombie.
        threading.Timer(0.5, os.kill, (guard, signal.SIGKILL)).start()
        with demo.alone(layout):
            assert "waiting until what a killed bin/run left is stopped" in capsys.readouterr().out


def test_config_of_earlier_start_gets_new_ports(layout):
    """Start on other ports: a configuration that is there keeps what a person wrote, but for the ports."""
    file = write_config(layout)
    file.write_text(file.read_text().replace('"@hourly"', '"@daily"'))
    ports = Ports(cassandra=1001, clickhouse=1002, airflow=1003, kafka=1004)
    write_config(StackLayout(layout.home, ports))
    made = Settings.load(file)
    found = (made.cassandra.port, made.clickhouse.port, made.kafka.bootstrap_servers)
    assert found == (1001, 1002, ["127.0.0.1:1004"])
    assert made.pipeline("orders").schedule == "@daily"


def test_fresh_removes_report_and_makes_folder(tmp_path):
    """Remove an earlier report, and make the folder of a new one."""
    report = tmp_path / "not" / "there" / "r.json"
    demo.remove_old(report)
    report.write_text("old")
    demo.remove_old(report)
    assert report.parent.is_dir() and not report.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--report", "."], "error: .: Is a directory"),
        (["--events", "0"], "error: --events 0: give at least 1. Nothing was started"),
    ],
)
def test_wrong_option_is_one_line(options, message, tmp_path, monkeypatch):
    """Report a wrong option in one line and start nothing."""
    monkeypatch.setenv("TAGMILL_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(demo, "_stop_on_signals", lambda: None)
    done = CliRunner().invoke(demo.app, options)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
    assert message in done.stderr


def test_require_port_of_two_parts_is_refused(tmp_path):
    """Refuse one port for two parts before anything starts."""
    stack = Stack(
        StackLayout(tmp_path, Ports(cassandra=PORTS["cassandra"], clickhouse=PORTS["cassandra"] + 10000))
    )
    with pytest.raises(ConfigurationError, match=f"port {PORTS['cassandra'] + 10000} is given to two parts"):
        stack.require()
