"""Bulk writes to Cassandra: types, write times, nulls, large rows, and errors."""

import uuid
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cassandra.cluster import ResponseFuture

from tagmill.cassandra import bulk_writer, client
from tagmill.cassandra.bulk_writer import Target, write_rows
from tagmill.cassandra.client import Cassandra
from tagmill.config.settings import CassandraSettings
from tagmill.errors import ConfigurationError, StoreUnavailable
from tagmill.runs.storage import RunFiles
from tagmill.spark.bulk_load import Part, load
from tagmill.spark.errors import explained

AT = 1_700_000_000_000_000


@pytest.fixture
def made(stack, place):
    """Return made(columns, table), which creates a table with the key (k, id) and returns it as a Target."""

    def make(columns="v text", table="t"):
        stack.session.execute(
            f'CREATE TABLE {place}."{table}" (k text, id int, {columns}, PRIMARY KEY (k, id))'
        )
        return Target(place, table, AT)

    return make


@pytest.fixture(params=[4, 5])
def connected(request, stack, monkeypatch):
    """Yield a connection for each protocol version."""
    monkeypatch.setattr(client, "NEWEST_PROTOCOL", request.param)
    own = CassandraSettings(port=stack.cassandra.port, request_timeout_seconds=20 + request.param)
    with Cassandra(own) as found:  # no other test has these settings, and so this connection
        assert found.cluster.protocol_version == request.param
        yield found


def rows(count=1, **columns):
    return pa.table({"k": ["a"] * count, "id": pa.array(range(count), pa.int32()), **columns})


def test_bulk_values_of_every_type_round_trip(stack, made, connected):
    """Write a value of each of 17 CQL types and read the same values back."""
    to = made(
        "text_ text, ascii_ ascii, blob_ blob, bigint_ bigint, smallint_ smallint, tinyint_ tinyint, "
        "boolean_ boolean, double_ double, "
        "float_ float, timestamp_ timestamp, uuid_ uuid, timeuuid_ timeuuid, list_ list<text>, map_ "
        "map<text, int>, date_ date, "
        "varint_ varint, inet_ inet"
    )
    one, other, moment = uuid.uuid4(), uuid.uuid1(), datetime(2026, 2, 3, 4, 5, 6, 789_000, UTC)
    given = {
        "text_": "Größe \U0001f600 \x00",
        "ascii_": "a'b",
        "blob_": b"\x00\xff",
        "bigint_": -(2**63),
        "smallint_": -3,
        "tinyint_": 127,
        "boolean_": True,
        "double_": 1e300,
        "float_": 0.5,
        "timestamp_": moment,
        "uuid_": str(one),
        "timeuuid_": str(other),
        "list_": ["x", ""],
        "date_": moment.date(),
        "varint_": 2**40,
        "inet_": "127.0.0.1",
    }
    table = rows(
        **{name: [value] for name, value in given.items()},
        map_=pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())),
    )
    assert write_rows(connected, to, [table]) == 1
    (row,) = stack.session.execute(f"SELECT * FROM {to.keyspace}.t")
    found = row._asdict()
    expected = {
        **given,
        "uuid_": one,
        "timeuuid_": other,
        "timestamp_": moment.replace(tzinfo=None),
        "map_": {"a": 1},
    }
    assert str(found.pop("date_")) == str(expected.pop("date_"))
    assert dict(found.pop("map_")) == expected.pop("map_")
    assert {name: found[name] for name in expected} == expected


def test_bulk_rows_have_given_time_and_ttl(stack, made, connected):
    """Write rows with the given write time and TTL; rows with an older time change nothing."""
    to = made()
    with_ttl = Target(to.keyspace, to.table, AT + 5, 1000)
    write_rows(connected, to, [rows(3, v=["x"] * 3)])
    write_rows(connected, with_ttl, [rows(2, v=["y"] * 2)])
    found = list(
        stack.session.execute(f"SELECT id, v, WRITETIME(v) AS at, TTL(v) AS ttl FROM {to.keyspace}.t")
    )
    assert [(row.v, row.at) for row in found] == [("y", AT + 5), ("y", AT + 5), ("x", AT)]
    assert found[2].ttl is None and all(900 < row.ttl <= 1000 for row in found[:2])
    write_rows(connected, Target(to.keyspace, to.table, AT - 1), [rows(3, v=["older"] * 3)])
    assert {row.v for row in stack.session.execute(f"SELECT v FROM {to.keyspace}.t")} == {"x", "y"}


