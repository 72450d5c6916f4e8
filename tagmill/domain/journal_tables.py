"""The tables of an application's journal, and where an event's tags are in them. Pure.

Source: reference.conf of pekko-persistence-cassandra 1.1: journal.table, journal.metadata-table,
journal.all-persistence-ids-table, events-by-tag.table. The plugin has no settings for the names of
tag_write_progress and tag_scanning.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from tagmill.domain import identifiers

MESSAGES, METADATA, ALL_PERSISTENCE_IDS = "messages", "metadata", "all_persistence_ids"
VIEW_TABLE = "tag_views"
# Tables that a writer of tag views keeps in addition to the view.
WRITERS_TABLES = ("tag_write_progress", "tag_scanning")
# Columns in which plugins before 0.80 stored an event's tags.
OLD_TAGS = ("tag1", "tag2", "tag3")


@dataclass(frozen=True, slots=True)
class JournalTables:
    """A journal's keyspace, and the names of its tables that the application may choose."""

    keyspace: str
    view: str = VIEW_TABLE
    messages: str = MESSAGES
    metadata: str = METADATA
    all_persistence_ids: str = ALL_PERSISTENCE_IDS

    def cql(self, table: str) -> str:
        """Return the name of one of the journal's tables with the keyspace, quoted for CQL."""
        return identifiers.cql_table(self.keyspace, table)


def tag_columns(columns: Collection[str]) -> list[str]:
    """Return the existing columns of `messages` that hold tags."""
    return [name for name in ("tags", *OLD_TAGS) if name in columns]


def event_tags(event: Any) -> frozenset[str]:
    """Return an event's tags as the plugin sees them: those of `tags`, and those of tag1, tag2 and tag3.

    In: a row with the columns that tag_columns names. Source: extractTags in the plugin's Extractors
    (views.tables.event_tags for Spark).
    """
    old = (getattr(event, name, None) for name in OLD_TAGS)
    return frozenset(getattr(event, "tags", None) or ()) | {tag for tag in old if tag}
