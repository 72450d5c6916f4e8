"""Airflow DAGs `replicate_<pipeline>` and `purge_expired_<pipeline>` for each configured pipeline of kind
kafka_journal.
"""

from pathlib import Path

from tagmill.airflow.replicate import purge_expired_dag, replicate_dag
from tagmill.config.settings import Settings

settings = Settings.load()
jobs = Path(__file__).resolve().parents[1] / "spark_jobs"
for name in settings.kafka_journals:
    for dag in (replicate_dag(settings, name, jobs), purge_expired_dag(settings, name, jobs)):
        globals()[dag.dag_id] = dag
