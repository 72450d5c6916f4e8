"""Tagmill: tagged events from Cassandra to ClickHouse, exactly once, in immutable batches, with proof."""

__version__ = "0.1.0"
