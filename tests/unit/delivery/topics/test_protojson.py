"""Fields of Protobuf arrive as ProtoJSON says, whatever the order in memory."""

import json
import math
from pathlib import Path

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from tagmill.delivery.topics.fields import InvalidRecord
from tagmill.delivery.topics.record_decoder import RecordDecoder
from tagmill.delivery.topics.schema_evolution import fits, unmapped
from tagmill.errors import ConfigurationError
from tests.support.protobuf import descriptors, wide_message
from tests.unit.delivery.topics.test_record_decoder import as_row, chosen

FILES = {"1": descriptors()}
NEW = 1_795_341_600  # 2026-11-22T10:00:00Z
# Each case: a field as ProtoJSON, path and type of a column, and the column's value.
CASES = [
    ({"duration": "1.5s"}, "duration", "String", "1.500s"), ({"duration": "-0.25s"}, "duration", "String", "-0.250s"),
    ({"at": "2026-11-22T10:00:00.123456789Z"}, "at", "String", "2026-11-22T10:00:00.123456789Z"),
    ({"at": "2026-11-22T10:00:00.9999Z"}, "at", "DateTime64(3, 'UTC')", NEW * 1000 + 999),
    ({"wrapped_long": "9007199254740993"}, "wrapped_long", "Int64", 2**53 + 1),
    ({"wrapped_long": "9007199254740993"}, "wrapped_long", "String", "9007199254740993"),
    ({"wrapped_long": "5"}, "wrapped_long.value", "Int64", 5), ({}, "wrapped_long", "Int64", None), ({}, "wrapped_text", "String", None),
    ({"wrapped_text": ""}, "wrapped_text", "String", ""), ({"wrapped_flag": False}, "wrapped_flag", "Bool", 0),
    ({"wrapped_bytes": "//4="}, "wrapped_bytes", "String", "//4="), ({"raw": "YWJj"}, "raw", "String", "YWJj"),
    ({"text": ""}, "text", "String", ""),
    ({"mask": "a,bC"}, "mask", "String", "a,bC"), ({"list": [1, "a", None]}, "list", "String", '[1.0,"a",null]'),
    ({"struct": {"b": 1, "a": {"x": 1.5}}}, "struct", "String", '{"a":{"x":1.5},"b":1.0}'),
    ({"struct": {"b": 1, "a": {"x": 1.5}}}, "struct.a.x", "Float64", 0x3FF8000000000000),
    ({"struct": {"a.b": "c"}}, 'struct."a.b"', "String", "c"), ({"struct": {"a": None}}, "struct.a", "String", None),
    ({"value": 3}, "value", "String", "3.0"), ({"value": "t"}, "value", "String", "t"), ({"value": {"k": True}}, "value.k", "Bool", 1),
    ({"any": {"@type": "type.googleapis.com/shop.Part", "unit_id": "5"}}, "any", "String",
     '{"@type":"type.googleapis.com/shop.Part","unit_id":"5"}'),
    ({"any": {"@type": "type.googleapis.com/google.protobuf.Duration", "value": "1s"}}, "any", "String",
     '{"@type":"type.googleapis.com/google.protobuf.Duration","value":"1s"}'),
    ({"part": {"unit_id": "9007199254740993"}}, "part", "String", '{"unit_id":"9007199254740993"}'),
    ({"part": {"unit_id": "9007199254740993"}}, "part.unit_id", "Int64", 2**53 + 1), ({}, "part", "String", None),
    ({"parts": [{"unit_id": "1"}, {}]}, "parts", "String", '[{"unit_id":"1"},{"unit_id":"0"}]'), ({}, "parts", "String", "[]"),
    ({"longs": ["1", "-2"]}, "longs", "String", '["1","-2"]'), ({}, "of_texts", "String", "{}"),
    ({"of_flags": {"true": {}, "false": {"unit_id": "1"}}}, "of_flags", "String", '{"false":{"unit_id":"1"},"true":{"unit_id":"0"}}'),
    ({"of_flags": {"true": {"unit_id": "3"}}}, "of_flags.true.unit_id", "Int64", 3),
    ({"of_numbers": {"10": {}, "9": {}}}, "of_numbers", "String", '{"10":{"unit_id":"0"},"9":{"unit_id":"0"}}'),
    ({"double": "NaN"}, "double", "String", "NaN"), ({"double": "-Infinity"}, "double", "String", "-Infinity"),
    ({"double": "Infinity"}, "double", "Float64", 0x7FF0000000000000), ({"state": "SENT"}, "state", "String", "SENT"),
    ({"state": 7}, "state", "String", "7"), ({"huge": str(2**64 - 1)}, "huge", "String", str(2**64 - 1)),
]  # fmt: skip


def settings(column=None, **keys):
    columns = [{"name": "x", **column}] if column else []
    return chosen(
        format="protobuf", schema_files={"1": Path("x")}, message_type="shop.Wide", columns=columns, **keys
    )