def test_nulls_leave_what_was_written_before(stack, made, connected):
    to = made("v text, w bigint")
    write_rows(connected, to, [rows(2, v=["before", "before"], w=[1, 2])])
    later = Target(to.keyspace, to.table, AT + 1)
    write_rows(connected, later, [rows(2, v=["after", None], w=pa.array([None, None], pa.int64()))])
    assert [(row.v, row.w) for row in stack.session.execute(f"SELECT v, w FROM {to.keyspace}.t")] == [
        ("after", 1),
        ("before", 2),
    ]


def test_names_keep_their_case_and_keys_their_letters(stack, made, connected):
    to = made('"Value" text', "Odd_Name")
    keys = ["Größe", "\U0001f600", "a'b", "\x00"]
    table = pa.table({"k": keys, "id": pa.array([0] * 4, pa.int32()), "Value": keys})
    assert write_rows(connected, to, [table]) == 4
    assert {row.k: row.Value for row in stack.session.execute(f'SELECT * FROM {to.keyspace}."Odd_Name"')} == {
        k: k for k in keys
    }


def test_rows_of_megabytes_go_alone_among_small_ones(stack, made, connected):
    to = made("v blob")
    sizes = [10, 5_000_000, 10, 10, 1_000_000, 9000, 40_000, 10]
    assert write_rows(connected, to, [rows(8, v=[bytes([size % 251]) * size for size in sizes])]) == 8
    found = list(stack.session.execute(f"SELECT id, v FROM {to.keyspace}.t"))
    assert [(row.id, len(row.v), row.v[:1], row.v[-1:]) for row in found] == [
        (place, size, bytes([size % 251]), bytes([size % 251])) for place, size in enumerate(sizes)
    ]


def test_bulk_more_rows_than_in_flight_arrive(stack, made, connected, monkeypatch):
    """Write rows in shuffled order and in more pieces than are in flight at once; all arrive."""
    monkeypatch.setattr(bulk_writer, "PIECE_BYTES", 2000)
    to = made("v text")
    count = 3000
    ids = [number * 7919 % count for number in range(count)]
    table = pa.table(
        {
            "k": [f"k{one % 5}" for one in ids],
            "id": pa.array(ids, pa.int32()),
            "v": [f"v{one}" for one in ids],
        }
    )
    assert write_rows(connected, to, table.to_batches(max_chunksize=100)) == count
    found = {(row.k, row.id): row.v for row in stack.session.execute(f"SELECT k, id, v FROM {to.keyspace}.t")}
    assert found == {(f"k{one % 5}", one): f"v{one}" for one in range(count)}


def test_bulk_forgotten_statement_is_prepared_again(stack, made, connected, monkeypatch):
    """Prepare the statement again after the server dropped it because the table was altered during the
    write.
    """
    to, again = made(), []
    prepare_again = ResponseFuture._reprepare
    monkeypatch.setattr(
        ResponseFuture, "_reprepare", lambda *arguments: again.append(1) or prepare_again(*arguments)
    )
    monkeypatch.setattr(bulk_writer, "PIECE_BYTES", 1)

    def parts():
        yield rows(1, v=["a"])
        stack.session.execute(f"ALTER TABLE {to.keyspace}.t ADD w text")
        yield rows(3, v=["b", "c", "d"])

    assert write_rows(connected, to, parts()) == 4
    assert again and [row.v for row in stack.session.execute(f"SELECT v FROM {to.keyspace}.t")] == [
        "b",
        "c",
        "d",
    ]


def test_largest_row_is_written_and_larger_one_named(stack, made, connected):
    to, largest = made("v blob, persistence_id text"), connected.largest_row
    assert largest == 16 * 1024**2 - 64 * 1024, "what the server says of itself"
    assert write_rows(connected, to, [rows(2, v=[b"", b"x" * (largest - 1)], persistence_id=["a", "b"])]) == 2
    assert [len(row.v) for row in stack.session.execute(f"SELECT v FROM {to.keyspace}.t")] == [0, largest - 1]
    named = (
        r"a row of t_\w+\.t \(persistence_id b\) has 167\d+ bytes, and Cassandra takes 16777216 in one write"
    )
    with pytest.raises(ConfigurationError, match=named):
        write_rows(connected, to, [rows(2, v=[b"", bytes(16 * 1024**2)], persistence_id=["a", "b"])])


