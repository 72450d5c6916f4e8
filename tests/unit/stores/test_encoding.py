"""Columns are encoded as the driver encodes their values one by one, and cut into batches of one partition."""

import io
import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import groupby
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from cassandra import ConsistencyLevel, ProtocolVersion, cqltypes
from cassandra.cqltypes import lookup_casstype
from cassandra.protocol import _UNSET_VALUE, BatchMessage, write_value
from cassandra.query import UNSET_VALUE, BatchStatement, BatchType, PreparedStatement
from hypothesis import given
from hypothesis import strategies as st

from tagmill.errors import ConfigurationError
from tagmill.stores import bulk
from tagmill.stores.bulk import LARGE_ROW_BYTES, WINDOW_BYTES, Target, cut_batches
from tagmill.stores.encoding import encoded

V4, V5 = ProtocolVersion.V4, ProtocolVersion.V5
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BIGINT, INT = st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1)
# what the driver's own floating-point seconds hold exactly
MOMENTS = st.integers(-(2**40), 2**40).map(lambda ms: EPOCH + timedelta(milliseconds=ms))


def of(name):
    return cqltypes.lookup_casstype(name)


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
    "list": (lookup_casstype("ListType(UTF8Type)"), pa.list_(pa.string()), st.lists(st.text(), max_size=3)),
    "map": (
        lookup_casstype("MapType(UTF8Type, LongType)"), pa.map_(pa.string(), pa.int64()),
        st.dictionaries(st.text(), BIGINT, max_size=3).map(lambda one: list(one.items())),
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
    return [b"".join(part if isinstance(part, bytes) else part[row].as_py() for part in parts) for row in range(count)]


@pytest.mark.parametrize("case", CASES)
@given(data=st.data())
def test_a_column_is_what_the_driver_makes_of_its_values(case, data):
    kind, arrow, values = CASES[case]
    given_ = data.draw(st.lists(st.none() | values, max_size=12))
    array = pa.array(given_, arrow)
    begin = data.draw(st.integers(0, len(array)))
    for some in (array, array[begin:]):
        expected = [one_by_one(value, kind) for value in given_[len(array) - len(some) :]]
        assert rows_of(encoded(some, kind, V5), len(some)) == expected


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_a_timestamp_of_any_unit_is_milliseconds_rounded_down(unit, zone):
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
    ],
)
def test_values_that_do_not_fit_are_refused(values, kind, said):
    with pytest.raises((ValueError, TypeError), match=said):
        encoded(values, of(kind), V5)


# -- batches

COLUMNS = [("k", "UTF8Type"), ("b", "LongType"), ("n", "Int32Type"), ("v", "BytesType")]


def prepared(names, protocol, *, ttl=False):
    metadata = [
        SimpleNamespace(keyspace_name="ks", table_name="t", name=name, type=of(kind)) for name, kind in COLUMNS if name in names
    ]
    metadata.sort(key=lambda column: names.index(column.name))
    if ttl:
        metadata.append(SimpleNamespace(keyspace_name="ks", table_name="t", name="[ttl]", type=of("Int32Type")))
    return PreparedStatement(metadata, b"q" * 16, [names.index("k"), names.index("b")], "INSERT", None, protocol, [], None)


class Sent:
    """Stands in for the connection: what would be written."""

    def __init__(self, protocol):
        self.where, self.asked, self.statements = "Cassandra at nowhere", [], []
        self.cluster, self.session = SimpleNamespace(protocol_version=protocol), SimpleNamespace()

    def prepare(self, cql, consistency):
        self.asked.append(cql)
        names = [name.strip(' "') for name in cql.partition("(")[2].partition(")")[0].split(",")]
        self.prepared = prepared(names, self.cluster.protocol_version, ttl="TTL" in cql)
        return self.prepared

    def write_ready(self, statements, concurrency):
        self.statements += statements


def message_of(statement, timestamp):
    return BatchMessage(
        statement.batch_type, statement._statements_and_parameters, statement.consistency_level, None, timestamp, None
    )


def sent(statement, protocol):
    return bulk._Protocol.encode_message(message_of(statement, 17), 1, protocol, None, False)


KEYS = st.tuples(st.sampled_from(["a", "ä", ""]), st.integers(1, 2))
ROWS = st.lists(st.tuples(KEYS, st.none() | INT, st.none() | st.binary(max_size=40)), min_size=1, max_size=30)


