"""Cassandra's tables as DataFrames: values of every type, all rows or those of keys, and rows that are appended."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import pytest

from tagmill.cassandra.client import Cassandra
from tagmill.config.settings import CassandraSettings
from tagmill.errors import ConfigurationError
from tagmill.spark.cassandra_table import CassandraTable
from tests.conftest import FEW_TASKS

AT = UUID("0b5e5a00-e7a1-11f0-8080-808080808080")
ROWS_OF_ONE = 300


@pytest.fixture
def cassandra(stack: Any) -> Iterator[Cassandra]:
    with Cassandra(CassandraSettings(port=stack.cassandra.port)) as connected:
        yield connected


@pytest.fixture
def events(stack: Any, place: str, cassandra: Cassandra) -> CassandraTable:
    """Make a table with ROWS_OF_ONE rows of "a", two of "b", and a row of each other id, c0 to c19."""
    stack.session.execute(
        f"CREATE TABLE {place}.events (id text, part bigint, nr bigint, at timeuuid, payload blob, "
        "PRIMARY KEY ((id, part), nr))"
    )
    insert = stack.session.prepare(
        f"INSERT INTO {place}.events (id, part, nr, at, payload) VALUES (?, ?, ?, ?, ?) USING TIMESTAMP 5"
    )
    keys = [("a", 0, nr) for nr in range(1, ROWS_OF_ONE + 1)] + [("b", 0, 1), ("b", 1, 2)]
    for key in keys + [(f"c{number}", 0, 1) for number in range(20)]:
        stack.session.execute(insert, (*key, AT, key[0].encode()))
    return CassandraTable(cassandra, place, "events")


def test_rows_have_their_values(stack: Any, place: str, cassandra: Cassandra, spark: Any) -> None:
    stack.session.execute(
        f"CREATE TABLE {place}.kinds (k text PRIMARY KEY, i int, u uuid, b boolean, t timestamp, d date, s set<text>, "
        "n tinyint, f double, "
        'm map<text, bigint>, h list<frozen<tuple<text, blob>>>, "Mixed" text)'
    )
    stack.session.execute(
        f"INSERT INTO {place}.kinds (k, i, n, f, u, b, t, d, s, m, h, \"Mixed\") VALUES ('k', -1, -2, 0.5, "
        f"{AT}, true, '2026-01-02 03:04:05.678Z', '1969-12-31', {{'x', 'y'}}, {{'n': 7}}, [('h', 0x01)], 'ö')"
    )
    stack.session.execute(f"INSERT INTO {place}.kinds (k) VALUES ('none')")
    table = CassandraTable(cassandra, place, "kinds")
    rows = {row["k"]: row for row in table.rows(spark, *"kinfubtdsmh", "Mixed").collect()}
    full = rows["k"].asDict(recursive=True)
    assert full.pop("t").astimezone(UTC) == datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)
    assert full.pop("s") == ["x", "y"]
    assert full == {
        "k": "k",
        "i": -1,
        "n": -2,
        "f": 0.5,
        "u": str(AT),
        "b": True,
        "d": date(1969, 12, 31),
        "m": {"n": 7},
        "h": [{"0": "h", "1": b"\x01"}],
        "Mixed": "ö",
    }
    assert set(rows["none"].asDict().values()) == {"none", None}


def test_timestamps_keep_their_milliseconds(stack: Any, place: str, cassandra: Cassandra, spark: Any) -> None:
    moments = [-(10**13) - 1, -1, 1_767_323_045_678, *range(9_000_000_000_000, 9_000_000_000_100), 10**15 + 1]
    stack.session.execute(f"CREATE TABLE {place}.moments (ms bigint PRIMARY KEY, at timestamp)")
    rows = spark.createDataFrame([(ms,) for ms in moments], "ms bigint").selectExpr(
        "ms", "timestamp_millis(ms) AS at"
    )
    table = CassandraTable(cassandra, place, "moments")
    table.append(rows)
    read = table.rows(spark, "ms", "at").selectExpr("ms", "unix_micros(at) AS micros").collect()
    assert sorted((row["ms"], row["micros"]) for row in read) == [(ms, ms * 1000) for ms in moments]


def test_rows_are_read_once_each(events: CassandraTable, spark: Any) -> None:
    rows = events.rows(spark, "id", "nr", written="writetime(payload)")
    assert rows.count() == rows.distinct().count() == ROWS_OF_ONE + 22
    assert {row["written"] for row in rows.collect()} == {5}


def test_rows_of_partition_are_limited(events: CassandraTable, spark: Any) -> None:
    assert events.rows(spark, "id", per_partition=1).count() == 23


def test_own_tables_ignore_read_consistency(stack: Any, events: CassandraTable, spark: Any) -> None:
    """Read Tagmill's own table where the only node can't answer the application's reads, at THREE."""
    keys = spark.createDataFrame([("b", 0)], "id string, part bigint")
    with Cassandra(CassandraSettings(port=stack.cassandra.port, read_consistency="THREE")) as cassandra:
        own = CassandraTable(cassandra, events.keyspace, "events", is_own=True)
        assert own.rows(spark, "id", per_partition=1).count() == 23
        assert own.rows_of(keys, ["id", "part"]).count() == 1


def test_type_without_place_is_refused(stack: Any, place: str, cassandra: Cassandra, spark: Any) -> None:
    stack.session.execute(f"CREATE TABLE {place}.odd (k text PRIMARY KEY, address inet)")
    with pytest.raises(ConfigurationError, match="inet.*Nothing was read"):
        CassandraTable(cassandra, place, "odd").rows(spark, "address")


