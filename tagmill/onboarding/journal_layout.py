"""Recognize the tables of a journal by their keys, whatever the application calls them. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tagmill.cassandra.schema import Table
from tagmill.domain.journal_tables import ALL_PERSISTENCE_IDS, MESSAGES, METADATA, OLD_TAGS, VIEW_TABLE

SNAPSHOTS = "snapshots"
# Default name of each kind of table.
DEFAULTS = {
    "messages": MESSAGES,
    "view": VIEW_TABLE,
    "metadata": METADATA,
    "all_persistence_ids": ALL_PERSISTENCE_IDS,
    "snapshots": SNAPSHOTS,
}
Kind = Literal["messages", "view", "metadata", "all_persistence_ids", "snapshots"]
# How the generation of a journal begins that plugins of today have to migrate.
OLDER = "an older plugin"
KAFKA_JOURNAL = frozenset({"journal", "metajournal", "pointer2"})


@dataclass(frozen=True, slots=True)
class Layout:
    """The tables of a keyspace by kind, the one with the plugin's default name first."""

    tables: Mapping[str, Sequence[str]] = field(default_factory=dict)
    kafka_journal: bool = False

    def first(self, kind: Kind) -> str | None:
        """Return the table of a kind; None: the keyspace has none."""
        return next(iter(self.tables.get(kind, ())), None)

    @property
    def is_journal(self) -> bool:
        """Whether the keyspace has events of Akka or Pekko Persistence."""
        return self.first("messages") is not None


def layout_of(tables: Iterable[Table]) -> Layout:
    """Sort the tables of a keyspace by what they hold."""
    found: dict[str, list[str]] = {}
    names = set[str]()
    for table in tables:
        names.add(table.name)
        if kind := kind_of(table):
            found.setdefault(kind, []).append(table.name)
    ordered = {
        kind: sorted(same, key=lambda name, default=DEFAULTS[kind]: (name != default, name))  # type: ignore[misc]
        for kind, same in found.items()
    }
    return Layout(ordered, kafka_journal=names >= KAFKA_JOURNAL)


def kind_of(table: Table) -> Kind | None:
    """Return what a table holds, told by its keys; None: it is no table of a journal."""
    columns = table.columns
    if table.partition_key == ("persistence_id", "partition_nr") and table.clustering_key[:1] == (
        "sequence_nr",
    ):
        return "messages"
    if table.partition_key == ("tag_name", "timebucket"):
        return "view"
    if table.partition_key != ("persistence_id",):
        return None
    if table.clustering_key[:1] == ("sequence_nr",) and columns.keys() & {"snapshot", "snapshot_data"}:
        return "snapshots"
    if table.clustering_key:
        return None
    if "deleted_to" in columns:
        return "metadata"
    return "all_persistence_ids" if set(columns) == {"persistence_id"} else None


def generation(messages: Mapping[str, str], layout: Layout) -> str:
    """Return which plugin's tables these are, by the columns of the table of events and the other tables."""
    older = []
    if "event" not in messages:
        older.append("before 0.10: no column event")
    elif "meta_ser_id" not in messages:
        older.append("before 0.59: no column meta")
    if set(OLD_TAGS) & set(messages):
        older.append("before 0.80: tags in tag1 to tag3")
    if layout.first("all_persistence_ids") is None:
        older.append("before 1.0: no table of persistence ids")
    if older:
        return f"{OLDER} ({'; '.join(older)})"
    return "akka-persistence-cassandra 1.x or pekko-persistence-cassandra 1.x (their tables are the same)"
