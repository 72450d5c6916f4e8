"""Avro's binary encoding: what fastavro writes is read unchanged, and what the specification forbids is
refused.
"""

import io
import json
import math
import time as clock
import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tagmill.delivery.topics.avro import parse_schema, record_reader
from tagmill.delivery.topics.event_ids import part_of
from tagmill.delivery.topics.fields import KINDS, InvalidRecord, milliseconds, plain
from tagmill.delivery.topics.record_limits import Limits
from tests.support.avro import INTS, NULLS, REFUSED

LIMITS = Limits(size=1_000_000, values=100_000, depth=20)


def record_of(*types, **named):
    fields = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(types)]
    fields += [{"name": name, "type": kind} for name, kind in named.items()]
    return parse_schema(json.dumps({"type": "record", "name": "Event", "fields": fields}).encode())


def read(schema, data, limits=LIMITS):
    return record_reader(schema)(data, limits)


def written(schema, event):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, event)
    return out.getvalue()


@pytest.mark.parametrize("around", [(), ("string",)], ids=["alone", "behind another field"])
@pytest.mark.parametrize(("kind", "hexadecimal", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_what_avro_forbids_is_refused(kind, hexadecimal, why, around):
    schema, front = record_of(*around, kind), b"\x02a" * len(around)
    with pytest.raises(InvalidRecord, match=why):
        read(schema, front + bytes.fromhex(hexadecimal))


@pytest.mark.parametrize(
    ("kind", "hexadecimal", "value"),
    [
        ("int", "ffffffff0f", -(2**31)),
        ("int", "feffffff0f", 2**31 - 1),
        ("long", "ff" * 9 + "01", -(2**63)),
        ("long", "fe" + "ff" * 8 + "01", 2**63 - 1),
        ("int", "8000", 0),
        (["null", "int"], "820004", 2),
        (INTS, "0304020200", [1, 1]),
        (INTS, "02020304040600", [1, 2, 3]),
        ({"type": "map", "values": "int"}, "010602610200", {"a": 1}),
        (NULLS, "c80100", [None] * 100),
    ],
)
def test_unusual_forms_that_avro_allows_are_read(kind, hexadecimal, value):
    assert read(record_of(kind), bytes.fromhex(hexadecimal)) == {"f0": value}


def test_number_without_an_end_costs_no_time():
    begun = clock.process_time()
    with pytest.raises(InvalidRecord, match="more than 64 bits"):
        read(record_of("long"), b"\x80" * 10_000_000)
    assert clock.process_time() - begun < 1


LIST = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
NINE = {
    "type": "record",
    "name": "Nine",
    "fields": [{"name": f"n{number}", "type": "null"} for number in range(9)],
}


def test_nesting_is_bounded():
    assert read(record_of(LIST), b"\x02" * 18 + b"\0")["f0"]["next"]["next"] is not None
    for schema, data in (
        (LIST, b"\x02" * 19 + b"\0"),
        ({"type": "array", "items": ["null", LIST]}, b"\x02" * 20 + b"\0\0"),
    ):
        with pytest.raises(InvalidRecord, match=r"nested deeper than max_record_depth \(20\)"):
            read(record_of(schema), data)
    deepest = Limits(size=10**6, values=10**6, depth=150)
    assert read(record_of(LIST), b"\x02" * 148 + b"\0", deepest)["f0"]["next"]
    with pytest.raises(InvalidRecord, match=r"max_record_depth \(150\)"):
        read(record_of(LIST), b"\x02" * 10_000 + b"\0", deepest)


def test_values_are_bounded_by_setting_and_bytes():
    items, few = record_of(INTS), Limits(size=10**6, values=101, depth=20)
    assert len(read(items, b"\xc8\x01" + b"\x02" * 100 + b"\0", few)["f0"]) == 100
    with pytest.raises(InvalidRecord, match=r"more values than max_record_values \(101\)"):
        read(items, b"\xca\x01" + b"\x02" * 101 + b"\0", few)
    # An item of nine fields that take no bytes counts as ten.
    with pytest.raises(InvalidRecord, match="16 for each of its bytes and 1000 besides"):
        read(record_of({"type": "array", "items": NINE}), b"\xdc\x01\0")
    assert len(read(record_of({"type": "array", "items": NINE}), b"\xc6\x01\0")["f0"]) == 99


WRONG = {
    "nested unions": {
        "type": "record",
        "name": "E",
        "fields": [{"name": "x", "type": ["null", ["int", "string"]]}],
    },
    "fixed of size -1": {
        "type": "record",
        "name": "E",
        "fields": [{"name": "x", "type": {"type": "fixed", "name": "F", "size": -1}}],
    },
    "fixed of a text": {
        "type": "record",
        "name": "E",
        "fields": [{"name": "x", "type": {"type": "fixed", "name": "F", "size": "a"}}],
    },
    "scale above precision": {
        "type": "record",
        "name": "E",
        "fields": [
            {"name": "x", "type": {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3}}
        ],
    },
    "type that is not named": {"type": "record", "name": "E", "fields": [{"name": "x", "type": "Nobody"}]},
    "no record": {"type": "array", "items": "int"},
    "marked as parsed": {
        "type": "record",
        "name": "E",
        "__fastavro_parsed": True,
        "__named_schemas": {},
        "fields": [{"type": 5}],
    },
}


@pytest.mark.parametrize("schema", WRONG.values(), ids=WRONG.keys())
def test_schema_of_no_use_is_refused(schema):
    with pytest.raises(ValueError, match="no Avro schema"):
        parse_schema(json.dumps(schema).encode())


def logical(base, logical_type, **more):
    return {"type": base, "logicalType": logical_type, **more}


PRICE = logical("bytes", "decimal", precision=40, scale=9)
SIXTEEN = uuid.UUID("5b11713a-0000-4000-8000-00000000000b")
NOON_MS = 1_795_348_800_123
# Each case: type, value as its base type, value that is read, its text in a String column, its part of an id.
LOGICAL = {
    "millis": (
        logical("long", "timestamp-millis"),
        NOON_MS,
        datetime(2026, 11, 22, 12, 0, 0, 123000, UTC),
        "2026-11-22T12:00:00.123000Z",
        b"s:2026-11-22 12:00:00.123000+00:00",
    ),
    "micros": (
        logical("long", "timestamp-micros"),
        -1,
        datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
        "1969-12-31T23:59:59.999999Z",
        b"s:1969-12-31 23:59:59.999999+00:00",
    ),
    "nanos": (
        logical("long", "timestamp-nanos"),
        NOON_MS * 10**6 + 456789,
        NOON_MS * 10**6 + 456789,
        "2026-11-22T12:00:00.123456789Z",
        b"i:1795348800123456789",
    ),
    "lowest nanos": (
        logical("long", "timestamp-nanos"),
        -(2**63),
        -(2**63),
        "1677-09-21T00:12:43.145224192Z",
        b"i:-9223372036854775808",
    ),
    "local millis": (
        logical("long", "local-timestamp-millis"),
        NOON_MS,
        datetime(2026, 11, 22, 12, 0, 0, 123000),
        "2026-11-22T12:00:00.123000",
        b"s:2026-11-22 12:00:00.123000",
    ),
    "local nanos": (logical("long", "local-timestamp-nanos"), 5, 5, "1970-01-01T00:00:00.000000005", b"i:5"),
    "millis beyond 9999": (logical("long", "timestamp-millis"), 2**62, 2**62, str(2**62), b"i:%d" % 2**62),
    "day": (logical("int", "date"), -1, date(1969, 12, 31), "1969-12-31", b"s:1969-12-31"),
    "day beyond 9999": (logical("int", "date"), 2**31 - 1, 2**31 - 1, "2147483647", b"i:2147483647"),
    "time": (
        logical("int", "time-millis"),
        86_399_999,
        time(23, 59, 59, 999000),
        "23:59:59.999000",
        b"s:23:59:59.999000",
    ),
    "time before midnight": (logical("int", "time-millis"), -1, -1, "-1", b"i:-1"),
    "time of a day": (
        logical("long", "time-micros"),
        86_400_000_000,
        86_400_000_000,
        "86400000000",
        b"i:86400000000",
    ),
    "uuid": (
        logical("string", "uuid"),
        str(SIXTEEN).upper(),
        SIXTEEN,
        str(SIXTEEN),
        b"s:" + str(SIXTEEN).encode(),
    ),
    "uuid of another text": (logical("string", "uuid"), "x", "x", "x", b"s:x"),
    "uuid of bytes": (
        logical("fixed", "uuid", name="U", size=16),
        SIXTEEN.bytes,
        SIXTEEN,
        str(SIXTEEN),
        b"s:" + str(SIXTEEN).encode(),
    ),
    "duration": (
        logical("fixed", "duration", name="D", size=12),
        b"\1\0\0\0\2\0\0\0\xe9\3\0\0",
        "P1M2DT1.001S",
        "P1M2DT1.001S",
        b"s:P1M2DT1.001S",
    ),
    "decimal": (
        PRICE,
        (-(10**39) - 1).to_bytes(17, "big", signed=True),
        Decimal("-1000000000000000000000000000000.000000001"),
        "-1000000000000000000000000000000.000000001",
        b"s:-1000000000000000000000000000000.000000001",
    ),
    "small decimal": (PRICE, b"\1", Decimal("1E-9"), "0.000000001", b"s:1E-9"),
    "decimal of no bytes": (PRICE, b"", Decimal("0E-9"), "0.000000000", b"s:0E-9"),
    "more digits than precision": (
        logical("bytes", "decimal", precision=2),
        b"\1\0",
        Decimal(256),
        "256",
        b"s:256",
    ),
    "fixed decimal": (
        logical("fixed", "decimal", name="P", size=2, precision=4, scale=2),
        b"\xff\xff",
        Decimal("-0.01"),
        "-0.01",
        b"s:-0.01",
    ),
    "unknown": (logical("string", "of-the-shop"), "x", "x", "x", b"s:x"),
    "of another base": (logical("string", "timestamp-millis"), "x", "x", "x", b"s:x"),
    "no name": (logical("int", {"a": 1}), 5, 5, "5", b"i:5"),
}


def base_type(kind):
    return {name: value for name, value in kind.items() if name != "logicalType"}


@pytest.mark.parametrize(("kind", "raw", "value", "text", "part"), LOGICAL.values(), ids=LOGICAL.keys())
def test_logical_type_has_a_plain_text(kind, raw, value, text, part):
    data = written(record_of(base_type(kind)), {"f0": raw})
    found = read(record_of(kind), data)["f0"]
    assert found == value and KINDS["String"].convert(found) == text
    assert part_of(plain("f0", found)) == part
    nested = KINDS["String"].convert({"a": [found]})
    assert json.loads(nested, parse_float=Decimal) == {
        "a": [
            value if isinstance(value, Decimal) or (isinstance(value, int) and text == str(value)) else text
        ]
    }


def test_moment_of_nanoseconds_is_cut():
    (found,) = read(
        record_of(logical("long", "timestamp-nanos")), written(record_of("long"), {"f0": -1})
    ).values()
    assert milliseconds(found) == -1


def test_decimal_of_a_megabyte_stays_bytes():
    content = b"\1" * 1_000_000
    assert read(record_of(PRICE), written(record_of("bytes"), {"f0": content}))["f0"] == content


PRIMITIVES = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=70),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=70),
}
EDGES = {
    "int": [-(2**31), 2**31 - 1, 63, 64, -64, -65, 0],
    "long": [-(2**63), 2**63 - 1, 2**31],
    "float": [-0.0, math.inf],
}


