"""docs/install/airflow.md, walked from its first command to its last one in environments of their own.

Each command and each file is taken from the page. Only places, addresses and names are replaced by those of the test,
and pip by uv, which installs from its cache.
"""

import json
import os
import re
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from local.airflow import Airflow
from local.fixtures import Case, load_case
from local.java import SPARK, java_home
from local.layout import ROOT, Ports, StackLayout
from local.processes import marked
from local.service import Service
from tests.conftest import SHORT_LIVED
from tests.support.stack import free_port
from tests.support.wheel import built_wheel, uv

PAGE = (ROOT / "docs" / "install" / "airflow.md").read_text()
CASE = "partition-boundary"
SECONDS = 300


def blocks(language: str) -> list[str]:
    """Return the page's blocks of code in a language, in their order."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def lines(block: str) -> list[list[str]]:
    """Return the commands of a block as lists of words."""
    return [shlex.split(line) for line in block.replace("\\\n", " ").splitlines()]


class InstalledAirflow(Airflow):
    """An Airflow that knows nothing of the checkout and has no pools or connections."""

    def environment(self) -> dict[str, str]:
        """Return Airflow's own variables, and those that the page names."""
        ours = ("AIRFLOW_CONN_", "TAGMILL_", "AIRFLOW__CORE__PLUGINS_FOLDER")
        made = {key: text for key, text in super().environment().items() if not key.startswith(ours)}
        return made | {
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.home / "dags"),
            "TAGMILL_CONFIG": str(self.layout.config),
            # Where the test has the environment for jobs.
            "TAGMILL_SPARK__CONF": json.dumps(SHORT_LIVED),
            "TAGMILL_SPARK__ENVIRONMENT": str(self.layout.home / "jobs"),
        }

    def start(self) -> float:
        """Start Airflow, and leave pools to the page."""
        return Service.start(self)


