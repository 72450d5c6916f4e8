"""Values of topics arrive as they are: odd ones among 10,000 ordinary ones, in one run a format."""

import json
import math
import re

import pytest

from tagmill.stores.deadletters import DeadLetters
from tagmill.stores.ledger import Ledger
from tests.support.protobuf import descriptors
from tests.support.topics import checked_verdict, made
from tests.unit.topics.test_protojson import CASES, filled

GOOD = 10_000
DEEP = b'{"a":' * 9999 + b"1" + b"}" * 9999


@pytest.fixture
def shop(stack, kafka, spark, tmp_path):
    yield from made(stack, kafka, spark, tmp_path)


def send_among(one, good, odd):
    """Send the odd records spread over the good ones; return the offset of each odd one."""
    offsets, sent = [], 0
    for number in range(GOOD):
        if number % (GOOD // len(odd)) == 7 and len(offsets) < len(odd):
            offsets.append(sent)
            one.topic.send("odd", odd[len(offsets) - 1])
            sent += 1
        one.topic.send(str(number), good(number))
        sent += 1
    assert len(offsets) == len(odd)
    return offsets


def letters(one):
    """Return offset -> reason of the dead letters."""
    with Ledger(one.settings.cassandra) as ledger:
        found = DeadLetters(ledger.cassandra, "tagmill_test", one.name).listed()
        return {letter.record.offset: letter.reason for letter in found}


def expect_reasons(one, offsets, reasons):
    """Assert that these records, and no others, are dead letters, each with its reason."""
    found = letters(one)
    assert found.keys() == set(offsets)
    for offset, reason in zip(offsets, reasons, strict=True):
        assert re.search(reason, found[offset]), (reason, found[offset])


def json_event(number, **more):
    event = {
        "project": "p",
        "event_type": "e",
        "product_id": number,
        "must": 1,
        "service.name": "s",
        "customer": {"Name": "n"},
        **more,
    }
    return json.dumps(event).encode()


def raw_event(number, members, product=None):
    start = f'{{"project": "p", "event_type": "e", "product_id": {product or number}, "must": 1, "service.name": "s", "name": "n{number}"'
    return f"{start}, {members}}}".encode()


JSON_COLUMNS = [
    {"name": "must", "type": "Int64", "nullable": False}, {"name": "name"}, {"name": "service", "path": '"service.name"'},
    {"name": "who", "path": "customer.name"}, {"name": "price", "type": "Float64"}, {"name": "day", "type": "Date"},
    {"name": "small", "type": "Int8"}, {"name": "big", "type": "Int64"}, {"name": "moment", "type": "DateTime64(3, 'UTC')"},
    {"name": "flag", "type": "Bool"}, {"name": "ref", "type": "UUID"}, {"name": "text"},
]  # fmt: skip
# members of an event, and what its columns price, day, small, big, moment, flag, ref and text are then
ODD_JSON = [
    ('"price": "much", "text": 12345678901234567.81', {"text": "12345678901234567.81"}),
    ('"price": 1e400, "text": [12345678901234567.81]', {"text": "[12345678901234567.81]"}),
    ('"day": "1969-12-31", "small": 128', {}),
    ('"small": 1.5, "big": 9223372036854775808', {}),
    ('"big": 9007199254740993.0, "price": -0.0', {"big": 2**53 + 1, "price": 0.0}),
    ('"moment": "1969-12-31T23:59:59.9999Z", "flag": 1', {}),
    ('"moment": "2026-10-31T23:59:59.9999Z"', {"moment": "2026-10-31 23:59:59.999"}),
    ('"ref": "no", "flag": "true", "day": "9999-01-01"', {}),
    ('"price": {}, "small": [], "big": "1", "moment": "soon"', {}),
    ('"small": 1e999999999, "moment": 1e999999999', {}),
    ('"unused": 1e400, "text": 1e99999999999999999999', {"text": "1e99999999999999999999"}),
]
BAD_JSON = [
    (b"", "no JSON object"), (b"{", "no JSON object"), (b"[1]", "no JSON object"), (b"\xff", "no JSON object"),
    (DEEP, "no JSON object"), (b'{"project": NaN}', "no JSON object"), (b'{"project": "\\ud800"}', "no JSON object"),
 (raw_event(1, f'"x": {"9" * 5000}'), "out of range"),
    (json_event(None), "product_id, of the key, is missing"), (json_event({}), "no plain value"),
    (json_event(1, must=None), "field must is missing"), (json_event(1, must="1"), "field must is no Int64: '1' is no integer"),
    (json_event(1, must=2**63), "field must is no Int64: 9223372036854775808 is out of range"),
]  # fmt: skip


def test_json_of_every_kind_among_good_ones(shop):
    """Good ones are delivered, each bad one is a dead letter, and what a nullable column can't hold is null and counted."""
    one = shop(columns=JSON_COLUMNS)
    twins = [raw_event(number, '"price": 1', f"12345678901234567.8{number}") for number in (1, 2)]
    odd = [
        *(value for value, _ in BAD_JSON),
        *twins,
        *(raw_event(-number, members) for number, (members, _) in enumerate(ODD_JSON, 1)),
    ]
    offsets = send_among(one, lambda number: json_event(number, name="good"), odd)
    (run,) = one.deliver()
    delivered = GOOD + len(odd) - len(BAD_JSON)
    assert (run["records"], run["rows"], run["unreadable"], run["twice"]) == (GOOD + len(odd), delivered, len(BAD_JSON), 0)
    expect_reasons(one, offsets[: len(BAD_JSON)], [reason for _, reason in BAD_JSON])
    assert one.stack.rows(f"SELECT count(), uniqExact(unique_id) FROM {one.name} WHERE name = 'good' AND service = 's'") == [
        (GOOD, GOOD)
    ]
    names = ("price", "day", "small", "big", "toString(moment)", "flag", "ref", "text")
    rows = one.stack.rows(f"SELECT name, {', '.join(names)} FROM {one.name} WHERE name LIKE 'n-%'")
    expected = {
        f"n-{number}": tuple(values.get(name.removeprefix("toString(").removesuffix(")")) for name in names)
        for number, (_, values) in enumerate(ODD_JSON, 1)
    }
    assert {name: tuple(row) for name, *row in rows} == expected
    assert run["nulled"] == 17
    said = "\n".join(run["warnings"])
    assert "column price: 1 values are null, since each is out of range; the payloads have them" in said
    assert "column who: no event of this run has a field customer.name; the nearest is customer.Name" in said
    assert checked_verdict(one).startswith("exactly once")


def wide(number, **values):
    message = filled(**values)
    message.product_id = number
    return message


def odd_protobuf():
    """Return messages whose values nullable columns can't hold, the columns, and what is said of them."""
    late, early, wrong, nan = (wide(-number) for number in range(101, 105))
    late.at.seconds, early.at.seconds, wrong.duration.seconds = 253_402_300_800, -1, 2**60
    nan.double, nan.any.type_url = math.nan, "type.googleapis.com/shop.Gone"
    columns = [
        {"name": "moment", "path": "at", "type": "DateTime64(3, 'UTC')"},
        {"name": "number", "path": "double", "type": "Float64"},
    ]
    said = [
        "column moment: 2 values are null, since each is not between 1970 and 2100", "column number: 2 values are null, since each is NaN"
    ]  # fmt: skip
    return [late, early, wrong, nan], columns, said


def test_protobuf_of_every_kind_among_good_ones(shop, tmp_path):
    """Good ones are delivered as ProtoJSON says, each bad one is a dead letter, and odd values cost their columns only."""
    file = tmp_path / "wide.desc"
    file.write_bytes(descriptors())
    texts = [(values, path, expected) for values, path, kind, expected in CASES if kind == "String"]
    odd, columns, said = odd_protobuf()
    column_of = {path: f"c{number}" for number, path in enumerate(dict.fromkeys(path for _, path, _ in texts))}
    columns += [{"name": name, "path": path} for path, name in column_of.items()]
    must = {"name": "must", "path": "flag", "type": "Bool", "nullable": False}
    one = shop(
        format="protobuf", schema_files={"1": str(file)}, message_type="shop.Wide", columns=[must, *columns],
        unique_id=["project", "product_id", "state"],
    )  # fmt: skip
    good, unnamed = wide(1).SerializeToString(), wide(1)
    unnamed.state = 7
    texts = [(values, path, expected) for values, path, expected in texts if values != {"state": 7}]
    bad = [
        (b"", "none of the fields project, product_id, state"), (b"\xff\xff", "no shop.Wide"), (good[:-1], "no shop.Wide"),
        (b"\x0a\x7fp", "no shop.Wide"), (b"\xfa\x7f\x01x", "none of the fields"),
        (good + b"\x18\x01\x1a\x01x", r"field product_id \(number 3\)"),
        (good + b"\x9a\x03\x03\x0a\x01x", r"field unit_id \(number 1\) has wire type 2, not 0"),
        (unnamed.SerializeToString(), "field state, of the key, is 7"),
    ]  # fmt: skip
    shown = [wide(-number, **values) for number, (values, _, _) in enumerate(texts, 1)]
    sent = [*(value for value, _ in bad), *(message.SerializeToString() for message in (*odd, *shown))]
    offsets = send_among(one, lambda number: wide(number).SerializeToString(), sent)
    (run,) = one.deliver()
    delivered = GOOD + len(sent) - len(bad)
    assert (run["records"], run["rows"], run["unreadable"], run["twice"]) == (GOOD + len(sent), delivered, len(bad), 0)
    expect_reasons(one, offsets[: len(bad)], [reason for _, reason in bad])
    for line in said:
        assert line in "\n".join(run["warnings"])
    begin = offsets[len(bad) + len(odd)]
    rows = one.stack.rows(f"SELECT offset, {', '.join(column_of.values())} FROM {one.name} WHERE offset >= {begin}")
    found = {offset: dict(zip(column_of, row, strict=True)) for offset, *row in rows}
    for offset, (values, path, expected) in zip(offsets[len(bad) + len(odd) :], texts, strict=True):
        assert found[offset][path] == expected, (values, path)
    assert checked_verdict(one).startswith("exactly once")
