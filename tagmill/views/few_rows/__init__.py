"""Number the new events of a journal without Spark where its persistence ids and new events are few.

The rules are those of many_rows.py; tests compare both.
"""

from tagmill.views.few_rows.number import number

__all__ = ["number"]
