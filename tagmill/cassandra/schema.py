"""Read the keyspaces and tables that a cluster has from its own tables, `system_schema`.

The driver reads only the whole schema with its tables, which takes a quarter of a second on a cluster of a thousand tables,
and it does that again after every change of any table.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cassandra import ConsistencyLevel
from cassandra.cluster import ResponseFuture, Session
from cassandra.query import SimpleStatement

QUERIES = {
    "keyspaces": "SELECT keyspace_name, replication FROM system_schema.keyspaces",
    "tables": "SELECT keyspace_name, table_name FROM system_schema.tables",
    "columns": "SELECT keyspace_name, table_name, column_name, type, kind, position FROM system_schema.columns",
    "views": "SELECT keyspace_name, view_name, base_table_name FROM system_schema.views",
}
# The kinds of columns that make a table's key, in its order.
KEY_KINDS = ("partition_key", "clustering")


@dataclass(frozen=True, slots=True)
class Table:
    """A table's columns with their CQL types (keys first, then by name), its keys and its materialized views."""

    name: str
    columns: Mapping[str, str]
    partition_key: tuple[str, ...]
    clustering_key: tuple[str, ...] = ()
    views: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Keyspace:
    """A keyspace's replication map and its tables by name, without materialized views."""

    replication: Mapping[str, str]
    tables: Mapping[str, Table]


def read_keyspaces(session: Session, name: str | None = None, host: Any = None) -> dict[str, Keyspace]:
    """Return the keyspaces by name, as one node knows them.

    Args:
        session: on the cluster, with named rows.
        name: the only keyspace to read; the answer is empty if it does not exist. None: all.
        host: the node; None: any.
    """
    asked = {table: _ask(session, query, name, host) for table, query in QUERIES.items()}
    rows = {table: list(answer.result()) for table, answer in asked.items()}
    columns, views = defaultdict[Any, list[Any]](list), defaultdict[Any, set[str]](set)
    for row in rows["columns"]:
        columns[row.keyspace_name, row.table_name].append(row)
    for row in rows["views"]:
        views[row.keyspace_name, row.base_table_name].add(row.view_name)
    tables = defaultdict[str, dict[str, Table]](dict)
    for row in rows["tables"]:
        key = row.keyspace_name, row.table_name
        tables[row.keyspace_name][row.table_name] = _table(row.table_name, columns[key], views[key])
    return {
        row.keyspace_name: Keyspace(dict(row.replication), tables[row.keyspace_name])
        for row in rows["keyspaces"]
    }


def _ask(session: Session, query: str, name: str | None, host: Any) -> ResponseFuture:
    where = "" if name is None else " WHERE keyspace_name = %s"
    statement = SimpleStatement(query + where, consistency_level=ConsistencyLevel.ONE, is_idempotent=True)
    return session.execute_async(statement, None if name is None else (name,), host=host)


def _table(name: str, columns: list[Any], views: set[str]) -> Table:
    by_place = sorted(columns, key=lambda row: (row.position, row.column_name))
    partition, clustering, others = (
        [row for row in by_place if row.kind == kind or (kind is None and row.kind not in KEY_KINDS)]
        for kind in (*KEY_KINDS, None)
    )
    return Table(
        name,
        {row.column_name: row.type for row in (*partition, *clustering, *others)},
        tuple(row.column_name for row in partition),
        tuple(row.column_name for row in clustering),
        frozenset(views),
    )
