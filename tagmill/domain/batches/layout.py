"""The columns of a batch: in the sealed file, in the destination table, and in the checksum.

One list for all three.

The checksum of a row folds over the columns: h = h * FACTOR + value. The value is the number itself, or XXH64
(seed 0) of the bytes. Optional columns come after the others: each adds XXH64(value * FACTOR + its salt), or
nothing if it is null. At the end XXH64 of h is taken, so that values exchanged between rows don't cancel out.
The checksum of a batch is the sum of its rows'. All of it is modulo 2^64: Spark (with ANSI off) and
ClickHouse wrap alike.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

FACTOR = 0x9E3779B97F4A7C15
NULL_VALUE = 0x632BE59BD9B4E019
# What identifies an event of tag views: (tag, persistence_id, sequence_nr, writer_uuid). A persistence_id that was
# deleted and begun again has the same sequence_nrs again, from another writer.
EventKey = tuple[str, str, int, str]


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its type in the Parquet file (as ClickHouse names it), in the table, and how its value enters
    the checksum.

    `stored` turns what the table holds back into what the file holds, `insert` the other way round.
    `optional`: may be added to a table that has rows; null leaves the checksum as it is.
    """

    name: str
    file_type: str
    table_type: str
    kind: Literal["text", "number"] = "text"
    nullable: bool = False
    insert: str = "{}"
    stored: str = "{}"
    optional: bool = False

    @property
    def repeats(self) -> bool:
        """Whether few different values are expected."""
        return self.table_type.startswith("LowCardinality")

    @property
    def salt(self) -> int:
        """The number that tells the values of optional columns apart, in whatever order the columns were
        added.
        """
        return int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:8], "big")


COLUMNS = (
    Column("tag", "String", "LowCardinality(String)"),
    Column("persistence_id", "String", "String"),
    Column("sequence_nr", "Int64", "Int64", "number"),
    Column("tag_pid_sequence_nr", "Int64", "Int64", "number"),
    Column(
        "event_time",
        "Int64",
        "DateTime64(7, 'UTC')",
        "number",
        insert="CAST(fromUnixTimestamp64Nano({} * 100, 'UTC') AS DateTime64(7, 'UTC'))",
        stored="intDiv(toUnixTimestamp64Nano(CAST({} AS DateTime64(9, 'UTC'))), 100)",
    ),
    Column("offset", "String", "UUID", insert="toUUID({})", stored="toString({})"),
    Column("timebucket", "Int64", "Int64", "number"),
    Column("writer_uuid", "String", "String"),
    Column("ser_id", "Int32", "Int32", "number"),
    Column("ser_manifest", "String", "String"),
    Column("event_manifest", "String", "String"),
    Column("event", "String", "String"),
    Column("meta_ser_id", "Nullable(Int32)", "Nullable(Int32)", "number", nullable=True),
    Column("meta_ser_manifest", "Nullable(String)", "Nullable(String)", nullable=True),
    Column("meta", "Nullable(String)", "Nullable(String)", nullable=True),
    Column("late", "UInt8", "UInt8", "number"),
)
# Columns that the journal itself knows: all except tag, number, the bucket that a row was read in, and how it
# was delivered.
EVENT = tuple(
    column for column in COLUMNS if column.name not in ("tag", "tag_pid_sequence_nr", "timebucket", "late")
)


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of one destination's batches, in their order, and how ClickHouse stores them.

    `order`: how the table is sorted; `identity`: what tells one event from another. (Tag views' table says
    how it is sorted itself.)
    """

    columns: tuple[Column, ...]
    order: tuple[str, ...] = ()
    identity: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in the order of the file."""
        return tuple(column.name for column in self.columns)

    @property
    def required(self) -> tuple[str, ...]:
        """The names of the columns that are not optional."""
        return tuple(column.name for column in self.columns if not column.optional)

    def input_structure(self) -> str:
        """Return the columns of a sealed file, as ClickHouse's input() takes them."""
        return ", ".join(f"`{column.name}` {column.file_type}" for column in self.columns)

    def insert_expressions(self) -> str:
        """Return the SELECT list that turns a sealed file's columns into the table's."""
        return ", ".join(
            f"{column.insert.format(f'`{column.name}`')} AS `{column.name}`" for column in self.columns
        )

    def table_columns(self) -> str:
        """Return the column definitions of the destination table."""
        return ",\n    ".join(f"`{column.name}` {column.table_type}" for column in self.columns)

    def row_checksum_sql(self) -> str:
        """Return ClickHouse's expression for the checksum of a row of the destination table (UInt64)."""
        return row_checksum_sql(self.columns)


TAG_VIEWS = Layout(COLUMNS, identity=("tag", "persistence_id", "sequence_nr", "writer_uuid"))
NAMES = TAG_VIEWS.names


def row_checksum_sql(columns: Iterable[Column]) -> str:
    """Return ClickHouse's expression for the checksum of a row over some columns (UInt64)."""
    folded = "toUInt64(0)"
    for column in columns:
        if column.optional:
            folded = f"({folded} + {optional_sql(column)})"
        else:
            folded = f"({folded} * {FACTOR} + {_value_sql(column)})"
    return f"xxHash64({folded})"


def optional_sql(column: Column) -> str:
    """Return ClickHouse's expression for what an optional column adds to the checksum of a row (UInt64)."""
    return f"if(isNull(`{column.name}`), 0, xxHash64({_value_sql(column)} * {FACTOR} + {column.salt}))"


def _value_sql(column: Column) -> str:
    stored = column.stored.format(f"`{column.name}`")
    present = f"assumeNotNull({stored})" if column.nullable else stored
    value = f"toUInt64({present})" if column.kind == "number" else f"xxHash64({present})"
    return (
        f"if(isNull(`{column.name}`), {NULL_VALUE}, {value})"
        if column.nullable and not column.optional
        else value
    )


def event_text_sql(text_serializers: list[int]) -> str:
    """Return ClickHouse's expression for the readable form of a payload: the text itself, or '' for bytes."""
    if text_serializers:
        ids = ", ".join(str(int(ser_id)) for ser_id in text_serializers)
        return f"if(`ser_id` IN ({ids}), `event`, '')"
    return "if(isValidUTF8(`event`) AND NOT match(`event`, '[\\x00-\\x08\\x0E-\\x1F]'), `event`, '')"
