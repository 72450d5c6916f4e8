"""Tests in a real Airflow, which is started once for all of them."""
