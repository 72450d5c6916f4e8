"""Spark: what its errors mean."""