def read(message, column=None, **keys):
    reader = RecordDecoder(settings(column, **keys), FILES)
    value = message if isinstance(message, bytes) else message.SerializeToString()
    row = as_row(reader, value, 5)
    return row, reader.nulled()


def filled(**values):
    message = wide_message()
    pool = message.DESCRIPTOR.file.pool
    json_format.ParseDict({**values}, message, descriptor_pool=pool)
    return message


@pytest.mark.parametrize(("values", "path", "kind", "expected"), CASES, ids=lambda case: str(case)[:30])
def test_field_arrives_as_protojson_says(values, path, kind, expected):
    column = {"path": path, "type": kind}
    fits(settings(column), FILES)
    assert read(filled(**values), column)[0]["x"] == expected


@given(st.dictionaries(st.text(), st.integers(-(2**63), 2**63 - 1)), st.randoms())
def test_map_is_text_in_one_order(entries, random):
    texts = set()
    for _ in range(2):
        message, names = wide_message(), list(entries)
        random.shuffle(names)
        for name in names:
            message.of_texts[name].unit_id = entries[name]
        texts.add(read(message, {"path": "of_texts"})[0]["x"])
    [text] = texts
    found = json.loads(text)
    assert list(found) == sorted(found, key=str.encode) and found == {
        name: {"unit_id": str(entries[name])} for name in entries
    }


ODD = [
    ("at", 253_402_300_800, 0, "DateTime64(3, 'UTC')", "is not between 1970 and 2100"),
    ("at", -1, 0, "DateTime64(3, 'UTC')", "is not between 1970 and 2100"),
    ("at", 0, -1, "DateTime64(3, 'UTC')", "is no moment"), ("at", 253_402_300_800, 0, "String", "has no ProtoJSON"),
    ("duration", 2**60, 0, "String", "has no ProtoJSON"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "seconds", "nanos", "kind", "reason"), ODD)
def test_time_out_of_range_costs_its_column_only(field, seconds, nanos, kind, reason):
    message = wide_message()
    getattr(message, field).seconds, getattr(message, field).nanos = seconds, nanos
    assert read(message, {"path": "text"})[0]["x"] == ""
    row, nulled = read(message, {"path": field, "type": kind})
    assert row["x"] is None and nulled == [("x", reason)]
    with pytest.raises(InvalidRecord, match=f"field {field} is no"):
        read(message, {"path": field, "type": kind, "nullable": False})


def test_nan_and_unknown_any_cost_their_column_only():
    message = wide_message()
    message.double, message.struct["x"], message.any.type_url = (
        math.nan,
        math.nan,
        "type.googleapis.com/shop.Gone",
    )
    for column, reason in (
        ({"path": "double", "type": "Float64"}, "is NaN"),
        ({"path": "struct"}, "has no ProtoJSON"),
        ({"path": "any"}, "has no ProtoJSON"),
    ):
        assert read(message, column)[1] == [("x", reason)]


def test_timestamp_in_key_counts_to_the_nanosecond():
    """Nanoseconds count for the id. Times of full microseconds keep the ids that they have always had."""
    ids = {}
    for nanos in (0, 1000, 1001, 1999):
        message = wide_message()
        message.at.seconds, message.at.nanos = NEW, nanos
        ids[nanos] = read(message, unique_id=["at"])[0]["unique_id"]
    assert len(set(ids.values())) == 4
    from tagmill.delivery.topics.event_ids import unique_id

    assert [ids[0], ids[1000]] == [
        unique_id([f"2026-11-22 10:00:00{part}+00:00"], 1024).unique_id for part in ("", ".000001")
    ]
    message.at.seconds = 2**40
    with pytest.raises(InvalidRecord, match="is no moment"):
        read(message, unique_id=["at"])


def test_wrapper_in_key_counts_as_its_value():
    message = filled(wrapped_long="7")
    assert (
        read(message, unique_id=["wrapped_long"])[0]["unique_id"]
        == read(message, unique_id=["product_id"])[0]["unique_id"]
    )
    assert read(message, unique_id=["wrapped_long.value"]) == read(message, unique_id=["wrapped_long"])
    fits(settings(unique_id=["wrapped_long"]), FILES)
    for path in ("part", "of_texts", "duration", "struct"):
        with pytest.raises(ConfigurationError, match="is no plain value"):
            fits(settings(unique_id=[path]), FILES)
    assert "wrapped_long" in unmapped(settings(), FILES) and "wrapped_long.value" not in unmapped(
        settings(), FILES
    )


def test_wrong_wire_type_within_message_is_refused():
    inner = b"\x0a\x01x"  # of shop.Part, whose field 1 is a number
    for tag in (b"\x9a\x03", b"\xa2\x03"):  # part (51), parts (52)
        with pytest.raises(InvalidRecord, match=r"field unit_id \(number 1\) has wire type 2, not 0"):
            read(wide_message().SerializeToString() + tag + bytes([len(inner)]) + inner)
