"""Airflow DAG `replicate_<pipeline>` for each configured pipeline of kind kafka_journal."""

from pathlib import Path

from tagmill.airflow.replicate import replicate_dag
from tagmill.config.settings import Settings

settings = Settings.load()
jobs = Path(__file__).resolve().parents[1] / "spark_jobs"
for name in settings.kafka_journals:
    globals()[f"replicate_{name}"] = replicate_dag(settings, name, jobs)
