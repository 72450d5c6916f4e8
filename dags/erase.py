"""Airflow DAG `erase_<pipeline>` for each configured pipeline; only a person triggers it."""

from tagmill.airflow.erase import erase_dag
from tagmill.config.settings import Settings

settings = Settings.load()
for name in settings.pipelines:
    globals()[f"erase_{name}"] = erase_dag(settings, name)
