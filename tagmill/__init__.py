"""Tagmill: tagged events from Cassandra to ClickHouse, exactly once, in immutable batches, with proof."""

import os

__version__ = "0.1.0"

# gives memory back that isn't used any more; Arrow looks here when it is imported
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
