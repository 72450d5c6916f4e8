"""Values of records as rows: each format, each type of a column, and what is refused with the field's
name.
"""

import io
import json
import struct
import uuid
from datetime import UTC, date, datetime, time, timedelta
from fractions import Fraction
from pathlib import Path

import fastavro
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tagmill.config.kafka import TopicColumn, TopicSettings
from tagmill.delivery.topics.fields import EPOCH_MOMENT, InvalidRecord, key_reader, milliseconds
from tagmill.delivery.topics.record_decoder import RecordDecoder
from tagmill.delivery.topics.table_columns import fields
from tagmill.errors import ConfigurationError

EVENT = {
    "project": "p",
    "event_type": "created",
    "product_id": 7,
    "price": 1.5,
    "customer": {"name": "Ä"},
    "at": "2026-11-22T10:00:00Z",
}
DEEP = b'{"a":' * 9999 + b"1" + b"}" * 9999
AT_MS = 1_795_341_600_000


def chosen(**keys):
    wanted = {"kind": "topic", "topics": ["t"], "format": "json", "destination": "t", **keys}
    wanted["columns"] = [TopicColumn(**column) for column in keys.get("columns", [])]
    return TopicSettings(**wanted)


def read(event, **keys):
    value = event if isinstance(event, bytes) else json.dumps(event).encode()
    return as_row(RecordDecoder(chosen(**keys), {}), value, 1000)


def as_row(reader, value, at_ms):
    return dict(zip(reader.names, reader.read(value, at_ms), strict=True))


def test_json_event_has_id_time_columns():
    """JSON events give their id, their time and their columns, nested and missing fields included."""
    columns = [
        {"name": "price", "type": "Float64"},
        {"name": "who", "path": "customer.name"},
        {"name": "note"},
    ]
    row = read(EVENT, columns=columns, created_at="at", version_field="event_type")
    assert struct.unpack(">d", row["price"].to_bytes(8, "big", signed=True)) == (1.5,)
    assert (row["who"], row["note"], row["created_at"], row["schema_version"]) == (
        "Ä",
        None,
        AT_MS,
        "created",
    )
    assert row["unique_id"] == read(EVENT)["unique_id"] and read(EVENT)["created_at"] == 1000


def test_the_producers_id_alone_or_within_ours():
    one, other = {**EVENT, "id": "x"}, {**EVENT, "id": "y"}
    ids = lambda **keys: {read(event, **keys)["unique_id"] for event in (one, other)}  # noqa: E731
    assert (
        len(ids()) == 1 and len(ids(producer_id="id")) == 2 and len(ids(unique_id=[], producer_id="id")) == 2
    )
    assert read(one, unique_id=[], producer_id="id")["unique_id"] != read(one, producer_id="id")["unique_id"]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("String", "ü", "ü"), ("String", {"a": [1, None]}, '{"a":[1,null]}'), ("LowCardinality(String)", "a", "a"), ("Int8", -128, -128),
        ("Int64", 2**63 - 1, 2**63 - 1), ("Int32", 3.0, 3), ("Bool", True, 1),
        ("Date", "2026-11-22", (date(2026, 11, 22) - date(1970, 1, 1)).days),
        ("DateTime64(3, 'UTC')", "2026-11-22T10:00:00.123+00:00", AT_MS + 123), ("DateTime64(3, 'UTC')", AT_MS, AT_MS),
        ("DateTime64(3, 'UTC')", "2026-10-31T23:59:59.9999Z", (datetime(2026, 10, 31, tzinfo=UTC).timestamp() + 86_400) * 1000 - 1),
        ("DateTime64(3, 'UTC')", "2026-10-31T23:59:59.999999999Z", (datetime(2026, 10, 31, tzinfo=UTC).timestamp() + 86_400) * 1000 - 1),
        ("DateTime64(3, 'UTC')", AT_MS + 0.9, AT_MS),
        ("UUID", "5B11713A-0000-4000-8000-00000000000b", "5b11713a-0000-4000-8000-00000000000b"),
    ],
)  # fmt: skip
def test_a_field_becomes_what_its_column_takes(kind, value, expected):
    assert read({**EVENT, "x": value}, columns=[{"name": "x", "type": kind}])["x"] == expected


