"""JSON numbers arrive as their text says, in ids and columns."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagmill.delivery.topics.event_ids import part_of
from tagmill.delivery.topics.fields import InvalidRecord
from tagmill.delivery.topics.json_numbers import Number, read_number
from tests.unit.delivery.topics.test_record_decoder import read

BIG = b'{"project": "p", "event_type": "e", "product_id": %b}'


def id_of(text):
    return read(BIG % text.encode())["unique_id"]


def column(text, kind):
    event = b'{"project": "p", "event_type": "e", "product_id": 1, "x": %b}' % text.encode()
    return read(event, columns=[{"name": "x", "type": kind, "nullable": False}])["x"]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("12345678901234567.81", "12345678901234567.82", False), ("12345678901234567.81", "1.234567890123456781e16", True),
        ("12345678901234567.81", "12345678901234567.8100", True), ("1e400", "2e400", False), ("1e-400", "0.0", False),
        ("0.1", "0.10000000000000001", True), ("0.1", "0.100000000000000000000", True), ("0.1", "0.10000000000000002", False),
        ("9007199254740992.0", "9007199254740993.0", False), ("9007199254740992", "9007199254740993", False),
        ("1.234567890123457e17", "123456789012345700.0", True), ("1", "1.0", False),
    ],
)  # fmt: skip
def test_ids_tell_numbers_apart_that_differ(one, other, same):
    assert (id_of(one) == id_of(other)) is same


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["%r", "%.17g", "%.16e", "%.25e"]))
def test_printed_double_keeps_its_id(number, form):
    text = form % number
    if "." not in text and "e" not in text:
        text += ".0"
    found = read_number(text)
    double = found.double() if isinstance(found, Number) else found
    assert part_of(double) == b"f:" + repr(number).encode()


@given(st.decimals(allow_nan=False, allow_infinity=False, places=4))
def test_number_is_exact_or_its_double(decimal):
    found = read_number(f"{decimal:f}")
    assert found == decimal if isinstance(found, Number) else repr(found) == repr(float(decimal))


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("9007199254740993.0", "Int64", 2**53 + 1), ("1.234567890123457e17", "Int64", 123456789012345700),
        ("9223372036854775807.0", "Int64", 2**63 - 1), ("-9223372036854775808.0", "Int64", -(2**63)), ("1e18", "Int64", 10**18),
        ("12345678901234567.81", "String", "12345678901234567.81"),
        ('[{"a": 12345678901234567.81}]', "String", '[{"a":12345678901234567.81}]'),
        ("9007199254740993", "String", "9007199254740993"), ("1e400", "String", "1E+400"),
        ("1e99999999999999999999", "String", "1e99999999999999999999"), ("1.5", "String", "1.5"),
    ],
)  # fmt: skip
def test_column_of_number_has_no_rounded_value(text, kind, expected):
    assert column(text, kind) == expected


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("1e999999999", "Int64"), ("1e999999999", "DateTime64(3, 'UTC')"), ("1e400", "Float64"), ("-1e400", "Float64"),
        ("9223372036854775808.0", "Int64"),
    ],
)  # fmt: skip
def test_number_beyond_its_column_is_refused(text, kind):
    with pytest.raises(InvalidRecord, match="out of range"):
        column(text, kind)


def test_number_of_many_digits_costs_no_time():
    text = "1" * 100_000 + ".5"
    assert Decimal(column(text, "String")) == Decimal(text)
