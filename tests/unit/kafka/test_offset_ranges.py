"""Which records a run reads, and how the loss of records differs from a topic that was created again."""

import pytest

from tagmill.errors import RecordsLost, TopicRecreated
from tagmill.kafka.client import Span
from tagmill.kafka.offset_ranges import Range, unread
from tests.support.errors import raises

PARTITION = ("carts", 0)
GO_ON = "tagmill run deliver --pipeline p --accept-lost"


def ranges(span, read_to, *, accept_lost=False):
    return of_all({PARTITION: span}, {PARTITION: read_to}, accept_lost=accept_lost)


def of_all(spans, read_to, *, accept_lost=False):
    return unread("p", spans, read_to, accept_lost=accept_lost, go_on=GO_ON)


@pytest.mark.parametrize("accept_lost", [False, True])
def test_shorter_topic_was_created_again(accept_lost):
    """No option goes on with a topic that ends before what was read of it."""
    with raises(TopicRecreated, match="ends at offset 3, but 4 were read", pipeline="p"):
        ranges(Span(0, 3), 4, accept_lost=accept_lost)


def test_lost_records_need_acceptance():
    with raises(RecordsLost, match=rf"3 records \(offsets 4 to 6\) were gone.*{GO_ON}$", pipeline="p"):
        ranges(Span(7, 9), 4)
    found, (warning,) = ranges(Span(7, 9), 4, accept_lost=True)
    assert found == [Range(topic="carts", partition=0, first=7, end=9)] and "3 records" in warning


def test_nothing_new_is_no_range():
    assert ranges(Span(0, 4), 4) == ([], [])
    assert ranges(Span(2, 6), 4) == ([Range(topic="carts", partition=0, first=4, end=6)], [])


def test_first_run_begins_at_first_records_left():
    """Read a topic for the first time: its old records are gone without an error, and partitions that retention has
    emptied are noted, once there is anything to read.
    """
    spans = {("carts", 0): Span(5, 9), ("carts", 1): Span(7, 7), ("carts", 2): Span(0, 0)}
    found, warnings = of_all(spans, {})
    assert [(one.partition, one.first, one.end) for one in found] == [(0, 5, 9), (1, 7, 7)]
    assert len(warnings) == 2
    assert of_all({("carts", 1): Span(7, 7)}, {})[0] == []


def test_new_partition_of_read_topic_begins_at_zero():
    """Expect all records of a partition that came, or was empty, when its topic was read before."""
    read_to = {("carts", 0): 9}
    with raises(RecordsLost, match=r"partition 1: 500 records \(offsets 0 to 499\) were gone", pipeline="p"):
        of_all({("carts", 0): Span(5, 9), ("carts", 1): Span(500, 1000)}, read_to)
    found, _ = of_all({("carts", 1): Span(0, 2), ("other", 0): Span(3, 4)}, read_to)
    assert [(one.topic, one.first, one.end) for one in found] == [("carts", 0, 2), ("other", 3, 4)]
