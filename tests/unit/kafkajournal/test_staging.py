"""A record as it is staged: what is no journal record, and what can't be read, beside the facts of what is."""

import pytest

from tagmill.kafkajournal.staging import LONGEST_ID, decode
from tests.support.kafka import append_header


def staged(key):
    name, value = append_header(1, 1)
    record = {"topic": "t", "partition": 0, "offset": 0, "timestamp": None, "key": key, "value": b'{"events":[{"seqNr":1}]}'}
    return decode(record | {"headers": [{"key": name, "value": value}]}, 1)


@pytest.mark.parametrize("key", [b"", "ü".encode(), b"k" * LONGEST_ID])
def test_an_id_is_any_text_that_a_key_of_cassandra_holds(key):
    assert (staged(key)["kind"], staged(key)["id"]) == ("append", key.decode())


@pytest.mark.parametrize(
    ("key", "why"), [(None, "without a key"), (b"\xff", "utf-8"), (b"k" * (LONGEST_ID + 1), "an id of 65270 bytes, more than")]
)
def test_what_is_no_id_cannot_be_read(key, why):
    found = staged(key)
    assert found["kind"] == "broken" and why in found["reason"] and found["key"] == key
