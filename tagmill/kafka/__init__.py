"""Kafka as a source: which records a run reads, and how Spark reads them."""
