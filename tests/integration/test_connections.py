"""Connections that are kept, and small writes that are sent together."""

from uuid import UUID

import pytest
from cassandra.cluster import Cluster

from tagmill.cassandra.client import Cassandra
from tagmill.clickhouse.client import ClickHouse
from tagmill.config.settings import CassandraSettings, ClickHouseSettings
from tagmill.domain.continuity.model import Progress
from tagmill.domain.timeuuid import ticks
from tagmill.ledger import schema
from tagmill.ledger.runs import Ledger
from tests.support.delivery import only


@pytest.fixture
def own(stack):
    """Settings that no other test has, so that no other connection fits."""
    return CassandraSettings(port=stack.cassandra.port, request_timeout_seconds=31)


def test_connection_given_back_is_taken_over(own):
    """The next one with the same settings has its session and prepared statements; one in use is not shared."""
    with Cassandra(own) as first:
        statement = first.prepare("SELECT key FROM system.local")
        with Cassandra(own) as beside:
            assert beside.session is not first.session
    with Cassandra(own) as second:
        assert second.session is first.session
        assert second.prepare("SELECT key FROM system.local") is statement
    with Cassandra(own.model_copy(update={"request_timeout_seconds": 32})) as other:
        assert other.session is not first.session


def test_connection_that_ended_is_not_taken_over(own):
    with Cassandra(own) as first:
        pass
    first.cluster.shutdown()
    with Cassandra(own) as second:
        assert second.execute("SELECT key FROM system.local")


def test_connection_taken_over_knows_new_tables(own, stack, place):
    """Tables that were made, changed or dropped while a connection was idle are seen as they are."""
    with Cassandra(own) as before:
        assert "new" not in (before.tables(place) or {})
    stack.session.execute(f"CREATE TABLE {place}.new (k int PRIMARY KEY)")
    with Cassandra(own) as after:
        assert after.session is before.session and "new" in after.tables(place)
        stack.session.execute(f"ALTER TABLE {place}.new ADD v int")
        assert "v" in after.tables(place)["new"].columns
        stack.session.execute(f"DROP TABLE {place}.new")
        assert "new" not in after.tables(place)


def test_found_table_is_not_looked_for_again(own, stack, place):
    with Cassandra(own) as cassandra:
        assert cassandra.missing(place, ["a", "b"]) == ["a", "b"]
        for name in ("a", "b"):
            stack.session.execute(f"CREATE TABLE {place}.{name} (k int PRIMARY KEY)")
        assert cassandra.missing(place, ["a", "b"]) == [] == cassandra.application.missing(place, ["a"])
        stack.session.execute(f"DROP TABLE {place}.a")
        assert cassandra.missing(place, ["b", "a"]) == []
    with Cassandra(own) as after:
        assert after.missing(place, ["b", "a"]) == ["a"]


def test_clickhouse_connection_given_back_is_taken_over(stack):
    """The next one with the same settings has its client; one in use, or made for others, is not shared."""
    settings = ClickHouseSettings(port=stack.clickhouse.port, request_timeout_seconds=31)
    with ClickHouse(settings) as first, ClickHouse(settings) as beside:
        assert beside.client is not first.client
    with ClickHouse(settings) as again:
        assert again.client is first.client and again.rows("SELECT 1") == [(1,)]
        again.close()
    with ClickHouse(settings.model_copy(update={"request_timeout_seconds": 32})) as other:
        assert other.client not in (first.client, beside.client)


