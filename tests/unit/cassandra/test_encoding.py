"""Columns are encoded as the driver encodes their values one by one; values that do not fit are refused."""

import io
import uuid
from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
import pytest
from cassandra import ProtocolVersion
from cassandra.cqltypes import lookup_casstype as of
from cassandra.protocol import _UNSET_VALUE, write_value
from hypothesis import given
from hypothesis import strategies as st

from tagmill.cassandra.encoding import encoded

V5 = ProtocolVersion.V5
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BIGINT, INT = st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1)
# Moments (milliseconds since 1970) that the driver's floating-point seconds hold exactly.
MOMENTS = st.integers(-(2**40), 2**40).map(lambda ms: EPOCH + timedelta(milliseconds=ms))


CASES = {
    "text": (of("UTF8Type"), pa.string(), st.text()),
    "large text": (of("UTF8Type"), pa.large_string(), st.text()),
    "ascii": (of("AsciiType"), pa.string(), st.text(st.characters(max_codepoint=127))),
    "repeated text": (of("UTF8Type"), pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["", "a", "Ä", "\U0001f600"])),
    "blob": (of("BytesType"), pa.binary(), st.binary()),
    "large blob": (of("BytesType"), pa.large_binary(), st.binary()),
    "bigint": (of("LongType"), pa.int64(), BIGINT),
    "bigint of int": (of("LongType"), pa.int32(), INT),
    "int": (of("Int32Type"), pa.int32(), INT),
    "smallint": (of("ShortType"), pa.int64(), st.integers(-(2**15), 2**15 - 1)),
    "tinyint": (of("ByteType"), pa.int8(), st.integers(-128, 127)),
    "boolean": (of("BooleanType"), pa.bool_(), st.booleans()),
    "double": (of("DoubleType"), pa.float64(), st.floats(allow_nan=False)),
    "float": (of("FloatType"), pa.float32(), st.floats(width=32, allow_nan=False)),
    "timestamp": (of("TimestampType"), pa.timestamp("us", "UTC"), MOMENTS),
    "timestamp of milliseconds": (of("TimestampType"), pa.int64(), BIGINT),
    "uuid": (of("UUIDType"), pa.string(), st.uuids().map(str)),
    "timeuuid": (of("TimeUUIDType"), pa.string(), st.uuids(version=1).map(lambda one: str(one).upper())),
    "uuid of bytes": (of("UUIDType"), pa.binary(16), st.uuids().map(lambda one: one.bytes)),
    "varint": (of("IntegerType"), pa.int64(), BIGINT),
    "date": (of("SimpleDateType"), pa.date32(), st.dates(date(1900, 1, 1))),
    "decimal": (of("DecimalType"), pa.decimal128(20, 3), st.decimals(-1000, 1000, places=3, allow_nan=False)),
    "list": (of("ListType(UTF8Type)"), pa.list_(pa.string()), st.lists(st.text(), max_size=3)),
    "list with nulls": (of("ListType(UTF8Type)"), pa.list_(pa.string()), st.lists(st.none() | st.text(), max_size=3)),
    "list of dates": (of("ListType(SimpleDateType)"), pa.list_(pa.date32()), st.lists(st.dates(date(1900, 1, 1)), max_size=3)),
    "set": (of("SetType(Int32Type)"), pa.large_list(pa.int64()), st.lists(INT, max_size=3, unique=True)),
    "set of blobs": (of("SetType(BytesType)"), pa.list_(pa.binary()), st.lists(st.binary(), max_size=3, unique=True)),
    "map": (
        of("MapType(UTF8Type, LongType)"), pa.map_(pa.string(), pa.int64()),
        st.dictionaries(st.text(), BIGINT, max_size=3).map(lambda one: list(one.items())),
    ),
    "map with nulls": (
        of("MapType(UTF8Type, UTF8Type)"), pa.map_(pa.string(), pa.string()),
        st.dictionaries(st.text(), st.none() | st.text(), max_size=3).map(lambda one: list(one.items())),
    ),
}  # fmt: skip


def one_by_one(value, kind):
    sink = io.BytesIO()
    if value is None:
        write_value(sink, _UNSET_VALUE)
        return sink.getvalue()
    if kind.typename in ("uuid", "timeuuid"):
        value = uuid.UUID(value) if isinstance(value, str) else uuid.UUID(bytes=value)
    if kind.typename == "map":
        value = dict(value)
    write_value(sink, kind.serialize(value, V5))
    return sink.getvalue()


def rows_of(parts, count):
    return [
        b"".join(part if isinstance(part, bytes) else part[row].as_py() for part in parts)
        for row in range(count)
    ]


@pytest.mark.parametrize("case", CASES)
@given(data=st.data())
def test_encoded_column_equals_drivers_values(case, data):
    """Encode a column, also a slice of one, as the driver encodes its values one by one."""
    kind, arrow, values = CASES[case]
    given_ = data.draw(st.lists(st.none() | values, max_size=12))
    array = pa.array(given_, arrow)
    begin = data.draw(st.integers(0, len(array)))
    for some in (array, array[begin:]):
        expected = [one_by_one(value, kind) for value in given_[len(array) - len(some) :]]
        assert rows_of(encoded(some, kind, V5), len(some)) == expected


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_encoded_timestamp_rounds_down_to_milliseconds(unit, zone):
    """Timestamps of any unit and zone become milliseconds, rounded down."""
    by = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}[unit]
    moments = pa.array([1_790_000_000 * by + by // 2, -by, -1], pa.int64()).cast(pa.timestamp(unit, zone))
    (found,) = encoded(moments, of("TimestampType"), V5)
    milliseconds = [int.from_bytes(value[4:], "big", signed=True) for value in found.to_pylist()]
    half = 0 if unit == "s" else 500
    assert milliseconds == [1_790_000_000_000 + half, -1000, -1000 if unit == "s" else -1]


@pytest.mark.parametrize(
    ("values", "kind", "said"),
    [
        (pa.array([1]), "UTF8Type", "int64"),
        (pa.array([b"x"]), "UTF8Type", "binary"),
        (pa.array(["x"]), "BytesType", "string"),
        (pa.array(["1"]), "LongType", "string"),
        (pa.array([1.0]), "LongType", "double"),
        (pa.array([2**40]), "Int32Type", str(2**40)),
        (pa.array([1]), "DoubleType", "int64"),
        (pa.array([1]), "BooleanType", "int64"),
        (pa.array(["2026-01-01"]), "TimestampType", "string"),
        (pa.array(["f0e1"]), "UUIDType", "no UUID"),
        (pa.array(["0" * 36]), "UUIDType", "no UUID"),
        (pa.array(["0000000g-0000-0000-0000-000000000000"]), "UUIDType", "no UUID"),
        (pa.array([b"123"]), "UUIDType", "16 bytes"),
        (pa.array([1]), "UUIDType", "int64"),
        (pa.array([[1]]), "InetAddressType", "inet address"),
    ],
)
def test_values_that_do_not_fit_are_refused(values, kind, said):
    with pytest.raises((ValueError, TypeError), match=said):
        encoded(values, of(kind), V5)
