"""Avro and Protobuf topics, and added columns: readable records are delivered, and each misfit is named."""

import io
import json
import struct
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from random import Random
from uuid import UUID

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tagmill.delivery.topics.destination_table import diff
from tagmill.delivery.topics.rekey_ids import rekey
from tagmill.errors import ConfigurationError, GuardRefused
from tagmill.ledger.dead_letters import DeadLetters
from tagmill.ledger.runs import Ledger
from tests.support.avro import ENUM, REFUSED
from tests.support.delivery import tagmill
from tests.support.errors import raises
from tests.support.leases import free_lease
from tests.support.topics import OWNER, made


@pytest.fixture
def shop(stack, kafka, spark, tmp_path):
    """Yield a factory of topics with products, each read with Spark and delivered by its own pipeline."""
    for make in made(stack, kafka, spark, tmp_path):
        yield partial(make, small_run_rows=0)


def avro_schema(*fields):
    """Return an Avro schema with the fields of the key and these."""
    key = [
        {"name": "project", "type": "string"},
        {"name": "event_type", "type": "string"},
        {"name": "product_id", "type": "long"},
    ]
    return {"type": "record", "name": "Event", "fields": [*key, *fields]}


PRICE = {"name": "price", "type": ["null", "double"], "default": None}
NOTE = {"name": "note", "type": ["null", "string"], "default": None}


def encoded(schema, product, registry_id=None, **more):
    """Return an event in Avro, framed if a registry id is given."""
    out = io.BytesIO()
    event = {"project": "p", "event_type": "e", "product_id": product, **more}
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), event)
    return (b"" if registry_id is None else b"\0" + registry_id.to_bytes(4, "big")) + out.getvalue()


def written(folder, name, schema):
    """Write a schema into a file and return its path."""
    file = folder / name
    file.write_text(json.dumps(schema))
    return str(file)


def test_framed_avro_of_two_versions_and_misfits(shop, tmp_path):
    first, second = avro_schema(PRICE), avro_schema(PRICE, NOTE)
    files = {"7": written(tmp_path, "a.avsc", first), "9": written(tmp_path, "b.avsc", second)}
    one = shop(
        format="avro",
        framed=True,
        schema_files=files,
        columns=[{"name": "price", "type": "Float64"}, {"name": "note"}],
    )
    one.topic.send("a", encoded(first, 1, 7, price=1.5))
    one.topic.send("b", encoded(second, 2, 9, price=None, note="n"))
    one.topic.send("c", encoded(second, 1, 9, note="again"))
    one.topic.send("d", encoded(second, 3, 9, note="cut")[:-2])
    one.topic.send("e", encoded(second, 3, 8, note="unknown"))
    one.topic.send("f", encoded(first, 4, 7) + b"more")
    (run,) = one.deliver()
    assert (run["rows"], run["twice"], run["unreadable"]) == (2, 1, 3)
    assert one.rows("schema_version, price, note") == [("7", 1.5, None), ("9", None, "n")]
    code, out, _ = tagmill(one.file, "deadletters", "list", "-p", one.name)
    text = " ".join(out.split())
    assert code == 0 and "schema id 8 is not among" in text and "4 bytes are left over" in text


def logical(base, logical_type, **more):
    """Return an Avro type with a logical type."""
    return {"type": base, "logicalType": logical_type, **more}


