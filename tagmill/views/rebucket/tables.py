"""Create a copy of a view's table under another name, check such tables, and drop them."""

import json
from collections.abc import Mapping
from typing import Any

from tagmill.cassandra.client import Cassandra
from tagmill.cassandra.schema import Table
from tagmill.domain import identifiers
from tagmill.domain.journal_tables import VIEW_TABLE
from tagmill.domain.time_buckets import BucketSize
from tagmill.errors import ConfigurationError, GuardRefused

PARTITION, CLUSTERING = ("tag_name", "timebucket"), ("timestamp", "persistence_id", "tag_pid_sequence_nr")
# The options that decide how long rows live and how they are stored. All other options may differ between the
# two tables.
OPTIONS = (
    "compaction",
    "compression",
    "caching",
    "gc_grace_seconds",
    "default_time_to_live",
    "bloom_filter_fp_chance",
)
NEEDED = ("tag_write_progress",)


class ViewTables:
    """The tables of one journal keyspace, as the cluster has them."""

    def __init__(self, cassandra: Cassandra, keyspace: str) -> None:
        self.cassandra = cassandra.application
        self.keyspace = keyspace
        if cassandra.keyspace(keyspace) is None:
            raise ConfigurationError(
                f"keyspace {keyspace} does not exist in {cassandra.where}. Nothing was done; check the "
                "pipeline's keyspace"
            )

    def there(self) -> Mapping[str, Table]:
        """Return the tables that the keyspace has now, by name."""
        return self.cassandra.tables(self.keyspace) or {}

    def check_source(self, table: str) -> None:
        """Raise ConfigurationError unless the table has the key of tag_views and the keyspace has
        tag_write_progress.
        """
        there = self.there()
        if missing := [name for name in (table, *NEEDED) if name not in there]:
            raise ConfigurationError(
                f"keyspace {self.keyspace} has no table {' and '.join(missing)}. Nothing was done; is it "
                "the journal's keyspace?"
            )
        if _keys(there[table]) != (PARTITION, CLUSTERING):
            raise ConfigurationError(
                f"{self.keyspace}.{table} has another primary key than the plugin's tag_views. Nothing "
                "was done; migrate it first"
            )

    def check_free(self, table: str) -> None:
        """Raise GuardRefused when a table of this name has rows: no rebucket under way wrote them."""
        if table not in self.there():
            return
        found = self.cassandra.execute(
            f"SELECT tag_name, timebucket FROM {identifiers.cql_table(self.keyspace, table)} LIMIT 1"
        )
        if found:
            raise GuardRefused(
                f"{self.keyspace}.{table} is there already and has rows that no rebucket under way has "
                "written (tag "
                f"{found[0].tag_name!r}, timebucket {found[0].timebucket}). Nothing was done; drop it if "
                "nobody reads it, or choose "
                "another name: --table"
            )

    def create(self, source: str, target: str) -> None:
        """Create the target with the source's columns, keys and options; raises GuardRefused when it exists
        with other columns or keys.
        """
        model = self.there()[source]
        columns = ", ".join(f"{identifiers.cql(name)} {kind}" for name, kind in model.columns.items())
        keys = f"PRIMARY KEY (({_joined(PARTITION)}), {_joined(CLUSTERING)})"
        self.cassandra.execute(
            f"CREATE TABLE IF NOT EXISTS {identifiers.cql_table(self.keyspace, target)} ({columns}, "
            f"{keys}) WITH {self._options(source)}"
        )
        made = self.there()[target]
        if (_keys(made), made.columns) != (_keys(model), model.columns):
            raise GuardRefused(
                f"{self.keyspace}.{target} has other columns than {source}. Nothing was copied; drop it "
                "if nobody reads it"
            )

    def drop(self, table: str) -> None:
        """Drop a table if it exists."""
        self.cassandra.execute(f"DROP TABLE IF EXISTS {identifiers.cql_table(self.keyspace, table)}")

    def replicas(self) -> int:
        """Return how many copies of each row the cluster keeps, over all datacenters; at least 1."""
        found = self.cassandra.keyspace(self.keyspace)
        options = found.replication if found else {}
        factors = [value.split("/")[0] for key, value in options.items() if key != "class"]
        return sum(int(factor) for factor in factors if factor.isdigit()) or 1

    def _options(self, source: str) -> str:
        """Return the source's options as text for CREATE TABLE, as the server lists them; DDL takes no bound
        values.
        """
        (row,) = self.cassandra.execute(
            f"SELECT {', '.join(OPTIONS)} FROM system_schema.tables WHERE keyspace_name = ? AND "
            "table_name = ?",
            self.keyspace,
            source,
        )
        order = ", ".join(f"{identifiers.cql(name)} ASC" for name in CLUSTERING)
        return " AND ".join(
            [
                f"CLUSTERING ORDER BY ({order})",
                *(f"{name} = {_literal(getattr(row, name))}" for name in OPTIONS),
            ]
        )


def _keys(table: Table) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return table.partition_key, table.clustering_key


def _joined(columns: tuple[str, ...]) -> str:
    return ", ".join(map(identifiers.cql, columns))


def _literal(value: Any) -> str:
    return json.dumps(dict(value)).replace('"', "'") if isinstance(value, Mapping) else str(value)


def default_name(size: BucketSize) -> str:
    """Return the default name of a view's table with this bucket size."""
    return f"{VIEW_TABLE}_{size.value.lower()}"
