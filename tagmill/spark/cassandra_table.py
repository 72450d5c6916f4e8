"""Read a table of Cassandra as a DataFrame, and write one to it, with Python tasks.

A DataFrame made here reads Cassandra each time that it is evaluated. Types of its columns: text for a UUID, an array
for a set or a list, a struct of "0", "1", … for a tuple.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from cassandra import cqltypes
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from tagmill.cassandra.arrow_values import arrow_type, with_texts
from tagmill.cassandra.bulk_writer import Target as TargetTable
from tagmill.cassandra.bulk_writer import write_rows
from tagmill.cassandra.client import Cassandra, connected
from tagmill.cassandra.paging import Pages, kept_pages, token_ranges
from tagmill.cassandra.schema import Table
from tagmill.config.settings import CassandraSettings
from tagmill.domain import identifiers
from tagmill.errors import ConfigurationError
from tagmill.spark.arrow_chunks import in_python
from tagmill.spark.bulk_load import COUNT
from tagmill.spark.session import setting
from tagmill.spark.task_files import FILES, Convert, Target

UUIDS = (cqltypes.UUIDType.typename, cqltypes.TimeUUIDType.typename)
# Tasks that read a whole table, for each core.
TASKS_PER_CORE = 8
# Queries by key that a task has under way at most.
LOOK_UPS = 64
# Rows that a task gets at once to write; fewer where their values may be large.
ROWS_AT_ONCE, LARGE_ROWS = 20_000, 25


@dataclass(frozen=True, slots=True)
class _Reading:
    """What a task needs to read: `terms`, CQL by the names of the columns that they become, of `table` (quoted)."""

    settings: CassandraSettings
    table: str
    terms: Mapping[str, str]
    types: Mapping[str, pa.DataType]
    is_own: bool

    def query(self, *conditions: str, tail: str = "") -> str:
        """Return the query of the rows that meet the conditions."""
        terms = ", ".join(f"{term} AS {identifiers.cql(name)}" for name, term in self.terms.items())
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        return f"SELECT {terms} FROM {self.table}{where}{tail}"

    def pages(self) -> Pages:
        """Return the pages of the task's connection."""
        return kept_pages(self.settings, own=self.is_own)


