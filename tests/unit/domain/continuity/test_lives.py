"""Rows with delivered numbers that belong to another life of the persistence_id."""

from dataclasses import replace

import pytest

from tagmill.delivery.tag_views.few_rows.judgement import is_delivered, was_delivered
from tagmill.domain.continuity.lives import is_in_doubt, is_other_life, new_life
from tagmill.domain.continuity.merging import merge
from tagmill.domain.continuity.model import Progress
from tagmill.domain.continuity.rules import judge
from tests.unit.domain.continuity.journals import policy, progress, row, told

NEW = [row(number, at=1000 + number, writer="w-2") for number in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("seen", "doubt"),
    [
        (row(2), False),
        (row(3), False),
        (replace(row(3), offset="another"), True),
        (row(2, at=1000), True),
        (row(4), False),
    ],
    ids=["earlier", "last", "other in its place", "later than the last", "not delivered"],
)
def test_doubt_of_delivered_number(seen, doubt):
    assert is_in_doubt(progress(3), seen) == doubt


def test_doubt_without_known_time_is_none():
    """Numbers that a person gave up have no known time that could tell lives apart."""
    assert not is_in_doubt(Progress(3, 30, 0, ""), row(2, at=1000))


def test_copy_of_delivered_event_is_same_life():
    copy = replace(row(2), ticks=row(2).ticks + 1, offset="copy")
    assert not is_other_life([row(2), copy], {"copy"})
    assert is_other_life([row(2), replace(copy, writer_uuid="w-2")], {"copy"})


def test_judge_new_life_holds_all():
    """Numbers 1 to 3 of the earlier life are delivered; numbers 1 to 4 of the later life wait for a
    person.
    """
    judgement = judge(progress(3), NEW, policy(), strangers={one.offset for one in NEW[:3]})
    assert told(judgement) == [f"{number} hold another_life" for number in (1, 2, 3, 4)]
    assert judgement.progress == progress(3) and judgement.held


def test_judge_new_life_with_open_gap_keeps_hold():
    """Numbers 4 and 5 of the old life are missing; those of the new life must not take their place."""
    known = [row(6), *NEW, row(5, at=1005, writer="w-2")]
    judgement = judge(progress(3), known, policy(), strangers={one.offset for one in NEW[:3]})
    assert {decision.action.value for decision in judgement.decisions} == {"hold"}


def test_judge_late_number_in_doubt_is_delivered():
    """Numbers that were given up were never delivered, so a later time does not make them another life's."""
    late = row(2, at=1000)
    judgement = judge(progress(3, (2, 2)), [late], policy(), strangers={late.offset})
    assert told(judgement) == ["2 late below_first_or_closed"]


OLD = [row(number) for number in (1, 2, 3)]
SENT = {(one.sequence_nr, one.writer_uuid) for one in OLD}
# The writer of numbers went on behind the earlier life's, sequence_nrs began again.
GOES_ON = [row(3 + number, 10 * number, at=1000 + number, writer="w-2") for number in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("seen", "number", "sequence_nr"),
    [(NEW, 0, 0), ([*OLD, *NEW], 0, 0), (GOES_ON, 3, 0), ([*OLD, *GOES_ON], 3, 0)],
    ids=["numbers again", "earlier rows in view", "numbers go on", "numbers go on behind rows"],
)
def test_new_life_delivers_all_its_events(seen, number, sequence_nr):
    """Progress of a new life begins before its first event; rows of the earlier life are dropped then and later."""
    begun = new_life(progress(3), seen, SENT)
    first = min(one.ticks for one in seen if one.writer_uuid == "w-2")
    assert begun and (begun.number, begun.sequence_nr, begun.life_from) == (number, sequence_nr, first)
    judgement = judge(begun, seen, policy())
    actions = {(d.row.writer_uuid, d.action.value) for d in judgement.decisions}
    assert actions <= {("w-1", "drop"), ("w-2", "deliver")} and not judgement.held
    sent = [d.row.sequence_nr for d in judgement.decisions if d.action.value == "deliver"]
    assert sent == [one.sequence_nr for one in seen if one.writer_uuid == "w-2"]
    # Only its first event has come: the earlier life's next numbers do not follow it.
    young = judge(begun, [one for one in seen if one.ticks <= first], policy()).progress
    again = judge(young, OLD, policy())
    assert {decision.action.value for decision in again.decisions} == {"drop"} and not again.held
    assert young and not any(is_in_doubt(young, one) for one in OLD)


def test_time_before_1970_is_no_earlier_life():
    """A row whose offset is far in the past is held for that, not dropped, in the first life."""
    past = replace(row(4), ticks=-1, offset_broken=True)
    assert not progress(3).of_earlier_life(past.ticks)
    assert not was_delivered(past, progress(3)) and not is_delivered(4, 40, -1, past.offset, progress(3))


@pytest.mark.parametrize(
    "seen",
    [
        OLD,
        [*OLD, replace(row(3), ticks=row(3).ticks + 2, offset="copy"), row(4)],
        [row(5, 30, at=1000), row(6, 40, at=1001)],
        [row(4, writer="w-2")],
    ],
    ids=["delivered", "copy", "renumbered", "another writer goes on"],
)
def test_no_new_life_without_other_writer(seen):
    assert new_life(progress(3), seen, SENT) is None


@pytest.mark.parametrize(
    ("ledger", "destination", "merged"),
    [
        (None, progress(3, (1, 1)), progress(3, (1, 1))),
        (progress(2), progress(5), progress(5)),
        (progress(3, (2, 2)), progress(5, (2, 2), (4, 4)), progress(5, (2, 2), (4, 4))),
        (progress(3), progress(5, (2, 2)), progress(5)),
        (progress(6, (5, 6)), progress(4), progress(6, (5, 6))),
    ],
    ids=["lost", "behind", "same gaps", "delivered of old", "given up"],
)
def test_merge_of_ledger_and_destination(ledger, destination, merged):
    assert merge(ledger, destination) == merged
