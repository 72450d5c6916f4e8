"""A killed migration continues where it stopped and ends like one that nothing disturbed."""

from collections.abc import Callable

import pytest

from tests.faults.conftest import Delivery
from tests.support.building import VIEWS, recorded, rows

CASE = "legacy-tags"
TABLES = ("tag_views", "tag_write_progress", "tag_scanning", "metadata", "all_persistence_ids")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_migrate_killed_between_changes_ends_whole(
    delivery: Callable[..., Delivery],
) -> None:
    """Kill and crash a migration between tables, between rows and between drops; the last one leaves the
    expected views.
    """
    disturbed = delivery(CASE, ("messages",), lease_seconds=5)
    session, keyspace = disturbed.stack.session, disturbed.keyspace
    for table in TABLES:
        session.execute(f"DROP TABLE {keyspace}.{table}")

    def tables() -> set[str]:
        return {
            row.table_name
            for row in session.execute(
                "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s", (keyspace,)
            )
        }

    disturbed.crash("views", "migrate", "--step", "tables", "--yes", at="migrate.changed")
    assert tables() == {"messages", TABLES[0]}
    disturbed.start("views", "migrate", "--offline", "--yes", at="build.after_views").kill()
    assert tables() == {"messages", *TABLES} and rows(disturbed.stack, keyspace, "tag_write_progress") == []
    disturbed.crash("views", "migrate", "--offline", "--drop-old", "--yes", at="migrate.changed")
    assert {table: rows(disturbed.stack, keyspace, table) for table in VIEWS} == {
        table: recorded(CASE, f"expected_{table}") for table in VIEWS
    }
    ended = disturbed.here("views", "migrate", "--offline", "--drop-old", "--yes")
    assert ended.code == 0, ended
    columns = session.execute(
        "SELECT column_name FROM system_schema.columns WHERE keyspace_name = %s AND table_name = 'messages'",
        (keyspace,),
    )
    assert not {"tag1", "tag2", "tag3"} & {row.column_name for row in columns}
    assert {table: rows(disturbed.stack, keyspace, table) for table in VIEWS} == {
        table: recorded(CASE, f"expected_{table}") for table in VIEWS
    }
