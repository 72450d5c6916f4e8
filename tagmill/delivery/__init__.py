"""From tag_views to ClickHouse: plan, seal, push, close.

Each step may be killed at any instruction and started again.
"""
