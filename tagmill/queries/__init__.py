"""Run the plugin's queries as DataFrames: persistence ids, events of a persistence_id, and events by tag, in
the plugin's order.
"""

from tagmill.queries.by_tag import in_order
from tagmill.queries.journal import ReadJournal

__all__ = ["ReadJournal", "in_order"]