MONEY = "Decimal(9,2)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1234567.89", "1234567.89"),
        ("-1234567.89", "-1234567.89"),
        ("-0.0", "0"),
        ("0", "0"),
        ("19.90", "19.9"),
        ("100", "100"),
        ("1e2", "100"),
        ("1234567.8900000000000000000", "1234567.89"),
        ('"0019.90"', "19.9"),
        ('"+1e-2"', "0.01"),
        ("0.1", "0.1"),
        ("0e999999999", "0"),
    ],
)
def test_number_becomes_decimal_without_loss(text, expected):
    assert (
        read(
            b'{"project": "p", "event_type": "e", "product_id": 1, "x": %s}' % text.encode(),
            columns=[{"name": "x", "type": MONEY}],
        )["x"]
        == expected
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("10000000", "out of range"),
        ("-1e7", "out of range"),
        ("1e999999999", "out of range"),
        ("0.001", "more than 2 digits"),
        ("1e-999999999", "more than 2 digits"),
        ("1234567.8900000000000000001", "more than 2 digits"),
        ("true", "no number"),
        ('"NaN"', "no number"),
        ('"1_0"', "no number"),
        ('"\u0661"', "no number"),
        ('""', "no number"),
        ("[1]", "no number"),
    ],
)
def test_number_beyond_its_decimal_is_refused(text, why):
    value = b'{"project": "p", "event_type": "e", "product_id": 1, "x": %s}' % text.encode()
    with pytest.raises(InvalidRecord, match=why):
        read(value, columns=[{"name": "x", "type": MONEY, "nullable": False}])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("Int8", 128), ("Int64", 2**63), ("Int32", 1.5), ("Int32", "3"), ("Int32", True), ("Float64", "1.5"), ("Bool", 1),
        ("Date", "yesterday"),
        ("Date", "1969-12-31"), ("DateTime64(3, 'UTC')", "soon"), ("DateTime64(3, 'UTC')", -1), ("UUID", "no"),
        ("DateTime64(3, 'UTC')", "1969-12-31T23:59:59.9999Z"), ("DateTime64(3, 'UTC')", -0.1),
        ("UUID", [*range(16)]), ("UUID", dict.fromkeys("0123456789abcdef", 1)),
    ],
)  # fmt: skip
def test_field_of_other_type_is_refused(kind, value):
    """Refuse a field of another type by name; in a nullable column it becomes null and is counted."""
    with pytest.raises(InvalidRecord, match="field x is no"):
        read({**EVENT, "x": value}, columns=[{"name": "x", "type": kind, "nullable": False}])
    reader = RecordDecoder(chosen(columns=[{"name": "x", "type": kind}]), {})
    assert as_row(reader, json.dumps({**EVENT, "x": value}).encode(), 1000)["x"] is None
    [(column, reason)] = reader.nulled()
    assert column == "x" and reason.startswith("is ") and reader.nulled() == []


def test_null_of_dead_letter_is_not_counted():
    columns = [{"name": "x", "type": "Int8"}, {"name": "y", "nullable": False}]
    reader = RecordDecoder(chosen(columns=columns), {})
    with pytest.raises(InvalidRecord, match="field y is missing"):
        as_row(reader, json.dumps({**EVENT, "x": 1000}).encode(), 1000)
    assert reader.nulled() == []


