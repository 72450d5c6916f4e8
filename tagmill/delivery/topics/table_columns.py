"""The columns of a destination: Tagmill's own, then those of the topic's pipeline. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tagmill.config.kafka import KafkaJournalEventsSettings, Stream, TopicColumn, decimal_digits
from tagmill.delivery.topics.fields import KINDS, Field
from tagmill.domain.batches.layout import Column, Layout
from tagmill.errors import ConfigurationError

CREATED_AT = Column(
    "created_at", "Int64", "DateTime64(3, 'UTC')", "number",
    insert="fromUnixTimestamp64Milli({}, 'UTC')", stored="toUnixTimestamp64Milli({})",
)  # fmt: skip
POSITION = (
    Column("topic", "String", "LowCardinality(String)"),
    Column("partition", "Int32", "Int32", "number"),
    Column("offset", "Int64", "Int64", "number"),
)
OWN = (
    Column("unique_id", "String", "String"),
    CREATED_AT,
    *POSITION,
    Column("schema_version", "String", "LowCardinality(String)"),
    Column("payload", "String", "String"),
)
# The columns of a Kafka Journal's events, one row for each tag of an event. Values that are null in the
# journal's tables are empty here.
JOURNAL = Layout(
    (
        Column("tag", "String", "LowCardinality(String)"),
        Column("id", "String", "String"),
        Column("seq_nr", "Int64", "Int64", "number"),
        CREATED_AT,
        *POSITION,
        Column("origin", "String", "LowCardinality(String)"),
        Column("version", "String", "LowCardinality(String)"),
        Column("metadata", "String", "String"),
        Column("headers", "String", "String"),
        Column("payload_type", "String", "LowCardinality(String)"),
        Column("payload", "String", "String"),
    ),
    order=("tag", "id", "seq_nr"),
    identity=("tag", "topic", "partition", "offset", "seq_nr"),
)


def fields(columns: Iterable[TopicColumn]) -> list[Field]:
    """Return configured columns as fields of an event; a column without a path takes the field of its own
    name.
    """
    return [Field(one.name, one.path or one.name, one.type, one.nullable) for one in columns]


def layout(pipeline: Stream) -> Layout:
    """Return the columns of a pipeline's batches: Tagmill's own, then the configured ones, nullable ones
    last.
    """
    if isinstance(pipeline, KafkaJournalEventsSettings):
        return JOURNAL
    columns = sorted((one.column for one in fields(pipeline.columns)), key=lambda column: column.optional)
    return Layout((*OWN, *columns), order=("topic", "created_at", "unique_id"), identity=("unique_id",))


def sealed_layout(pipeline: Stream, names: Iterable[str], of: str) -> Layout:
    """Return the layout with the columns that were sealed; raises ConfigurationError if one of them is no
    longer configured.

    `of`: what was sealed, for the message.
    """
    today, wanted = {column.name: column for column in layout(pipeline).columns}, list(names)
    if gone := [name for name in wanted if name not in today]:
        raise ConfigurationError(
            f"{of} was sealed with the column {', '.join(gone)}, which the configuration has no more. "
            "Nothing was sent; put it back"
        )
    return replace(layout(pipeline), columns=tuple(today[name] for name in wanted))


def verifiable_layout(pipeline: Stream, table_columns: Mapping[str, str]) -> Layout:
    """Return the layout with the destination's nullable columns that are no longer configured.

    They are in the checksums of rows that were delivered with them. In: columns of the destination that have
    no default, with their types.
    """
    today = layout(pipeline)
    made = {Field("", "", kind, nullable=True).column.table_type: kind for kind in KINDS}
    left = [
        Field(name, name, kind, nullable=True).column
        for name, there in table_columns.items()
        if name not in today.names and (kind := made.get(there) or _decimal_type(there))
    ]
    return (
        today
        if isinstance(pipeline, KafkaJournalEventsSettings)
        else replace(today, columns=(*today.columns, *left))
    )


def _decimal_type(table_type: str) -> str | None:
    """Return the decimal type of a nullable column of decimals; None for any other column."""
    inner = table_type.removeprefix("Nullable(").removesuffix(")")
    return inner if table_type == f"Nullable({inner})" and decimal_digits(inner) else None


def require_unchanged_columns(pipeline: Stream, sealed: list[str], of: str) -> None:
    """Raise ConfigurationError unless the columns that aren't nullable are those that were sealed, in their
    order.

    Checksums of rows fold them in that order. A nullable column may come and go: where it is null, it leaves
    the checksum as it is.
    """
    if sealed != (today := list(layout(pipeline).required)):
        raise ConfigurationError(
            f"{of} has delivered the columns {', '.join(sealed)}, none of them nullable, and the "
            f"configuration says {', '.join(today)}. "
            "Nothing was done; put them back in that order"
        )
