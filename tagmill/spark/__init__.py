"""Spark: sessions, tables of Cassandra as DataFrames, and what its errors mean."""
