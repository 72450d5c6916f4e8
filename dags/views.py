"""Airflow DAGs `views_<operation>_<pipeline>` for each configured pipeline, triggered by hand."""

from pathlib import Path

from tagmill.airflow.views import views_dags
from tagmill.config.settings import Settings

settings = Settings.load()
for name in settings.pipelines:
    for dag in views_dags(settings, name, jobs=Path(__file__).resolve().parents[1] / "spark_jobs"):
        globals()[dag.dag_id] = dag
