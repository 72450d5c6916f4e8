"""Compare a topic's columns with its table and its schema files: which columns are new, and what doesn't fit.

Pure, once files are read.

An added column must be nullable: it is null in batches that were sealed before, and null leaves a row's
checksum as it is (batches.columns), so old batches stay valid. The key of unique_id never depends on columns.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tagmill.config.kafka import TopicSettings, decimal_digits
from tagmill.delivery.topics.avro_logical_types import UUID_BYTES, logical_type
from tagmill.delivery.topics.formats import message_of
from tagmill.delivery.topics.protojson import TIMESTAMP, WRAPPERS
from tagmill.delivery.topics.record_decoder import read_avro
from tagmill.delivery.topics.table_columns import fields
from tagmill.domain.batches.layout import Layout
from tagmill.errors import ConfigurationError

ADDED, DIFFERS, LEFT, REQUIRED = (
    "is added",
    "differs",
    "is left alone",
    "must be nullable: rows are there already",
)

# By a field's kind in its schema: the column types that take it. String takes every kind, and stores as JSON
# what is not text.
_NUMBERS = {"Int8", "Int16", "Int32", "Int64", "Float64"}
_TAKEN_BY: dict[str, set[str]] = {
    "integer": {*_NUMBERS, "DateTime64(3, 'UTC')"},
    "decimal": _NUMBERS,
    "float": {"Float64"},
    "boolean": {"Bool"},
    "string": {"DateTime64(3, 'UTC')", "Date", "UUID"},
    "bytes": {"UUID"},
    "fixed": set(),
    "uuid": {"UUID"},
    "moment": {"DateTime64(3, 'UTC')"},
    "day": {"Date"},
    "nanoseconds": {"Int64", "Float64", "DateTime64(3, 'UTC')"},
    "time": set(),
    "duration": set(),
    "nested": set(),
}
_TEXTS = {"String", "LowCardinality(String)"}
_DECIMALS = {"integer", "decimal", "float", "string"}
_MOMENTS = {"integer", "decimal", "float", "string", "moment", "nanoseconds"}


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """A column in which the destination and the configuration differ: its type in each (None: the column is
    missing).
    """

    column: str
    there: str | None
    wanted: str | None
    what: str


def changes(layout: Layout, table_columns: Mapping[str, str]) -> list[ColumnChange]:
    """Return the columns in which a table and the layout differ, and what becomes of each.

    In: the table's columns with their types. Without any, the table is yet to be created, and no column
    differs.
    """
    wanted = {column.name: column for column in layout.columns}
    done = []
    for name, column in wanted.items():
        if name not in table_columns and table_columns:
            done.append(ColumnChange(name, None, column.table_type, ADDED if column.optional else REQUIRED))
        elif table_columns and table_columns[name] != column.table_type:
            done.append(ColumnChange(name, table_columns[name], column.table_type, DIFFERS))
    own = {*wanted, "batch_id", "generation"}
    return [
        *done,
        *(ColumnChange(name, kind, None, LEFT) for name, kind in table_columns.items() if name not in own),
    ]


def fits(pipeline: TopicSettings, contents: Mapping[str, bytes]) -> None:
    """Raise ConfigurationError, naming the field, where a schema file has a field that its column or the key
    can't take.
    """
    for version, kind_by_path in kinds(pipeline, contents).items():
        of = f"schema_files.{version}"
        for path in pipeline.key:
            if path not in kind_by_path:
                raise ConfigurationError(
                    f"{of}: there is no field {path}, which is part of what makes an event unique"
                )
            if kind_by_path[path] in ("nested", "bytes", "fixed"):
                raise ConfigurationError(
                    f"{of}: field {path}, part of what makes an event unique, is no plain value"
                )
        if pipeline.created_at is not None:
            _must_be_moment(of, pipeline.created_at, kind_by_path)
        for field in fields(pipeline.columns):
            kind = kind_by_path.get(field.path)
            if kind is None and not field.nullable:
                raise ConfigurationError(
                    f"{of}: there is no field {field.path}, and column {field.name} is not nullable"
                )
            if kind is not None and not _takes(field.type, kind):
                raise ConfigurationError(
                    f"{of}: field {field.path} is a {kind}, and column {field.name} is {field.type}"
                )


def _takes(column_type: str, kind: str) -> bool:
    if decimal_digits(column_type) is not None:
        return kind in _DECIMALS
    return column_type in _TEXTS | _TAKEN_BY[kind]


def _must_be_moment(of: str, path: str, kind_by_path: Mapping[str, str]) -> None:
    if path not in kind_by_path:
        raise ConfigurationError(f"{of}: there is no field {path}, which created_at names")
    if kind_by_path[path] not in _MOMENTS:
        raise ConfigurationError(
            f"{of}: field {path}, which created_at names, is a {kind_by_path[path]}, and no moment"
        )


def unmapped(pipeline: TopicSettings, contents: Mapping[str, bytes]) -> list[str]:
    """Return the dotted paths of the schema files' fields that no column holds: they are in the payload
    only.
    """
    held = {field.path for field in fields(pipeline.columns)}
    there = {
        path: kind
        for found in kinds(pipeline, contents).values()
        for path, kind in found.items()
        if kind != "nested"
    }
    # The field `value` of a Protobuf wrapper is not listed: its value is that of the wrapper.
    return sorted(path for path in there if path not in held and path.rpartition(".")[0] not in there)


def kinds(pipeline: TopicSettings, contents: Mapping[str, bytes]) -> dict[str, dict[str, str]]:
    """Return each field's dotted path and kind (a key of _TAKEN_BY), by schema version; JSON has no schema,
    so nothing is returned.
    """
    if pipeline.format == "avro":
        schemas = {version: read_avro(version, contents[version]) for version in pipeline.versions}
        return {version: dict(_avro_fields(schema, _named(schema))) for version, schema in schemas.items()}
    if pipeline.format == "protobuf":
        message = str(pipeline.message_type)
        return {
            version: dict(_protobuf_fields(message_of(content, message).DESCRIPTOR))
            for version, content in contents.items()
        }
    return {}


def _avro_fields(
    schema: Any, named: Mapping[str, Any], prefix: str = "", within: Sequence[str] = ()
) -> Iterator[tuple[str, str]]:
    inside = [*within, schema["name"]]
    for field in schema["fields"]:
        path = prefix + field["name"]
        kind = _without_null(field["type"])
        kind = named.get(kind, kind) if isinstance(kind, str) else kind
        yield path, _avro_kind(kind)
        if (
            isinstance(kind, dict) and kind["type"] == "record" and kind["name"] not in inside
        ):  # a record may hold its own kind
            yield from _avro_fields(kind, named, path + ".", inside)


def _named(kind: Any) -> dict[str, Any]:
    """Return the named types that a parsed schema defines, at any depth, by their full names."""
    if isinstance(kind, list):
        return {name: one for part in kind for name, one in _named(part).items()}
    if not isinstance(kind, dict):
        return {}
    below = [
        *(field["type"] for field in kind.get("fields", ())),
        *(kind[part] for part in ("items", "values") if part in kind),
    ]
    return ({kind["name"]: kind} if "name" in kind else {}) | _named(below)


def _without_null(kind: Any) -> Any:
    if isinstance(kind, list):
        rest = [one for one in kind if one != "null"]
        return rest[0] if len(rest) == 1 else {"type": "union"}
    return kind


_AVRO_PLAIN = {
    "int": "integer", "long": "integer", "float": "float", "double": "float", "boolean": "boolean", "string": "string", "enum": "string",
    "bytes": "bytes", "fixed": "bytes",
}  # fmt: skip


def _avro_kind(kind: Any) -> str:
    if not isinstance(kind, dict):
        return _AVRO_PLAIN.get(kind, "nested")
    if logical := logical_type(kind):
        return logical.kind
    if kind["type"] == "fixed" and kind["size"] != UUID_BYTES:
        return "fixed"
    return _AVRO_PLAIN.get(kind["type"], "nested")


_PROTOBUF = {
    "double": "float", "float": "float", "bool": "boolean", "string": "string", "bytes": "bytes", "enum": "string",
}  # fmt: skip
_DEEPEST = 10


def _protobuf_fields(message: Any, prefix: str = "", depth: int = 1) -> Iterator[tuple[str, str]]:
    for field in message.fields:
        path = prefix + field.name
        inner = field.message_type
        if field.is_repeated:
            yield path, "nested"
        elif inner is None:
            yield path, _PROTOBUF.get(_protobuf_type(field), "integer")
        elif inner.full_name == TIMESTAMP:
            yield path, "moment"
        elif inner.full_name in WRAPPERS:
            kind = _PROTOBUF.get(_protobuf_type(inner.fields_by_name["value"]), "integer")
            yield from ((path, kind), (path + ".value", kind))
        else:
            yield path, "nested"
            if depth < _DEEPEST:  # a message may hold its own kind
                yield from _protobuf_fields(inner, path + ".", depth + 1)


def _protobuf_type(field: Any) -> str:
    names = {
        field.TYPE_DOUBLE: "double",
        field.TYPE_FLOAT: "float",
        field.TYPE_BOOL: "bool",
        field.TYPE_STRING: "string",
        field.TYPE_BYTES: "bytes",
        field.TYPE_ENUM: "enum",
    }
    return names.get(field.type, "integer")


def must_fit(name: str, done: Iterable[ColumnChange]) -> None:
    """Raise ConfigurationError if one of these changes can't be made to the table of a pipeline."""
    wrong = [one for one in done if one.what in (DIFFERS, REQUIRED)]
    if wrong:
        said = "; ".join(
            f"column {one.column} {one.what}"
            + (f" ({one.there}, configured {one.wanted})" if one.there else "")
            for one in wrong
        )
        raise ConfigurationError(
            f"pipeline {name}: {said}. Nothing was changed. Take the column back to what it was, or give "
            "the new one another name",
            pipeline=name,
        )
