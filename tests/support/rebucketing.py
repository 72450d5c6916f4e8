"""Rebucket on the test stack: run one step in this process, change the configuration, and list the expected
rows of the new table.
"""

from typing import Any
from uuid import UUID

from tagmill.config.settings import Settings
from tagmill.domain.time_buckets import BucketSize
from tagmill.domain.timeuuid import ticks
from tagmill.views.rebucket.rebucket import rebucket
from tests.support.building import rows
from tests.support.delivery import OWNER, only


def rebucketed(settings: Settings, spark: Any, to: str, **options: Any) -> dict[str, Any]:
    """Run one step for the only pipeline, not as a dry run unless the options say so; return its report."""
    wanted = {"dry_run": False, **options}
    return rebucket(settings, only(settings), to=BucketSize(to), owner=OWNER, spark=spark, **wanted)


def switched(settings: Settings, spark: Any, to: str) -> Settings:
    """Copy to another bucket size, switch offline, and return the settings with the view that the switch
    reports.
    """
    rebucketed(settings, spark, to)
    done = rebucketed(settings, spark, to, offline=True)
    return configured(settings, done["target"]["table"], to)


def configured(settings: Settings, view_table: str, size: str) -> Settings:
    """Return the settings with another view table and bucket size."""
    name = only(settings)
    changed = settings.pipeline(name).model_copy(
        update={"view_table": view_table, "bucket_size": BucketSize(size)}
    )
    return settings.model_copy(update={"pipelines": {name: changed}})


def in_buckets(found: list[dict[str, Any]], size: str) -> list[dict[str, Any]]:
    """Return these rows with the timebuckets of another bucket size."""
    return [
        {**row, "timebucket": BucketSize(size).start(ticks(UUID(str(row["timestamp"]))))} for row in found
    ]


def tables(stack: Any, keyspace: str) -> set[str]:
    """Return the names of a keyspace's tables."""
    found = stack.session.execute(
        "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s", (keyspace,)
    )
    return {row.table_name for row in found}


def half_copied(stack: Any, keyspace: str, table: str, expected: list[dict[str, Any]]) -> None:
    """Leave the table as a copy killed in the middle would: with every other row, with its original write
    time.
    """
    key = ("tag_name", "timestamp", "persistence_id", "tag_pid_sequence_nr")
    found = stack.session.execute(
        f"SELECT {', '.join(key)}, writetime(event) AS written FROM {keyspace}.tag_views"
    )
    written = {
        (row.tag_name, str(row.timestamp), row.persistence_id, row.tag_pid_sequence_nr): row.written
        for row in found
    }
    stack.session.execute(f"TRUNCATE {keyspace}.{table}")
    for row in expected[::2]:
        columns = [name for name, value in row.items() if value is not None]
        values = [UUID(row[name]) if name == "timestamp" else row[name] for name in columns]
        stack.session.execute(
            f"INSERT INTO {keyspace}.{table} ({', '.join(columns)}) VALUES "
            f"({', '.join('%s' for _ in columns)}) USING TIMESTAMP %s",
            [*values, written[tuple(row[name] for name in key)]],
        )


def same_rows(stack: Any, keyspace: str, table: str, expected: list[dict[str, Any]]) -> None:
    """Assert that the table has exactly these rows, with all columns."""
    assert rows(stack, keyspace, table) == expected
