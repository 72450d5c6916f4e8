"""Values of topics arrive unchanged: odd ones among 10,000 ordinary ones, in one run for each format."""

import json
import math
import re
import uuid
from base64 import b64encode
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from random import Random

import pytest

from tagmill.ledger.dead_letters import DeadLetters
from tagmill.ledger.runs import Ledger
from tests.support.protobuf import descriptors
from tests.support.topics import checked_verdict, made
from tests.unit.delivery.topics.test_protojson import CASES, filled

GOOD = 10_000
DEEP = b'{"a":' * 9999 + b"1" + b"}" * 9999


@pytest.fixture
def shop(stack, kafka, spark, tmp_path):
    """Yield a factory of topics with products, each delivered by its own pipeline."""
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
    """Return a JSON event of a product that fits JSON_COLUMNS."""
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


def raw_event(number, members):
    """Return a JSON event of a product with these members as text."""
    start = (
        f'{{"project": "p", "event_type": "e", "product_id": {number}, "must": 1, "service.name": '
        f'"s", "name": "n{number}"'
    )
    return f"{start}, {members}}}".encode()


JSON_COLUMNS = [
    {"name": "must", "type": "Int64", "nullable": False}, {"name": "name"}, {"name": "service", "path": '"service.name"'},
    {"name": "who", "path": "customer.name"}, {"name": "price", "type": "Float64"}, {"name": "day", "type": "Date"},
    {"name": "small", "type": "Int8"}, {"name": "big", "type": "Int64"}, {"name": "moment", "type": "DateTime64(3, 'UTC')"},
    {"name": "flag", "type": "Bool"}, {"name": "ref", "type": "UUID"}, {"name": "text"}, {"name": "amount", "type": "Decimal(20, 2)"},
]  # fmt: skip
NAMES = ("price", "day", "small", "big", "moment", "flag", "ref", "text", "amount")
SHOWN = (
    "price",
    "toString(day)",
    "small",
    "big",
    "toString(moment)",
    "flag",
    "toString(ref)",
    "text",
    "toString(amount)",
)
EPOCH, END = datetime(1970, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
DOUBLES = (0.0, 5e-324, 1.7976931348623157e308, -0.1, 2.0**53 + 2, 1 / 3)
LONGS = (0, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 2**53 + 1)


def some_double(random):
    """Return a number at random as JSON, and the value of its column."""
    number = random.choice([*DOUBLES, random.uniform(-1e12, 1e12)])
    return random.choice([repr, "{:.17g}".format, "{:.16e}".format])(number), number


def some_day(random):
    """Return a day at random as JSON, and the text of its column."""
    day = date(1960, 1, 1) + timedelta(random.randrange(75_000))
    return f'"{day}"', str(day) if date(1970, 1, 1) <= day <= date(2149, 6, 6) else None


def some_moment(random):
    """Return a time with up to nine digits of a second, in any zone, as JSON, and the text of its column."""
    ends = [
        EPOCH,
        END,
        EPOCH - timedelta(seconds=1),
        EPOCH + timedelta(random.randrange(47_000), random.randrange(86_400)),
    ]
    whole, digits = (
        random.choice(ends),
        random.choice(["", ".9", ".999", ".9999", ".000999999", f".{random.randrange(10**9):09}"]),
    )
    zone = timezone(timedelta(minutes=random.randrange(-720, 720)))
    text = whole.astimezone(zone).isoformat()
    kept = f"{whole:%Y-%m-%d %H:%M:%S}.{digits[1:4]:0<3}"
    return f'"{text[:19]}{digits}{text[19:]}"', kept if EPOCH <= whole < END else None


def some_long(random):
    """Return an integer at random as JSON, and the value of its column."""
    number = random.choice([*LONGS, random.randrange(-(2**63), 2**63)])
    return random.choice([f"{number}", f"{number}.0", f"{number}.0e0"]), number if -(
        2**63
    ) <= number < 2**63 else None


def some_text(random):
    """Return a text, number or array at random as JSON, and the text of its column."""
    text = "".join(
        chr(random.choice([random.randrange(32, 0xD800), random.randrange(0xE000, 0x11_0000)]))
        for _ in range(5)
    )
    digits = f"{random.randrange(10**25)}.5"
    return random.choice(
        [(json.dumps(text), text), (digits, digits), (f'[{digits}, "{digits}"]', f'[{digits},"{digits}"]')]
    )


def some_amount(random):
    """Return a decimal number at random as JSON, and the text of its column."""
    cents = random.randrange(-(10**20), 10**20)
    number = random.choice([Decimal(cents).scaleb(-2), Decimal(cents).scaleb(-3), Decimal(cents)])
    fits = number == round(number, 2) and abs(number) < 10**18
    raw = random.choice([f"{number:f}", f'"{number:f}"'])
    return raw, (
        f"{number:f}".rstrip("0").rstrip(".") if "." in f"{number:f}" else f"{number:f}"
    ) if fits else None


def some_members(random):
    """Return members of an event as JSON, the expected values of the columns NAMES, and how many values
    became null.
    """
    number, name = random.randrange(-130, 131), str(uuid.UUID(int=random.getrandbits(128)))
    made = {
        "price": some_double(random),
        "day": some_day(random),
        "big": some_long(random),
        "moment": some_moment(random),
        "small": (str(number), number if -128 <= number <= 127 else None),
        "flag": random.choice([("true", True), ("false", False), ("1", None), ('"true"', None)]),
        "ref": random.choice([(f'"{name}"', name), (f'"{name.upper()}"', name), (f'"{name[1:]}"', None)]),
        "text": some_text(random),
        "amount": some_amount(random),
    }
    for column in random.sample(NAMES, 2):
        made[column] = random.choice([("null", None), (None, None)])
    members = [f'"{column}": {raw}' for column, (raw, _) in made.items() if raw is not None]
    nulled = sum(value is None and raw not in (None, "null") for raw, value in made.values())
    return ", ".join(members), tuple(made[column][1] for column in NAMES), nulled


# Pairs of an event's members and the expected values of its columns NAMES, where they are not null.
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
    (json_event(1, must=None), "field must is missing"), (json_event(1, must="1"), "field must is no " "Int64: '1' is no integer"),
    (json_event(1, must=2**63), "field must is no Int64: 9223372036854775808 is out of range"),
]  # fmt: skip


