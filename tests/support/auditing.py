"""Load several fixture cases into one journal, so that one delivery and one audit cover them all; read what
an audit found.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from cassandra.query import UNSET_VALUE

from local.cql import write_partitions
from local.fixtures import CONVERT, TABLES, Case
from tagmill.audit.audit import audit
from tagmill.audit.model import AuditReport
from tagmill.cassandra.client import Cassandra
from tagmill.cassandra.schema import read_keyspaces
from tagmill.config.settings import Settings
from tagmill.journal.tag_view_reader import Views
from tagmill.ledger.cleanups import AuditedBucket, CleanupLog
from tests.support.delivery import OWNER, only

KEYS = {
    "messages": ("persistence_id", "partition_nr"), "tag_views": ("tag_name", "timebucket"), "tag_write_progress": ("persistence_id",),
    "tag_scanning": ("persistence_id",), "metadata": ("persistence_id",), "all_persistence_ids": ("persistence_id",),
}  # fmt: skip


def load_together(session: Any, keyspace: str, cases: Sequence[str]) -> str:
    """Create a keyspace with the rows of all these cases; a case's name prefixes its persistence_ids:
    'gap-first/o-000003'.
    """
    for statement in Case(cases[0]).statements(keyspace):
        session.execute(statement)
    there = read_keyspaces(session, keyspace)[keyspace].tables
    for table in TABLES:
        for case in cases:
            data = Case(case).table(table)
            types = there[table].columns
            kinds = {name: CONVERT.get(types[name], lambda value: value) for name in data.column_names}
            partitions = defaultdict(list)
            for row in data.to_pylist():
                row["persistence_id"] = f"{case}/{row['persistence_id']}"
                values = [UNSET_VALUE if value is None else kinds[name](value) for name, value in row.items()]
                partitions[tuple(row[key] for key in KEYS[table])].append(values)
            write_partitions(session, f"{keyspace}.{table}", data.column_names, partitions.values(), 300)
    return keyspace


def judged(settings: Settings) -> dict[tuple[str, int], AuditedBucket]:
    """Return what the newest audit has said of each (tag, timebucket) of the only pipeline's view."""
    name = only(settings)
    chosen = settings.pipeline(name)
    with Cassandra(settings.cassandra) as cassandra:
        log = CleanupLog(cassandra, settings.cassandra.ledger_keyspace, chosen.keyspace, chosen.view)
        keys = list(Views(cassandra, chosen.journal).partitions())
        words = zip(keys, log.audited(name, keys), strict=True)
        return {key: word for key, word in words if word is not None}


def audited(settings: Settings, spark: Any, **options: Any) -> AuditReport:
    """Audit the only pipeline, and return the report."""
    name = only(settings)
    return audit(settings, name, owner=OWNER, spark=spark, **options)


def findings(settings: Settings, report: AuditReport) -> list[dict[str, Any]]:
    """Read all staged findings of an audit."""
    rows: list[dict[str, Any]] = pq.read_table(
        Path(settings.storage.root) / report.folder / "findings"
    ).to_pylist()
    return rows
