"""Reading many events at once gives what reading each alone gives."""

import io
import json
from datetime import UTC, date, datetime
from pathlib import Path

import fastavro
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tagmill.config.kafka import TopicColumn, TopicSettings
from tagmill.delivery.topics import staging
from tagmill.delivery.topics.event_ids import unique_id
from tagmill.delivery.topics.fields import KINDS
from tagmill.delivery.topics.reader_notes import Notes
from tagmill.delivery.topics.record_decoder import RecordDecoder
from tagmill.delivery.topics.vectorized_decoder import unique_ids

COLUMNS = [
    {"name": f"c{number}", "type": kind, "path": "a.x"}
    for number, kind in enumerate([*KINDS, "Decimal(20, 2)"])
]
ORDINARY = {
    "String": "ü", "LowCardinality(String)": "l", "Int8": -128, "Int16": 2**15 - 1, "Int32": -(2**31), "Int64": 2**63 - 1, "Float64": 1.5,
    "Bool": True, "DateTime64(3, 'UTC')": "2026-11-22T10:00:00.123Z", "Date": "2026-11-22",
    "UUID": "5B11713A-0000-4000-8000-00000000000b",
}  # fmt: skip
texts, integers = st.text(max_size=5), st.integers(-(2**70), 2**70)
moments = st.datetimes(datetime(1969, 1, 1), datetime(2101, 1, 1)).map(datetime.isoformat)
plain = st.one_of(
    texts, st.integers(-200, 200), integers, st.floats(allow_nan=False, allow_infinity=False), st.booleans()
)
odd = st.one_of(
    plain,
    st.none(),
    moments,
    st.dates(date(1969, 1, 1)).map(date.isoformat),
    st.uuids().map(str),
    st.just({}),
)
ordinary = st.fixed_dictionaries(
    {"project": texts, "event_type": texts, "product_id": st.integers(-9, 9), "at": moments}
)
extraordinary = st.fixed_dictionaries(
    {}, optional={"project": plain, "event_type": odd, "product_id": odd, "at": odd, "a": odd}
)
# Numbers with more digits than a double holds, whole numbers, and numbers beyond its range.
numbers = st.one_of(
    st.decimals(allow_nan=False, allow_infinity=False, places=3).map("{:f}".format), st.floats(0, 1e300).map("{:.17e}".format),
    st.sampled_from(["1e400", "-0.0", "9007199254740993.0", "12345678901234567.81", "1e99999999999999999999"]),
)  # fmt: skip
raw = '{"project": "p", "event_type": "e", "product_id": %s, "at": %s, "a": {"x": %s}}'
values = st.one_of(
    st.tuples(numbers, numbers, numbers).map(lambda three: (raw % three).encode()),
    numbers.map(lambda number: (raw % (1, 1_795_341_600_000, number)).encode()),
    st.tuples(ordinary, odd).map(lambda pair: json.dumps({**pair[0], "a": {"x": pair[1]}}).encode()),
    st.tuples(ordinary, extraordinary).map(lambda pair: json.dumps({**pair[0], **pair[1]}).encode()),
    extraordinary.map(lambda event: json.dumps(event).encode()),
    st.sampled_from([None, b"", b"{", b"[]", b"\xff", b'{"project": "\\ud800"}']),
)


def topic(columns, **keys):
    of_topic = {"kind": "topic", "topics": ["t"], "format": "json", "destination": "t", **keys}
    return TopicSettings(**of_topic, columns=[TopicColumn(**one) for one in columns])


def decoded(contents, chosen, read_alone, monkeypatch, files=None):
    monkeypatch.setattr(staging, "READ_ALONE", read_alone)
    count = len(contents)
    records = pa.RecordBatch.from_pydict(
        {
            "topic": ["t"] * count,
            "partition": pa.array([1] * count, pa.int32()),
            "offset": list(range(count)),
            "timestamp": pa.array([1_795_341_600_000_123] * count, pa.timestamp("us")),
            "key": pa.array([b"k"] * count),
            "value": pa.array(contents, pa.binary()),
            "headers": pa.array([[{"key": "h", "value": b"1"}]] * count, staging.HEADERS),
        }
    )
    notes = Notes()
    found = list(staging.decode_batches([records], notes, chosen, files or {}, {}, (), 2**24))
    return pa.Table.from_batches(found, staging.schema_of(chosen)), len(found), notes


def both(contents, chosen, files=None):
    """Return the rows of reading many at once and of reading each alone, after checking that equally many
    values became null.
    """
    with pytest.MonkeyPatch.context() as monkeypatch:
        found = [
            decoded(contents, chosen, read_alone, monkeypatch, files) for read_alone in (1, len(contents))
        ]
    assert found[0][2].nulled == found[1][2].nulled and found[0][2].matched == found[1][2].matched
    return [rows for rows, *_ in found]


@settings(max_examples=300)
@given(
    st.lists(values, min_size=2, max_size=6),
    st.sampled_from(COLUMNS),
    st.booleans(),
    st.sampled_from([None, "at"]),
)
def test_many_values_are_read_as_each_alone(contents, column, nullable, created_at):
    many, alone = both(contents, topic([{**column, "nullable": nullable}], created_at=created_at))
    assert many.equals(alone)