def test_json_of_every_kind_among_good_ones(shop):
    """Send good and bad JSON.

    Good events are delivered, each bad one becomes a dead letter, and a value that its nullable column can't
    hold is null and counted.
    """
    one = shop(columns=JSON_COLUMNS)
    twins = [
        json_event(f"TWIN{number}").replace(b'"TWIN%d"' % number, b"12345678901234567.8%d" % number)
        for number in (1, 2)
    ]
    odd = [
        *(value for value, _ in BAD_JSON),
        *twins,
        *(raw_event(-number, members) for number, (members, _) in enumerate(ODD_JSON, 1)),
    ]
    random = Random(7)
    good = [some_members(random) for _ in range(GOOD)]
    offsets = send_among(
        one, lambda number: raw_event(number, good[number][0] + ', "customer": {"Name": "n"}'), odd
    )
    (run,) = one.deliver()
    delivered = GOOD + len(odd) - len(BAD_JSON)
    assert (run["records"], run["rows"], run["unreadable"], run["twice"]) == (
        GOOD + len(odd),
        delivered,
        len(BAD_JSON),
        0,
    )
    expect_reasons(one, offsets[: len(BAD_JSON)], [reason for _, reason in BAD_JSON])
    odd_rows = {
        f"n-{number}": tuple(map(values.get, NAMES)) for number, (_, values) in enumerate(ODD_JSON, 1)
    }
    expected = {f"n{number}": values for number, (_, values, _) in enumerate(good)} | odd_rows
    rows = one.stack.rows(f"SELECT name, {', '.join(SHOWN)} FROM {one.name} WHERE name != ''")
    found = {name: tuple(row) for name, *row in rows}
    assert found.keys() == expected.keys() and len(rows) == len(expected)
    assert [(name, found[name], expected[name]) for name in found if found[name] != expected[name]][:5] == []
    assert run["nulled"] == 17 + sum(nulled for *_, nulled in good)
    said = "\n".join(run["warnings"])
    assert "column price: 1 values are null, since each is out of range; the payloads have them" in said
    assert "column who: no event of this run has a field customer.name; the nearest is customer.Name" in said
    assert checked_verdict(one).startswith("exactly once")