@pytest.mark.parametrize(
    ("event", "keys", "why"),
    [
        (b"{", {}, "no JSON object"), (b"[1]", {}, "no JSON object"),
        (DEEP, {}, "no JSON object"), (b"\xff", {}, "no JSON object"), ({"project": "p"}, {}, "event_type"),
        ({**EVENT, "product_id": None}, {}, "product_id, of the key, is missing"), ({**EVENT, "product_id": {}}, {}, "no plain value"),
        (EVENT, {"columns": [{"name": "x", "nullable": False}]}, "field x is missing"),
        (EVENT, {"created_at": "when"}, "field when is missing"),
        ({**EVENT, "at": "soon"}, {"created_at": "at"}, "field at is no moment"), ({**EVENT, "at": -5}, {"created_at": "at"}, "1970"),
    ],
)  # fmt: skip
def test_unfit_event_is_refused_with_reason(event, keys, why):
    """Refuse events that are not objects, lack a field, or hold an unfit key or moment, with the reason."""
    with pytest.raises(InvalidRecord, match=why):
        read(event, **keys)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"[" * 99 + b"]" * 99, None),
        (b"[" * 100 + b"]" * 100, r"nested deeper than max_record_depth \(100\)"),
        (b'{"[":' * 100 + b"1" + b"}" * 100, r"nested deeper than max_record_depth \(100\)"),
        (b'"' + b"[{," * 100 + b'"', None),
        (b"[" + b"[]," * 995 + b"1]", None),
        (b"[" + b"[]," * 996 + b"1]", r"more values than max_record_values \(1000\)"),
        (b"[" + b"1," * 995 + b"1]", None),
        (b"[" + b"1," * 996 + b"1]", r"more values than max_record_values \(1000\)"),
        (b'"' + b"x" * 5000 + b'"', r"more than max_record_bytes \(5000\)"),
    ],
    ids=[
        "deepest",
        "deeper lists",
        "deeper objects",
        "signs in text",
        "lists",
        "too many lists",
        "numbers",
        "too many",
        "too long",
    ],
)
def test_json_beyond_a_limit_is_refused(text, why):
    value = b'{"project": "p", "event_type": "e", "product_id": 1, "x": %s}' % text
    if why is None:
        assert read(value, max_record_values=1000, max_record_bytes=5000)["unique_id"]
        return
    with pytest.raises(InvalidRecord, match=why):
        read(value, max_record_values=1000, max_record_bytes=5000)


def test_timestamp_beyond_clickhouse_is_refused():
    """Refuse a Kafka timestamp that ClickHouse can't hold, unless a field has the event's time."""
    value = json.dumps(EVENT).encode()
    with pytest.raises(InvalidRecord, match="Kafka's timestamp is not between 1970 and 2100"):
        RecordDecoder(chosen(), {}).read(value, 1_795_000_000_000_000)
    assert (
        as_row(RecordDecoder(chosen(created_at="at"), {}), value, 1_795_000_000_000_000)["created_at"]
        == AT_MS
    )


AVRO = {
    "type": "record", "name": "E", "fields": [
        {"name": "project", "type": "string"}, {"name": "event_type", "type": "string"}, {"name": "product_id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}  # fmt: skip


def avro(event, schema=AVRO):
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(schema), event)
    return sink.getvalue()


AVRO_EVENT = {
    "project": "p",
    "event_type": "created",
    "product_id": 7,
    "at": datetime(2026, 11, 22, 10, tzinfo=UTC),
    "note": "n",
}


def avro_reader(framed=False, versions=("3",)):
    files = {version: Path(f"{version}.avsc") for version in versions}
    settings = chosen(
        format="avro", schema_files=files, framed=framed, created_at="at", columns=[{"name": "note"}]
    )
    return RecordDecoder(settings, {version: json.dumps(AVRO).encode() for version in versions})


def test_avro_plain_and_framed_read_alike():
    """Avro with a schema file and Avro framed by a registry give the same row but for the schema's
    version.
    """
    plain = as_row(avro_reader(), avro(AVRO_EVENT), 0)
    framed = as_row(
        avro_reader(framed=True, versions=("3", "70000")),
        b"\x00" + (70_000).to_bytes(4, "big") + avro(AVRO_EVENT),
        0,
    )
    assert (plain["created_at"], plain["note"], plain["schema_version"]) == (AT_MS, "n", "3")
    assert framed == plain | {"schema_version": "70000"} and plain["unique_id"] == read(EVENT)["unique_id"]


@pytest.mark.parametrize("key", ["orders", "07", "4294967296", "-1", "", "٧"])
def test_key_that_no_frame_has_is_refused(key):
    with pytest.raises(ValueError, match=f"schema_files: {key} is no id of a schema registry"):
        avro_reader(framed=True, versions=("7", key))


def test_unframed_avro_identified_by_its_schema():
    """Older events without a frame are identified by the schema that they came with."""
    newer = {**AVRO, "fields": [{"name": "price", "type": "long"}, *AVRO["fields"]]}
    both = {"1": json.dumps(AVRO).encode(), "2": json.dumps(newer).encode()}
    settings = chosen(
        format="avro", schema_files={version: Path("x") for version in both}, schema_version="2"
    )
    reader, older = RecordDecoder(settings, both), avro(AVRO_EVENT)
    now = io.BytesIO()
    fastavro.schemaless_writer(now, newer, {**AVRO_EVENT, "price": 3})
    assert as_row(reader, now.getvalue(), AT_MS)["schema_version"] == "2"
    assert reader.id_of(now.getvalue(), "2") == reader.id_of(older, "1")
    with pytest.raises(InvalidRecord, match="its schema, 0, is not among schema_files"):
        reader.id_of(now.getvalue(), "0")
    with pytest.raises(InvalidRecord, match="no Avro of schema 2"):
        reader.read(older, AT_MS)


@pytest.mark.parametrize("size", range(len(avro(AVRO_EVENT))))
def test_avro_that_is_cut_off_anywhere_is_refused(size):
    with pytest.raises(InvalidRecord):
        avro_reader().read(avro(AVRO_EVENT)[:size], 0)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (avro(AVRO_EVENT) + b"x", "1 bytes are left over"), (b"\x01" + avro(AVRO_EVENT), "no frame"),
        (b"\x00\x00\x00\x00\x09" + avro(AVRO_EVENT), "schema id 9 is not among schema_files"), (b"\x00\x00", "no frame"),
    ],
)  # fmt: skip
def test_avro_in_a_wrong_frame_is_refused(value, why):
    with pytest.raises(InvalidRecord, match=why):
        avro_reader(framed=why != "1 bytes are left over").read(value, 0)


