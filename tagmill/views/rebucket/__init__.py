"""Change a view's bucket size: copy its rows into a new table with buckets of that size, verify them, and
switch to the table.
"""
