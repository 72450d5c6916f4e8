"""Tests of Tagmill, in the package's own order: unit, spark, dags, integration, faults."""
