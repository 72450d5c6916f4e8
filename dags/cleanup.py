"""Airflow DAG `cleanup_<pipeline>` for each configured pipeline, with a schedule only where one is
switched on.
"""

from tagmill.airflow.cleanup import cleanup_dag
from tagmill.config.settings import Settings

settings = Settings.load()
for name in (*settings.pipelines, *settings.streams):
    globals()[f"cleanup_{name}"] = cleanup_dag(settings, name)
