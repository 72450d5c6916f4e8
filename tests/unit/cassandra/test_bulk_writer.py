"""Rows become the messages that the driver would make of them, in batches of one partition each."""

from itertools import groupby
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from cassandra import ConsistencyLevel, ProtocolVersion
from cassandra.cqltypes import lookup_casstype as of
from cassandra.protocol import BatchMessage
from cassandra.query import UNSET_VALUE, BatchStatement, BatchType, PreparedStatement
from hypothesis import given
from hypothesis import strategies as st

from tagmill.cassandra import bulk_writer
from tagmill.cassandra.bulk_writer import (
    LARGE_ROW_BYTES,
    MIXED_LARGE_ROW_BYTES,
    MIXED_WINDOW_BYTES,
    WINDOW_BYTES,
    Target,
    cut_batches,
    cut_mixed,
)
from tagmill.errors import ConfigurationError

V4, V5 = ProtocolVersion.V4, ProtocolVersion.V5
INT = st.integers(-(2**31), 2**31 - 1)
COLUMNS = [("k", "UTF8Type"), ("b", "LongType"), ("n", "Int32Type"), ("v", "BytesType")]


def prepared(names, protocol, *, ttl=False):
    metadata = [
        SimpleNamespace(keyspace_name="ks", table_name="t", name=name, type=of(kind))
        for name, kind in COLUMNS
        if name in names
    ]
    metadata.sort(key=lambda column: names.index(column.name))
    if ttl:
        metadata.append(
            SimpleNamespace(keyspace_name="ks", table_name="t", name="[ttl]", type=of("Int32Type"))
        )
    return PreparedStatement(
        metadata, b"q" * 16, [names.index("k"), names.index("b")], "INSERT", None, protocol, [], None
    )


class Sent:
    """Stand-in for the connection that keeps what would be written."""

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
        statement.batch_type,
        statement._statements_and_parameters,
        statement.consistency_level,
        None,
        timestamp,
        None,
    )


def sent(statement, protocol):
    return bulk_writer.BatchProtocol.encode_message(message_of(statement, 17), 1, protocol, None, False)


KEYS = st.tuples(st.sampled_from(["a", "ä", ""]), st.integers(1, 2))
ROWS = st.lists(st.tuples(KEYS, st.none() | INT, st.none() | st.binary(max_size=40)), min_size=1, max_size=30)


@pytest.mark.parametrize("protocol", [V4, V5])
@given(rows=ROWS, ttl=st.none() | st.integers(1, 1000))
def test_write_rows_sends_the_drivers_messages(protocol, rows, ttl):
    """Messages equal those that the driver makes of the same rows, byte for byte, in both versions of the
    protocol.
    """
    table = pa.table(
        {
            "n": pa.array([n for _, n, _ in rows], pa.int32()),
            "k": [k for (k, _), _, _ in rows],
            "b": [b for (_, b), _, _ in rows],
            "v": pa.array([v for _, _, v in rows], pa.binary()),
        }
    )
    to = Sent(protocol)
    assert bulk_writer.write_rows(to, Target("ks", "t", 5_000_000, ttl), [table]) == len(rows)
    # write_rows does not bind a column that no row sets.
    there = {name for name in table.column_names if table[name].null_count < len(rows)}
    groups = [list(group) for _, group in groupby(rows, key=lambda row: row[0])]
    assert len(groups) == len(to.statements)
    for statement, group in zip(to.statements, groups, strict=True):
        expected = BatchStatement(BatchType.UNLOGGED, consistency_level=ConsistencyLevel.LOCAL_QUORUM)
        for (k, b), n, v in group:
            values = {
                "n": UNSET_VALUE if n is None else n,
                "k": k,
                "b": b,
                "v": UNSET_VALUE if v is None else v,
            }
            bound = [value for name, value in values.items() if name in there]
            expected.add(to.prepared, bound + ([] if ttl is None else [ttl]))
        assert sent(statement, protocol) == sent(expected, protocol).replace(
            (17).to_bytes(8, "big"), (5_000_000).to_bytes(8, "big")
        )
        assert statement.routing_key == expected.routing_key and statement.keyspace == "ks"