def descriptors():
    file = descriptor_pb2.FileDescriptorProto(name="e.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Event")
    kinds = descriptor_pb2.FieldDescriptorProto
    for number, (name, kind) in enumerate(
        (
            ("project", kinds.TYPE_STRING),
            ("event_type", kinds.TYPE_STRING),
            ("product_id", kinds.TYPE_INT64),
            ("raw", kinds.TYPE_BYTES),
        ),
        1,
    ):
        message.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def protobuf_reader(message="shop.Event", content=None):
    settings = chosen(format="protobuf", schema_files={"5": Path("e.desc")}, message_type=message)
    return RecordDecoder(settings, {"5": descriptors() if content is None else content})


PROTOBUF = b"\x0a\x01p\x12\x07created\x18\x07"


def test_protobuf_event_has_id_of_json():
    """Protobuf events have the id that the same fields have in JSON."""
    row = as_row(protobuf_reader(), PROTOBUF, 5)
    assert (row["unique_id"], row["schema_version"], row["created_at"]) == (read(EVENT)["unique_id"], "5", 5)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"\0\0\0\0\x05\0", ""), (b"\0\0\0\0\x05\x02\0", ""), (b"\0\0\1\0\0\0", ""),
        (b"\0\0\0\0\x05\x02\x02", r"names the message \[1\] of the schema's file, and shop.Event is \[0\]"),
        (b"\0\0\0\0\x05\x04\0\0", r"names the message \[0, 0\]"), (b"\0\0\0\0\x05", "names the message|no frame"),
        (b"\0\0\0\0\x09\0", "schema id 9 is not among"), (b"\0\0\0\0\x05" + b"\xff" * 9, "no frame of a schema registry for Protobuf"),
        (b"\0\0\0\0\x05\xfe\xff\xff\xff\x0f", "names the message"), (b"", "no frame"),
    ],
)  # fmt: skip
def test_framed_protobuf_is_read_where_frame_names_message(frame, reason):
    files = {"5": Path("e.desc"), "65536": Path("f.desc")}
    settings = chosen(format="protobuf", framed=True, schema_files=files, message_type="shop.Event")
    reader = RecordDecoder(settings, dict.fromkeys(files, descriptors()))
    if not reason:
        row = as_row(reader, frame + PROTOBUF, 5)
        assert row["unique_id"] == read(EVENT)["unique_id"] and row["schema_version"] == str(
            int.from_bytes(frame[1:5], "big")
        )
        return
    with pytest.raises(InvalidRecord, match=reason):
        reader.read(frame + PROTOBUF, 5)


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({}, "message_type: Protobuf needs the full name"), ({"message_type": "m"}, "schema_files: Protobuf needs a descriptor set"),
        ({"message_type": "m", "schema_files": {"1": Path("x"), "2": Path("y")}}, "without frames has one"),
    ],
)  # fmt: skip
def test_protobuf_setting_that_lacks_is_named(keys, why):
    with pytest.raises(ValidationError, match=why):
        chosen(format="protobuf", **keys)


