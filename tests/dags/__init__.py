"""DAG tests; they run in the Airflow environment."""
