"""Airflow DAG `audit_<pipeline>` for each configured pipeline; a wrong configuration is an import error that
names the key.
"""

from tagmill.airflow import all_dags

globals().update(all_dags("audit"))
