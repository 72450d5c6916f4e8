"""Slices and prefix sums give the numbers that counting event by event gives, whatever the slice size and the build's steps.

Many random journals, one persistence_id each, go through Spark in one job; the rules judge each beside it.
"""

from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tagmill.buckets import BucketSize
from tagmill.timeuuid import lowest
from tagmill.views import numbering
from tagmill.views.model import Reason
from tests.support.numbering import Event, Stand, build

START = 17_952_444_000_000_000
TAGS = ("a", "b", "ü / '1'")
EVENTS = "persistence_id string, partition_nr bigint, sequence_nr bigint, timestamp string, ticks bigint, tags array<string>, flaw string"
STANDS = (
    "persistence_id string, sequence_nr bigint, partition_nr bigint, from_nr bigint, scanned bigint, adopted boolean, "
    "progress array<struct<tag:string,number:bigint,sequence_nr:bigint,offset:string>>"
)


def journal(random: Random) -> list[Event]:
    """A journal with at most one or two things wrong with it."""
    events = [
        Event(number, tuple(sorted(random.sample(TAGS, random.choice([0, 0, 1, 1, 2, 3])))))
        for number in range(1, random.choice([1, 2, 7, 8, 9, 40]) + 1)
    ]
    for _ in range(random.choice([0, 0, 0, 1, 2])):
        victim = random.choice(events)
        kind = random.choice(["gone", "twice", "flaw", "young"])
        if kind == "gone" and len({event.sequence_nr for event in events}) > 1:
            events = [event for event in events if event.sequence_nr != victim.sequence_nr]
        elif kind == "twice":
            events.append(Event(victim.sequence_nr, victim.tags, writer=1))
        elif kind in ("flaw", "young"):
            flaw = Reason.NO_EVENT if kind == "flaw" else Reason.YOUNG
            events = [Event(e.sequence_nr, e.tags, flaw.value) if e is victim else e for e in events]
    return sorted(events, key=lambda event: (event.sequence_nr, event.writer))


def stand(random: Random, events: list[Event]) -> Stand:
    """Nothing yet, or where a build of the first events stopped; perhaps some of them are deleted."""
    highest = events[-1].sequence_nr
    begun = build(Stand(), [event for event in events if event.sequence_nr <= random.randint(0, highest)])[1]
    begun.deleted_to = random.choice([0, 0, random.randint(0, highest)])
    return begun


def in_spark(spark: SparkSession, cases: dict[str, tuple[Stand, list[Event]]], slice_size: int) -> dict[str, Any]:
    """Numbers by (tag, sequence_nr), upto and reason of each persistence_id."""
    rows, known = [], []
    for name, (begun, events) in cases.items():
        start = max(begun.sequence_nr, begun.deleted_to)
        for event in events:
            if event.sequence_nr > start:
                ticks = START + 10 * event.sequence_nr + event.writer
                rows.append(
                    (name, event.sequence_nr // 10, event.sequence_nr, str(lowest(ticks)), ticks, list(event.tags), event.flaw)
                )
        progress = [(tag, number, nr, "") for tag, (number, nr) in sorted(begun.numbers.items())]
        known.append((name, begun.sequence_nr, 0, start, None, False, progress))
    events_frame, stands = spark.createDataFrame(rows, EVENTS), spark.createDataFrame(known, STANDS)
    ends = numbering.ends(events_frame, stands, slice_size).cache()
    numbers = numbering.numbered(numbering.accepted(events_frame, ends, slice_size), stands, BucketSize.HOUR).cache()
    found: dict[str, Any] = {name: {"numbers": {}, "upto": None, "reason": None, "progress": None} for name in cases}
    for row in numbers.collect():
        key = (row.tag_name, row.sequence_nr)
        assert key not in found[row.persistence_id]["numbers"]
        assert row.timebucket == BucketSize.HOUR.start(UUID(row.timestamp).time - 0x01B21DD213814000)
        found[row.persistence_id]["numbers"][key] = row.tag_pid_sequence_nr
    for row in ends.collect():
        found[row.persistence_id] |= {"upto": row.upto, "reason": row.reason}
    for row in numbering.records(events_frame, numbers, ends, stands).collect():
        lines = {line.tag: (line.number, line.sequence_nr) for line in row.progress}
        found[row.persistence_id]["progress"] = (row.sequence_nr, row.partition_nr, lines)
    return found


@pytest.mark.parametrize(("seed", "slice_size"), [(1, 4), (2, 8), (3, 65_536)])
def test_slices_give_the_numbers_that_counting_gives(spark, seed, slice_size):
    random = Random(seed)
    cases = {}
    for index in range(120):
        events = journal(random)
        cases[f"p-{index}"] = (stand(random, events), events)
    found = in_spark(spark, cases, slice_size)
    reasons = set()
    for name, (begun, events) in cases.items():
        numbers, after, reason = build(begun, events)
        start = max(begun.sequence_nr, begun.deleted_to)
        assert found[name]["numbers"] == numbers, name
        if any(event.sequence_nr > start for event in events):
            assert (found[name]["upto"], found[name]["reason"]) == (after.sequence_nr, reason), name
        if after.sequence_nr > start:
            assert found[name]["progress"] == (after.sequence_nr, after.sequence_nr // 10, after.numbers), name
        else:
            assert found[name]["progress"] is None
        reasons.add(reason)
    assert reasons == {None, "hole", "two_writers", "no_event", "young"}


@given(st.integers(0, 2**32), st.lists(st.integers(0, 60), max_size=4))
def test_numbers_do_not_depend_on_the_steps_in_which_they_are_given(seed, stops):
    """The rule itself: a build in steps, over a journal that grows, gives what one build at the end gives."""
    events = journal(Random(seed))
    in_one, at_once, _ = build(Stand(), events)
    begun, in_steps = Stand(), {}
    for stop in [*sorted(stops), events[-1].sequence_nr]:
        numbers, begun, _ = build(begun, [event for event in events if event.sequence_nr <= stop])
        assert not set(numbers) & set(in_steps)
        in_steps |= numbers
    assert (in_steps, begun) == (in_one, at_once)


@given(st.integers(0, 2**32))
def test_each_tag_of_a_persistence_id_is_numbered_from_one_without_a_gap(seed):
    numbers, _, _ = build(Stand(), journal(Random(seed)))
    for tag in TAGS:
        found = [number for (name, _), number in sorted(numbers.items(), key=lambda item: item[0][1]) if name == tag]
        assert found == list(range(1, len(found) + 1))