@pytest.mark.parametrize("missing", ["table", "column"])
def test_missing_name_is_told(missing: str, events: CassandraTable, spark: Any) -> None:
    table = CassandraTable(events.cassandra, events.keyspace, "events" if missing == "column" else "none")
    with pytest.raises(ConfigurationError, match="none"):
        table.rows(spark, "none" if missing == "column" else "id")


def test_keys_get_their_rows(events: CassandraTable, spark: Any) -> None:
    keys = spark.createDataFrame(
        [("a", 0, "x"), ("b", 1, "y"), ("b", 1, "again"), ("nobody", 0, "z"), (None, 0, "null")],
        "id string, part long, mark string",
    )
    rows = events.rows_of(keys, ["id", "part"], "nr").collect()
    assert [row["nr"] for row in rows if row["id"] == "a"] == list(range(1, ROWS_OF_ONE + 1))
    others = [tuple(row) for row in rows if row["id"] != "a"]
    assert sorted(others) == [("b", 1, "again", 2), ("b", 1, "y", 2)]


def test_keys_without_rows_stay_if_wanted(events: CassandraTable, spark: Any) -> None:
    keys = spark.createDataFrame([("b", 0), ("nobody", 0), (None, 0)], "id string, part long")
    rows = events.rows_of(
        keys, ["id", "part"], left=True, number="nr", written="writetime(payload)"
    ).collect()
    assert {tuple(row) for row in rows} == {("b", 0, 1, 5), ("nobody", 0, None, None), (None, 0, None, None)}


def test_keys_of_partition_are_asked_for_together(events: CassandraTable, spark: Any) -> None:
    """Also a key that comes twice, one without a row, and those of other partitions have what is theirs."""
    wanted = [("a", 0, nr) for nr in range(1, 121)] + [("b", 0, 1), ("b", 1, 2), ("c1", 0, 1), ("a", 0, 7)]
    absent = [("a", 0, -1), ("nobody", 0, 1), (None, 0, 1), ("a", 0, None)]
    keys = spark.createDataFrame([*wanted, *absent], "id string, part long, nr long").coalesce(1)
    rows = events.rows_of(keys, ["id", "part", "nr"], left=True, together=50, written="writetime(payload)")
    found = Counter(tuple(row) for row in rows.collect())
    assert found == Counter([(*key, 5) for key in wanted] + [(*key, None) for key in absent])


def test_key_may_come_a_thousand_times(events: CassandraTable, spark: Any) -> None:
    keys = spark.range(0, 1200, 1, 1).selectExpr("'b' AS id", "1L AS part", "id AS mark")
    rows = events.rows_of(keys, ["id", "part"], "nr").collect()
    assert [tuple(row) for row in rows] == [("b", 1, mark, 2) for mark in range(1200)]


def test_rows_of_keys_begin_and_end(events: CassandraTable, spark: Any) -> None:
    keys = spark.createDataFrame(
        [("a", 0, 290, 295), ("b", 0, 5, 9)], "id string, part long, low long, high long"
    )
    rows = events.rows_of(keys, ["id", "part"], "nr", where={"nr >": "low", "nr <=": "high"})
    assert [row["nr"] for row in rows.collect()] == [291, 292, 293, 294, 295]


def test_keys_may_be_uuids(stack: Any, place: str, cassandra: Cassandra, spark: Any) -> None:
    stack.session.execute(f"CREATE TABLE {place}.times (tag text, at timeuuid, PRIMARY KEY (tag, at))")
    stack.session.execute(f"INSERT INTO {place}.times (tag, at) VALUES ('t', {AT})")
    keys = spark.createDataFrame([("t", str(AT))], "tag string, at string")
    assert CassandraTable(cassandra, place, "times").rows_of(keys, ["tag", "at"]).count() == 1


def test_append_writes_each_row_as_told(stack: Any, events: CassandraTable, spark: Any) -> None:
    rows = spark.range(0, 1000, 1, FEW_TASKS).selectExpr(
        "'d' AS id",
        "id div 100 AS part",
        "id AS nr",
        f"'{AT}' AS at",
        "if(id = 3, null, binary('p')) AS payload",
    )
    assert events.append(rows, 7) == 1000
    own = rows.limit(4).selectExpr(
        "'e' AS id", "part", "nr", "nr + 70 AS `[timestamp]`", "int(nr * 50) AS `[ttl]`", "at"
    )
    assert events.append(own) == 4
    cql = f"SELECT nr, payload, writetime(at) AS at, ttl(at) AS left FROM {events.cql} WHERE id = %s AND part = 0"
    written = {row.nr: row for row in stack.session.execute(cql, ("d",))}
    assert len(written) == 100 and {row.at for row in written.values()} == {7}
    assert [written[nr].payload for nr in (3, 4)] == [None, b"p"]
    told = [(row.at, row.left) for row in stack.session.execute(cql, ("e",))]
    assert [at for at, _ in told] == [70, 71, 72, 73]
    assert told[0][1] is None and 0 < told[1][1] <= 50 < told[3][1] <= 150


def test_large_rows_pass(events: CassandraTable, spark: Any) -> None:
    size = 700_000
    rows = spark.range(0, 40, 1, 1).selectExpr(
        "'large' AS id", "0L AS part", "id AS nr", f"binary(repeat('x', {size})) AS payload"
    )
    assert events.append(rows, 7, large=True) == 40
    keys = spark.createDataFrame([("large", 0)], "id string, part long")
    sizes = events.rows_of(keys, ["id", "part"], "payload").selectExpr("length(payload) AS size")
    assert [row["size"] for row in sizes.collect()] == [size] * 40
