"""The audit of a pipeline: journal, tag views, progress and ClickHouse compared with each other, per tag and
timebucket. Only reads.
"""
