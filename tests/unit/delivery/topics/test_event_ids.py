"""The unique id of an event never changes."""

import pytest

from tagmill.config.kafka import TopicSettings
from tagmill.delivery.topics.event_ids import UniqueId, unique_id


@pytest.mark.parametrize(
    ("values", "shards", "expected"),
    [
        (["p", "created", 7], 1024, UniqueId(52, "2caf3d05e4bf36d8b358c139b200f56a")),
        (["ü", True, 1.5], 16, UniqueId(8, "3336141aeca06bd84a148a1c93a5da71")),
    ],
)
def test_ids_of_old_events_stay_what_they_are(values, shards, expected):
    """Ids of known keys never change."""
    assert unique_id(values, shards) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["ab", "c"], ["a", "bc"]),
        (["1"], [1]),
        ([1], [1.0]),
        ([True], ["true"]),
        ([1], [True]),
        (["a"], ["a", ""]),
    ],
)
def test_different_values_have_different_ids(one, other):
    assert unique_id(one, 8).unique_id != unique_id(other, 8).unique_id


def test_shards_are_even():
    shards = [unique_id(["p", number], 16).shard for number in range(8000)]
    assert set(shards) == set(range(16)) and max(shards.count(one) for one in range(16)) < 650


def test_rules_that_make_other_ids_are_told_apart():
    """Settings that give other ids have another rule, whatever characters their fields contain."""
    fields = [["a", "b"], ["a+b"], ["b", "a"], ["a%2Bb"], ["a/b"]]
    rules = {
        TopicSettings(
            kind="topic", topics=["t"], format="json", destination="d", unique_id=one, producer_id=by
        ).rule
        for one in fields
        for by in (None, "b", "a/b")
    }
    assert len(rules) == 3 * len(fields)
