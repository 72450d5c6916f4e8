"""The one-machine stack for demo, tests and benchmarks: a real Cassandra, the ClickHouse engine behind HTTP,
Kafka, Airflow standalone.
"""