def test_write_rows_constant_values_equal_columns():
    """Values given next to the rows equal columns with that value in every row."""
    one, other = Sent(V5), Sent(V5)
    bulk_writer.write_rows(
        one, Target("ks", "t", 1), [pa.table({"n": [1, 2], "v": [b"x", None]})], {"k": "a", "b": 7}
    )
    same = pa.table({"k": ["a", "a"], "b": [7, 7], "n": [1, 2], "v": [b"x", None]})
    bulk_writer.write_rows(other, Target("ks", "t", 1), [same])
    assert [sent(statement, V5) for statement in one.statements] == [
        sent(statement, V5) for statement in other.statements
    ]
    assert one.statements[0].routing_key == other.statements[0].routing_key


@pytest.mark.parametrize("protocol", [V4, V5])
def test_mixed_batches_equal_the_drivers_messages(protocol):
    """Batches of rows of several partitions equal those that the driver makes, ten rows in each."""
    to, keys = Sent(protocol), [f"k{number}" for number in range(23)]
    table = pa.table({"k": keys, "b": [1] * 23, "n": pa.array(range(23), pa.int32())})
    assert bulk_writer.write_rows(to, Target("ks", "t", 17), [table], mixed=10) == 23
    assert [len(statement) for statement in to.statements] == [10, 10, 3]
    for statement, begin in zip(to.statements, (0, 10, 20), strict=True):
        expected = BatchStatement(BatchType.UNLOGGED, consistency_level=ConsistencyLevel.LOCAL_QUORUM)
        for number in range(begin, min(begin + 10, 23)):
            expected.add(to.prepared, [keys[number], 1, number])
        assert sent(statement, protocol) == sent(expected, protocol)
        assert statement.routing_key == expected.routing_key


def test_write_rows_joins_small_splits_large_parts(monkeypatch):
    """Rows of small parts go together, large parts go in pieces."""
    monkeypatch.setattr(bulk_writer, "PIECE_BYTES", 1000)
    table = pa.table({"k": ["a"] * 300, "b": [1] * 300, "n": pa.array(range(300), pa.int32())})
    to = Sent(V5)
    parts = [*table.slice(0, 20).to_batches(max_chunksize=1), table.slice(0, 0), table.slice(20)]
    assert bulk_writer.write_rows(to, Target("ks", "t", 1), parts) == 300
    counts = [len(statement) for statement in to.statements]
    assert sum(counts) == 300 and 5 < len(counts) < 20


def test_nothing_is_asked_where_there_are_no_rows():
    """Writing no rows sends no query and no statement."""
    to = Sent(V5)
    assert bulk_writer.write_rows(to, Target("ks", "t", 1), [pa.table({"k": pa.array([], pa.string())})]) == 0
    assert not to.asked and not to.statements


def test_write_rows_without_partition_key_is_refused():
    """Refuse rows without a partition key and name the column."""
    with pytest.raises(ConfigurationError, match="ks.t.k is text: a row has none"):
        bulk_writer.write_rows(Sent(V5), Target("ks", "t", 1), [pa.table({"k": ["a", None], "b": [1, 1]})])


def test_write_rows_other_column_type_is_refused():
    """Refuse a column of another type and name it."""
    with pytest.raises(ConfigurationError, match="ks.t.n is int: values of Arrow's type string do not fit"):
        bulk_writer.write_rows(Sent(V5), Target("ks", "t", 1), [pa.table({"k": ["a"], "b": [1], "n": ["x"]})])


@given(
    st.lists(
        st.tuples(st.sampled_from([10, 700, LARGE_ROW_BYTES, LARGE_ROW_BYTES + 1, 100_000]), st.booleans()),
        min_size=1,
    )
)
def test_cut_batches_are_bounded_within_partition(rows):
    """Batches hold rows of one partition up to a size; large rows go alone."""
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


@given(
    st.lists(st.sampled_from([100, 400, MIXED_LARGE_ROW_BYTES, MIXED_LARGE_ROW_BYTES + 1]), min_size=1),
    st.integers(2, 10),
)
def test_cut_mixed_batches_stay_below_warnings(sizes, rows):
    """Batches of several partitions have few rows and few bytes; larger rows go alone."""
    cuts = cut_mixed(np.cumsum([0, *sizes]), rows)
    assert cuts[0] == 0 and cuts[-1] == len(sizes)
    for begin, end in zip(cuts[:-1], cuts[1:], strict=True):
        batch = sizes[begin:end]
        assert 1 <= len(batch) <= rows
        assert len(batch) == 1 or sum(batch) <= MIXED_WINDOW_BYTES + MIXED_LARGE_ROW_BYTES <= 4096
        assert len(batch) == 1 or max(batch) <= MIXED_LARGE_ROW_BYTES
