"""Tagmill and ClickHouse compute the same checksum of a row from its columns, and changing any column makes it
differ.
"""

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tagmill.clickhouse.client import ClickHouse, Totals
from tagmill.config.settings import Settings
from tagmill.delivery.arrow_checksum import row_checksums
from tagmill.domain import timeuuid
from tagmill.domain.batches.layout import COLUMNS, NAMES, row_checksum_sql
from tagmill.ledger import schema
from tests.support.checksums import checksum

START = 17_952_444_000_000_000
# The event time is 2026-11-21T07:00:00.1234567Z, whose last digit (100 ns) neither micro- nor milliseconds
# can represent.
ROW = {
    "tag": "order", "persistence_id": "o-1", "sequence_nr": 10, "tag_pid_sequence_nr": 1, "event_time": START + 1_234_567,
    "offset": str(timeuuid.lowest(START + 1_234_567)), "timebucket": START // 10_000, "writer_uuid": "w-1", "ser_id": 4,
    "ser_manifest": "s", "event_manifest": "e", "event": b'{"n": 1}', "meta_ser_id": 7, "meta_ser_manifest": "m", "meta": b"meta",
    "late": 0,
}  # fmt: skip
# SQL expressions that change each column in ClickHouse.
CHANGES = {
    "tag": "'orders'",
    "persistence_id": "'o-2'",
    "sequence_nr": "11",
    "tag_pid_sequence_nr": "2",
    "event_time": "event_time + INTERVAL 100 NANOSECOND",
    "offset": "toUUID('6c84fb90-12c4-11e1-840d-7b25c5ee775a')",
    "timebucket": "timebucket + 1",
    "writer_uuid": "''",
    "ser_id": "-4",
    "ser_manifest": "'S'",
    "event_manifest": "'s'",
    "event": "concat(event, ' ')",
    "meta_ser_id": "NULL",
    "meta_ser_manifest": "NULL",
    "meta": "''",
    "late": "1",
}
SORTED_BY = ("tag", "persistence_id", "sequence_nr", "event_time")


@pytest.fixture(scope="module")
def table(stack: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ClickHouse, str]]:
    """Yield Tagmill's ClickHouse client and a destination that is created as by `tagmill schema apply`."""
    name = f"t_{uuid4().hex[:8]}"
    file = Path(tmp_path_factory.mktemp("checksum")) / "tagmill.toml"
    file.write_text(
        f'[clickhouse]\nport = {stack.clickhouse.port}\n[pipelines.p]\nkeyspace = "k"\nbucket_size = '
        '"Hour"\ntags = ["order"]\n'
        f'first_time_bucket = "20261121T07:00"\ndestination = "{name}"\n'
    )
    settings = Settings.load(file)
    with ClickHouse(settings.clickhouse) as clickhouse:
        for statement in schema.statements(
            "clickhouse", schema.destination_values(settings, settings.pipeline("p"))
        ):
            clickhouse.command(statement)
        yield clickhouse, name


def text(random: Random) -> str:
    return "".join(random.choices("aZ0/ '\"\\%_\n\tü€😀\u0000\u200b漢", k=random.choice([0, 1, 5, 40])))


def payload(random: Random) -> bytes:
    return random.randbytes(random.choice([0, 1, 7, 8, 31, 32, 33, 500]))


def random_row(random: Random) -> dict[str, Any]:
    tick = START + random.randrange(
        60 * 864_000_000_000
    )  # two or three months: a mutation touches every partition
    return {
        "tag": text(random),
        "persistence_id": text(random),
        "sequence_nr": random.choice([0, 1, 2**63 - 1, -1, random.randrange(-(2**63), 2**63)]),
        "tag_pid_sequence_nr": random.randrange(-10, 10**12),
        "event_time": tick,
        "offset": str(UUID(int=timeuuid.lowest(tick).int >> 64 << 64 | random.getrandbits(64))),
        "timebucket": random.randrange(-(10**6), 2**60),
        "writer_uuid": text(random),
        "ser_id": random.choice([0, -1, 2**31 - 1, -(2**31)]),
        "ser_manifest": text(random),
        "event_manifest": text(random),
        "event": payload(random),
        "meta_ser_id": random.choice([None, 0, -5, 9]),
        "meta_ser_manifest": random.choice([None, "", text(random)]),
        "meta": random.choice([None, b"", payload(random)]),
        "late": random.choice([0, 1]),
    }


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    kinds = {"String": pa.string(), "Int64": pa.int64(), "Int32": pa.int32(), "UInt8": pa.int32()}
    fields = []
    for column in COLUMNS:
        kind = kinds[column.file_type.removeprefix("Nullable(").removesuffix(")")]
        fields.append((column.name, pa.binary() if column.name in ("event", "meta") else kind))
    return pa.RecordBatch.from_pylist(rows, schema=pa.schema(fields))


def parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = BytesIO()
    pq.write_table(pa.Table.from_batches([batch_of(rows)]), sink)
    return sink.getvalue()


def checksums_of(rows: list[dict[str, Any]]) -> list[int]:
    found = row_checksums(batch_of(rows), COLUMNS).tolist()
    assert found == [checksum(row, COLUMNS) for row in rows]
    return found


def inserted(table: tuple[ClickHouse, str], rows: list[dict[str, Any]]) -> UUID:
    batch = uuid4()
    table[0].insert_batch(table[1], batch, 1, parquet(rows))
    return batch


def months(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Group rows by the month of their event time, because a batch lies in one ClickHouse partition."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(timeuuid.to_datetime(row["event_time"]).strftime("%Y%m"), []).append(row)
    return found


def test_rows_have_one_checksum_in_clickhouse(table: tuple[ClickHouse, str]) -> None:
    random = Random(5)
    rows = [random_row(random) for _ in range(300)] + [
        ROW,
        ROW | {"meta": None, "meta_ser_id": None, "meta_ser_manifest": None},
    ]
    for number, row in enumerate(rows):
        row["tag_pid_sequence_nr"] = number  # finds the row again
    expected = checksums_of(rows)
    found: dict[int, int] = {}
    for of_month in months(rows).values():
        batch = inserted(table, of_month)
        query = (
            f"SELECT tag_pid_sequence_nr, {row_checksum_sql(COLUMNS)} FROM {table[1]} WHERE batch_id "
            f"= {{batch:UUID}}"
        )
        found |= dict(table[0].rows(query, {"batch": str(batch)}))
    assert [found[number] for number in range(len(rows))] == expected


def test_stored_columns_are_those_of_the_file(table: tuple[ClickHouse, str]) -> None:
    batch = inserted(table, [ROW])
    time = "toUnixTimestamp64Nano(CAST(event_time AS DateTime64(9, 'UTC')))"
    columns = ", ".join({"event_time": time, "offset": "toString(offset)"}.get(n, f"`{n}`") for n in NAMES)
    (found,) = table[0].rows(
        f"SELECT {columns} FROM {table[1]} WHERE batch_id = {{batch:UUID}}", {"batch": str(batch)}
    )
    wanted = ROW | {"event_time": ROW["event_time"] * 100}
    plain = [value.encode() if isinstance(value, str) else value for value in found]
    assert plain == [
        value.encode() if isinstance(value, str) else value for value in (wanted[n] for n in NAMES)
    ]


def test_large_payloads_have_one_checksum_in_both(table: tuple[ClickHouse, str]) -> None:
    random = Random(6)
    rows = [ROW | {"event": random.randbytes(5 * 1024 * 1024), "sequence_nr": n} for n in range(2)]
    assert table[0].totals(table[1], inserted(table, rows)) == [Totals(1, 2, sum(checksums_of(rows)) % 2**64)]


def test_totals_beyond_64_bits_wrap_equally(table: tuple[ClickHouse, str]) -> None:
    """Wrap sums beyond 64 bits equally in Tagmill and in ClickHouse, there from rows and from the
    projection.
    """
    random = Random(7)
    rows = next(iter(months([random_row(random) | {"event_time": START} for _ in range(100)]).values()))
    checksums = checksums_of(rows)
    assert sum(checksums) > 2**64
    batch = inserted(table, rows)
    expected = [Totals(1, 100, sum(checksums) % 2**64)]
    assert table[0].totals(table[1], batch) == table[0].totals(table[1], batch, from_rows=True) == expected


def test_an_absent_batch_has_no_totals(table: tuple[ClickHouse, str]) -> None:
    assert table[0].totals(table[1], uuid4()) == table[0].totals(table[1], uuid4(), from_rows=True) == []


def test_the_change_list_names_every_column() -> None:
    assert tuple(CHANGES) == NAMES


@pytest.mark.parametrize("column", NAMES)
def test_changing_one_column_of_one_row_is_seen(table: tuple[ClickHouse, str], column: str) -> None:
    clickhouse, name = table
    batch = inserted(table, [ROW | {"sequence_nr": n, "tag_pid_sequence_nr": n} for n in (10, 20, 30)])
    before = clickhouse.totals(name, batch)
    if column in SORTED_BY:
        replaced = ", ".join(
            CHANGES[column] + f" AS `{n}`" if n == column else f"`{n}`"
            for n in (*NAMES, "batch_id", "generation")
        )
        clickhouse.rows(
            f"SELECT throwIf(count() != 1) FROM {name} WHERE batch_id = {{batch:UUID}} AND sequence_nr = 20",
            {"batch": str(batch)},
        )
        clickhouse.client.command(
            f"INSERT INTO {name} ({', '.join((*NAMES, 'batch_id', 'generation'))}) SELECT {replaced} "
            f"FROM {name} "
            "WHERE batch_id = {batch:UUID} AND tag_pid_sequence_nr = 20 SETTINGS insert_deduplicate = 0",
            parameters={"batch": str(batch)},
        )
        original = " AND ".join(
            f"`{n}` = {_literal(ROW | {'sequence_nr': 20}, n)}"
            for n in ("tag", "persistence_id", "sequence_nr")
        )
        exact = f"toUnixTimestamp64Nano(CAST(event_time AS DateTime64(9, 'UTC'))) = {ROW['event_time'] * 100}"
        mutation = f"ALTER TABLE {name} DELETE WHERE batch_id = {{batch:UUID}} AND {original} AND {exact}"
    else:
        mutation = (
            f"ALTER TABLE {name} UPDATE `{column}` = {CHANGES[column]} WHERE batch_id = "
            f"{{batch:UUID}} AND sequence_nr = 20"
        )
    clickhouse.client.command(mutation, parameters={"batch": str(batch)}, settings={"mutations_sync": 2})
    for from_rows in (True, False):
        after = clickhouse.totals(name, batch, from_rows=from_rows)
        assert [total.rows for total in after] == [3], "the row was changed, not lost"
        assert after[0].checksum != before[0].checksum, f"from_rows={from_rows}"


def test_values_exchanged_between_two_rows_are_seen(
    table: tuple[ClickHouse, str],
) -> None:
    one, other = ROW | {"event": b"a", "meta": b"b"}, ROW | {"sequence_nr": 11, "event": b"c", "meta": b"d"}
    straight, crossed = [one, other], [one | {"meta": b"d"}, other | {"meta": b"b"}]
    assert sum(checksums_of(straight)) % 2**64 != sum(checksums_of(crossed)) % 2**64
    assert (
        table[0].totals(table[1], inserted(table, straight))[0].checksum
        != table[0].totals(table[1], inserted(table, crossed))[0].checksum
    )


def test_null_is_neither_empty_nor_zero(table: tuple[ClickHouse, str]) -> None:
    rows = [ROW | {"meta": meta, "meta_ser_id": ser_id} for meta in (None, b"") for ser_id in (None, 0)]
    checksums = {table[0].totals(table[1], inserted(table, [row]))[0].checksum for row in rows}
    assert len(checksums) == 4


def test_the_readable_column_shows_text_and_hides_bytes(table: tuple[ClickHouse, str]) -> None:
    payloads = ['{"n": "ü"}\n'.encode(), b"", b"\xff\xfe", b"a\x00b", b"a\x1fb", "漢字\ttext".encode()]
    batch = inserted(table, [ROW | {"sequence_nr": n, "event": event} for n, event in enumerate(payloads)])
    query = f"SELECT event_text FROM {table[1]} WHERE batch_id = {{batch:UUID}} ORDER BY sequence_nr"
    assert [row[0] for row in table[0].rows(query, {"batch": str(batch)})] == [
        '{"n": "ü"}\n',
        "",
        "",
        "",
        "",
        "漢字\ttext",
    ]


def test_batch_sent_again_is_inserted_once(table: tuple[ClickHouse, str]) -> None:
    """Send a batch twice more with another row, also under a new generation: nothing is inserted again."""
    batch = inserted(table, [ROW])
    before = table[0].totals(table[1], batch)
    for generation in (1, 2):
        table[0].insert_batch(table[1], batch, generation, parquet([ROW, ROW | {"sequence_nr": 11}]))
    assert table[0].totals(table[1], batch) == table[0].totals(table[1], batch, from_rows=True) == before


def _literal(row: dict[str, Any], name: str) -> str:
    value = row[name]
    return f"'{value}'" if isinstance(value, str) else str(value)