FITTING = {
    "String": texts, "LowCardinality(String)": texts, "Int8": st.integers(-129, 128), "Int64": integers,
    "Float64": st.floats(allow_nan=False, allow_infinity=False) | integers, "Bool": st.booleans() | st.just(1),
}  # fmt: skip


@settings(max_examples=300)
@given(st.data(), st.sampled_from(sorted(FITTING)), st.booleans())
def test_values_of_type_are_read_alike(data, kind, may_miss):
    """Values of one type are read at once as each is read alone."""
    one = FITTING[kind] | st.none() if may_miss else FITTING[kind]
    events = [
        {"id": number, "x": value}
        for number, value in enumerate(data.draw(st.lists(one, min_size=2, max_size=5)))
    ]
    chosen = topic(
        [{"name": "x", "type": kind, "nullable": may_miss}],
        unique_id=["x" if data.draw(st.booleans()) else "id"],
    )
    many, alone = both([json.dumps(event).encode() for event in events], chosen)
    assert many.equals(alone)


AVRO = {
    "type": "record", "name": "E", "fields": [
        {"name": "id", "type": ["long", "string", "double", {"type": "string", "logicalType": "uuid"}]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "x", "type": ["null", "string", "bytes", "long", "float", "boolean", {"type": "map", "values": "long"}]},
    ],
}  # fmt: skip
avro_ids = st.integers(-(2**63), 2**63 - 1) | texts | st.floats() | st.uuids().map(str)
avro_fields = st.one_of(
    st.none(),
    texts,
    st.binary(max_size=4),
    st.integers(-200, 200),
    st.floats(width=32),
    st.booleans(),
    st.just({"a": 1}),
)


@settings(max_examples=200)
@given(
    st.lists(st.tuples(avro_ids, avro_fields), min_size=2, max_size=4),
    st.sampled_from(sorted(KINDS)),
    st.booleans(),
)
def test_avro_is_read_as_each_alone(events, kind, nullable):
    columns = [{"name": "x", "type": kind, "nullable": nullable}]
    chosen = topic(columns, format="avro", schema_files={"1": Path("x")}, unique_id=["id"], created_at="at")
    contents = [
        avro({"id": one, "at": datetime(2026, 11, 22, tzinfo=UTC), "x": value}) for one, value in events
    ]
    many, alone = both(contents, chosen, {"1": json.dumps(AVRO).encode()})
    assert many.equals(alone)


def avro(event):
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(AVRO), event)
    return sink.getvalue()


@given(
    st.integers(1, 4).flatmap(
        lambda count: st.lists(st.lists(plain, min_size=count, max_size=count), min_size=1, max_size=4)
    )
)
def test_ids_of_many_events_are_those_of_each(keys):
    try:
        shards, ids = unique_ids(list(zip(*keys, strict=True)), 1024)
    except OverflowError:
        assume(False)
    assert list(zip(shards.tolist(), ids.to_pylist(), strict=True)) == [unique_id(key, 1024) for key in keys]


@pytest.mark.parametrize("kind", KINDS)
def test_ordinary_events_are_read_at_once(kind, monkeypatch):
    """Ordinary events are read at once. Reading is finer only around a broken event."""
    chosen = topic([{"name": "x", "type": kind}], created_at="at")
    event = {"project": "p", "event_type": "e", "product_id": 1, "at": 1_795_341_600_000, "x": ORDINARY[kind]}
    contents = [json.dumps({**event, "product_id": number}).encode() for number in range(1024)]
    with monkeypatch.context() as patched:
        patched.setattr(RecordDecoder, "read", None)
        assert decoded(contents, chosen, 128, monkeypatch)[1] == 1
    contents[700] = b"{"
    rows, parts, _ = decoded(contents, chosen, 128, monkeypatch)
    assert parts == 4 and [row for row, kind in enumerate(rows["kind"].to_pylist()) if kind != "event"] == [
        700
    ]
    assert (rows["key"][700].as_py(), rows["key"][701].as_py()) == (b"k", None)


def test_values_that_columns_cannot_hold_are_counted(monkeypatch):
    """Count each value once, though the records around a broken one are read more than once."""
    chosen = topic(
        [{"name": name, "type": kind, "path": "x"} for name, kind in (("small", "Int8"), ("day", "Date"))]
    )
    event = {"project": "p", "event_type": "e", "product_id": 1}
    contents = [
        json.dumps({**event, "x": 128 if number % 3 else "1969-12-31"}).encode() for number in range(999)
    ]
    contents[700] = b"{"
    rows, _, notes = decoded(contents, chosen, 128, monkeypatch)
    assert (
        rows["kind"].to_pylist().count("event") == 998
        and rows["small"].null_count == rows["day"].null_count == 999
    )
    assert notes.nulled == {
        ("small", "is out of range"): 665,
        ("small", "is no integer"): 333,
        ("day", "is no day"): 665,
        ("day", "is not between 1970 and 2149"): 333,
    }
