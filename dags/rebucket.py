"""Airflow DAG `views_rebucket_<pipeline>` for each configured pipeline, without a schedule."""

from pathlib import Path

from tagmill.airflow.rebucket import rebucket_dag
from tagmill.config.settings import Settings

settings = Settings.load()
for name in settings.pipelines:
    globals()[f"views_rebucket_{name}"] = rebucket_dag(
        settings, name, jobs=Path(__file__).resolve().parents[1] / "spark_jobs"
    )
