"""Airflow DAG `maintenance_<pipeline>` for each configured pipeline that has operations for a person to start.

Where the configuration has a schedule for one of them, it has a DAG of its own: `expire_<pipeline>` of a
topic, `purge_<pipeline>` of a Kafka Journal.
"""

from tagmill.airflow import all_dags

globals().update(all_dags("maintenance"))
