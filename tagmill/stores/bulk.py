"""Many rows into one table of Cassandra: encoded column by column, sent as unlogged batches of one partition (docs/decisions/0023).

What Arrow makes of the columns is, byte for byte, the body of the protocol's BATCH message, so that a batch is a slice of a buffer.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from struct import error as StructError
from struct import pack
from typing import Any, BinaryIO, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from cassandra import ConsistencyLevel, ProtocolVersion
from cassandra.protocol import BatchMessage, ProtocolHandler
from cassandra.query import BatchStatement, BatchType, PreparedStatement

from tagmill import names
from tagmill.errors import ConfigurationError
from tagmill.rowgroups import fitting
from tagmill.stores.cassandra import Cassandra
from tagmill.stores.encoding import LENGTH, Part, encoded, one
from tagmill.stores.writelimits import BESIDE_VALUES

Rows: TypeAlias = pa.RecordBatch | pa.Table
Numbers = npt.NDArray[np.int64]
# what is encoded at once
PIECE_BYTES = 4 * 1024 * 1024
# a batch has at most both together, a larger row goes alone. Cassandra's thresholds are for batches of several partitions (CASSANDRA-10876)
WINDOW_BYTES, LARGE_ROW_BYTES = 96 * 1024, 16 * 1024
IN_FLIGHT = 16
# columns that name a row which is too large, of the view and of deduplication
NAMING = ("tag_name", "persistence_id", "sequence_nr", "unique_id")
PREPARED, WITH_TIMESTAMP = 1, 0x20
# Arrow's and the driver's
UNFIT = (ValueError, TypeError, NotImplementedError, AttributeError, OverflowError, StructError)


@dataclass(frozen=True, slots=True)
class Target:
    """A table, and with which time (microseconds) its rows are written."""

    keyspace: str
    table: str
    written_at: int
    ttl_seconds: int | None = None


def write_rows(cassandra: Cassandra, target: Target, rows: Iterable[Rows], beside: Mapping[str, Any] | None = None) -> int:
    """Write rows, whose columns are the table's; how many there were. Doing it again writes the same.

    Nulls are not set: they leave what is there, and no tombstone. `beside`: values of Python's that all of the rows have. Types are those
    of encoding.encoded. Rows of a partition that come one after the other are written together.

    Raises:
        ConfigurationError: there is no such table or column, or values do not fit it.
        StoreUnavailable: Cassandra did not answer; some of the rows may be written.
    """
    written = 0

    def batches() -> Iterator["_Batch"]:
        nonlocal written
        encoders: dict[tuple[str, ...], _Encoder] = {}
        for piece in _pieces(rows):
            # a column without values is not set in any row
            columns = tuple(name for name in piece.schema.names if piece[name].null_count < piece.num_rows)
            if columns not in encoders:
                encoders[columns] = _Encoder(cassandra, target, columns, beside or {})
            yield from encoders[columns].batches(piece)
            written += piece.num_rows

    cassandra.session.client_protocol_handler = _Protocol
    cassandra.write_ready(batches(), IN_FLIGHT)
    return written


def _pieces(rows: Iterable[Rows]) -> Iterator[pa.RecordBatch]:
    """The rows, some PIECE_BYTES at once: what is less is put together."""
    waiting, size = list[pa.Table](), 0
    for some in rows:
        table = some if isinstance(some, pa.Table) else pa.Table.from_batches([some])
        if waiting and waiting[0].schema != table.schema:
            yield from _cut(waiting)
            waiting, size = [], 0
        waiting.append(table)
        size += table.nbytes
        if size >= PIECE_BYTES:
            yield from _cut(waiting)
            waiting, size = [], 0
    if waiting:
        yield from _cut(waiting)


def _cut(tables: Sequence[pa.Table]) -> Iterator[pa.RecordBatch]:
    table = pa.concat_tables(tables)
    at_once = fitting(table, PIECE_BYTES)
    for begin in range(0, table.num_rows, at_once):
        yield from table.slice(begin, at_once).combine_chunks().to_batches()


class _Encoder:
    """Makes batches of rows that have these columns."""

    def __init__(self, cassandra: Cassandra, target: Target, columns: Sequence[str], beside: Mapping[str, Any]) -> None:
        self.cassandra, self.where, self.target = cassandra, cassandra.where, target
        ttl = {} if target.ttl_seconds is None else {"[ttl]": target.ttl_seconds}
        of_rows = [name for name in columns if name not in beside]
        self.statement = _prepared(cassandra, target, [*beside, *of_rows])
        self.protocol = cassandra.cluster.protocol_version
        self.kinds = {column.name: column.type for column in self.statement.column_metadata}
        self.given = {name: self._one(name, value) for name, value in {**beside, **ttl}.items()}
        self.keys = [self.statement.column_metadata[index].name for index in self.statement.routing_key_indexes]

    def batches(self, rows: pa.RecordBatch) -> Iterator["_Batch"]:
        """All of the rows."""
        found: dict[str, list[Part]] = {}
        for name in self.kinds:
            given = self.given.get(name)
            found[name] = self._encoded(name, rows[name]) if given is None else [given]
        offsets, content = _joined([_head(self.statement), *(part for parts in found.values() for part in parts)])
        keys = [found[name] for name in self.keys]
        cuts = cut_batches(offsets, [parts[-1] for parts in keys if isinstance(parts[-1], pa.Array)])
        bounds = offsets[cuts].tolist()
        if rows.num_rows and (size := int(np.diff(offsets).max())) > BESIDE_VALUES:
            self._must_fit(rows, int(np.diff(offsets).argmax()), size)
        for row, end, begin_byte, end_byte in zip(cuts[:-1].tolist(), cuts[1:].tolist(), bounds[:-1], bounds[1:], strict=True):
            body = _Body(end - row, content[begin_byte:end_byte], self.target.written_at)
            yield _Batch(body, self.target.keyspace, [_value(parts, row) for parts in keys])

    def _must_fit(self, rows: pa.RecordBatch, row: int, size: int) -> None:
        """Raise ConfigurationError, naming the row, where the largest is one that Cassandra can't hold."""
        if size > (largest := self.cassandra.largest_write):
            of_row = ", ".join(f"{name} {str(rows[name][row].as_py())[:100]}" for name in NAMING if name in rows.schema.names)
            raise ConfigurationError(
                f"{self.where}: a row of {self.target.keyspace}.{self.target.table} ({of_row}) has {size} bytes, and Cassandra "
                f"takes {largest} in one write. Rows before may be written. Raise max_mutation_size of Cassandra, then run it again"
            )

    def _encoded(self, name: str, values: pa.Array) -> list[Part]:
        with self._explained(name):
            if values.null_count and name in self.keys:
                raise ValueError("a row has none, and it is of the partition key")
            return encoded(values, self.kinds[name], self.protocol)

    def _one(self, name: str, value: Any) -> bytes:
        with self._explained(name):
            return one(value, self.kinds[name], self.protocol)

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        try:
            yield
        except UNFIT as error:
            column = f"{self.target.keyspace}.{self.target.table}.{name}"
            raise ConfigurationError(
                f"{self.where}: {column} is {self.kinds[name].cql_parameterized_type()}: {error}. Rows before may be written"
            ) from None


