"""Which records a run reads, and how the loss of records differs from a topic that was created again."""

import pytest

from tagmill.errors import RecordsLost, TopicRecreated
from tagmill.kafka.client import Span
from tagmill.kafka.offset_ranges import Range, unread
from tests.support.errors import raises

PARTITION = ("carts", 0)
GO_ON = "tagmill run deliver --pipeline p --accept-lost"


def ranges(span, read_to, *, accept_lost=False):
    return unread("p", {PARTITION: span}, {PARTITION: read_to}, accept_lost=accept_lost, go_on=GO_ON)


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