LOGICAL = {
    "price": logical("bytes", "decimal", precision=38, scale=9),
    "at": logical("long", "timestamp-nanos"),
    "seen": logical("long", "timestamp-micros"),
    "day": logical("int", "date"),
    "clock": logical("int", "time-millis"),
    "id": logical("fixed", "uuid", name="Id", size=16),
    "span": logical("fixed", "duration", name="Span", size=12),
    "own": logical("string", "of-the-shop"),
}
TYPED = {
    "amount": ("price", "Decimal(38, 9)"),
    "at_ms": ("at", "DateTime64(3, 'UTC')"),
    "on_day": ("day", "Date"),
    "uuid": ("id", "UUID"),
}
SOME_ID = UUID("5b11713a-0000-4000-8000-00000000000b")
# Values as fastavro writes them, then their texts in String columns, then in the columns of TYPED.
EVENTS = [
    (
        (
            Decimal("19.90"),
            1_795_348_800_123_456_789,
            datetime(2026, 11, 22, 12, tzinfo=UTC),
            date(2026, 11, 22),
            time(23, 59, 59),
            SOME_ID.bytes,
            b"\1\0\0\0\2\0\0\0\xe9\3\0\0",
            "x",
        ),
        (
            "19.900000000",
            "2026-11-22T12:00:00.123456789Z",
            "2026-11-22T12:00:00Z",
            "2026-11-22",
            "23:59:59",
            str(SOME_ID),
            "P1M2DT1.001S",
            "x",
        ),
        ("19.9", "2026-11-22 12:00:00.123", "2026-11-22", str(SOME_ID)),
    ),
    (
        (
            Decimal("-" + "9" * 29 + "." + "9" * 9),
            0,
            datetime(1, 1, 1, tzinfo=UTC),
            date(1970, 1, 1),
            time(0, 0),
            bytes(16),
            bytes(12),
            "",
        ),
        (
            "-" + "9" * 29 + "." + "9" * 9,
            "1970-01-01T00:00:00.000000000Z",
            "0001-01-01T00:00:00Z",
            "1970-01-01",
            "00:00:00",
            str(UUID(int=0)),
            "P0M0DT0.000S",
            "",
        ),
        ("-" + "9" * 29 + "." + "9" * 9, "1970-01-01 00:00:00.000", "1970-01-01", str(UUID(int=0))),
    ),
    ((None,) * 8, (None,) * 8, (None,) * 4),
]


def any_event(random):
    """Return an event of values at random, as EVENTS has them."""
    digits, sign = f"{random.randrange(1, 10 ** random.randint(1, 38)):010}", random.choice(["", "-"])
    price, own = f"{sign}{digits[:-9]}.{digits[-9:]}", "".join(random.choices('aü漢😀\0"', k=3))
    second, nanoseconds = (
        datetime(1970, 1, 1) + timedelta(seconds=random.randrange(4_102_444_800)),
        random.randrange(10**9),
    )
    seen = datetime(1, 1, 1) + timedelta(microseconds=random.randrange(315_537_897_600 * 10**6))
    day, clock = (
        date(1970, 1, 1) + timedelta(days=random.randint(0, 65_535)),
        time(random.randrange(24), 1, 2, random.randrange(1000) * 1000),
    )
    identity, span = UUID(int=random.getrandbits(128)), [random.getrandbits(32) for _ in range(3)]
    at = (second - datetime(1970, 1, 1)) // timedelta(seconds=1) * 10**9 + nanoseconds
    bare = price.rstrip("0").rstrip(".")
    return (
        (
            Decimal(price),
            at,
            seen.replace(tzinfo=UTC),
            day,
            clock,
            identity.bytes,
            struct.pack("<III", *span),
            own,
        ),
        (
            *(
                price,
                f"{second.isoformat()}.{nanoseconds:09}Z",
                seen.isoformat() + "Z",
                day.isoformat(),
                clock.isoformat(),
            ),
            *(str(identity), f"P{span[0]}M{span[1]}DT{span[2] // 1000}.{span[2] % 1000:03}S", own),
        ),
        (bare, f"{second}.{nanoseconds // 10**6:03}", day.isoformat(), str(identity)),
    )


def forbidden():
    """Return schema, bytes and reason of records that Avro forbids, also where the fault is in a field of the
    key.
    """
    for kind, hexadecimal, why in REFUSED.values():
        content = bytes.fromhex(hexadecimal)
        yield avro_schema({"name": "x", "type": kind}), b"\x02p\x02e\x02" + content, why
        if kind in ("long", "int", "boolean", "string", ENUM) and "left over" not in why:
            key = {"project": "string", "event_type": kind, "product_id": "long"}
            fields = [{"name": name, "type": of_field} for name, of_field in key.items()]
            yield {"type": "record", "name": "Event", "fields": fields}, b"\x02p" + content, why


