"""Runs of `maintenance_<pipeline>` by Airflow's own task runner and REST API, without a server."""

import json
import os
import subprocess
import sys

import pytest

from tests.dags.conftest import PROJECT

pytest.importorskip("airflow")


@pytest.mark.long
def test_only_approved_run_changes(config, tmp_path):
    """Dry runs ask for no approval; a rejected run changes nothing; an approved one does as its dry run said."""
    environment = os.environ | {
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__API_AUTH__JWT_SECRET": "0123456789" * 8,
        "PYTHONPATH": str(PROJECT),
    }

    def run(*command):
        done = subprocess.run(
            [sys.executable, *command],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    run("-m", "airflow", "db", "migrate")
    printed = run(str(PROJECT / "tests" / "dags" / "maintenance_runs.py"), str(PROJECT / "dags"))
    lines = [line.removeprefix("RUN ") for line in printed.splitlines() if line.startswith("RUN ")]
    dry, rejected, approved = map(json.loads, lines)
    ids = ["p-1", "p-2"]
    assert dry["tasks"] == {"dry_run": "success", "approve": "skipped", "change": "skipped"}
    assert (dry["deleted"], dry["questions"]) == ([[ids, False]], [])
    assert rejected["tasks"] == {"dry_run": "success", "approve": "success", "change": "skipped"}
    assert rejected["deleted"] == [[ids, False]]
    assert approved["tasks"] == {"dry_run": "success", "approve": "success", "change": "success"}
    assert approved["deleted"] == [[ids, False], [ids, True]]
    (question,) = approved["questions"]
    assert question["subject"] == "journal clean of orders"
    assert "    events: 20\n" in question["body"] and "    # said" in question["body"]
