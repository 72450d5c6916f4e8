"""Columns, keys and times that a sample of events shows, odd samples included."""

import json
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagmill.config.kafka import TopicSettings
from tagmill.delivery.topics.fields import kind_of
from tagmill.delivery.topics.formats import json_decoder
from tagmill.delivery.topics.record_limits import Limits
from tagmill.onboarding.column_types import (
    MOST_COLUMNS,
    column_type,
    columns_of,
    created_at,
    event_key,
    fields_of,
)

decode = json_decoder(None, Limits(10**7, 10**6, 100))


def read(*texts: str) -> list[Any]:
    """Decode JSON texts as a delivery does."""
    return [decode(text.encode()).event for text in texts]


@pytest.mark.parametrize(
    ("values", "expected", "note"),
    [
        ("[]", "String", "only null"),
        ("[true, false]", "Bool", ""),
        ("[1, -2, 9223372036854775807]", "Int64", ""),
        ("[1, 9223372036854775808]", "Decimal(38, 0)", ""),
        (f"[{10**50}]", "Decimal(76, 0)", ""),
        (f"[{10**90}]", "String", "more than any type takes"),
        ("[1, 2.5]", "Float64", ""),
        ("[0.12345678901234567890123]", "String", "more digits than a double"),
        ("[1, true]", "String", "several types"),
        ('["a", 1, null]', "String", "several types"),
        ('["2026-11-21T10:00:00Z", "2026-11-21 10:00"]', "DateTime64(3, 'UTC')", ""),
        ('["2026-11-21", "1969-01-01"]', "String", ""),
        ('["2026-11-21", "2027-01-01"]', "Date", ""),
        ('["2026-11-21T10:00:00Z", "soon"]', "String", ""),
        ('["0001-01-01T00:00:00Z"]', "String", ""),
        ('["5b11713a-0000-4000-8000-00000000000b"]', "UUID", ""),
        ('["a", "b"]', "String", ""),
        (json.dumps(["red", "blue"] * 50), "LowCardinality(String)", ""),
        (json.dumps([str(n) for n in range(100)]), "String", ""),
        ("[[1, 2], []]", "String", "lists"),
        ("[{}]", "String", "objects"),
    ],
)
def test_column_type_of_json_values(values: str, expected: str, note: str) -> None:
    (event,) = read(f'{{"values": {values}}}')
    found, said = column_type([value for value in event["values"] if value is not None])
    assert found == expected and note in said and bool(note) == bool(said)


def test_column_type_of_decoded_values() -> None:
    """Propose types for what Avro and Protobuf decode to."""
    assert column_type([b"\x00\xff"]) == ("String", "bytes, as Base64")
    assert column_type([uuid.uuid4()]) == ("UUID", "")
    assert column_type([datetime(2026, 11, 21, tzinfo=UTC)])[0] == "DateTime64(3, 'UTC')"
    assert column_type([date(2026, 11, 21)])[0] == "Date"
    assert column_type([Decimal("1.50"), Decimal("2")])[0] == "String"


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.text(max_size=4), JSON_VALUES, max_size=4), max_size=6))
def test_proposed_columns_take_every_sampled_value(events) -> None:
    """Whatever JSON objects hold: the proposal is a valid pipeline, and no sampled value becomes null."""
    decoded = read(*(json.dumps(event) for event in events))
    fields = fields_of(decoded)
    columns = columns_of(fields)
    settings = {
        "kind": "topic", "topics": ["t"], "format": "json", "destination": "t", "unique_id": ["id"],
        "columns": [{"name": column.name, "path": column.path, "type": column.type} for column in columns],
    }  # fmt: skip
    TopicSettings.model_validate(settings)
    for seen, column in zip(fields, columns, strict=True):
        for value in seen.values:
            kind_of(column.type).convert(value)


def test_fields_of_nested_and_null_objects() -> None:
    """An object that is null in some events is its fields; one of another type is a column of its own, too."""
    events = read(
        '{"a": {"b": {"c": 1}}, "x.y": 1, "n": null}',
        '{"a": null, "x.y": 2, "n": null}',
        '{"a": "text", "x.y": 3, "n": null}',
    )
    columns = {
        column.path: (column.name, column.type, column.events) for column in columns_of(fields_of(events))
    }
    assert columns == {
        "a.b.c": ("a_b_c", "Int64", 1),
        '"x.y"': ("x_y", "Int64", 3),
        "n": ("n", "String", 0),
        "a": ("a", "String", 1),
    }


def test_columns_have_unique_valid_names() -> None:
    """Names that are reserved, equal but for case, too long or no identifiers get others."""
    names = ["payload", "A", "a", "1st", "ключ", "x" * 80, "x" * 81, "", "a b"]
    columns = columns_of(fields_of([dict.fromkeys(names, 1)]))
    assert [column.name for column in columns][:5] == ["payload_2", "A", "a_2", "p_1st", "p"]
    lower = [column.name.lower() for column in columns]
    assert len(set(lower)) == len(lower) == len(names) - 1 and max(map(len, lower)) == 48
    assert len(columns_of(fields_of([{f"f{n}": n for n in range(300)}]))) == MOST_COLUMNS


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], None),
        ([{"event_id": n, "id": 1} for n in range(3)], ([], "event_id")),
        ([{"event_id": 1, "v": n} for n in range(3)], None),
        ([{"event_id": 1, "v": 1}] * 3, ([], "event_id")),
        ([{"meta": {"eventId": f"e{n}"}, "v": n} for n in range(3)], ([], "meta.eventId")),
        ([{"order_id": n // 2, "version": n % 2} for n in range(6)], (["order_id", "version"], None)),
        ([{"order_id": n, "price": 1.5} for n in range(3)], (["order_id"], None)),
        ([{"id": n} for n in range(3)] + [{"other": 1}], None),
        ([{"id": None}, {"id": 1}], None),
        ([{"price": n} for n in range(3)], None),
    ],
    ids=[
        "empty", "own id", "own id of several events", "sent twice", "nested", "id and version", "one id",
        "missing once", "null once", "no id",
    ],
)  # fmt: skip
def test_event_key_tells_events_apart(events, expected) -> None:
    found = event_key(fields_of(events), events)
    assert (found and (list(found.unique_id), found.producer_id)) == expected


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"created_at": "2026-11-21T10:00:00Z", "updated_at": "2026-11-21T10:00:00Z"}, "created_at"),
        ({"meta": {"timestamp": 1_790_000_000_000}}, "meta.timestamp"),
        ({"timestamp": 1_790_000_000}, None),
        ({"created_at": "soon"}, None),
        ({"price": 1_790_000_000_000}, None),
    ],
    ids=["text", "milliseconds", "seconds", "no time", "no name of a time"],
)
def test_created_at_is_a_time_everywhere(event, expected) -> None:
    assert created_at(fields_of([event, event]), 2) == expected
    assert created_at(fields_of([event, {}]), 2) is None