@pytest.mark.parametrize("protocol", [V4, V5])
@given(rows=ROWS, ttl=st.none() | st.integers(1, 1000))
def test_a_message_is_the_one_that_the_driver_makes_of_the_same_rows(protocol, rows, ttl):
    table = pa.table(
        {
            "n": pa.array([n for _, n, _ in rows], pa.int32()),
            "k": [k for (k, _), _, _ in rows],
            "b": [b for (_, b), _, _ in rows],
            "v": pa.array([v for _, _, v in rows], pa.binary()),
        }
    )
    to = Sent(protocol)
    assert bulk.write_rows(to, Target("ks", "t", 5_000_000, ttl), [table]) == len(rows)
    groups = [list(group) for _, group in groupby(rows, key=lambda row: row[0])]
    assert len(groups) == len(to.statements)
    for statement, group in zip(to.statements, groups, strict=True):
        expected = BatchStatement(BatchType.UNLOGGED, consistency_level=ConsistencyLevel.LOCAL_QUORUM)
        for (k, b), n, v in group:
            values = {"n": UNSET_VALUE if n is None else n, "k": k, "b": b, "v": UNSET_VALUE if v is None else v}
            expected.add(to.prepared, list(values.values()) + ([] if ttl is None else [ttl]))
        assert sent(statement, protocol) == sent(expected, protocol).replace(
            (17).to_bytes(8, "big"), (5_000_000).to_bytes(8, "big")
        )
        assert statement.routing_key == expected.routing_key and statement.keyspace == "ks"


def test_values_beside_the_rows_are_the_same_in_each():
    one, other = Sent(V5), Sent(V5)
    bulk.write_rows(one, Target("ks", "t", 1), [pa.table({"n": [1, 2], "v": [b"x", None]})], {"k": "a", "b": 7})
    same = pa.table({"k": ["a", "a"], "b": [7, 7], "n": [1, 2], "v": [b"x", None]})
    bulk.write_rows(other, Target("ks", "t", 1), [same])
    assert [sent(statement, V5) for statement in one.statements] == [sent(statement, V5) for statement in other.statements]
    assert one.statements[0].routing_key == other.statements[0].routing_key


def test_rows_that_come_in_small_parts_go_together_and_large_parts_in_pieces(monkeypatch):
    monkeypatch.setattr(bulk, "PIECE_BYTES", 1000)
    table = pa.table({"k": ["a"] * 300, "b": [1] * 300, "n": pa.array(range(300), pa.int32())})
    to = Sent(V5)
    parts = [*table.slice(0, 20).to_batches(max_chunksize=1), table.slice(0, 0), table.slice(20)]
    assert bulk.write_rows(to, Target("ks", "t", 1), parts) == 300
    counts = [len(statement) for statement in to.statements]
    assert sum(counts) == 300 and 5 < len(counts) < 20


def test_nothing_is_asked_where_there_are_no_rows():
    to = Sent(V5)
    assert bulk.write_rows(to, Target("ks", "t", 1), [pa.table({"k": pa.array([], pa.string())})]) == 0
    assert not to.asked and not to.statements


def test_a_row_without_partition_is_refused_with_the_column():
    with pytest.raises(ConfigurationError, match="ks.t.k is text: a row has none"):
        bulk.write_rows(Sent(V5), Target("ks", "t", 1), [pa.table({"k": ["a", None], "b": [1, 1]})])


def test_a_column_of_another_type_is_refused_with_its_name():
    with pytest.raises(ConfigurationError, match="ks.t.n is int: values of Arrow's type string do not fit"):
        bulk.write_rows(Sent(V5), Target("ks", "t", 1), [pa.table({"k": ["a"], "b": [1], "n": ["x"]})])


@given(st.lists(st.tuples(st.sampled_from([10, 700, LARGE_ROW_BYTES, LARGE_ROW_BYTES + 1, 100_000]), st.booleans()), min_size=1))
def test_a_batch_is_of_one_partition_and_bounded_and_a_large_row_goes_alone(rows):
    sizes = [size for size, _ in rows]
    partitions = np.cumsum([moves for _, moves in rows])
    cuts = cut_batches(np.cumsum([0, *sizes]), [pa.array([str(one) for one in partitions])])
    assert cuts[0] == 0 and cuts[-1] == len(rows)
    batches = [range(begin, end) for begin, end in zip(cuts[:-1], cuts[1:], strict=True)]
    for batch in batches:
        assert len({partitions[row] for row in batch}) == 1
        assert len(batch) == 1 or sum(sizes[row] for row in batch) <= WINDOW_BYTES + LARGE_ROW_BYTES
        assert len(batch) == 1 or max(sizes[row] for row in batch) <= LARGE_ROW_BYTES


def test_batches_are_full_where_rows_go_together():
    cuts = cut_batches(np.arange(10_001) * 300, [])
    assert len(cuts) - 1 == -(-10_000 * 300 // WINDOW_BYTES)


def test_a_decimal_that_does_not_fit_the_driver_is_refused():
    with pytest.raises((ValueError, TypeError, AttributeError)):
        encoded(pa.array([Decimal("1.5")]), of("InetAddressType"), V5)
