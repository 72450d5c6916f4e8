"""Write progress by the column, and read it back (docs/decisions/0107)."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tagmill.cassandra.bulk_writer import Target, write_rows
from tagmill.cassandra.client import PARTITIONS_TOGETHER, READ_TOGETHER, READS_AT_ONCE, Cassandra
from tagmill.domain import identifiers

# Rows that are written and read back together.
ROWS_AT_ONCE = 20_000
SCHEMA = pa.schema(
    {
        "tag": pa.string(),
        "persistence_id": pa.string(),
        "tag_pid_sequence_nr": pa.int64(),
        "sequence_nr": pa.int64(),
        "offset": pa.string(),
        "missing": pa.string(),
    }
)
VALUES = SCHEMA.names[2:]


@dataclass(frozen=True, slots=True)
class ProgressRows:
    """Rows of progress that one run of a pipeline writes, at its write time."""

    cassandra: Cassandra
    ledger_keyspace: str
    pipeline: str
    run: int
    written_at: int

    def write(self, tables: Iterable[pa.Table]) -> Iterator[tuple[int, tuple[str, str] | None]]:
        """Write tables (SCHEMA) about ROWS_AT_ONCE at a time; yield for each of these parts its rows, and the first key
        that does not read back as written.
        """
        for rows in _parts(tables):
            # Sorted, so that a request reads back keys of one tag.
            part = rows.cast(SCHEMA).sort_by("tag")
            self._write(part)
            yield part.num_rows, next(self._other_than(part), None)

    def _write(self, rows: pa.Table) -> None:
        with_offset = rows.filter(rows["offset"].is_valid())
        target = Target(self.ledger_keyspace, "progress", self.written_at)
        shared = {"pipeline": self.pipeline, "run": self.run}
        if with_offset.num_rows:
            write_rows(self.cassandra, target, [with_offset], shared, mixed=PARTITIONS_TOGETHER)
        # Only a null takes the place of an offset that an earlier run has written; these rows are few.
        columns = [*SCHEMA.names, *shared]
        self.cassandra.write_many(
            f"INSERT INTO {identifiers.cql(self.ledger_keyspace)}.progress"
            f" ({', '.join(map(identifiers.cql, columns))}) VALUES ({', '.join('?' * len(columns))})"
            " USING TIMESTAMP ?",
            (
                (*row.values(), *shared.values(), self.written_at)
                for row in rows.filter(rows["offset"].is_null()).to_pylist()
            ),
        )

    def _other_than(self, rows: pa.Table) -> Iterator[tuple[str, str]]:
        """Yield the keys whose stored values are not those of `rows`, which are sorted by tag."""
        asked = deque[dict[str, tuple[Any, ...]]]()
        tags = deque[str]()

        def requests() -> Iterator[tuple[str, str, list[str]]]:
            for tag, wanted in _by_request(rows):
                tags.append(tag)
                asked.append(wanted)
                yield self.pipeline, tag, list(wanted)

        answers = self.cassandra.execute_many(
            f"SELECT persistence_id, {', '.join(map(identifiers.cql, VALUES))}"
            f" FROM {identifiers.cql(self.ledger_keyspace)}.progress"
            " WHERE pipeline = ? AND tag = ? AND persistence_id IN ?",
            requests(),
            concurrency=READS_AT_ONCE,
        )
        for answer in answers:
            tag, wanted = tags.popleft(), asked.popleft()
            stored = {
                persistence_id: (number, sequence_nr, str(offset or ""), missing or "")
                for persistence_id, number, sequence_nr, offset, missing in answer
            }
            for persistence_id, values in wanted.items():
                if stored.get(persistence_id) != values:
                    yield tag, persistence_id


def _parts(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows of the tables, ROWS_AT_ONCE at a time."""
    waiting, count = list[pa.Table](), 0
    for table in tables:
        for begin in range(0, table.num_rows, ROWS_AT_ONCE):
            waiting.append(table.slice(begin, ROWS_AT_ONCE))
            count += waiting[-1].num_rows
            if count >= ROWS_AT_ONCE:
                yield pa.concat_tables(waiting)
                waiting, count = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def _by_request(rows: pa.Table) -> Iterator[tuple[str, dict[str, tuple[Any, ...]]]]:
    """Yield READ_TOGETHER keys of one tag at most: the tag, and by persistence_id the values as they are compared."""
    offsets = ("" if offset is None else offset for offset in rows["offset"].to_pylist())
    missing = ("" if text is None else text for text in rows["missing"].to_pylist())
    numbers, sequence_nrs = (rows[name].to_pylist() for name in VALUES[:2])
    values = zip(numbers, sequence_nrs, offsets, missing, strict=True)
    now, wanted = "", dict[str, tuple[Any, ...]]()
    for tag, persistence_id, of_key in zip(
        rows["tag"].to_pylist(), rows["persistence_id"].to_pylist(), values, strict=True
    ):
        if wanted and (tag != now or len(wanted) == READ_TOGETHER or persistence_id in wanted):
            yield now, wanted
            wanted = {}
        now = tag
        wanted[persistence_id] = of_key
    if wanted:
        yield now, wanted
