"""Write many rows to one Cassandra table: encode column by column, send unlogged batches of one partition
(docs/decisions/0023), or of a few (docs/decisions/0107).

Arrow encodes the columns, byte for byte, as the body of the protocol's BATCH message, so that a batch is a
slice of a buffer.
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
from cassandra import ConsistencyLevel, ProtocolVersion
from cassandra.protocol import BatchMessage, ProtocolHandler
from cassandra.query import BatchStatement, BatchType, PreparedStatement

from tagmill.arrow import begins, fitting
from tagmill.cassandra.client import Cassandra
from tagmill.cassandra.encoding import LENGTH, Numbers, Part, encoded, joined, one
from tagmill.cassandra.write_limits import BESIDE_VALUES
from tagmill.domain import identifiers
from tagmill.errors import ConfigurationError

Rows: TypeAlias = pa.RecordBatch | pa.Table
# Bytes of rows that are encoded at once.
PIECE_BYTES = 4 * 1024 * 1024
# A batch has at most the bytes of both together; a row above LARGE_ROW_BYTES is sent alone. Cassandra's own
# thresholds concern batches of several partitions (CASSANDRA-10876).
WINDOW_BYTES, LARGE_ROW_BYTES = 96 * 1024, 16 * 1024
# A batch of several partitions has at most the bytes of both together: Cassandra warns of it above 5 KiB or 10
# partitions, and refuses it above 50 KiB.
MIXED_WINDOW_BYTES, MIXED_LARGE_ROW_BYTES = 3 * 1024, 1024
# Batches that are under way at once, of one partition and of several.
IN_FLIGHT, MIXED_IN_FLIGHT = 16, 32
# Columns of the view and of deduplication that name a row in the message that it is too large.
NAMING = ("tag_name", "persistence_id", "sequence_nr", "unique_id")
# Constants of the native protocol: a prepared statement in a BATCH message, and the flag for a default
# timestamp.
PREPARED, WITH_TIMESTAMP = 1, 0x20
# Columns, named as the driver names what USING binds, with each row's own write time and TTL in seconds (0: none).
WRITTEN, TTL = "[timestamp]", "[ttl]"
# Errors of Arrow and of the driver for values that do not fit a column.
UNFIT = (ValueError, TypeError, NotImplementedError, AttributeError, OverflowError, StructError)


@dataclass(frozen=True, slots=True)
class Target:
    """A table, and the write time (microseconds) and TTL of the rows that are written to it, unless they have
    columns of their own with these: WRITTEN and TTL.
    """

    keyspace: str
    table: str
    written_at: int
    ttl_seconds: int | None = None


def write_rows(
    cassandra: Cassandra,
    target: Target,
    rows: Iterable[Rows],
    beside: Mapping[str, Any] | None = None,
    *,
    mixed: int = 1,
) -> int:
    """Write rows to the columns of the same names, and return how many rows there were.

    A repetition writes the same.

    Nulls are not set: they leave existing values and write no tombstone. `beside` has Python values that are
    the same in all rows. Types are those of encoding.encoded. Consecutive rows of one partition are written
    together; with `mixed` above 1, so many consecutive rows of any partitions at most.

    Raises:
        ConfigurationError: the table or a column does not exist, or values do not fit.
        StoreUnavailable: Cassandra did not answer; some of the rows may be written.
    """
    written = 0

    def batches() -> Iterator["_Batch"]:
        nonlocal written
        encoders: dict[tuple[str, ...], _Encoder] = {}
        for piece in _pieces(rows):
            # A column without values is not set in any row.
            columns = tuple(name for name in piece.schema.names if piece[name].null_count < piece.num_rows)
            if columns not in encoders:
                encoders[columns] = _Encoder(cassandra, target, columns, beside or {}, mixed)
            yield from encoders[columns].batches(piece)
            written += piece.num_rows

    cassandra.session.client_protocol_handler = BatchProtocol
    cassandra.write_ready(batches(), IN_FLIGHT if mixed == 1 else MIXED_IN_FLIGHT)
    return written


def _pieces(rows: Iterable[Rows]) -> Iterator[pa.RecordBatch]:
    """Yield the rows in pieces of about PIECE_BYTES; smaller inputs of one schema are joined, larger ones
    cut.
    """
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
    """Encoder of rows with one set of columns into batches."""

    def __init__(
        self,
        cassandra: Cassandra,
        target: Target,
        columns: Sequence[str],
        beside: Mapping[str, Any],
        mixed: int = 1,
    ) -> None:
        self.cassandra, self.where, self.target, self.mixed = cassandra, cassandra.where, target, mixed
        ttl = {} if target.ttl_seconds is None else {TTL: target.ttl_seconds}
        of_rows = [name for name in columns if name not in beside]
        self.statement = _prepared(cassandra, target, [*beside, *of_rows, *ttl])
        self.protocol = cassandra.cluster.protocol_version
        self.kinds = {column.name: column.type for column in self.statement.column_metadata}
        self.given = {name: self._one(name, value) for name, value in {**beside, **ttl}.items()}
        self.keys = [
            self.statement.column_metadata[index].name for index in self.statement.routing_key_indexes
        ]

    def batches(self, rows: pa.RecordBatch) -> Iterator["_Batch"]:
        """Yield all rows as batches of consecutive rows of one partition, or of any if they may be mixed; raises
        ConfigurationError for a row that can't be written.
        """
        found: dict[str, list[Part]] = {}
        for name in self.kinds:
            given = self.given.get(name)
            found[name] = self._encoded(name, rows[name]) if given is None else [given]
        offsets, joined_rows = joined(
            [_head(self.statement), *(part for parts in found.values() for part in parts)]
        )
        content = memoryview(joined_rows)
        keys = [found[name] for name in self.keys]
        if self.mixed > 1:
            cuts = cut_mixed(offsets, self.mixed)
        else:
            cuts = cut_batches(offsets, [parts[-1] for parts in keys if isinstance(parts[-1], pa.Array)])
        bounds = offsets[cuts].tolist()
        if rows.num_rows and (size := int(np.diff(offsets).max())) > BESIDE_VALUES:
            self._must_fit(rows, int(np.diff(offsets).argmax()), size)
        for row, end, begin_byte, end_byte in zip(
            cuts[:-1].tolist(), cuts[1:].tolist(), bounds[:-1], bounds[1:], strict=True
        ):
            body = _Body(end - row, content[begin_byte:end_byte], self.target.written_at)
            yield _Batch(body, self.target.keyspace, [_value(parts, row) for parts in keys])

    def _must_fit(self, rows: pa.RecordBatch, row: int, size: int) -> None:
        """Raise ConfigurationError, naming the row, if Cassandra does not take its bytes in one write."""
        if size > (largest := self.cassandra.largest_write):
            of_row = ", ".join(
                f"{name} {identifiers.shortened(str(rows[name][row].as_py()), 100)}"
                for name in NAMING
                if name in rows.schema.names
            )
            raise ConfigurationError(
                f"{self.where}: a row of {self.target.keyspace}.{self.target.table} ({of_row}) has "
                f"{size} bytes, and Cassandra "
                f"takes {largest} in one write. Rows before may be written. Raise max_mutation_size of "
                "Cassandra, then run it again"
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
                f"{self.where}: {column} is {self.kinds[name].cql_parameterized_type()}: {error}. Rows "
                "before may be written"
            ) from None


def _prepared(cassandra: Cassandra, target: Target, columns: Sequence[str]) -> PreparedStatement:
    """Prepare the INSERT of these columns; WRITTEN and TTL are bound by its USING."""
    into = [name for name in columns if name not in (WRITTEN, TTL)]
    using = [cql for name, cql in ((WRITTEN, "TIMESTAMP ?"), (TTL, "TTL ?")) if name in columns]
    table = identifiers.cql_table(target.keyspace, target.table)
    return cassandra.prepare(
        f"INSERT INTO {table} ({', '.join(map(identifiers.cql, into))}) VALUES ({', '.join('?' * len(into))})"
        + (f" USING {' AND '.join(using)}" if using else ""),
        ConsistencyLevel.LOCAL_QUORUM,
    )


def _head(statement: PreparedStatement) -> bytes:
    """Return the bytes in front of a row's values in a BATCH message: kind, statement id, number of
    values.
    """
    identity: bytes = statement.query_id
    return pack(">BH", PREPARED, len(identity)) + identity + pack(">H", len(statement.column_metadata))


def cut_batches(offsets: Numbers, keys: Sequence[pa.Array]) -> Numbers:
    """Return the indexes of the rows with which batches begin, followed by the number of rows.

    Args:
        offsets: the byte at which each row begins, and the last one ends.
        keys: the columns of the partition key that differ from row to row.
    """
    return _cut_by_size(offsets, begins(len(offsets) - 1, keys), WINDOW_BYTES, LARGE_ROW_BYTES)


def cut_mixed(offsets: Numbers, rows: int) -> Numbers:
    """Return what cut_batches returns, for batches of at most `rows` rows of any partitions."""
    at = np.zeros(len(offsets) - 1, bool)
    at[::rows] = True
    return _cut_by_size(offsets, at, MIXED_WINDOW_BYTES, MIXED_LARGE_ROW_BYTES)


def _cut_by_size(offsets: Numbers, at: npt.NDArray[np.bool_], window: int, large_row: int) -> Numbers:
    """Cut batches, which begin where `at` says, at each `window` of bytes and around each larger row than
    `large_row`.
    """
    large = np.diff(offsets) > large_row
    at |= large
    at[1:] |= large[:-1]
    since = offsets[np.flatnonzero(at)][np.cumsum(at) - 1]
    at[1:] |= np.diff((offsets[:-1] - since) // window) != 0
    return np.append(np.flatnonzero(at), len(at))


def _value(parts: Sequence[Part], row: int) -> bytes:
    """Return one row's value from the parts of its column, without the length in front."""
    content: bytes = b"".join(part if isinstance(part, bytes) else part[row].as_py() for part in parts)
    return content[LENGTH:]


