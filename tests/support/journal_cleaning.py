"""Clean journals on the test stack, write snapshots as the plugin stores them, and read whole tables to
compare.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from local.fixtures import TABLES
from tagmill.config.settings import Settings
from tagmill.maintenance.journal_cleanup.clean import clean
from tagmill.maintenance.journal_cleanup.model import Wanted, What
from tests.support.delivery import OWNER, only

SNAPSHOTS = """CREATE TABLE IF NOT EXISTS {}.snapshots (persistence_id text, sequence_nr bigint, timestamp bigint, ser_id int,
    ser_manifest text, snapshot_data blob, snapshot blob, meta_ser_id int, meta_ser_manifest text, meta blob,
    PRIMARY KEY (persistence_id, sequence_nr)) WITH CLUSTERING ORDER BY (sequence_nr DESC)"""


def cleaned(
    settings: Settings, ids: Iterable[str], what: str, *, delete: bool = True, **wanted: Any
) -> dict[str, Any]:
    """Run one cleanup of the only pipeline's journal, and return its report."""
    return clean(settings, only(settings), ids, Wanted(What(what), **wanted), owner=OWNER, delete=delete)


def reasons(done: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return persistence id, tag and reason of each refusal, sorted."""
    return sorted((line["persistence_id"], line["tag"], line["reason"]) for line in done["refusals"])


def add_snapshots(session: Any, keyspace: str, persistence_id: str, taken: dict[int, datetime]) -> None:
    """Write snapshots, taken at these times by sequence_nr; create their keyspace and table if missing."""
    session.execute(
        f"CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = {{'class': 'SimpleStrategy', "
        f"'replication_factor': 1}}"
    )
    session.execute(SNAPSHOTS.format(keyspace))
    for sequence_nr, at in taken.items():
        session.execute(
            f"INSERT INTO {keyspace}.snapshots (persistence_id, sequence_nr, timestamp, ser_id, "
            "ser_manifest, snapshot_data)"
            " VALUES (%s, %s, %s, 1, '', %s)",
            (persistence_id, sequence_nr, int(at.timestamp() * 1000), b"state"),
        )


def snapshots(session: Any, keyspace: str) -> dict[str, list[int]]:
    """Return the sequence_nrs of the snapshots by persistence id, in rising order."""
    found: dict[str, list[int]] = {}
    for row in session.execute(f"SELECT persistence_id, sequence_nr FROM {keyspace}.snapshots"):
        found.setdefault(row.persistence_id, []).append(row.sequence_nr)
    return {persistence_id: sorted(numbers) for persistence_id, numbers in found.items()}


def in_journal(session: Any, keyspace: str) -> dict[str, list[int]]:
    """Return the sequence_nrs in messages by persistence id, in rising order."""
    found: dict[str, list[int]] = {}
    for row in session.execute(f"SELECT persistence_id, sequence_nr FROM {keyspace}.messages"):
        found.setdefault(row.persistence_id, []).append(row.sequence_nr)
    return {persistence_id: sorted(numbers) for persistence_id, numbers in found.items()}


def metadata(session: Any, keyspace: str) -> dict[str, int]:
    """Return deleted_to by persistence id."""
    rows = session.execute(f"SELECT persistence_id, deleted_to FROM {keyspace}.metadata")
    return {row.persistence_id: row.deleted_to for row in rows}


def tables(session: Any, keyspace: str, names: Iterable[str] = TABLES) -> dict[str, list[str]]:
    """Return all rows of these tables of a journal, with all columns, as sorted texts."""
    return {
        name: sorted(
            repr(sorted(row._asdict().items())) for row in session.execute(f"SELECT * FROM {keyspace}.{name}")
        )
        for name in names
    }
