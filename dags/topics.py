"""Airflow DAGs `deliver_<pipeline>` for each configured pipeline of kind topic or kafka_journal_events,
`dedup_expire_` and `dedup_rekey_` of topics.
"""

from pathlib import Path

from tagmill.airflow.topics import expire_dag, rekey_dag, topic_dag
from tagmill.config.settings import Settings

settings = Settings.load()
jobs = Path(__file__).resolve().parents[1] / "spark_jobs"
for name in settings.streams:
    for make in (topic_dag, expire_dag, rekey_dag) if name in settings.topics else (topic_dag,):
        dag = make(settings, name, jobs)
        globals()[dag.dag_id] = dag
