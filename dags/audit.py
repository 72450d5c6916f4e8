"""Airflow DAG `audit_<pipeline>` for each configured pipeline; a wrong configuration is an import error that
names the key.
"""

from pathlib import Path

from tagmill.airflow.audit import audit_dag
from tagmill.config.settings import Settings

settings = Settings.load()
for name in settings.pipelines:
    globals()[f"audit_{name}"] = audit_dag(
        settings, name, jobs=Path(__file__).resolve().parents[1] / "spark_jobs"
    )