def test_schema_is_the_driver_s(own, stack, place):
    """Tables of all shapes are read as the driver knows them, by keyspace and all together."""
    for statement in (
        "CREATE TYPE {}.kind (a int, b text)",
        'CREATE TABLE {}.t (b int, "A" text, z timeuuid, y int, s set<text> STATIC, k frozen<kind>, m map<text, int>, '
        'PRIMARY KEY ((b, "A"), z, y)) WITH CLUSTERING ORDER BY (z DESC, y ASC)',
        "CREATE TABLE {}.one (k int PRIMARY KEY)",
    ):
        stack.session.execute(statement.format(place))
    with Cassandra(own) as cassandra:
        known, replicas = cassandra.keyspace(place), cassandra.cluster.metadata.get_replicas
        assert known == cassandra.all_keyspaces()[place] and cassandra.keyspace("absent") is None
        cassandra.prepare(f"SELECT * FROM {place}.one WHERE k = ?")
        assert replicas(place, b"\0\0\0\1")
    with Cluster(own.hosts, port=own.port) as cluster:
        cluster.connect()
        of_driver = cluster.metadata.keyspaces[place]
        assert set(known.tables) == set(of_driver.tables) == {"t", "one"}
        assert known.replication["replication_factor"] == "1"
        for name, table in known.tables.items():
            model = of_driver.tables[name]
            assert dict(table.columns) == {key: column.cql_type for key, column in model.columns.items()}
            assert table.partition_key == tuple(column.name for column in model.partition_key)
            assert table.clustering_key == tuple(column.name for column in model.clustering_key)


def test_write_many_arrives_whole(own, stack, place):
    """Small and large rows of many partitions, with a write time of their own: all arrive, and are counted."""
    stack.session.execute(f"CREATE TABLE {place}.t (k int PRIMARY KEY, v blob)")
    rows = [(number, bytes(number % 7 * 1000), 1_000_000 + number) for number in range(235)]
    with Cassandra(own) as cassandra:
        insert = f"INSERT INTO {place}.t (k, v) VALUES (?, ?) USING TIMESTAMP ?"
        assert cassandra.write_many(insert, iter(rows)) == len(rows)
        assert cassandra.write_many(insert, []) == 0
        found = cassandra.execute(f"SELECT k, v, WRITETIME(v) AS at FROM {place}.t")
    assert sorted((row.k, row.v, row.at) for row in found) == rows


def test_write_many_joins_rows_of_partitions(own, stack, place):
    """Rows of one partition need fewer requests than rows of as many partitions; all arrive."""
    stack.session.execute(f"CREATE TABLE {place}.t (p int, k int, v int, PRIMARY KEY (p, k))")
    requests = {}
    with Cassandra(own) as cassandra:
        sent = cassandra.session.execute_async
        for name, rows in {
            "one": [(0, number, 1) for number in range(300)],
            "each": [(number, 0, 2) for number in range(1, 301)],
        }.items():
            requests[name] = 0

            def counted(statement, *values, name=name):
                requests[name] += 1
                return sent(statement, *values)

            cassandra.session.execute_async = counted
            assert cassandra.write_many(f"INSERT INTO {place}.t (p, k, v) VALUES (?, ?, ?)", rows) == 300
        cassandra.session.execute_async = sent
        found = {(row.p, row.k, row.v) for row in cassandra.execute(f"SELECT p, k, v FROM {place}.t")}
    assert found == {(0, number, 1) for number in range(300)} | {(number, 0, 2) for number in range(1, 301)}
    # 12 bytes a row, 4 KiB or ten partitions a request
    assert requests == {"one": 1, "each": 30}


def test_progress_of_many_ids_in_their_order(settings, place):
    """Progress is read ten ids at a time: each key gets its own, missing and repeated ones too."""
    configured = settings(place, tags=["t", "u"], bucket_size="Hour", first_time_bucket="2026-01-01")
    schema.apply(configured)
    name, offset = only(configured), "9e1d0f00-c5e2-11f0-8000-000000000001"
    known = {
        (tag, f"{tag}-{number}"): Progress(number, number * 2, ticks(UUID(offset)), offset, ((1, number),))
        for tag in ("t", "u")
        for number in range(1, 26)
    }
    asked = [*known, ("t", "nobody"), *reversed(known), ("u", "t-1")]
    with Ledger(configured.cassandra) as ledger:
        written = [(tag, key, progress) for (tag, key), progress in known.items()]
        assert ledger.delivered.write_progress(name, 1, iter(written)) == 50
        assert list(ledger.delivered.progress(name, iter(asked))) == [known.get(key) for key in asked]
