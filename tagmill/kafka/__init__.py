"""Kafka as a source: choose the records that a run reads, and read them with Spark."""
