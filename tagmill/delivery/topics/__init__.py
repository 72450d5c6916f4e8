"""Plain topics: their events' formats, ids and columns, and the steps that bring each distinct event to
ClickHouse once.
"""
