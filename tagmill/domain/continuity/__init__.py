"""The rules of continuity: what happens to each number of a persistence_id and tag.

Pure: no I/O, no Spark.
"""
