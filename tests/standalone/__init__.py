"""What runs in a real Airflow, started once for all of these tests."""
