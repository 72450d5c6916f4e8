"""Clean up on the test stack: write what an audit would have proven, change configurations in place, read
what a cleanup left.
"""

from collections import Counter
from datetime import UTC, datetime
from itertools import count
from typing import Any

from tagmill.cassandra.client import Cassandra
from tagmill.config.settings import Settings
from tagmill.journal.tag_view_reader import Views
from tagmill.maintenance.view_cleanup.clean import clean
from tests.support.delivery import OWNER, only

_audits = count(1)


def with_keys(settings: Settings, pipeline: str, **keys: Any) -> Settings:
    """Return a copy of the settings with other values for these cleanup keys of a pipeline."""
    known = settings.pipeline(pipeline)
    changed = known.model_copy(update={"cleanup": known.cleanup.model_copy(update=keys)})
    return settings.model_copy(update={"pipelines": {**settings.pipelines, pipeline: changed}})


def audited(settings: Settings, pipeline: str, *, agrees: bool = True) -> None:
    """Write the audited_buckets rows that an audit of all current partitions of the view would leave."""
    chosen, at, number = settings.pipeline(pipeline), datetime.now(UTC), next(_audits)
    with Cassandra(settings.cassandra) as cassandra:
        views = Views(cassandra, chosen.journal)
        keys = [key for key in views.partitions() if key[0] in chosen.tags]
        rows = [rows for rows, _ in views.written(keys)]
        cassandra.write_many(
            f"INSERT INTO {settings.cassandra.ledger_keyspace}.audited_buckets (pipeline, tag, "
            "timebucket, audit, audited_at, rows, agrees)"
            " VALUES (?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?",
            (
                (pipeline, *key, number, at, there, agrees, number)
                for key, there in zip(keys, rows, strict=True)
            ),
        )


def never_audited(settings: Settings, pipeline: str, tag: str) -> None:
    """Delete the audited_buckets rows of a tag."""
    with Cassandra(settings.cassandra) as cassandra:
        table = f"{settings.cassandra.ledger_keyspace}.audited_buckets"
        cassandra.execute(
            f"DELETE FROM {table} USING TIMESTAMP ? WHERE pipeline = ? AND tag = ?",
            next(_audits),
            pipeline,
            tag,
        )


def cleaned(settings: Settings, *, delete: bool = True) -> dict[str, Any]:
    """Run one cleanup of the only pipeline, and return its report."""
    return clean(settings, only(settings), owner=OWNER, delete=delete)


def reasons(done: dict[str, Any]) -> dict[tuple[str, str], int]:
    """Return how many partitions stay, by tag and reason."""
    return {(line["tag"], line["reason"]): line["buckets"] for line in done["refused"]}


def partitions(settings: Settings, pipeline: str) -> dict[tuple[str, int], int]:
    """Count the view's stored rows by tag and timebucket."""
    with Cassandra(settings.cassandra) as cassandra:
        rows = cassandra.execute(
            f"SELECT tag_name, timebucket FROM {settings.pipeline(pipeline).keyspace}.tag_views"
        )
    return dict(Counter((row.tag_name, row.timebucket) for row in rows))


def records(settings: Settings, pipeline: str) -> dict[tuple[str, int], tuple[str, int]]:
    """Return state and rows of each partition that cleanups have deleted, by tag and timebucket."""
    chosen = settings.pipeline(pipeline)
    found = {}
    with Cassandra(settings.cassandra) as cassandra:
        for tag in chosen.tags:
            for row in cassandra.execute(
                f"SELECT timebucket, state, rows FROM {settings.cassandra.ledger_keyspace}.cleaned_buckets"
                " WHERE journal = ? AND tag = ?",
                chosen.keyspace,
                tag,
            ):
                found[tag, row.timebucket] = (row.state, row.rows)
    return found
