"""Airflow DAG `deliver_<pipeline>` for each pipeline of kind topic or kafka_journal_events."""

from tagmill.airflow import all_dags

globals().update(all_dags("topics"))