@st.composite
def typed_values(draw, depth=3, taken=None, named=None):
    """Draw a schema and a value of it, nested at most `depth` deep.

    `taken`: names of types; `named`: types that are complete, with a value.
    """
    taken, named = ([], []) if taken is None else (taken, named)
    kind = draw(
        st.sampled_from(
            [*PRIMITIVES, "enum", "fixed", *(["array", "map", "record", "union", "again"] if depth else [])]
        )
    )
    if kind in PRIMITIVES:
        return kind, draw(
            PRIMITIVES[kind] | st.sampled_from(EDGES[kind]) if kind in EDGES else PRIMITIVES[kind]
        )
    if kind == "again":
        return draw(st.sampled_from(named)) if named else ("int", 5)
    if kind in ("enum", "fixed", "record"):
        taken.append(name := f"N{len(taken)}")
        typed = draw(named_values(kind, name, depth, taken, named))
        named.append((name, typed[1]))
        return typed
    schema, value = draw(typed_values(depth - 1, taken, named))
    if kind == "array":
        most = 70 if schema in ("int", "string") else 3  # Only few items that take no bytes are read.
        return {"type": "array", "items": schema}, [value] * draw(st.integers(0, most))
    if kind == "map":
        return {"type": "map", "values": schema}, dict.fromkeys(
            draw(st.lists(PRIMITIVES["string"], max_size=4)), value
        )
    if isinstance(schema, list) or schema == "null":
        return schema, value
    others = ["null", "boolean"] if schema != "boolean" and draw(st.booleans()) else ["null"]
    return draw(st.permutations([schema, *others])), draw(st.sampled_from([value, None]))


