"""Render Tagmill's page of Airflow's UI in the Airflow environment, on the test stack."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys
from pathlib import Path
from tagmill.airflow import web
from tagmill.airflow.overview import overview
from tagmill.config.settings import Settings
views = overview(Settings.load(Path(sys.argv[1])))
print(web.templates().get_template("pipelines.html.j2").render(pipelines=views))
"""


def page(configuration: Path, home: Path) -> str:
    """Return the page of all pipelines of a configuration file, as HTML."""
    environment = {**os.environ, "AIRFLOW_HOME": str(home), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [str(ROOT / "build/venvs/airflow/bin/python"), "-c", SCRIPT, str(configuration)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