def _prepared(cassandra: Cassandra, target: Target, columns: Sequence[str]) -> PreparedStatement:
    """The values are bound in the order of the columns, then the TTL."""
    ttl = "" if target.ttl_seconds is None else " USING TTL ?"
    into, marks = ", ".join(map(names.cql, columns)), ", ".join("?" * len(columns))
    table = names.cql_table(target.keyspace, target.table)
    return cassandra.prepare(f"INSERT INTO {table} ({into}) VALUES ({marks}){ttl}", ConsistencyLevel.LOCAL_QUORUM)


def _head(statement: PreparedStatement) -> bytes:
    """What stands in front of a row's values in a BATCH message."""
    identity: bytes = statement.query_id
    return pack(">BH", PREPARED, len(identity)) + identity + pack(">H", len(statement.column_metadata))


def _joined(parts: Sequence[Part]) -> tuple[Numbers, memoryview]:
    """The parts of each row behind each other: where rows begin, and the last one ends; what they are."""
    together: list[Any] = []
    for part in parts:
        if isinstance(part, bytes) and together and isinstance(together[-1], bytes):
            together[-1] += part
        else:
            together.append(part)
    scalars = (pa.scalar(part, pa.binary()) if isinstance(part, bytes) else part for part in together)
    rows = pc.binary_join_element_wise(*scalars, pa.scalar(b"", pa.binary()))
    offsets = np.frombuffer(rows.buffers()[1], np.int32)[rows.offset : rows.offset + len(rows) + 1]
    return offsets.astype(np.int64), memoryview(rows.buffers()[2])