@pytest.mark.parametrize("value", [PROTOBUF[:-1], b"\x0a\x7fp", b"\xff\xff"])
def test_protobuf_that_is_cut_off_is_refused(value):
    with pytest.raises(InvalidRecord, match="no shop.Event"):
        protobuf_reader().read(value, 0)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\x0a\x01p\x12\x07created\x1a\x017", r"field product_id \(number 3\) has wire type 2, not 0"),
        (b"\x52\x03abc\x58\x07", "none of the fields project, event_type, product_id"),
        (b"", "none of the fields project, event_type, product_id"),
        (b"\x22\x01x", "none of the fields project, event_type, product_id"),
    ],
)
def test_protobuf_of_other_type_is_refused(value, reason):
    """Refuse Protobuf messages that are visibly of another type."""
    with pytest.raises(InvalidRecord, match=reason):
        protobuf_reader().read(value, 0)


def test_protobuf_unknown_field_is_ignored():
    """Ignore a field that the descriptor does not know yet."""
    assert protobuf_reader().read(PROTOBUF + b"\x52\x03abc", 5) == protobuf_reader().read(PROTOBUF, 5)


@pytest.mark.parametrize(
    ("field", "keys", "why"),
    [
        (b"\x52\x00" * 300, {}, None),
        (b"\x52\x00" * 301, {}, r"more values than max_record_values \(1000\)"),
        (b"", {"max_record_bytes": len(PROTOBUF) - 1}, "more than max_record_bytes"),
        (b"\x52\x00", {"max_record_depth": 1}, r"nested deeper than max_record_depth \(1\)"),
    ],
    ids=["most", "too many", "too long", "too deep"],
)
def test_protobuf_beyond_a_limit_is_refused(field, keys, why):
    """Messages within the event take two bytes, and count for themselves and their two fields."""
    found, kinds = (
        descriptor_pb2.FileDescriptorSet.FromString(descriptors()),
        descriptor_pb2.FieldDescriptorProto,
    )
    part = found.file[0].message_type.add(name="Part")
    for number in (1, 2):
        part.field.add(name=f"p{number}", number=number, type=kinds.TYPE_INT32, label=kinds.LABEL_OPTIONAL)
    event = found.file[0].message_type[0]
    event.field.add(
        name="parts", number=10, type=kinds.TYPE_MESSAGE, type_name=".shop.Part", label=kinds.LABEL_REPEATED
    )
    limits = {"max_record_values": 900 + len(event.field), **keys}
    chosen_keys = {
        "format": "protobuf",
        "schema_files": {"5": Path("e.desc")},
        "message_type": "shop.Event",
        **limits,
    }
    reader = RecordDecoder(chosen(**chosen_keys), {"5": found.SerializeToString()})
    if why is None:
        assert reader.read(PROTOBUF + field, 0)
        return
    with pytest.raises(InvalidRecord, match=why.replace("1000", str(limits["max_record_values"]))):
        reader.read(PROTOBUF + field, 0)


def with_enum(values):
    """Return a descriptor set of the same messages with two more fields.

    `state` (number 9) is an enum, `of` (number 10) a message with a `state` of its own.
    """
    found, kinds = (
        descriptor_pb2.FileDescriptorSet.FromString(descriptors()),
        descriptor_pb2.FieldDescriptorProto,
    )
    (file,) = found.file
    enum = file.enum_type.add(name="State")
    for number, name in enumerate(values):
        enum.value.add(name=name, number=number)
    part = file.message_type.add(name="Part")
    for message, number in ((file.message_type[0], 9), (part, 1)):
        message.field.add(
            name="state",
            number=number,
            type=kinds.TYPE_ENUM,
            type_name=".shop.State",
            label=kinds.LABEL_OPTIONAL,
        )
    event = file.message_type[0]
    event.field.add(
        name="of", number=10, type=kinds.TYPE_MESSAGE, type_name=".shop.Part", label=kinds.LABEL_OPTIONAL
    )
    return found.SerializeToString()


