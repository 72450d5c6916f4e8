"""Promises of a plan of events, counted over its events."""

from collections import Counter
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.generate import plan
from local.journal import Generated
from tagmill.domain.timeuuid import ticks
from tagmill.errors import ConfigurationError

END = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)


@given(
    st.integers(1, 700),
    st.integers(1, 5),
    st.integers(1, 40),
    st.sampled_from(["Minute", "Hour", "Day"]),
    st.integers(1, 5),
)
def test_expected_counts_are_those_of_the_events(rows, tags, owners, size, buckets):
    made = plan(
        rows,
        tags=[f"t{k}" for k in range(tags)],
        persistence_ids=owners,
        bucket_size=size,
        buckets=buckets,
        end=END,
    )
    events = [made.event(index) for index in range(made.events)]
    counted = Counter(tag for event in events for tag, _ in event.tags)
    assert {tag: counted[tag] for tag in made.tags} == made.expected()
    assert sum(counted.values()) == rows
    numbers: Counter[tuple[str, str]] = Counter()
    for event in events:
        assert ticks(event.offset) == event.ticks
        for tag, number in event.tags:
            numbers[event.persistence_id, tag] += 1
            assert number == numbers[event.persistence_id, tag]
    assert len({event.offset for event in events}) == len(events)


def test_a_kept_plan_is_used_again(tmp_path):
    first = Generated(100, tmp_path)
    first.keep_plan(loaded=False)
    assert Generated(100, tmp_path).plan == first.plan


@given(st.integers(1, 300))
def test_expected_rows_are_complete_by_bucket(rows):
    """Expected rows by tag and bucket are together all rows of the plan."""
    from pathlib import Path

    journal = Generated(rows, Path("/nowhere"))
    seen = list(journal.expected())
    assert sum(len(found) for _, _, found in seen) == rows
    assert all(row.tag == tag and row.timebucket == bucket for tag, bucket, found in seen for row in found)
    assert {
        tag: sum(len(found) for name, _, found in seen if name == tag) for tag in journal.tags
    } == journal.plan.expected()


def test_no_events_is_a_mistake(tmp_path):
    with pytest.raises(ConfigurationError, match="--events 0"):
        Generated(0, tmp_path)
