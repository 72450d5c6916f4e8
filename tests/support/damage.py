"""The damaged fixtures in one journal: each case's persistence ids get its name in front. And what the plugin would have written."""

from collections import Counter
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from cassandra.concurrent import execute_concurrent_with_args
from cassandra.query import UNSET_VALUE

from local.fixtures import Case
from tagmill.buckets import BucketSize
from tagmill.timeuuid import ticks
from tests.support.events import Journal

CASES = ("gap-middle", "gap-first", "gap-whole-pid", "late-previous-bucket", "duplicate-nr", "swapped-order", "null-event")
TABLES = ("messages", "tag_views", "tag_write_progress", "all_persistence_ids")
TAGS = ["tag-0", "tag-1"]
FIRST = Case(CASES[0]).expected["first_time_bucket"]


def load(journal: Journal, cases: Iterable[str] = CASES) -> None:
    """Write the cases' tables into one journal."""
    for case in cases:
        for name in TABLES:
            table = Case(case).table(name)
            columns = [column for column in table.column_names if _known(journal, name, column)]
            cql = f"INSERT INTO {journal.keyspace}.{name} ({', '.join(columns)}) VALUES ({', '.join('?' for _ in columns)})"
            values = [tuple(_value(c, row[c], case) for c in columns) for row in table.to_pylist()]
            for success, outcome in execute_concurrent_with_args(journal.session, journal.session.prepare(cql), values):
                assert success, outcome


def _known(journal: Journal, table: str, column: str) -> bool:
    return column in journal.session.cluster.metadata.keyspaces[journal.keyspace].tables[table].columns


def _value(column: str, value: Any, case: str) -> Any:
    if column == "persistence_id":
        return f"{case}/{value}"
    if value is None or value == []:
        return UNSET_VALUE
    if column in ("timestamp", "offset"):
        return UUID(value)
    return set(value) if column == "tags" else value


def healthy(cases: Iterable[str] = CASES) -> list[dict[str, Any]]:
    """The rows of tag_views as the plugin would have written them, worked out from the recorded messages."""
    rows = []
    for case in cases:
        size, numbers = BucketSize(Case(case).expected["bucket"]), Counter[tuple[str, str]]()
        for event in sorted(Case(case).table("messages").to_pylist(), key=lambda e: (e["persistence_id"], e["sequence_nr"])):
            for tag in event["tags"] or ():
                numbers[tag, event["persistence_id"]] += 1
                place = {"tag_name": tag, "timebucket": size.start(ticks(UUID(event["timestamp"])))}
                number = {"tag_pid_sequence_nr": numbers[tag, event["persistence_id"]]}
                known = {"timestamp": UUID(event["timestamp"]), "persistence_id": f"{case}/{event['persistence_id']}"}
                rows.append({**event, **place, **number, **known})
    return rows
