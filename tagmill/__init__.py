"""Tagmill: tagged events from Cassandra to ClickHouse, exactly once, in immutable batches, with proof."""

import os

__version__ = "0.1.0"

# jemalloc returns unused memory to the system. Arrow reads this variable when it is imported.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