def wide(number, **values):
    """Return a message of shop.Wide with the number of a product."""
    message = filled(**values)
    message.product_id = number
    return message


PROTOBUF_COLUMNS = [
    {"name": "moment", "path": "at", "type": "DateTime64(3, 'UTC')"}, {"name": "number", "path": "double", "type": "Float64"},
    {"name": "single", "type": "Float64"}, {"name": "long", "type": "Int64"}, {"name": "wrapped", "path": "wrapped_long", "type": "Int64"},
    {"name": "nested", "path": "part.unit_id", "type": "Int64"},
]  # fmt: skip


def some_message(random, number):
    """Return a message, the expected values of its columns by path, and whether `moment` and `number` became
    null.
    """
    message, seconds, nanos = (
        wide(number),
        random.choice([-1, 0, 4_102_444_799, 4_102_444_800, random.randrange(2**31)]),
        0,
    )
    nanos = random.choice([0, 999_999_999, 120_000_000, 1000, random.randrange(10**9)])
    message.at.seconds, message.at.nanos = seconds, nanos
    message.double = random.choice([*DOUBLES, math.inf, math.nan, random.uniform(-1e300, 1e300)])
    message.single, message.long = (
        random.uniform(-1e9, 1e9),
        random.choice([-(2**63), 2**63 - 1, 0, 2**53 + 1]),
    )
    message.raw, message.text = random.randbytes(random.randrange(5)), f"ü{number}"
    entries = {f"k{random.randrange(99)}": random.randrange(2**63) for _ in range(random.randrange(9))}
    for name, unit in entries.items():
        message.of_texts[name].unit_id = unit
    if given := random.random() < 0.5:
        message.wrapped_long.value = message.part.unit_id = message.long
    fits, whole = 0 <= seconds < 4_102_444_800, datetime.fromtimestamp(seconds, UTC)
    digits = f".{nanos:09}"
    while nanos and digits.endswith("000"):
        digits = digits[:-3]
    expected = {
        "moment": f"{whole:%Y-%m-%d %H:%M:%S}.{nanos // 1_000_000:03}" if fits else None,
        "number": None if math.isnan(message.double) else message.double,
        "single": message.single,
        "long": message.long,
        "wrapped": message.long if given else None,
        "nested": message.long if given else None,
        "raw": b64encode(message.raw).decode(),
        "at": f"{whole:%Y-%m-%dT%H:%M:%S}{digits if nanos else ''}Z",
        "of_texts": "{"
        + ",".join(f'"{name}":{{"unit_id":"{entries[name]}"}}' for name in sorted(entries))
        + "}",
        "wrapped_long": str(message.long) if given else None,
        "part": f'{{"unit_id":"{message.long}"}}' if given else None,
    }
    return message.SerializeToString(), expected, (not fits, math.isnan(message.double))


def odd_protobuf():
    """Return messages whose values nullable columns can't hold."""
    late, early, wrong, nan = (wide(-number) for number in range(101, 105))
    late.at.seconds, early.at.seconds, wrong.duration.seconds = 253_402_300_800, -1, 2**60
    nan.double, nan.any.type_url = math.nan, "type.googleapis.com/shop.Gone"
    return [late, early, wrong, nan]