def test_bad_avro_costs_no_good_record(shop, tmp_path):
    """Send 10,000 good records, and among them each kind that Avro forbids.

    The good ones arrive unchanged; each bad one becomes a dead letter with its reason.
    """
    good = avro_schema(*({"name": name, "type": ["null", kind]} for name, kind in LOGICAL.items()))
    bad, parsed = list(forbidden()), fastavro.parse_schema(good)
    schemas = {"0": good} | {str(number): schema for number, (schema, _, _) in enumerate(bad, 1)}
    files = {version: written(tmp_path, f"{version}.avsc", schema) for version, schema in schemas.items()}
    columns = [{"name": name} for name in LOGICAL] + [
        {"name": name, "path": path, "type": kind} for name, (path, kind) in TYPED.items()
    ]
    one = shop(format="avro", framed=True, schema_files=files, columns=columns)
    random = Random(40)
    places, events = {}, [*EVENTS, *(any_event(random) for _ in range(9997))]
    for number, (values, _, _) in enumerate(events):
        if number % 100 == 50 and len(places) < len(bad):
            _, body, why = bad[len(places)]
            places[number + len(places)] = why
            one.topic.send("bad", b"\0" + len(places).to_bytes(4, "big") + body)
        one.topic.send("good", encoded(parsed, number, 0, **dict(zip(LOGICAL, values, strict=True))))
    assert len(places) == len(bad) > 60
    (run,) = one.deliver()
    assert (run["rows"], run["unreadable"]) == (10_000, len(places))
    shown = ", ".join([*LOGICAL, *(f"toString({name})" for name in TYPED)])
    assert one.rows(shown) == [texts + typed for _, texts, typed in events]
    with Ledger(one.settings.cassandra) as ledger:
        letters = list(DeadLetters(ledger.cassandra, ledger.ledger_keyspace, one.name).listed())
    reasons = {letter.record.offset: letter.reason for letter in letters}
    assert reasons.keys() == places.keys()
    assert {offset: reason for offset, reason in reasons.items() if places[offset] not in reason} == {}
    code, _, err = tagmill(one.file, "check", "-p", one.name)
    assert code == 0, err


def protobuf(*fields, first=1):
    """Return a descriptor set of a message with the fields of the key and these."""
    kinds = descriptor_pb2.FieldDescriptorProto
    message = descriptor_pb2.DescriptorProto(name="Event")
    for number, (name, kind) in enumerate(
        (("project", "STRING"), ("event_type", "STRING"), ("product_id", "INT64"), *fields), first
    ):
        message.field.add(
            name=name, number=number, type=getattr(kinds, f"TYPE_{kind}"), label=kinds.LABEL_OPTIONAL
        )
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", message_type=[message])
    return descriptor_pb2.FileDescriptorSet(file=[file])


