"""Positions of a topic on a real broker: how far its records reach, and how far they are delivered."""

import pytest

from tagmill.delivery.topics.positions import topic_positions
from tagmill.runs.workspace import open_workspace
from tests.support.kafka import create, delete, lose
from tests.support.topics import made


@pytest.fixture
def shop(stack, kafka, spark, tmp_path):
    """Yield a factory of topics with products, each delivered by its own pipeline."""
    yield from made(stack, kafka, spark, tmp_path)


def positions(one):
    """Flush the topic and return its positions."""
    one.topic.flush()
    with open_workspace(one.settings, one.name) as workspace:
        return topic_positions(workspace)


def test_positions_open_transaction_counts_as_not_readable(shop):
    one = shop()
    one.send(0)
    one.deliver()
    with one.topic.transaction():
        for product in range(1, 11):
            one.send(product)
        (open_now,) = positions(one)
        assert one.deliver() == []
    assert (open_now.delivered_to, open_now.last_stable_offset, open_now.high_watermark) == (1, 1, 11)
    assert (open_now.waiting, open_now.not_readable, open_now.lost, open_now.problem) == (0, 10, 0, None)
    (committed,) = positions(one)
    assert (committed.waiting, committed.not_readable) == (11, 0), (
        "the marker of the commit is an offset, too"
    )
    one.deliver()
    assert positions(one)[0].waiting == 0 and one.products() == [*range(11)]


def test_positions_recreated_topic_names_unread_records(shop, kafka):
    one = shop()
    one.send(0)
    (before,) = positions(one)
    assert (before.delivered_to, before.waiting) == (None, 1)
    one.deliver()
    delete(kafka.port, one.topic.name)
    create(kafka.port, one.topic.name)
    for product in (1, 2, 3):
        one.send(product)
    (position,) = positions(one)
    assert (position.recreated, position.waiting, position.lost) == (True, 3, 0)
    assert "made anew" in position.problem


def test_positions_after_retention_count_lost_records(shop, kafka):
    one = shop(2)
    for product in range(4):
        one.send(product)
    one.deliver()
    for product in range(4, 9):
        one.send(product)
    one.topic.flush()
    lose(kafka.port, one.name, 0, 7)
    position, empty = positions(one)
    assert (position.waiting, position.lost, position.log_start) == (
        2,
        3,
        7,
    ) and "3 records" in position.problem
    assert (empty.partition, empty.waiting, empty.lost, empty.problem) == (1, 0, 0, None)
