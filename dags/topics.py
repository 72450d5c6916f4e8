"""Airflow DAG `deliver_<pipeline>` for each pipeline of kind topic or kafka_journal_events."""

from pathlib import Path

from tagmill.airflow.topics import topic_dag
from tagmill.config.settings import Settings

settings = Settings.load()
jobs = Path(__file__).resolve().parents[1] / "spark_jobs"
for name in settings.streams:
    globals()[f"deliver_{name}"] = topic_dag(settings, name, jobs)
