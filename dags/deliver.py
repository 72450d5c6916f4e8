"""Airflow DAG `deliver_<pipeline>` for each configured pipeline; a wrong configuration is an import error
that names the key.

Where they share a session, also the DAG `deliver_all`.
"""

from pathlib import Path

from tagmill.airflow.deliver import deliver_dag
from tagmill.airflow.together import shared, together_dag
from tagmill.config.settings import Settings

settings = Settings.load()
jobs = Path(__file__).resolve().parents[1] / "spark_jobs"
for name in settings.pipelines:
    globals()[f"deliver_{name}"] = deliver_dag(settings, name, jobs)
if shared(settings):
    deliver_all = together_dag(settings, jobs)
