"""Seal a run of few rows in this process: Spark's start and its jobs would take longer than the rows."""
