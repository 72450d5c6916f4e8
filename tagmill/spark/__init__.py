"""Spark: sessions, the connector to Cassandra, and what its errors mean."""
