"""Airflow DAG `maintenance_<pipeline>` for each configured pipeline that has operations for a person to start.

Where the configuration has a schedule for one of them, it has a DAG of its own: `expire_<pipeline>` of a
topic, `purge_<pipeline>` of a Kafka Journal.
"""

from pathlib import Path

from tagmill.airflow.maintenance import maintenance_dags
from tagmill.config.settings import Settings

settings = Settings.load()
for dag in maintenance_dags(settings, jobs=Path(__file__).resolve().parents[1] / "spark_jobs"):
    globals()[dag.dag_id] = dag