@dataclass(frozen=True, slots=True)
class CassandraTable:
    """A table of a keyspace, read and written at the consistency of [cassandra].

    `is_own`: Tagmill writes the table, so reads don't depend on read_consistency; the ledger's tables are always read so.
    """

    cassandra: Cassandra
    keyspace: str
    name: str
    is_own: bool = False

    @classmethod
    def of_ledger(cls, cassandra: Cassandra, name: str) -> "CassandraTable":
        """Return a table of the ledger."""
        return cls(cassandra, cassandra.settings.ledger_keyspace, name)

    @property
    def cql(self) -> str:
        """The table's name, quoted for CQL."""
        return identifiers.cql_table(self.keyspace, self.name)

    def rows(
        self,
        spark: SparkSession,
        *columns: str,
        per_partition: int | None = None,
        aggregated: bool = False,
        **terms: str,
    ) -> DataFrame:
        """Return all rows, each task's in Cassandra's order.

        Args:
            spark: the session.
            columns: to read.
            per_partition: rows of a partition at most.
            aggregated: whether to return one row for each partition: columns are of its key, terms aggregates.
            terms: CQL to read, e.g. written="writetime(event)".

        Raises ConfigurationError: there is no such table or column.
        """
        tail = "" if per_partition is None else f" PER PARTITION LIMIT {per_partition}"
        if aggregated:
            tail = self._grouped()
        scan = self._scan(spark, columns, terms, tail)
        return scan.numbers(spark).mapInArrow(scan.rows, from_arrow_schema(pa.schema(scan.reading.types)))

    def write(
        self, spark: SparkSession, columns: Sequence[str], target: Target, convert: Convert, **terms: str
    ) -> list[str]:
        """Read all rows, UUIDs as binary(16), write what `convert` makes of them to `target`, and return the files'
        names; `terms` as `rows` takes them.
        """
        scan = self._scan(spark, columns, terms)
        task = partial(_written, scan, target, convert)
        return target.names(scan.numbers(spark).mapInArrow(task, from_arrow_schema(FILES)))

    def rows_of(
        self,
        keys: DataFrame,
        on: Sequence[str],
        *columns: str,
        where: Mapping[str, str] | None = None,
        left: bool = False,
        aggregated: bool = False,
        together: int = 1,
        **terms: str,
    ) -> DataFrame:
        """Return the rows of keys, joined to them: each task asks for those of its own, one after the other.

        Args:
            keys: with the columns `on`, all of the partition key at least, and others, which stay.
            on: columns that the keys and the table have. A key with a null has no rows. Without any, no column of the
                keys stays, and conditions name the partition key.
            columns: of the table, to read besides.
            where: further conditions, e.g. {"sequence_nr >": "from_nr"}: what each compares with a column of the keys.
            left: whether a key without rows stays, with nulls.
            aggregated: as `rows` takes it.
            together: keys that one query asks for at most; they agree in all of `on` but the last, which is of the
                table's clustering key, and are near each other in `keys`. There are no conditions besides.
            terms: as `rows` takes them.

        Raises ConfigurationError: there is no such table or column.
        """
        kinds = self._table().columns
        reading = self._reading((*on, *columns), terms)
        conditions = {**{f"{identifiers.cql(name)} =": name for name in on}, **(where or {})}
        if together > 1:
            del conditions[f"{identifiers.cql(on[-1])} ="]
            conditions[f"{identifiers.cql(on[-1])} IN"] = on[-1]
        look_up = _LookUp(
            reading,
            reading.query(
                *(f"{condition} ?" for condition in conditions), tail=self._grouped() if aggregated else ""
            ),
            tuple(on),
            tuple(conditions.values()),
            frozenset(
                name
                for condition, name in conditions.items()
                if kinds[condition.split()[0].strip('"')] in UUIDS
            ),
            left,
            together,
            pa.schema(
                [
                    *(to_arrow_schema(keys.schema) if on else ()),
                    *(field for field in pa.schema(reading.types) if field.name not in on),
                ]
            ),
        )
        return keys.mapInArrow(look_up.joined, from_arrow_schema(look_up.schema))

    def append(self, rows: DataFrame, written_at: int | None = None, *, large: bool = False) -> int:
        """Write rows to the columns of the same names, and return how many there were; a null is not written.

        Rows of one partition that follow each other are written together.

        Args:
            rows: columns `[timestamp]` and `[ttl]` (seconds; 0: none) have each row's own.
            written_at: the write time (microseconds) of rows that have none of their own.
            large: whether a row may have a megabyte.
        """
        to = TargetTable(self.keyspace, self.name, written_at or 0)
        task = partial(_append, settings=self.cassandra.settings, to=to)
        schema = from_arrow_schema(COUNT)
        at_once = LARGE_ROWS if large else ROWS_AT_ONCE
        with setting(rows.sparkSession, "spark.sql.execution.arrow.maxRecordsPerBatch", str(at_once)):
            written = in_python(rows, task, schema, at_once) if large else rows.mapInArrow(task, schema)
            return sum(line["rows"] for line in written.collect())

    def _scan(
        self, spark: SparkSession, columns: Sequence[str], terms: Mapping[str, str], tail: str = ""
    ) -> "_Scan":
        key = self._partition_key()
        reading = self._reading(columns, terms)
        count = TASKS_PER_CORE * spark.sparkContext.defaultParallelism
        # A cluster whose partitioner isn't Murmur3 is read by one task.
        ranges = token_ranges(self.cassandra, count)
        if ranges is None:
            return _Scan(reading, reading.query(tail=tail), [()], 1)
        query = reading.query(f"token({key}) > ?", f"token({key}) <= ?", tail=tail)
        return _Scan(reading, query, ranges, min(count, len(ranges)))

    def _reading(self, columns: Sequence[str], terms: Mapping[str, str]) -> _Reading:
        """Ask Cassandra for the types of what is read."""
        chosen = {**{name: identifiers.cql(name) for name in columns}, **terms}
        settings = self.cassandra.settings
        is_own = self.is_own or self.keyspace == settings.ledger_keyspace
        reading = _Reading(settings, self.cql, chosen, {}, is_own)
        statement = self.cassandra.prepare(reading.query())
        try:
            types = {name: arrow_type(kind) for _, _, name, kind in statement.result_metadata}
        except TypeError as error:
            raise ConfigurationError(
                f"{self.cassandra.where}: {self.cql}: {error}. Nothing was read"
            ) from None
        return replace(reading, types=types)

    def _grouped(self) -> str:
        return f" GROUP BY {self._partition_key()}"

    def _partition_key(self) -> str:
        return ", ".join(map(identifiers.cql, self._table().partition_key))

    def _table(self) -> Table:
        """Return the table as it is now; raises ConfigurationError if there is none."""
        found = (self.cassandra.tables(self.keyspace) or {}).get(self.name)
        if found is None:
            raise ConfigurationError(
                f"{self.cassandra.where}: there is no table {self.cql}, or the user may not see it. Nothing of it "
                "was read or written"
            )
        return found