@dataclass(frozen=True, slots=True)
class _Body:
    """Rows as a BATCH message has them. The driver only asks for their number."""

    count: int
    content: memoryview
    written_at: int

    def __len__(self) -> int:
        return self.count


class _Batch(BatchStatement):  # type: ignore[misc]
    """Rows of one partition, or of a few; `key`: the values of the first one's columns."""

    def __init__(self, body: _Body, keyspace: str, key: Sequence[bytes]) -> None:
        super().__init__(BatchType.UNLOGGED, consistency_level=ConsistencyLevel.LOCAL_QUORUM)
        self.is_idempotent = True
        self.keyspace, self.routing_key = keyspace, list(key)
        self._statements_and_parameters = body  # The driver passes this on to its message unchanged.


class BatchProtocol(ProtocolHandler):  # type: ignore[misc]
    """The driver's protocol handler (Session.client_protocol_handler), with an encoding of its own for ready
    batches.
    """

    @classmethod
    def encode_message(cls, message: Any, *arguments: Any, **options: Any) -> bytes:
        """Encode a whole message for the server; a ready batch keeps its bytes and the write time of its
        rows.
        """
        if isinstance(message, BatchMessage) and isinstance(message.queries, _Body):
            body = message.queries
            message = _BatchMessage(
                message.batch_type, body, message.consistency_level, timestamp=body.written_at
            )
        return cast(bytes, super().encode_message(message, *arguments, **options))


class _BatchMessage(BatchMessage):  # type: ignore[misc]
    """A BATCH message of rows that are already encoded, with their write time."""

    def send_body(self, sink: BinaryIO, protocol_version: int) -> None:
        """Write the body of the message, which follows its header."""
        sink.write(pack(">BH", self.batch_type.value, self.queries.count))
        sink.write(self.queries.content)
        flags = ">Hiq" if ProtocolVersion.uses_int_query_flags(protocol_version) else ">HBq"
        sink.write(pack(flags, self.consistency_level, WITH_TIMESTAMP, self.timestamp))
