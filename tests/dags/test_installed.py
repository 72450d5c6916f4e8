"""Tagmill as an installed package in Airflow: entry points, and a DAG file of two lines that is no checkout's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.wheel import built_wheel, uv

pytest.importorskip("airflow")

DAG_FILE = "from tagmill.airflow import all_dags\n\nglobals().update(all_dags())\n"
LOAD = """
import json, sys
from tests.support.airflow_names import DagBag
import tagmill
bag = DagBag(dag_folder=sys.argv[1])
jobs = [task.application for dag in bag.dags.values() for task in dag.tasks if hasattr(task, "application")]
shown = {"package": tagmill.__file__, "errors": bag.import_errors, "dags": sorted(bag.dags), "jobs": jobs}
print(json.dumps(shown))
"""


def test_wheel_makes_dags_from_two_lines(config, tmp_path):
    """The wheel's package makes the DAGs of all pipelines, whose job scripts are in the package."""
    from tests.dags.test_integrity import bag

    site, dags = tmp_path / "site", tmp_path / "dags"
    uv("pip", "install", "--quiet", "--no-deps", "--target", site, built_wheel(tmp_path / "dist"))
    dags.mkdir()
    (dags / "tagmill_dags.py").write_text(DAG_FILE)
    done = subprocess.run(
        [sys.executable, "-P", "-c", LOAD, str(dags)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    shown = json.loads(done.stdout.splitlines()[-1])
    assert Path(shown["package"]).is_relative_to(site) and shown["errors"] == {}
    assert shown["dags"] == sorted(bag().dags)
    scripts = [Path(job) for job in shown["jobs"] if job.endswith(".py")]
    assert scripts and all(job.is_file() and job.is_relative_to(site / "tagmill") for job in scripts)


def test_plugin_is_registered_once():
    """Entry point and plugins folder together register one plugin, without an error."""
    from tests.support.airflow_names import registered_plugins

    names, errors = registered_plugins()
    assert names.count("tagmill") == 1 and errors == {}


def test_airflow_lists_the_package_as_provider():
    from airflow.providers_manager import ProvidersManager

    from tagmill import __version__

    manager = ProvidersManager()
    assert manager.providers["tagmill"].version == __version__
    assert "tagmill.airflow.links.ReportLink" in manager.extra_links_class_names
