"""Pages of Cassandra's rows keep every type, nulls and rows of any size, and cover all partitions once."""

import uuid
from itertools import pairwise

import pyarrow as pa
import pytest
from cassandra import OperationTimedOut
from cassandra.cluster import ResponseFuture

from tagmill.cassandra import client as stores
from tagmill.cassandra.client import Cassandra
from tagmill.cassandra.paging import HIGHEST, LOWEST, PAGE_BYTES, Pages, token_ranges
from tagmill.config.settings import CassandraSettings
from tagmill.errors import ConfigurationError, StoreUnavailable, TagmillError
from tests.support.relay import relayed


@pytest.fixture
def cassandra(stack):
    """Yield an open connection to the test's Cassandra."""
    with Cassandra(CassandraSettings(port=stack.cassandra.port)) as found:
        yield found


@pytest.fixture
def pages(cassandra):
    """Yield a reader of pages."""
    with Pages(cassandra) as found:
        yield found


def test_every_type_comes_as_arrow_has_it(stack, place, pages):
    stack.session.execute(
        f"CREATE TABLE {place}.t (id int PRIMARY KEY, big bigint, words text, ascii_ ascii, raw blob, "
        "one uuid, moment timeuuid, "
        "tags set<text>, listed list<text>)"
    )
    one, moment = uuid.uuid4(), uuid.uuid1()
    insert = stack.session.prepare(
        f"INSERT INTO {place}.t (id, big, words, ascii_, raw, one, moment, tags, listed) VALUES (?, ?, "
        "?, ?, ?, ?, ?, ?, ?)"
    )
    rows = {
        1: (
            -(2**63),
            "Größe \U0001f600 \x00",
            "a'b",
            b"\x00\xff",
            one,
            moment,
            {"é", "", "b"},
            ["x", "", "x"],
        ),
        2: (None,) * 8,
        3: (0, "", "", b"", one, moment, {"z"}, ["z"]),
    }
    for number, values in rows.items():
        stack.session.execute(insert, (number, *values))
    found = {}
    for number in rows:
        (batch,) = pages.of(f"SELECT * FROM {place}.t WHERE id = ?", number)
        found[number] = batch.to_pylist()[0]
        kinds = {
            "id": pa.int32(),
            "big": pa.int64(),
            "words": pa.string(),
            "raw": pa.binary(),
            "moment": pa.binary(16),
            "tags": pa.list_(pa.string()),
        }
        assert {name: batch.schema.field(name).type for name in kinds} == kinds
    names = ["big", "words", "ascii_", "raw", "one", "moment", "tags", "listed"]
    for number, (big, words, ascii_, raw, one_, moment_, tags, listed) in rows.items():
        plain = (
            big,
            words,
            ascii_,
            raw,
            one_ and one_.bytes,
            moment_ and moment_.bytes,
            tags and sorted(tags, key=str.encode),
            listed,
        )
        assert found[number] == {"id": number, **dict(zip(names, plain, strict=True))}


def test_pages_type_unknown_to_arrow_raises_error(stack, place, pages):
    stack.session.execute(f"CREATE TABLE {place}.t (id int PRIMARY KEY, v inet)")
    stack.session.execute(f"INSERT INTO {place}.t (id, v) VALUES (1, '127.0.0.1')")
    with pytest.raises(TypeError, match="inet"):
        list(pages.of(f"SELECT * FROM {place}.t"))