class Installation:
    """The machine that the page is walked on."""

    def __init__(self, stack: Any, folder: Path, keyspace: str) -> None:
        self.stack, self.folder, self.keyspace = stack, folder, keyspace
        self.airflow_venv, self.jobs_venv = folder / "airflow-venv", folder / "jobs"
        ports = Ports(stack.cassandra.port, stack.clickhouse.port, free_port(), free_port())
        self.server = InstalledAirflow(StackLayout(folder, ports))

    def install(self) -> None:
        """Do step 1: both environments, from the wheel."""
        wheel = built_wheel(self.folder / "dist")
        of_airflow, of_jobs = blocks("sh")[:2]
        ((*pip, package, option, constraints),) = lines(of_airflow)
        assert (pip, package, option) == (["pip", "install"], "tagmill[airflow]", "--constraint")
        assert constraints.startswith("https://raw.githubusercontent.com/apache/airflow/constraints-3.")
        uv("venv", "--quiet", "--no-config", "--python", sys.executable, self.airflow_venv)
        self._pip(self.airflow_venv, f"{wheel}[airflow]", "airflow.txt")
        (_, *venv, place), (pip_of_jobs, verb, package) = lines(of_jobs)
        assert place == "/opt/tagmill" and pip_of_jobs == f"{place}/bin/pip" and verb == "install"
        subprocess.run([sys.executable, *venv, self.jobs_venv], check=True, timeout=SECONDS)
        assert package == "tagmill[spark]"
        self._pip(self.jobs_venv, f"{wheel}[spark]", "spark.txt")

    def _pip(self, venv: Path, package: str, lock: str) -> None:
        """Install a package, with the versions of a lock file as its constraints."""
        constraints = self.folder / lock
        pinned = re.findall(r"^([\w.\[\]-]+==\S+)", (ROOT / "locks" / lock).read_text(), re.MULTILINE)
        constraints.write_text("\n".join(pinned))
        uv(
            "pip",
            "install",
            "--quiet",
            "--python",
            venv / "bin" / "python",
            "--constraint",
            constraints,
            package,
        )

    def configure(self) -> None:
        """Do step 2: write the page's tagmill.toml with the addresses and names of the test."""
        text, *_ = blocks("toml")
        expected = Case(CASE).expected
        for old, new in {
            'hosts = ["cassandra-1", "cassandra-2"]\n': f"port = {self.stack.cassandra.port}\n",
            'local_datacenter = "eu-west"\n': f'ledger_keyspace = "{self.keyspace}_ledger"\n',
            "eu-west = 3": "datacenter1 = 1",
            'host = "clickhouse-1"': f"port = {self.stack.clickhouse.port}",
            "/srv/tagmill": str(self.folder / "data"),
            'keyspace = "orders"': f'keyspace = "{self.keyspace}"',
            'bucket_size = "Hour"': f'bucket_size = "{expected["bucket"]}"',
            'tags = ["order"]': f"tags = {json.dumps(Case(CASE).tags)}",
            "20260101T00:00": expected["first_time_bucket"],
            'destination = "orders"': f'destination = "{self.keyspace}"',
        }.items():
            assert old in text, old
            text = text.replace(old, new, 1)
        self.server.layout.config.write_text(text)

    def run(self, words: list[str]) -> str:
        """Run a command of the page on this machine; return what it prints."""
        if words[0] == "airflow":
            words = [str(self.airflow_venv / "bin" / "airflow"), *words[1:]]
        words = [word.replace("/opt/tagmill", str(self.jobs_venv)) for word in words]
        environment = {**os.environ, **self.server.environment(), "COLUMNS": "400"}
        if words[0].startswith(str(self.jobs_venv)):
            environment |= {"JAVA_HOME": java_home(SPARK)}
        done = subprocess.run(
            words, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout

    def wait_for_dag(self) -> None:
        """Wait until Airflow has parsed the page's file of DAGs."""
        end, api = time.monotonic() + 120, self.server.api()
        while not api.dag_is_there("deliver_orders"):
            assert time.monotonic() < end, api.import_errors()
            time.sleep(0.5)
        assert api.import_errors() == []


@pytest.fixture
def installation(stack: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installation]:
    """Yield a machine with a journal in reach and nothing installed; stop what the test starts on it."""
    keyspace = f"t_{secrets.token_hex(5)}"
    load_case(stack.session, CASE, keyspace)
    made = Installation(stack, tmp_path, keyspace)
    monkeypatch.setenv("TAGMILL_AIRFLOW_VENV", str(made.airflow_venv))
    try:
        yield made
    finally:
        made.server.stop()
        for name in (keyspace, f"{keyspace}_ledger"):
            stack.session.execute(f"DROP KEYSPACE IF EXISTS {name}")
    assert [" ".join(process.cmdline()) for process in marked(made.server.mark)] == []


@pytest.mark.long
def test_install_page_leads_to_a_delivery(stack, installation) -> None:
    """Walk the page: install, configure, connect, create, add the DAGs, deliver; the doctor finds nothing wrong."""
    _, _, connect, create, deliver = blocks("sh")
    (dag_file, *_) = blocks("python")
    installation.install()
    installation.configure()
    (installation.server.home / "dags").mkdir(parents=True)
    installation.server.start()
    for words in lines(connect):
        installation.run([word.replace("…", "s3cr3t") for word in words])
    for words in lines(create):
        installation.run(words)
    (installation.server.home / "dags" / "tagmill_dags.py").write_text(dag_file)
    installation.wait_for_dag()
    doctor = [str(installation.airflow_venv / "bin" / "tagmill"), "doctor", "--json"]
    found = {one["check"]: one for one in json.loads(installation.run(doctor))}
    assert found["airflow pools"]["level"] == found["airflow connections"]["level"] == "fine", found
    assert f"jobs run in {installation.jobs_venv}" in found["spark-submit"]["said"]
    for words in lines(deliver):
        installation.run(words)
    api, end = installation.server.api(), time.monotonic() + 240
    while "success" not in (states := set(api.runs("deliver_orders").values())):
        assert "failed" not in states and time.monotonic() < end, api.runs("deliver_orders")
        time.sleep(1)
    arrived = stack.rows(f"SELECT tag, persistence_id, sequence_nr FROM {installation.keyspace} ORDER BY ALL")
    case = Case(CASE)
    expected = sorted((tag, pid, number) for tag in case.tags for pid, number, _ in case.delivered(tag))
    assert [tuple(row) for row in arrived] == expected
    status = [f"{installation.jobs_venv}/bin/tagmill", "status", "-p", "orders", "--json"]
    assert {line["level"] for line in json.loads(installation.run(status))} == {"counted"}
