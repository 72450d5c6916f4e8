"""The audit of a pipeline: journal, tag views, progress and ClickHouse held against each other, per tag and timebucket. Only reads."""