def test_bulk_table_or_column_mismatch_is_reported(made, connected):
    """Report a missing table, a missing column and a type that does not fit in one line."""
    to = made("v text, w int")
    with pytest.raises(ConfigurationError, match=r"Cassandra at .* refused: .*table .*gone does not exist"):
        write_rows(connected, Target(to.keyspace, "gone", AT), [rows(1, v=["x"])])
    with pytest.raises(ConfigurationError, match=r"Cassandra at .* refused: .*x"):
        write_rows(connected, to, [rows(1, x=["x"])])
    with pytest.raises(
        ConfigurationError, match=rf"Cassandra at .*: {to.keyspace}\.t\.w is int: .* string do not fit"
    ):
        write_rows(connected, to, [rows(1, w=["x"])])


# -- by Spark's workers


@pytest.fixture
def files(tmp_path):
    return RunFiles(str(tmp_path / "data"))


def kept(files, name, table, **options):
    with files.create(name) as sink:
        pq.write_table(table, sink, **options)
    return name


def test_files_are_written_whatever_lies_in_them(stack, made, spark, files):
    """Write the same rows in Spark's workers and in this process."""
    to = made("v text, n bigint")
    small = kept(
        files,
        "x/a.parquet",
        rows(2000, v=[f"v{one}" for one in range(2000)], other=[1] * 2000),
        row_group_size=300,
    )
    empty = kept(files, "x/b.parquet", rows(0, v=pa.array([], pa.string())))
    large = kept(
        files, "x/c.parquet", pa.table({"id": pa.array([1, 2], pa.int32()), "v": ["ä" * 1_500_000, None]})
    )
    parts = [Part(small, {"n": 1}), Part(empty), Part(large, {"k": "large", "n": 2})]
    settings = CassandraSettings(port=stack.cassandra.port)
    assert load(lambda: spark, settings, files, parts[:2], to, ["k", "id", "v"]) == 2000
    assert load(lambda: spark, settings, files, parts[2:], to) == 2
    assert load(lambda: spark, settings, files, [], to) == 0
    here = made("v text, n bigint", "here")
    with Cassandra(settings) as own:
        spark_is_not_asked = (None, settings, files)
        assert load(*spark_is_not_asked, parts[:2], here, ["k", "id", "v"], own=own) == 2000
        assert load(*spark_is_not_asked, parts[2:], here, own=own) == 2
        assert load(*spark_is_not_asked, [], here, own=own) == 0
    expected = {("a", one): (f"v{one}", 1, AT) for one in range(2000)}
    expected |= {("large", 1): ("ä" * 1_500_000, 2, AT), ("large", 2): (None, 2, AT)}
    for table in ("t", "here"):
        rows_of = f"SELECT k, id, v, n, WRITETIME(n) AS at FROM {to.keyspace}.{table}"
        found = {(row.k, row.id): (row.v, row.n, row.at) for row in stack.session.execute(rows_of)}
        assert found == expected


def test_load_worker_refused_is_reported_in_line(stack, made, spark, files):
    """Report in one line what Cassandra refused a Spark worker."""
    to = made()
    part = Part(kept(files, "x/a.parquet", rows(1, v=["x"])))
    settings = CassandraSettings(port=stack.cassandra.port)
    with (
        pytest.raises(ConfigurationError, match=r"^Cassandra at \S+ refused: .*gone does not exist\W*$"),
        explained("Cassandra"),
    ):
        load(lambda: spark, settings, files, [part], Target(to.keyspace, "gone", AT))


def test_a_worker_that_finds_no_cassandra_says_so(made, spark, files):
    to = made()
    part = Part(kept(files, "x/a.parquet", rows(1, v=["x"])))
    with (
        pytest.raises(StoreUnavailable, match="Cassandra at home did not answer"),
        explained("Cassandra at home"),
    ):
        load(lambda: spark, CassandraSettings(port=1, connect_timeout_seconds=1), files, [part], to)
