"""Airflow DAG `deliver_<pipeline>` for each configured pipeline; a wrong configuration is an import error
that names the key.

Where they share a session, also the DAG `deliver_all`.
"""

from tagmill.airflow import all_dags

globals().update(all_dags("deliver"))
