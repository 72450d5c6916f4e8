"""Records as they are staged: those that are not journal records, those that can't be read, and the facts of
the others.
"""

import json

import pytest

from tagmill.kafka.client import NAME_NOT_UTF8
from tagmill.kafka_journal.staging import LONGEST_ID, Incoming, decode
from tests.support.kafka import append_header, binary

LARGEST = 200_000


def staged(key, value=b'{"events":[{"seqNr":1}]}', headers=(), **of_action):
    named = [append_header(1, 1, **of_action), *headers]
    return decode(Incoming("t", 0, 0, key, value, named), 1, LARGEST)


@pytest.mark.parametrize("key", [b"", "ü".encode(), b"k" * LONGEST_ID])
def test_staged_id_is_any_key_text(key):
    """Ids are any text that a key of Cassandra holds."""
    assert (staged(key)["kind"], staged(key)["id"]) == ("append", key.decode())


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (None, "without a key"),
        (b"\xff", "utf-8"),
        (b"k" * (LONGEST_ID + 1), "an id of 65270 bytes, more than"),
    ],
)
def test_what_is_no_id_cannot_be_read(key, why):
    """Keys that are missing, not UTF-8 or too long are staged as broken, with the key and the reason."""
    found = staged(key)
    assert found["kind"] == "broken" and why in found["reason"] and found["key"] == key


def test_staged_header_names_not_utf8_are_broken():
    """A record whose headers the client can't return may be a journal record, so it is not passed over."""
    found = decode(Incoming("t", 0, 0, b"id", b"v", NAME_NOT_UTF8), 1, LARGEST)
    assert (found["kind"], found["reason"]) == ("broken", "the name of a header is not UTF-8")


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (
            {
                "value": json.dumps(
                    {"events": [{"seqNr": 1}, {"seqNr": 2, "payload": "x" * LARGEST}]}
                ).encode()
            },
            "event 2: a row of 200",
        ),
        ({"value": binary([(1, [], 1, b"x" * LARGEST)]), "payload_type": "binary"}, "event 1: a row of 200"),
        ({"headers": [("h", b"x" * LARGEST)]}, "event 1: a row of 200"),
        ({"headers": [("h" * 65_536, b"")]}, "the name of a header"),
        ({"origin": "o" * LARGEST}, "event 1: a row of 200"),
        (
            {"value": json.dumps({"events": [{"seqNr": 1, "tags": ["t" * 65_536]}]}).encode()},
            "event 1: a tag of more than 65535",
        ),
        (
            {
                "value": json.dumps(
                    {"events": [{"seqNr": 1, "tags": [f"{n:0990}" for n in range(200)]}]}
                ).encode()
            },
            "a row of 210",
        ),
    ],
    ids=["json", "binary", "header", "header name", "origin", "tag", "many tags"],
)
def test_record_that_cassandra_cannot_hold_is_broken(record, why):
    found = staged(b"k", **record)
    assert found["kind"] == "broken" and why in found["reason"]