@pytest.mark.parametrize(("path", "field"), [("state", b"\x48\x01"), ("of.state", b"\x52\x02\x08\x01")])
def test_protobuf_key_enum_needs_a_name(path, field):
    """Refuse an enum's value of the key until the descriptor set names it; a column shows its number
    meanwhile.
    """
    settings = chosen(
        format="protobuf",
        schema_files={"5": Path("e.desc")},
        message_type="shop.Event",
        unique_id=["project", path],
    )
    old, new = (RecordDecoder(settings, {"5": with_enum(values)}) for values in (["NONE"], ["NONE", "SENT"]))
    with pytest.raises(
        InvalidRecord, match=f"field {path}, of the key, is 1, which the descriptor set has no name for"
    ):
        old.read(PROTOBUF + field, 0)
    assert (
        as_row(new, PROTOBUF + field, 0)["unique_id"]
        != as_row(new, PROTOBUF + field[:-1] + b"\0", 0)["unique_id"]
    )
    columns = [{"name": "x", "path": path}]
    aside = chosen(
        format="protobuf", schema_files={"5": Path("e.desc")}, message_type="shop.Event", columns=columns
    )
    assert as_row(RecordDecoder(aside, {"5": with_enum(["NONE"])}), PROTOBUF + field, 0)["x"] == "1"


def test_wrong_descriptor_is_configuration_error():
    """Report wrong descriptors and schemas as mistakes in the configuration."""
    with pytest.raises(ConfigurationError, match="no message shop.Order"):
        protobuf_reader("shop.Order")
    with pytest.raises(ConfigurationError, match="no descriptor set"):
        protobuf_reader(content=b"\xff\xff\xff")
    for content in (
        b"{",
        b"{}",
        b"5",
        b'{"type": "record", "name": "x", "fields": 5}',
        b'"string"',
        b'["null", "long"]',
    ):
        with pytest.raises(ConfigurationError, match=r"schema_files\.1: no Avro schema"):
            RecordDecoder(chosen(format="avro", schema_files={"1": Path("x")}), {"1": content})


@given(st.datetimes(timezones=st.timezones()))
def test_moment_is_cut_to_milliseconds_towards_past(moment):
    found = milliseconds(moment)
    exact = Fraction((moment - EPOCH_MOMENT) // timedelta(microseconds=1), 1000)
    assert found <= exact < found + 1 and milliseconds(moment.isoformat()) == found


def test_bytes_in_text_are_base64_always():
    """Write bytes as base64 even if they happen to be UTF-8."""
    [field] = fields(chosen(columns=[{"name": "x"}]).columns)
    texts = [field.reader()({"x": value}) for value in (b"abc", b"\xff\xfe", b"", {"a": [b"abc"]})]
    assert texts == ["YWJj", "//4=", "", '{"a":["YWJj"]}']


def test_float_without_json_form_has_its_name():
    [field] = fields(chosen(columns=[{"name": "x"}]).columns)
    floats = [float(text) for text in ("nan", "inf", "-inf", "1.5")]
    assert [field.reader()({"x": value}) for value in floats] == ["NaN", "Infinity", "-Infinity", "1.5"]
    assert field.reader()({"x": {"a": [None, *floats]}}) == '{"a":[null,"NaN","Infinity","-Infinity",1.5]}'


def test_nan_in_key_is_refused():
    with pytest.raises(InvalidRecord, match="field at, of the key, is NaN"):
        key_reader(["at"])({"at": float("nan")})


def test_key_reader_takes_text_of_values():
    """Times, dates and UUIDs that a decoder makes of a key's fields count by their text."""
    one = uuid.UUID(int=5)
    event = {"at": time(1, 2, 3), "on": date(2026, 11, 22), "of": one}
    assert key_reader(["at", "on", "of"])(event) == ["01:02:03", "2026-11-22", str(one)]


def test_an_id_of_sixteen_bytes_is_a_uuid():
    one = uuid.UUID(int=5)
    [field] = fields(chosen(columns=[{"name": "u", "type": "UUID"}]).columns)
    assert field.reader()({"u": one.bytes}) == str(one)
