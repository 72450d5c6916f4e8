"""Copy a ledger's tables and restore them, as COPY does (current write times) or as a snapshot does (original
write times).
"""

from typing import Any

from cassandra.cluster import Session

Cell = tuple[Any, int | None]
Copy = dict[str, list[dict[str, Cell]]]


def copy(session: Session, keyspace: str) -> Copy:
    """Copy all rows of a keyspace: each column's value with its write time, or None for key columns and
    collections.
    """
    return {table: _rows(session, keyspace, table) for table in _columns(session, keyspace)}


def restore(session: Session, keyspace: str, copied: Copy, *, own_times: bool) -> None:
    """Empty the keyspace's tables and insert the copied rows; `own_times` keeps their original write
    times.
    """
    lose(session, keyspace)
    for table, rows in copied.items():
        keys = {
            name
            for name, kind in _columns(session, keyspace)[table].items()
            if kind[0] in ("partition_key", "clustering")
        }
        for row in rows:
            # A row with only static columns has no clustering key.
            key = {name: cell[0] for name, cell in row.items() if name in keys and cell[0] is not None}
            others = {name: cell for name, cell in row.items() if name not in keys and cell[0] is not None}
            if not own_times:
                insert(session, keyspace, table, key | {name: cell[0] for name, cell in others.items()}, None)
            for name, (value, written) in others.items() if own_times else ():
                insert(session, keyspace, table, key | {name: value}, written)


def create_again(session: Session, keyspace: str, *tables: str) -> None:
    """Drop these tables and create them as they were, empty."""
    for table in tables:
        statement = session.execute(f"DESCRIBE TABLE {keyspace}.{table}").one().create_statement
        session.execute(f"DROP TABLE {keyspace}.{table}", timeout=60)
        session.execute(statement, timeout=60)


def lose(session: Session, keyspace: str) -> None:
    """Empty all tables of a keyspace."""
    for table in _columns(session, keyspace):
        if session.execute(f"SELECT * FROM {keyspace}.{table} LIMIT 1").one():
            session.execute(f"TRUNCATE {keyspace}.{table}", timeout=60)


def insert(session: Session, keyspace: str, table: str, row: dict[str, Any], written: int | None) -> None:
    columns, marks = ", ".join(f'"{name}"' for name in row), ", ".join("%s" for _ in row)
    using = f" USING TIMESTAMP {written}" if written is not None else ""
    session.execute(f"INSERT INTO {keyspace}.{table} ({columns}) VALUES ({marks}){using}", list(row.values()))


def _rows(session: Session, keyspace: str, table: str) -> list[dict[str, Cell]]:
    columns = _columns(session, keyspace)[table]
    timed = [
        name
        for name, (kind, type_) in columns.items()
        if kind in ("regular", "static") and not type_.startswith(("list", "set", "map"))
    ]
    names = [f'"{name}"' for name in columns] + [f'WRITETIME("{name}")' for name in timed]
    found = session.execute(f"SELECT {', '.join(names)} FROM {keyspace}.{table}")
    rows = []
    for values in found:
        written = dict(zip(timed, list(values)[len(columns) :], strict=True))
        rows.append({name: (value, written.get(name)) for name, value in zip(columns, values, strict=False)})
    return rows


def _columns(session: Session, keyspace: str) -> dict[str, dict[str, tuple[str, str]]]:
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for row in session.execute(
        "SELECT table_name, column_name, kind, type FROM system_schema.columns WHERE keyspace_name = %s",
        [keyspace],
    ):
        found.setdefault(row.table_name, {})[row.column_name] = (row.kind, row.type)
    return found