def message(descriptors, **values):
    """Return a message of a descriptor set, serialized."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptors.file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Event"))(
        **values
    ).SerializeToString()


def test_protobuf_wrong_descriptor_makes_dead_letters(shop, tmp_path):
    """Read messages by the descriptor of another message, then by the right one, and by descriptors that
    don't fit.
    """
    made_with, file = protobuf(("price", "DOUBLE")), tmp_path / "shop.desc"
    file.write_bytes(made_with.SerializeToString())
    keys = {
        "format": "protobuf",
        "schema_files": {"1": str(file)},
        "columns": [{"name": "price", "type": "Float64"}],
    }
    one = shop(message_type="shop.Event", **keys)
    one.topic.send("a", message(made_with, project="p", event_type="e", product_id=1, price=2.5))
    one.topic.send("b", b"\xff\xff")
    one.topic.send("c", message(made_with, project="p", event_type="e", product_id=2))
    (run,) = one.deliver()
    assert (
        (run["rows"], run["unreadable"]) == (2, 1)
        and one.rows("price") == [(2.5,), (None,)]
        or one.rows("price")[1] == (0.0,)
    )
    # With another message's descriptor Protobuf itself would read the events, and all would seem to be the
    # same one.
    file.write_bytes(protobuf(("price", "DOUBLE"), first=10).SerializeToString())
    one.topic.send("d", message(made_with, project="p", event_type="e", product_id=3, price=3.5))
    one.topic.send("e", message(made_with, project="p", event_type="e", product_id=4, price=4.5))
    (run,) = one.deliver()
    assert (run["rows"], run["unreadable"]) == (0, 2)
    file.write_bytes(made_with.SerializeToString())
    (run,) = one.deliver(letters=True)
    assert (run["rows"], run["unreadable"]) == (2, 1) and {(3.5,), (4.5,)} <= set(one.rows("price"))
    one.configure(message_type="shop.Nothing")
    with raises(ConfigurationError, pipeline=one.name):
        one.deliver()
    file.write_bytes(protobuf(("price", "STRING")).SerializeToString())
    one.configure(message_type="shop.Event")
    with raises(ConfigurationError, pipeline=one.name):
        one.deliver()
    file.write_bytes(b"\x0anonsense")
    with raises(ConfigurationError, pipeline=one.name):
        one.deliver()


def test_new_field_becomes_column_when_configured(shop, tmp_path):
    """Add a field to the schema and then a column: batches sealed before stay as they were, and ids don't
    change.
    """
    file = written(tmp_path, "a.avsc", avro_schema(PRICE))
    one = shop(format="avro", schema_files={"1": file}, columns=[{"name": "price", "type": "Float64"}])
    one.topic.send("a", encoded(avro_schema(PRICE), 1, price=1.0))
    one.deliver()
    one.topic.send("b", encoded(avro_schema(PRICE), 2, price=2.0))
    planned = one.sealed()  # sealed with the old columns
    # The schema has one more field: the payload has it, and the diff names it.
    written(tmp_path, "a.avsc", avro_schema(PRICE, NOTE))
    assert diff(one.settings, one.name)["unmapped"] == ["event_type", "note", "product_id", "project"]
    one.configure(columns=[{"name": "price", "type": "Float64"}, {"name": "note"}])
    assert diff(one.settings, one.name)["columns"] == [
        {"column": "note", "there": None, "configured": "Nullable(String)", "what": "is added"}
    ]
    code, out, _ = tagmill(one.file, "schema", "diff", "-p", one.name)
    assert code == 0 and "is added" in out
    code, out, err = tagmill(one.file, "schema", "apply")
    assert code == 0, err
    assert diff(one.settings, one.name)["columns"] == []
    free_lease(one.stack.session, one.name)
    one.finish(planned)
    one.topic.send("c", encoded(avro_schema(PRICE, NOTE), 3, price=3.0, note="n"))
    one.topic.send("d", encoded(avro_schema(PRICE, NOTE), 1, price=1.0, note="late"))
    (run,) = one.deliver()
    assert (run["rows"], run["known"]) == (1, 1), "the ids of old events are what they were"
    assert one.rows("price, note") == [(1.0, None), (2.0, None), (3.0, "n")]
    code, _, err = tagmill(one.file, "check", "-p", one.name)
    assert code == 0, err


@pytest.mark.long
def test_rekey_reads_ids_under_corrected_schema(shop, tmp_path):
    file = written(tmp_path, "a.avsc", avro_schema(PRICE))
    one = shop(format="avro", schema_files={"1": file})
    one.topic.send("a", encoded(avro_schema(PRICE), 1, price=1.0))
    one.deliver()
    one.configure(shards=7)
    given = {"owner": OWNER, "who": "tester", "spark": lambda: one.spark}
    written(tmp_path, "a.avsc", avro_schema(PRICE, NOTE))  # a wrong change of the schema
    with raises(GuardRefused, pipeline=one.name):
        rekey(one.settings, one.name, **given)
    free_lease(one.stack.session, one.name)
    written(tmp_path, "a.avsc", avro_schema(PRICE))
    done = rekey(one.settings, one.name, **given)
    assert (done.ids, done.same, done.unreadable) == (1, 1, 0)
    # The schema changes for good: a rekeying reads events of both versions.
    newer = written(tmp_path, "b.avsc", avro_schema(PRICE, NOTE))
    one.configure(schema_files={"1": file, "2": newer}, schema_version="2")
    one.topic.send("b", encoded(avro_schema(PRICE, NOTE), 2, price=2.0, note="n"))
    one.topic.send("c", encoded(avro_schema(PRICE, NOTE), 1, price=1.0, note="again"))
    (run,) = one.deliver()
    assert (run["rows"], run["known"]) == (1, 1)
    one.configure(shards=9)
    done = rekey(one.settings, one.name, **given)
    assert (done.ids, done.same, done.unreadable) == (2, 2, 0)


def test_unfit_schema_change_stops_with_field_name(shop, tmp_path):
    file = written(tmp_path, "a.avsc", avro_schema(PRICE))
    one = shop(format="avro", schema_files={"1": file}, columns=[{"name": "price", "type": "Float64"}])
    one.configure(columns=[{"name": "price", "type": "String"}])
    code, _, err = tagmill(one.file, "schema", "apply")
    assert code == 2 and "column price differs (Nullable(Float64), configured Nullable(String))" in err
    one.configure(
        columns=[{"name": "price", "type": "Float64"}, {"name": "size", "type": "Int32", "nullable": False}]
    )
    code, _, err = tagmill(one.file, "schema", "apply")
    assert code == 2 and "there is no field size" in err
    one.configure(columns=[{"name": "price", "type": "Float64"}])
    written(tmp_path, "a.avsc", avro_schema({"name": "price", "type": "string"}))
    with raises(
        ConfigurationError, match="field price is a string, and column price is Float64", pipeline=one.name
    ):
        one.deliver()
    written(tmp_path, "a.avsc", {"type": "record", "name": "E", "fields": [PRICE]})
    with raises(ConfigurationError, match="no field project", pipeline=one.name):
        one.deliver()
