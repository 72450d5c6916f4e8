"""Kafka Journal's records: what is read, byte for byte, and what is refused with a reason."""

import json
import struct

import pytest

from tagmill.kafka_journal import wire_format
from tagmill.kafka_journal.wire_format import (
    Event,
    Undecodable,
    decode_action,
    decode_events,
    duration_ms,
    kind_of,
    row_metadata,
)
from tests.support.kafka import append_header, binary, header


def action(**content):
    return decode_action(header(**content)[1])


def append(payload_type="json", **more):
    return decode_action(append_header(1, 1, payload_type, **more)[1])


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ({"append": {"range": {"from": 1, "to": 2}, "payloadType": "json"}}, "append"),
        ({"delete": {"to": 7, "origin": "o", "version": "v"}}, "delete"),
        ({"purge": {}}, "purge"),
        ({"mark": {"id": "m"}}, "mark"),
    ],
)
def test_each_of_the_four_actions_is_known(content, kind):
    assert kind_of(action(**content)) == kind


@pytest.mark.parametrize(
    "text", [None, b"{}", b'{"other":1}'], ids=["no header", "empty object", "other name"]
)
def test_decode_action_none_of_four_is_none(text):
    """A record without the header, or with an object that names no action, is not a journal record."""
    assert decode_action(text) is None


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"nonsense", b"\xff", b'"append"', b'{"append":', b'{"purge":{},"mark":{"id":"m"}}'],
    ids=["empty", "array", "no JSON", "no UTF-8", "text", "cut off", "two actions"],
)
def test_decode_action_header_unreadable_is_refused(text):
    """Refuse a header that may have named an action: its record must not be passed over in silence."""
    with pytest.raises(Undecodable, match=f"header {wire_format.ACTION}: "):
        decode_action(text)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"delete": {}}, "delete.*to"),
        ({"delete": {"to": "7"}}, "delete"),
        ({"delete": {"to": -1}}, "delete"),
        ({"append": {"range": {"from": 1, "to": 1}}}, "payloadType"),
        ({"append": {"payloadType": "xml"}}, "xml"),
        ({"purge": 1}, "purge"),
    ],
)
def test_decode_action_malformed_is_refused(content, why):
    """Refuse malformed content of a known action, with the reason."""
    with pytest.raises(Undecodable, match=why):
        action(**content)


def test_a_json_payload_stays_as_it_was_written():
    payload = '{"n": 1.10,  "big": 12345678901234567890123, "e":1E+400,"u":"\\u00e4"}'
    value = f'{{"events":[{{"seqNr":3,"tags":["a","ü"],"payload":{payload}}}]}}'.encode()
    assert decode_events(append(), value).events == [Event(3, ["a", "ü"], "json", payload)]


def test_text_json_and_missing_payloads_are_told_apart():
    value = {
        "events": [
            {"seqNr": 1, "payloadType": "text", "payload": "plain"},
            {"seqNr": 2, "payload": "quoted"},
            {"seqNr": 5},
            {"seqNr": 6, "payload": None, "tags": None, "payloadType": None},
            {"seqNr": 7, "payload": 1, "tags": None, "payloadType": None},
        ]
    }
    found = decode_events(append(), json.dumps(value).encode()).events
    assert [(e.seq_nr, e.payload_type, e.text) for e in found] == [
        (1, "text", "plain"),
        (2, "json", '"quoted"'),
        (5, None, None),
        (6, None, None),
        (7, "json", "1"),
    ]


def test_decode_deep_nesting_is_undecodable():
    """Content nested too deeply is undecodable, which never ends a run."""
    deep = b'{"a":' * 9999 + b"1" + b"}" * 9999
    for content in (b'{"append":' + deep + b"}", deep):
        with pytest.raises(Undecodable, match="nested too deeply"):
            decode_action(content)
    for value in (
        b'{"events":[{"seqNr":1,"payload":' + deep + b"}]}",
        b'{"events":[{"seqNr":1}],"metadata":' + deep + b"}",
    ):
        with pytest.raises(Undecodable, match="recursion"):
            decode_events(append(), value)
    with pytest.raises(Undecodable, match="nested too deeply"):
        decode_events(append("binary"), binary([(1, [], 0, b"")])[:-2] + deep)


def test_a_duration_beyond_all_numbers_is_none():
    value = json.dumps({"events": [{"seqNr": 1}], "metadata": {"expireAfter": f"{'9' * 500} days"}}).encode()
    found = decode_events(append(), value)
    assert found.expire_after_ms is None and "no duration" in str(found.warning)


