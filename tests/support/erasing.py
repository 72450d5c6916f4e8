"""Erase on the test stack, and search for a text in everything that Tagmill writes or knows of."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tagmill.config.settings import Settings
from tagmill.maintenance.erasure.erase import erase
from tests.support.delivery import OWNER, clickhouse_rows, only


def erased(settings: Settings, ids: Iterable[str], *, delete: bool = True) -> dict[str, Any]:
    """Run one erasure in the only pipeline's journal, and return its result."""
    return erase(settings, only(settings), ids, owner=OWNER, who="tester", why="asked for", delete=delete)


def left(session: Any, settings: Settings, text: str, *keyspaces: str) -> list[str]:
    """Return where the text occurs: tables of these keyspaces and of the ledger, files below the storage
    root, destinations.
    """
    return [
        *_tables(session, text, [*keyspaces, settings.cassandra.ledger_keyspace]),
        *_files(Path(settings.storage.root), text),
        *(
            f"ClickHouse {p.destination}"
            for p in settings.pipelines.values()
            if _has(clickhouse_rows(settings, p.destination), text)
        ),
    ]


def _tables(session: Any, text: str, keyspaces: Iterable[str]) -> Iterator[str]:
    for keyspace in keyspaces:
        found = session.execute(
            "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s", (keyspace,)
        )
        for table in [row.table_name for row in found]:
            if _has(session.execute(f"SELECT * FROM {keyspace}.{table}"), text):
                yield f"{keyspace}.{table}"


def _files(root: Path, text: str) -> Iterator[str]:
    """Yield the files that contain the text, as plain bytes or in a value of a Parquet file, which is
    compressed.
    """
    for file in sorted(path for path in root.rglob("*") if path.is_file()):
        compressed = file.suffix == ".parquet" and _has(
            pq.read_table(file, partitioning=None).to_pylist(), text
        )
        if text.encode() in file.read_bytes() or compressed:
            yield str(file.relative_to(root))


def _has(rows: Iterable[Any], text: str) -> bool:
    return any(text in repr(row) for row in rows)
