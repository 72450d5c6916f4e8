"""Kafka Journal: its records and rules, and the batch replicator from its topics to Cassandra."""