def test_pages_rows_of_any_size_stay_bounded(stack, place, pages):
    stack.session.execute(f"CREATE TABLE {place}.t (k int, id int, v blob, PRIMARY KEY (k, id))")
    insert = stack.session.prepare(f"INSERT INTO {place}.t (k, id, v) VALUES (1, ?, ?)")
    sizes = [20] * 3000 + [1_000_000] * 30 + [5_000_000] * 2 + [20] * 3000
    for number, size in enumerate(sizes):
        stack.session.execute(insert, (number, number.to_bytes(4, "big") * (size // 4)))
    found = list(pages.of(f"SELECT id, v FROM {place}.t WHERE k = ?", 1))
    assert [len(value) for batch in found for value in batch["v"].to_pylist()] == [
        size // 4 * 4 for size in sizes
    ]
    assert [number for batch in found for number in batch["id"].to_pylist()] == list(range(len(sizes)))
    small, large = found[2], [batch.num_rows for batch in found if batch.nbytes > 2 * PAGE_BYTES]
    assert small.num_rows > 1000
    assert len(large) < 4  # pages requested before the reader met large rows


def test_pages_continue_after_their_connection_is_cut(stack, place):
    stack.session.execute(f"CREATE TABLE {place}.t (k int, id int, PRIMARY KEY (k, id))")
    for number in range(300):
        stack.session.execute(f"INSERT INTO {place}.t (k, id) VALUES (1, {number})")
    with (
        relayed(stack.cassandra.port) as relay,
        Cassandra(CassandraSettings(port=relay.port)) as cassandra,
        Pages(cassandra) as pages,
    ):
        for _ in range(3):
            # The newest connection is that of the pages; the session of `cassandra` keeps its own.
            relay.cut_newest()
            found = pages.of(f"SELECT id FROM {place}.t WHERE k = ?", 1)
            assert [number for batch in found for number in batch["id"].to_pylist()] == list(range(300))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_requests_continue_after_their_connections_fall_silent(stack, place):
    """Nothing answers, and nothing is closed: the driver notices within a minute, as long as a request waits."""
    stack.session.execute(f"CREATE TABLE {place}.t (k int, id int, PRIMARY KEY (k, id))")
    stack.session.execute(f"INSERT INTO {place}.t (k, id) VALUES (1, 2)")
    query = f"SELECT id FROM {place}.t WHERE k = ?"
    with (
        relayed(stack.cassandra.port) as relay,
        Cassandra(CassandraSettings(port=relay.port)) as cassandra,
        Pages(cassandra) as pages,
    ):
        for ask in (
            lambda: cassandra.execute(query, 1)[0].id,
            lambda: next(pages.of(query, 1))["id"][0].as_py(),
        ):
            assert ask() == 2
            relay.silence()
            assert ask() == 2


def test_token_ranges_cover_each_partition_once(stack, place, cassandra, pages):
    stack.session.execute(f"CREATE TABLE {place}.t (id int PRIMARY KEY)")
    for number in range(500):
        stack.session.execute(f"INSERT INTO {place}.t (id) VALUES ({number})")
    for parts in (1, 7, 100):
        ranges = token_ranges(cassandra, parts)
        assert len(ranges) >= parts
        assert ranges[0][0] == LOWEST and ranges[-1][1] == HIGHEST
        assert all(low[1] == high[0] and low[0] < low[1] for low, high in pairwise(ranges))
        query = f"SELECT id FROM {place}.t WHERE token(id) > ? AND token(id) <= ?"
        assert sorted(
            n for low, high in ranges for batch in pages.of(query, low, high) for n in batch["id"].to_pylist()
        ) == list(range(500))


def test_no_page_is_lost_where_an_answer_is(stack, place, pages, monkeypatch):
    stack.session.execute(f"CREATE TABLE {place}.t (k int, id int, PRIMARY KEY (k, id))")
    for number in range(3000):
        stack.session.execute(f"INSERT INTO {place}.t (k, id) VALUES (1, {number})")
    asked, result = [], ResponseFuture.result

    def lossy(self):
        asked.append(self)
        if len(asked) % 2:
            raise OperationTimedOut
        return result(self)

    monkeypatch.setattr(ResponseFuture, "result", lossy)
    found = [
        number
        for batch in pages.of(f"SELECT id FROM {place}.t WHERE k = ?", 1)
        for number in batch["id"].to_pylist()
    ]
    monkeypatch.undo()
    assert found == list(range(3000)) and len(asked) > 4
    monkeypatch.setattr(ResponseFuture, "result", lambda self: (_ for _ in ()).throw(OperationTimedOut()))
    monkeypatch.setattr(stores, "PATIENCE_SECONDS", 0.1)
    with pytest.raises(StoreUnavailable):
        list(pages.of(f"SELECT id FROM {place}.t WHERE k = 1"))


def test_pages_of_many_queries_keep_their_order(stack, place, pages):
    """Queries are answered one after the other, whatever their sizes."""
    stack.session.execute(f"CREATE TABLE {place}.t (k int, id int, raw blob, PRIMARY KEY (k, id))")
    insert = stack.session.prepare(f"INSERT INTO {place}.t (k, id, raw) VALUES (?, ?, ?)")
    sizes = {1: (300, 10), 2: (0, 0), 3: (1, 10), 4: (6, PAGE_BYTES // 2), 5: (120, 10)}
    for k, (rows, size) in sizes.items():
        for number in range(rows):
            stack.session.execute(insert, (k, number, bytes(size)))
    wanted = (5, 1, 2, 4, 3, 1)
    batches = list(pages.of_each(f"SELECT k, id, raw FROM {place}.t WHERE k = ?", ((k,) for k in wanted)))
    keys = ("k", "id")
    found = [
        pair for batch in batches for pair in zip(*(batch[key].to_pylist() for key in keys), strict=True)
    ]
    assert found == [(k, number) for k in wanted for number in range(sizes[k][0])]
    assert list(pages.of_each(f"SELECT k, id, raw FROM {place}.t WHERE k = ?", [])) == []


def test_pages_unparsable_answer_raises_an_error(stack, place, pages, monkeypatch):
    """Break the driver's parser: the reader raises instead of returning an empty page."""
    stack.session.execute(f"CREATE TABLE {place}.t (id int PRIMARY KEY)")
    stack.session.execute(f"INSERT INTO {place}.t (id) VALUES (1)")
    monkeypatch.setattr("tagmill.cassandra.paging.ParseDesc", None)
    with pytest.raises(TagmillError, match="could not be read"):
        list(pages.of(f"SELECT id FROM {place}.t"))


def test_pages_missing_table_is_one_line(place, pages):
    with pytest.raises(ConfigurationError):
        list(pages.of(f"SELECT id FROM {place}.missing"))