@pytest.mark.parametrize("version", [0, 1, 7])
def test_the_binary_form_with_every_kind_of_payload(version):
    events = [
        (1, ["a", "ü"], 0, b""),
        (2, [], 1, b"\x00\xff"),
        (3, ["t"], 2, b'{"a":1}'),
        (9, [], 3, "ß".encode()),
    ]
    found = decode_events(
        append("binary"), binary(events, version, {"expireAfter": "2 hours", "data": {"k": 1}})
    )
    assert found.events == [
        Event(1, ["a", "ü"]),
        Event(2, [], "binary", data=b"\x00\xff"),
        Event(3, ["t"], "json", '{"a":1}'),
        Event(9, [], "text", "ß"),
    ]
    assert found.expire_after_ms == (7_200_000 if version == 1 else None)


WHOLE = binary([(1, ["tag"], 1, b"payload"), (2, [], 3, b"text")])


@pytest.mark.parametrize("size", range(len(WHOLE)))
def test_decode_events_cut_off_binary_is_refused(size):
    """Refuse a binary value that is cut off at any byte."""
    with pytest.raises(Undecodable):
        decode_events(append("binary"), WHOLE[:size])


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "without a value"),
        (b"\x01" + struct.pack(">i", 0), "0 events"),
        (b"\x01" + struct.pack(">i", -5), "-5 events"),
        (b"\x01" + struct.pack(">ii", 1, -1), "length of -1"),
        (b"\x01" + struct.pack(">ii", 2**31 - 1, 2**31 - 1), "cut off"),
        (binary([(0, [], 0, b"")]), "sequence number 0"),
        (binary([(1, [], 9, b"")]), "payload kind 9"),
        (binary([(1, [], 2, b"\xff")]), "utf-8"),
    ],
)
def test_decode_events_broken_binary_is_refused(value, why):
    """Refuse broken binary values with the reason."""
    with pytest.raises(Undecodable, match=why):
        decode_events(append("binary"), value)


@pytest.mark.parametrize(
    "value", [b"", b"{}", b'{"events":[]}', b'{"events":[{}]}', b'{"events":[{"seqNr":0}]}', b'{"events":[{"seqNr":1}', b"\xff",
              b'{"events":[{"seqNr":1,"payloadType":"text","payload":{}}]}', b'{"events":[{"seqNr":9223372036854775808}]}']
)  # fmt: skip
def test_a_broken_json_value_is_refused(value):
    with pytest.raises(Undecodable, match="value"):
        decode_events(append(), value)


@pytest.mark.parametrize("metadata", ["absent", 1, "text", [], None])
def test_row_metadata_of_old_records_is_none(metadata):
    """Old records have no metadata, or a value that is not an object; both give None."""
    content = {"range": {"from": 1, "to": 1}, "payloadType": "json"} | (
        {} if metadata == "absent" else {"metadata": metadata}
    )
    old = action(append=content)
    assert row_metadata(old, decode_events(old, b'{"events":[{"seqNr":1}]}')) is None


def test_row_metadata_joins_header_and_payload():
    """Metadata of header and value become one JSON object with unchanged numbers."""
    new = append(metadata={"data": {"h": 1}})
    found = decode_events(
        new, b'{"events":[{"seqNr":1}],"metadata":{"expireAfter":"1 day","data":{"p":[1.10]}}}'
    )
    assert (
        row_metadata(new, found)
        == '{"header":{"data":{"h": 1}},"payload":{"expireAfter":"1 day","data":{"p":[1.10]}}}'
    )
    assert found.expire_after_ms == 86_400_000


def test_decode_events_invalid_expiry_warns():
    """Expiries that are not durations are a warning; the events are kept."""
    found = decode_events(append(), b'{"events":[{"seqNr":1}],"metadata":{"expireAfter":"soon"}}')
    assert (len(found.events), found.expire_after_ms) == (1, None)
    assert "soon" in found.warning


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1 day", 86_400_000),
        ("90 minutes", 5_400_000),
        ("500 ms", 500),
        ("1.5 hours", 5_400_000),
        ("10d", 864_000_000),
        ("2 s", 2000),
        ("86400000000 µs", 86_400_000),
        ("1500000 microseconds", 1500),
        ("2000000000 nanos", 2000),
    ],
)
def test_durations_as_scala_writes_them(text, milliseconds):
    assert duration_ms(text) == milliseconds


@pytest.mark.parametrize(
    "text", ["", "day", "1 fortnight", "-1 day", "0 s", "99999999999999 days", "Inf", "10 ns"]
)
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError):
        duration_ms(text)


def test_the_header_is_found_under_its_name():
    assert wire_format.ACTION == "journal.action"