@st.composite
def named_values(draw, kind, name, depth, taken, named):
    """Draw a type with a name, and a value of it."""
    if kind == "enum":
        symbols = [f"S{number}" for number in range(draw(st.integers(1, 70)))]
        return {"type": "enum", "name": name, "symbols": symbols}, draw(st.sampled_from(symbols))
    if kind == "fixed":
        value = draw(st.binary(max_size=5))
        return {"type": "fixed", "name": name, "size": len(value)}, value
    (first, one), (second, other) = (draw(typed_values(depth - 1, taken, named)) for _ in "ab")
    fields = [{"name": "a", "type": first}, {"name": "b", "type": second}]
    return {"type": "record", "name": name, "fields": fields}, {"a": one, "b": other}


def fastavro_reads(schema, data):
    reading = io.BytesIO(data)
    return fastavro.schemaless_reader(reading, schema, None), reading.tell()


@settings(max_examples=400, deadline=None)
@given(typed_values())
def test_what_fastavro_writes_is_read(typed):
    kind, value = typed
    schema = record_of("string", kind)
    data = written(schema, {"f0": "ü", "f1": value})
    found = read(schema, data)
    assert repr(found) == repr(fastavro_reads(schema, data)[0])
    assert found["f0"] == "ü" and repr(found["f1"]) == repr(value)


@settings(max_examples=400, deadline=None)
@given(typed_values(), st.data())
def test_damaged_records_are_refused_or_equal(typed, data):
    """Damaged records are refused or read as fastavro reads them.

    No other error is raised, and no other value is read.
    """
    schema = record_of("string", typed[0])
    sound = bytearray(written(schema, {"f0": "a", "f1": typed[1]}))
    for _ in range(data.draw(st.integers(1, 3))):
        sound[data.draw(st.integers(0, len(sound) - 1))] = data.draw(
            st.integers(0, 255) | st.sampled_from([0, 1, 2, 3, 127, 128, 255])
        )
    damaged = bytes(sound[: data.draw(st.integers(0, len(sound)) | st.just(len(sound)))])
    try:
        found = read(schema, damaged)
    except InvalidRecord:
        return
    assert (repr(found), len(damaged)) == (
        repr(fastavro_reads(schema, damaged)[0]),
        fastavro_reads(schema, damaged)[1],
    )
