"""Load journals that the real plugin wrote (tests/fixtures/pekko, one folder per case) into a running
Cassandra.

tests/fixtures/README.md describes each case. Nulls are not written (no tombstones). Loading twice gives the
same rows.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow.parquet as pq
from cassandra.cluster import Session
from cassandra.query import UNSET_VALUE

from local.cql import write_partitions
from local.layout import ROOT
from tagmill.cassandra.schema import Table, read_keyspaces
from tagmill.domain.identifiers import cql
from tagmill.errors import ConfigurationError

CASES = ROOT / "tests" / "fixtures" / "pekko"
TABLES = ("messages", "tag_views", "tag_write_progress", "tag_scanning", "metadata", "all_persistence_ids")
# Tables that an application with events-by-tag off writes.
WITHOUT_VIEWS = ("messages", "metadata", "all_persistence_ids")
CONVERT: dict[str, Callable[[Any], Any]] = {
    "uuid": UUID,
    "timeuuid": UUID,
    "set<text>": set,
    "map<text, text>": dict,
}


@dataclass(frozen=True)
class Case:
    """One folder of fixtures: its tables, its schema, and what the plugin itself read from them."""

    name: str

    @property
    def folder(self) -> Path:
        """The case's folder; raises ConfigurationError if there is no such case."""
        folder = CASES / self.name
        if not (folder / "schema.cql").is_file():
            known = ", ".join(sorted(path.name for path in CASES.iterdir() if path.is_dir()))
            raise ConfigurationError(
                f"there is no fixture case {self.name!r}. Nothing was loaded. There are: {known}"
            )
        return folder

    @cached_property
    def expected(self) -> dict[str, Any]:
        """The content of expected.json: bucket, first_time_bucket, and rc, count, error and file per tag."""
        content: dict[str, Any] = json.loads((self.folder / "expected.json").read_text(encoding="utf-8"))
        return content

    @property
    def tags(self) -> list[str]:
        """The case's tags, sorted."""
        return sorted(self.expected["tags"])

    def delivered(self, tag: str) -> list[tuple[str, int, str]]:
        """Return what the plugin delivered for a tag, in its order: (persistence_id, sequence_nr, offset)."""
        text = (self.folder / self.expected["tags"][tag]["file"]).read_text(encoding="utf-8")
        rows = (line.split("\t") for line in text.splitlines())
        return [(persistence_id, int(number), offset) for persistence_id, number, offset in rows]

    def table(self, name: str) -> Any:
        """Read one table as an Arrow table; uuid and timeuuid columns are strings."""
        return pq.read_table(self.folder / f"{name}.parquet")

    def statements(self, keyspace: str) -> Iterator[str]:
        """Yield the CREATE statements of the keyspace and its tables, with the keyspace renamed."""
        schema = (self.folder / "schema.cql").read_text(encoding="utf-8")
        match = re.search(r"CREATE KEYSPACE IF NOT EXISTS (\w+)", schema)
        assert match, f"{self.folder}/schema.cql creates no keyspace"
        for text in re.split(r";\s*\n", schema):
            if text.strip():
                yield re.sub(rf"(?<=IF NOT EXISTS ){match[1]}\b", cql(keyspace), text)


def load_case(
    session: Session, case: str, keyspace: str, drop: bool = False, tables: Sequence[str] = TABLES
) -> dict[str, int]:
    """Create the keyspace and tables that are missing, write the rows, and return the number of rows per
    table.

    With `tables`, the other tables are created and stay empty. A table that already holds exactly as many
    rows is left as it is. `drop` drops the keyspace first.
    """
    source = Case(case)
    statements = list(source.statements(keyspace))
    if drop:
        session.execute(f"DROP KEYSPACE IF EXISTS {cql(keyspace)}")
    for statement in statements:
        session.execute(statement)
    there = read_keyspaces(session, keyspace)[keyspace].tables
    return {table: _load_table(session, source, keyspace, there[table]) for table in tables}


def _load_table(session: Session, source: Case, keyspace: str, table: Table) -> int:
    data = source.table(table.name)
    name = f"{cql(keyspace)}.{table.name}"
    if data.num_rows and session.execute(f"SELECT count(*) FROM {name}").one()[0] == data.num_rows:
        return int(data.num_rows)
    convert = [CONVERT.get(table.columns[column], lambda value: value) for column in data.column_names]
    keys = [data.column_names.index(column) for column in table.partition_key]
    partitions: defaultdict[tuple[Any, ...], list[list[Any]]] = defaultdict(list)
    for row in zip(*(column.to_pylist() for column in data.columns), strict=True):
        values = [
            UNSET_VALUE if value is None else make(value) for make, value in zip(convert, row, strict=True)
        ]
        partitions[tuple(row[key] for key in keys)].append(values)
    write_partitions(session, name, data.column_names, partitions.values(), _largest_payload(data))
    return int(data.num_rows)


def _largest_payload(data: Any) -> int:
    payloads = (data[column].to_pylist() for column in ("event", "meta") if column in data.column_names)
    return max((len(value) for values in payloads for value in values if value), default=0)
