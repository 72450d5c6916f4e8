"""Airflow DAG `replicate_<pipeline>` for each configured pipeline of kind kafka_journal."""

from tagmill.airflow import all_dags

globals().update(all_dags("replicate"))
