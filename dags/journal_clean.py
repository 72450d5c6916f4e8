"""Airflow DAG `journal_clean_<pipeline>` for each configured pipeline; only a person triggers it."""

from tagmill.airflow.journal_clean import journal_clean_dag
from tagmill.config.settings import Settings

settings = Settings.load()
for name in settings.pipelines:
    globals()[f"journal_clean_{name}"] = journal_clean_dag(settings, name)