@dataclass(frozen=True, slots=True)
class _Scan:
    """The reading of a table by so many `tasks`: the query of each part, by the values that it binds."""

    reading: _Reading
    query: str
    parts: Sequence[tuple[int, ...]]
    tasks: int

    def numbers(self, spark: SparkSession) -> DataFrame:
        """Return the numbers of the parts, each task's together."""
        return spark.range(0, len(self.parts), 1, self.tasks)

    def rows(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of parts as Spark takes them."""
        return map(with_texts, self.pages(numbers))

    def pages(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of parts, UUIDs as binary(16)."""
        pages = self.reading.pages()
        for batch in numbers:
            for number in batch["id"].to_pylist():
                yield from pages.of(self.query, *self.parts[number])


def _written(
    scan: _Scan, target: Target, convert: Convert, numbers: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    return target.write_rows(map(convert, scan.pages(numbers)))


@dataclass(frozen=True, slots=True)
class _LookUp:
    """The look-up of keys by one query: `on` names what rows are joined by, `bound` the values of the query."""

    reading: _Reading
    query: str
    on: Sequence[str]
    bound: Sequence[str]
    uuids: frozenset[str]
    left: bool
    together: int
    schema: pa.Schema = field(repr=False)

    def joined(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of each key with the key's columns, in the order of the keys unless some go together."""
        pages = self.reading.pages()
        for batch in batches:
            if not self.on:
                yield from map(with_texts, pages.of_each(self.query, self._values(batch), LOOK_UPS))
                continue
            for keys in _distinct(batch, self.on):
                yield from self._of(pages, keys)

    def _of(self, pages: Pages, keys: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        place_of = _Places(keys, self.on)
        found = np.zeros(keys.num_rows, bool)
        for page in pages.of_each(self.query, self._grouped(self._values(keys)), LOOK_UPS):
            rows = with_texts(page)
            places = place_of(rows)
            found[places] = True
            yield self._together(keys.take(pa.array(places)), rows)
        if self.left and not found.all():
            missing = keys.filter(pa.array(~found))
            yield self._together(missing, None)

    def _values(self, keys: pa.RecordBatch) -> Iterator[list[Any]]:
        """Yield the values that each query binds; a key with a null has no query."""
        columns = (
            [UUID(value) if value and name in self.uuids else value for value in keys[name].to_pylist()]
            for name in self.bound
        )
        return (list(values) for values in zip(*columns, strict=True) if None not in values)

    def _grouped(self, values: Iterator[list[Any]]) -> Iterator[list[Any]]:
        """Yield the values that each query binds, of so many keys as it asks for."""
        if self.together == 1:
            yield from values
            return
        groups = defaultdict[tuple[Any, ...], list[Any]](list)
        for *front, last in values:
            groups[tuple(front)].append(last)
        for group, lasts in groups.items():
            for begin in range(0, len(lasts), self.together):
                yield [*group, lasts[begin : begin + self.together]]

    def _together(self, keys: pa.RecordBatch, rows: pa.RecordBatch | None) -> pa.RecordBatch:
        of_keys = set(keys.schema.names)
        columns = [
            keys[field.name].cast(field.type)
            if field.name in of_keys
            else pa.nulls(keys.num_rows, field.type)
            if rows is None
            else rows[field.name]
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


class _Places:
    """The places of keys, which are distinct, by the values of the columns `on`."""

    def __init__(self, keys: pa.RecordBatch, on: Sequence[str]) -> None:
        self.on = on
        self.values = {name: pc.unique(keys[name]) for name in on}
        self.codes = pa.array(self._codes(keys))

    def __call__(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """Return the place of each row's key."""
        found: npt.NDArray[np.int64] = pc.index_in(pa.array(self._codes(rows)), self.codes).to_numpy()
        return found

    def _codes(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        codes = np.zeros(rows.num_rows, np.int64)
        for name, values in self.values.items():
            code = pc.index_in(rows[name].cast(values.type), values).to_numpy(zero_copy_only=False)
            codes = codes * (len(values) + 1) + code.astype(np.int64)
        return codes


def _distinct(batch: pa.RecordBatch, on: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Cut a batch into batches in which no key is twice: each key's first row, each one's second row, and so on."""
    _, keys, counts = np.unique(_Places(batch, on).codes.to_numpy(), return_inverse=True, return_counts=True)
    by_key = np.argsort(keys, kind="stable")
    turn = np.empty(len(keys), np.int64)
    turn[by_key] = np.arange(len(keys)) - np.repeat(np.cumsum(counts) - counts, counts)
    for number in range(counts.max(initial=0)):
        yield batch.filter(pa.array(turn == number))


def _append(
    batches: Iterable[pa.RecordBatch], settings: CassandraSettings, to: TargetTable
) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"rows": [write_rows(connected(settings), to, batches)]}, COUNT)
