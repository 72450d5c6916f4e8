"""Create a journal as plugins before 0.80 kept it: the fixture legacy-tags, in that time's tables and
materialized views.
"""

from typing import Any
from uuid import UUID

from cassandra.concurrent import execute_concurrent_with_args
from cassandra.query import UNSET_VALUE

from local.fixtures import Case

CASE = "legacy-tags"
# The table and the view are those of EventsByTagMigrationSpec, the plugin's own test.
MESSAGES = """
CREATE TABLE {0}.messages (
    used boolean static, persistence_id text, partition_nr bigint, sequence_nr bigint, timestamp timeuuid, timebucket text,
    writer_uuid text, ser_id int, ser_manifest text, event_manifest text, event blob, {1}
    tag1 text, tag2 text, tag3 text, message blob,
    PRIMARY KEY ((persistence_id, partition_nr), sequence_nr, timestamp, timebucket))
"""
META = "meta_ser_id int, meta_ser_manifest text, meta blob,"
VIEW = """
CREATE MATERIALIZED VIEW {0}.eventsbytag{1} AS
    SELECT tag{1}, timebucket, timestamp, persistence_id, partition_nr, sequence_nr, writer_uuid, ser_id, ser_manifest,
        event_manifest, event, message FROM {0}.messages
    WHERE persistence_id IS NOT NULL AND partition_nr IS NOT NULL AND sequence_nr IS NOT NULL AND tag{1} IS NOT NULL
        AND timestamp IS NOT NULL AND timebucket IS NOT NULL
    PRIMARY KEY ((tag{1}, timebucket), timestamp, persistence_id, partition_nr, sequence_nr)
"""
SNAPSHOTS = """
CREATE TABLE {0}.snapshots (
    persistence_id text, sequence_nr bigint, timestamp bigint, snapshot blob, PRIMARY KEY (persistence_id, sequence_nr))
"""


def create(session: Any, keyspace: str, *, meta: bool = False, views: int = 3) -> str:
    """Create the tables of a keyspace and `views` views, write the events of the fixture, and return the keyspace.

    One further persistence id, 'deleted', has only deleted events.
    """
    session.execute(MESSAGES.format(keyspace, META if meta else ""))
    session.execute(SNAPSHOTS.format(keyspace))
    for number in range(1, views + 1):
        session.execute(VIEW.format(keyspace, number))
    table = Case(CASE).table("messages").drop_columns(["tags", "meta", "meta_ser_id", "meta_ser_manifest"])
    names = table.column_names
    insert = session.prepare(
        f"INSERT INTO {keyspace}.messages ({', '.join(names)}) VALUES ({', '.join('?' for _ in names)})"
    )
    values = []
    for row in table.to_pylist():
        row["timestamp"] = UUID(row["timestamp"])
        values.append(tuple(UNSET_VALUE if row[name] is None else row[name] for name in names))
    for success, outcome in execute_concurrent_with_args(session, insert, values):
        assert success, outcome
    session.execute(
        f"INSERT INTO {keyspace}.messages (persistence_id, partition_nr, used) VALUES ('deleted', 0, true)"
    )
    return keyspace


def schema(session: Any, keyspace: str) -> str:
    """Return the keyspace's schema in CQL."""
    return "\n".join(row.create_statement for row in session.execute(f"DESCRIBE KEYSPACE {keyspace}"))
