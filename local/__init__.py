"""The one-machine stack: a real Cassandra, the ClickHouse engine behind HTTP, Airflow standalone; for demo, tests, benchmarks."""