def cut_batches(offsets: Numbers, keys: Sequence[pa.Array]) -> Numbers:
    """With which rows batches begin, and where the last one ends.

    In: where each row begins in bytes, and the last one ends; the columns of the partition key that differ from row to row.
    """
    count = len(offsets) - 1
    begins = np.zeros(count, bool)
    begins[0] = True
    for key in keys:
        begins[1:] |= pc.not_equal(key[1:], key[:-1]).to_numpy(zero_copy_only=False)
    large = np.diff(offsets) > LARGE_ROW_BYTES
    begins |= large
    begins[1:] |= large[:-1]
    since = offsets[np.flatnonzero(begins)][np.cumsum(begins) - 1]
    begins[1:] |= np.diff((offsets[:-1] - since) // WINDOW_BYTES) != 0
    return np.append(np.flatnonzero(begins), count)


def _value(parts: Sequence[Part], row: int) -> bytes:
    """One row's value, without its length."""
    content: bytes = b"".join(part if isinstance(part, bytes) else part[row].as_py() for part in parts)
    return content[LENGTH:]


@dataclass(frozen=True, slots=True)
class _Body:
    """Rows as a BATCH message has them. The driver asks for their number only."""

    count: int
    content: memoryview
    written_at: int

    def __len__(self) -> int:
        return self.count


class _Batch(BatchStatement):  # type: ignore[misc]
    """Rows of one partition; `key`: the values of its columns."""

    def __init__(self, body: _Body, keyspace: str, key: Sequence[bytes]) -> None:
        super().__init__(BatchType.UNLOGGED, consistency_level=ConsistencyLevel.LOCAL_QUORUM)
        self.is_idempotent = True
        self.keyspace, self.routing_key = keyspace, list(key)
        self._statements_and_parameters = body  # which the driver hands on to its message as it is


class _Protocol(ProtocolHandler):  # type: ignore[misc]
    """The driver's own, but for the batches that are ready (Session.client_protocol_handler)."""

    @classmethod
    def encode_message(cls, message: Any, *arguments: Any, **options: Any) -> bytes:
        """All of a message as it goes to the server."""
        if isinstance(message, BatchMessage) and isinstance(message.queries, _Body):
            body = message.queries
            message = _BatchMessage(message.batch_type, body, message.consistency_level, timestamp=body.written_at)
        return cast(bytes, super().encode_message(message, *arguments, **options))


class _BatchMessage(BatchMessage):  # type: ignore[misc]
    """The rows come as they are, with the time that they are written at."""

    def send_body(self, sink: BinaryIO, protocol_version: int) -> None:
        """Write what stands behind the message's header."""
        sink.write(pack(">BH", self.batch_type.value, self.queries.count))
        sink.write(self.queries.content)
        flags = ">Hiq" if ProtocolVersion.uses_int_query_flags(protocol_version) else ">HBq"
        sink.write(pack(flags, self.consistency_level, WITH_TIMESTAMP, self.timestamp))
