"""What schema files say of the fields that a pipeline names: those that fit pass, the others are named."""

import json
from pathlib import Path

import pytest

from tagmill.config.kafka import TopicColumn, TopicSettings
from tagmill.delivery.topics.schema_evolution import fits, kinds
from tagmill.errors import ConfigurationError

KIND = {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}
PART = {
    "type": "record",
    "name": "Part",
    "fields": [{"name": "made", "type": "Kind"}, {"name": "of", "type": ["null", "Part"]}],
}
SCHEMA = {
    "type": "record", "name": "Event", "namespace": "shop", "fields": [
        {"name": "before", "type": {"type": "array", "items": KIND}}, {"name": "kind", "type": ["null", "Kind"]},
        {"name": "hash", "type": {"type": "fixed", "name": "Md5", "size": 16}}, {"name": "other", "type": "shop.Md5"},
        {"name": "first", "type": PART}, {"name": "second", "type": "Part"}, {"name": "note", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "on", "type": {"type": "int", "logicalType": "date"}},
        {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "own", "type": {"type": "fixed", "name": "Own", "size": 16, "logicalType": "uuid"}},
    ],
}  # fmt: skip
CONTENTS = {"1": json.dumps(SCHEMA).encode()}


def chosen(**keys):
    columns = [TopicColumn(name="hash", type="UUID")]
    wanted = {
        "unique_id": ["kind"],
        "destination": "t",
        "schema_files": {"1": Path("x")},
        "columns": columns,
        **keys,
    }
    return TopicSettings(kind="topic", topics=["t"], format="avro", **wanted)


def logical(base, logical_type, **more):
    return {"type": base, "logicalType": logical_type, **more}


LOGICAL = {
    "nanos": logical("long", "timestamp-nanos"),
    "millis": logical("int", "timestamp-millis"),
    "other": logical("string", "of-the-shop"),
    "money": logical("bytes", "decimal", precision=9, scale=2),
    "digits": logical("bytes", "decimal"),
    "span": logical("fixed", "duration", name="Span", size=12),
    "id": logical("fixed", "uuid", name="Id", size=16),
    "short": logical("fixed", "uuid", name="Short", size=15),
    "text_id": logical("bytes", "uuid"),
    "list": logical("long", ["date"]),
}


def test_unknown_logical_type_is_its_base_type():
    fields = [{"name": name, "type": kind} for name, kind in LOGICAL.items()]
    contents = {"1": json.dumps({"type": "record", "name": "E", "fields": fields}).encode()}
    assert kinds(chosen(), contents)["1"] == {
        "nanos": "nanoseconds",
        "millis": "integer",
        "other": "string",
        "money": "decimal",
        "digits": "bytes",
        "span": "duration",
        "id": "uuid",
        "short": "fixed",
        "text_id": "bytes",
        "list": "integer",
    }
    fits(
        chosen(
            unique_id=["id", "span", "nanos"],
            created_at="nanos",
            columns=[TopicColumn(name="nanos", type="Int64")],
        ),
        contents,
    )
    with pytest.raises(ConfigurationError, match="field short is a fixed, and column short is UUID"):
        fits(chosen(unique_id=["id"], columns=[TopicColumn(name="short", type="UUID")]), contents)


@pytest.mark.parametrize("name", ["money", "nanos", "id"])
def test_decimal_column_takes_numbers_and_text(name):
    fields = [{"name": field, "type": kind} for field, kind in LOGICAL.items()]
    contents = {"1": json.dumps({"type": "record", "name": "E", "fields": fields}).encode()}
    asked = chosen(unique_id=["id"], columns=[TopicColumn(name=name, type="Decimal(38,9)")])
    if name == "money":
        fits(asked, contents)
    else:
        with pytest.raises(
            ConfigurationError, match=f"field {name} is a .*, and column {name} is Decimal\\(38, 9\\)"
        ):
            fits(asked, contents)


@pytest.mark.parametrize(
    "kind", ["Decimal(77, 0)", "Decimal(9, 10)", "Decimal(0, 0)", "Decimal(9)", "Decimal(9, -1)", "Float32"]
)
def test_type_that_no_column_has_is_refused(kind):
    with pytest.raises(ValueError, match="is none of String, .*UUID, Decimal"):
        TopicColumn(name="x", type=kind)


def test_kinds_know_named_types_used_again():
    """Types that a schema names once are known wherever it uses them again."""
    (found,) = kinds(chosen(), CONTENTS).values()
    assert (found["kind"], found["other"], found["second"]) == ("string", "bytes", "nested")
    assert (found["first.made"], found["second.made"], found["second.of"]) == ("string", "string", "nested")
    fits(chosen(unique_id=["kind", "clock", "second.made"], created_at="at"), CONTENTS)


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"unique_id": ["second"]}, "field second, part of what makes an event unique, is no plain value"),
        ({"unique_id": ["other"]}, "field other, part of what makes an event unique, is no plain value"),
        ({"producer_id": "hash"}, "field hash, part of what makes an event unique, is no plain value"),
        (
            {"columns": [TopicColumn(name="clock", type="Int32")]},
            "field clock is a time, and column clock is Int32",
        ),
        ({"created_at": "att"}, "there is no field att, which created_at names"),
        ({"created_at": "second"}, "field second, which created_at names, is a nested, and no moment"),
        ({"created_at": "on"}, "field on, which created_at names, is a day, and no moment"),
    ],
)
def test_a_field_that_does_not_fit_is_named(keys, why):
    with pytest.raises(ConfigurationError, match=why):
        fits(chosen(**keys), CONTENTS)


@pytest.mark.parametrize("field", ["at", "note"])
def test_fits_created_at_moment_or_text(field):
    """Accept a moment, or its text, as the time of an event."""
    fits(chosen(created_at=field), CONTENTS)
