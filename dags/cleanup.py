"""Airflow DAG `cleanup_<pipeline>` for each configured pipeline, with a schedule only where one is
switched on.
"""

from tagmill.airflow import all_dags

globals().update(all_dags("cleanup"))