def test_protobuf_of_every_kind_among_good_ones(shop, tmp_path):
    """Send good and bad Protobuf.

    Good messages are delivered as ProtoJSON says, each bad one becomes a dead letter, and an odd value costs
    its column only.
    """
    file = tmp_path / "wide.desc"
    file.write_bytes(descriptors())
    texts = [(values, path, expected) for values, path, kind, expected in CASES if kind == "String"]
    odd, random = odd_protobuf(), Random(7)
    messages = [some_message(random, number) for number in range(GOOD)]
    column_of = {
        path: f"c{number}" for number, path in enumerate(dict.fromkeys(path for _, path, _ in texts))
    }
    columns = [*PROTOBUF_COLUMNS, *({"name": name, "path": path} for path, name in column_of.items())]
    must = {"name": "must", "path": "flag", "type": "Bool", "nullable": False}
    one = shop(
        format="protobuf",
        schema_files={"1": str(file)},
        message_type="shop.Wide",
        columns=[must, *columns],
        unique_id=["project", "product_id", "state"],
    )
    good, unnamed = wide(1).SerializeToString(), wide(1)
    unnamed.state = 7
    texts = [(values, path, expected) for values, path, expected in texts if values != {"state": 7}]
    bad = [
        (b"", "none of the fields project, product_id, state"),
        (b"\xff\xff", "no shop.Wide"),
        (good[:-1], "no shop.Wide"),
        (b"\x0a\x7fp", "no shop.Wide"),
        (b"\xfa\x7f\x01x", "none of the fields"),
        (good + b"\x18\x01\x1a\x01x", r"field product_id \(number 3\)"),
        (good + b"\x9a\x03\x03\x0a\x01x", r"field unit_id \(number 1\) has wire type 2, not 0"),
        (unnamed.SerializeToString(), "field state, of the key, is 7"),
    ]
    shown = [wide(-number, **values) for number, (values, _, _) in enumerate(texts, 1)]
    sent = [*(value for value, _ in bad), *(message.SerializeToString() for message in (*odd, *shown))]
    offsets = send_among(one, lambda number: messages[number][0], sent)
    (run,) = one.deliver()
    delivered = GOOD + len(sent) - len(bad)
    assert (run["records"], run["rows"], run["unreadable"], run["twice"]) == (
        GOOD + len(sent),
        delivered,
        len(bad),
        0,
    )
    expect_reasons(one, offsets[: len(bad)], [reason for _, reason in bad])
    late, nan = (sum(nulled[index] for *_, nulled in messages) + 2 for index in (0, 1))
    said = "\n".join(run["warnings"])
    assert f"column moment: {late} values are null, since each is not between 1970 and 2100" in said
    assert f"column number: {nan} values are null, since each is NaN" in said
    names = messages[0][1]
    shown = [column_of.get(name, f"toString({name})" if name == "moment" else name) for name in names]
    rows = one.stack.rows(
        f"SELECT {column_of['text']}, {', '.join(shown)} FROM {one.name} WHERE {column_of['text']} != ''"
    )
    found = {text: tuple(row) for text, *row in rows}
    expected = {f"ü{number}": tuple(values.values()) for number, (_, values, _) in enumerate(messages)}
    assert found.keys() == expected.keys()
    assert [(text, found[text], expected[text]) for text in found if found[text] != expected[text]][:5] == []
    begin = offsets[len(bad) + len(odd)]
    rows = one.stack.rows(
        f"SELECT offset, {', '.join(column_of.values())} FROM {one.name} WHERE offset >= {begin}"
    )
    found = {offset: dict(zip(column_of, row, strict=True)) for offset, *row in rows}
    for offset, (values, path, expected) in zip(offsets[len(bad) + len(odd) :], texts, strict=True):
        assert found[offset][path] == expected, (values, path)
    assert checked_verdict(one).startswith("exactly once")
