"""The time of a Kafka Journal's event, as Cassandra's driver gives it, and the search for new events."""

from collections import namedtuple
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from cassandra.cqltypes import DateType
from hypothesis import given
from hypothesis import strategies as st

from tagmill.delivery.topics.kafka_journal_source import Events, milliseconds_of
from tagmill.kafka_journal.fold import entry_segments

AT = datetime(2026, 11, 29, tzinfo=UTC)
Row = namedtuple(
    "Row",
    "seq_nr partition offset timestamp origin version meta_record_id tags metadata payload_type payload_txt payload_bin "
    "headers",
    defaults=(AT, "", "", None, (), "", "", None, b"x", {}),
)


class Tables:
    """The journal's rows of one id; `read` counts the rows that were read with their payloads."""

    def __init__(self, rows, segment_size):
        self.rows, self.segment_size, self.read = sorted(rows), segment_size, 0

    def _of(self, segment, after):
        return [
            row
            for row in self.rows
            if (row.seq_nr - 1) // self.segment_size == segment and row.seq_nr > after
        ]

    def newest(self, asked):
        return [self._of(segment, after)[::-1][:limit] for _, _, segment, after, limit in asked]

    def positions(self, _id, _topic, segment, after):
        return self._of(segment, after)[::-1]

    def events(self, _id, _topic, segments, after):
        return [row for segment in segments for row in self._counted(segment, after)]

    def above(self, asked):
        return [self._counted(segment, after) for _, _, segment, after in asked]

    def _counted(self, segment, after):
        rows = self._of(segment, after)
        self.read += len(rows)
        return rows


def new_events(rows, ranges, partition, segment_size=10_000):
    """Return (seq_nr, offset) of the events that a run over these ranges delivers, and how many rows it reads."""
    tables = Tables(rows, segment_size)
    ranges = [
        SimpleNamespace(topic_partition=("t", number), topic="t", partition=number, first=first, end=end)
        for number, first, end in ranges
    ]
    entry = {
        "id": "i",
        "topic": "t",
        "partition": partition,
        "segment": entry_segments("i")[0],
        "segment_size": segment_size,
        "seq_nr": max(row.seq_nr for row in rows),
        "delete_to": None,
        "record_id": None,
        "segments": None,
    }
    events = Events(tables, SimpleNamespace(ranges=ranges, begun=[]), frozenset())
    return [(row["seq_nr"], row["offset"]) for row in events.of(iter([entry]))], tables.read


@given(st.integers(-2_208_988_800_000, 10_413_791_999_999))
def test_time_of_event_keeps_its_millisecond(milliseconds):
    """Keep milliseconds from 1900 to 2299, the years that ClickHouse can hold."""
    assert milliseconds_of(DateType.deserialize(DateType.serialize(milliseconds, 4), 4)) == milliseconds


@pytest.mark.parametrize("segment_size", [10, 10_000])
def test_id_that_moved_is_not_read_again(segment_size):
    """Behind an old event of today's partition, those of the partition before are old, too."""
    rows = [Row(number, 0, number) for number in range(1, 5001)]
    rows += [Row(5000 + number, 1, number) for number in range(1, 5)]
    found, read = new_events(rows, [(0, 5001, 5001), (1, 4, 5)], 1, segment_size)
    assert found == [(5004, 4)] and read < 30
    assert len(new_events(rows, [(0, 1, 5001), (1, 1, 5)], 1, segment_size)[0]) == 5004


@pytest.mark.parametrize("below", [1, 24])
def test_append_below_old_events_is_found(below):
    rows = [Row(number, 0, number) for number in range(1, 1001)]
    stale = [Row(1000 - below, 0, 1001), Row(1000 - below + 1, 0, 1002)]
    found, read = new_events([*rows, *stale], [(0, 1001, 1003)], 0)
    assert found == [(row.seq_nr, row.offset) for row in stale] and read < 60
