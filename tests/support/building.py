"""Build views on the test stack, and read the tables afterwards as plain sorted rows."""

from typing import Any
from uuid import UUID

from cassandra.concurrent import execute_concurrent_with_args
from cassandra.query import UNSET_VALUE

from local.fixtures import Case
from tagmill.config.settings import Settings
from tagmill.ledger import schema
from tagmill.views.build import build
from tests.support.delivery import OWNER, only

VIEWS = ("tag_views", "tag_write_progress")


def built(settings: Settings, spark: Any, **options: Any) -> dict[str, Any]:
    """Apply the schema and build the views of the only pipeline's journal."""
    schema.apply(settings)
    return build(settings, only(settings), owner=OWNER, spark=lambda: spark, **options)


def rows(stack: Any, keyspace: str, table: str) -> list[dict[str, Any]]:
    """Return all rows of a table of the journal, with all columns, sorted; UUIDs are text."""
    found = stack.session.execute(f"SELECT * FROM {keyspace}.{table}")
    return in_order([{name: _plain(value) for name, value in row._asdict().items()} for row in found])


def load_messages(session: Any, case: str, keyspace: str, after: int, until: int) -> None:
    """Write those rows of a case's messages with after < sequence_nr <= until."""
    table = Case(case).table("messages")
    names = table.column_names
    insert = session.prepare(
        f"INSERT INTO {keyspace}.messages ({', '.join(names)}) VALUES ({', '.join('?' for _ in names)})"
    )
    values = []
    for row in table.to_pylist():
        if after < row["sequence_nr"] <= until:
            row |= {"timestamp": UUID(row["timestamp"]), "tags": set(row["tags"] or ())}
            values.append(tuple(UNSET_VALUE if row[name] in (None, set()) else row[name] for name in names))
    for success, outcome in execute_concurrent_with_args(session, insert, values):
        assert success, outcome


def recorded(case: str, table: str) -> list[dict[str, Any]]:
    """Return the rows that the plugin wrote into a table of a fixture case, sorted."""
    return in_order(Case(case).table(table).to_pylist())


def in_order(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort rows of tag_views or tag_write_progress by tag, persistence_id and tag_pid_sequence_nr."""
    return sorted(
        found,
        key=lambda row: (
            row.get("tag_name", row.get("tag")),
            row["persistence_id"],
            row["tag_pid_sequence_nr"],
        ),
    )


def records(stack: Any, keyspace: str) -> list[dict[str, Any]]:
    """Return Tagmill's view_progress rows of a journal, sorted by persistence_id, without the number of the
    build.
    """
    found = stack.session.execute("SELECT * FROM tagmill_test.view_progress")
    chosen = [row._asdict() for row in found if row.journal == keyspace]
    for row in chosen:
        row.pop("build")
    return sorted(chosen, key=lambda row: row["persistence_id"])


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, UUID) else value
