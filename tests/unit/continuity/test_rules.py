"""The rows of the continuity table (docs/continuity.md), one after the other."""

from dataclasses import replace

import pytest

from tagmill.continuity.model import Earlier, Evidence, FirstSeen, Hole, Progress, Reason
from tagmill.continuity.rules import close, judge, remove
from tagmill.errors import GuardRefused
from tests.unit.continuity.journals import HOUR, NOW, delivered, judge_with_journal, policy, progress, row, rows, told

OLD = NOW - 2 * HOUR


def deleted_to(sequence_nr: int, seen_at: int | None = OLD):
    return lambda _: Evidence((), sequence_nr, seen_at)


# -- the next number


def test_the_next_number_with_a_higher_sequence_nr_is_delivered() -> None:
    judgement = judge(progress(4), rows(5, 6), policy())
    assert told(judgement) == ["5 deliver next", "6 deliver next"]
    assert judgement.progress == progress(6)
    assert judgement.held is None


def test_without_progress_number_one_is_next() -> None:
    assert told(judge(None, rows(1, 2), policy())) == ["1 deliver next", "2 deliver next"]


def test_rows_are_judged_by_number_whatever_order_they_are_read_in() -> None:
    assert told(judge(None, rows(3, 1, 2), policy())) == ["1 deliver next", "2 deliver next", "3 deliver next"]


def test_sequence_nrs_between_two_numbers_may_be_missing() -> None:
    assert delivered(judge(progress(1), [row(2, 1000), row(3, 5000)], policy())) == [2, 3]


# -- number and sequence_nr both at or below progress


def test_rows_at_or_below_progress_are_dropped() -> None:
    judgement = judge(progress(4), rows(3, 4, 5), policy())
    assert told(judgement) == ["3 drop already_delivered", "4 drop already_delivered", "5 deliver next"]


def test_nothing_but_known_rows_leaves_progress_as_it_is() -> None:
    assert judge(progress(4), rows(1, 2, 3, 4), policy()).progress == progress(4)


def test_without_rows_and_progress_there_is_nothing_to_say() -> None:
    judgement = judge(None, [], policy())
    assert (judgement.decisions, judgement.progress, judgement.held, judgement.holes) == ([], None, None, [])


# -- the view was renumbered


@pytest.mark.parametrize(
    ("number", "sequence_nr"),
    [(3, 41), (4, 1000), (1, 41), (5, 40), (5, 1), (9, 40)],
    ids=[
        "known number, new event",
        "last number, new event",
        "first number, new event",
        "next number, known event",
        "next, first",
        "far",
    ],
)
def test_a_number_and_a_sequence_nr_on_different_sides_of_progress_hold_the_persistence_id(number: int, sequence_nr: int) -> None:
    judgement = judge(progress(4), [row(number, sequence_nr), row(50)], policy())
    assert [d.reason for d in judgement.decisions] == [Reason.RENUMBERED, Reason.RENUMBERED]
    assert judgement.held is not None and judgement.held.rows == 2
    assert judgement.progress == progress(4)


def test_a_sequence_nr_that_falls_inside_one_run_is_renumbered() -> None:
    assert told(judge(None, [row(1, 10), row(2, 9), row(3, 30)], policy())) == [
        "1 deliver next",
        "2 hold renumbered",
        "3 hold renumbered",
    ]


def test_a_higher_sequence_nr_inside_a_closed_hole_is_renumbered_too() -> None:
    assert told(judge(progress(6, (2, 3)), [row(2, 61)], policy())) == ["2 hold renumbered"]


# -- late rows


def test_a_number_below_the_first_one_delivered_is_delivered_late() -> None:
    judgement = judge(progress(6, (1, 3)), rows(2), policy())
    assert told(judgement) == ["2 late below_first_or_closed"]
    assert judgement.progress == progress(6, (1, 1), (3, 3))


def test_a_number_inside_a_closed_hole_is_delivered_late_once() -> None:
    first = judge(progress(6, (3, 4)), rows(3, 4), policy())
    assert told(first) == ["3 late below_first_or_closed", "4 late below_first_or_closed"]
    assert first.progress == progress(6)
    assert told(judge(first.progress, rows(3, 4), policy())) == ["3 drop already_delivered", "4 drop already_delivered"]


def test_late_rows_come_together_with_next_ones() -> None:
    judgement = judge(progress(6, (3, 4)), rows(4, 7), policy())
    assert told(judgement) == ["4 late below_first_or_closed", "7 deliver next"]
    assert judgement.progress == progress(7, (3, 3))


# -- a hole


def test_events_behind_a_hole_are_held_and_those_before_it_flow() -> None:
    judgement = judge(progress(2), rows(3, 6, 7), policy())
    assert told(judgement) == ["3 deliver next", "6 hold hole", "7 hold hole"]
    assert judgement.held is not None
    assert (judgement.held.reason, judgement.held.hole) == (Reason.HOLE, Hole(4, 5, 30, 60))
    assert (judgement.held.rows, judgement.held.first_ticks) == (2, row(6).ticks)
    assert judgement.holes == [Hole(4, 5, 30, 60)]
    assert judgement.progress == progress(3)


def test_a_hole_that_filled_by_itself_is_delivered() -> None:
    first = judge(progress(2), rows(4), policy())
    assert delivered(judge(first.progress, rows(3, 4), policy())) == [3, 4]


def test_only_the_first_hole_counts() -> None:
    judgement = judge(progress(2), rows(4, 8), policy())
    assert judgement.holes == [Hole(3, 3, 20, 40)]
    assert told(judgement) == ["4 hold hole", "8 hold hole"]


# -- a hole that the journal can fill


def test_a_hole_is_healed_when_the_journal_has_exactly_the_missing_events() -> None:
    events = (row(0, 31, at=3), row(0, 35, at=4))
    judgement = judge_with_journal(progress(3), rows(6), policy(), lambda _: Evidence(events, 0, NOW))
    assert told(judgement) == ["4 deliver healed_from_journal", "5 deliver healed_from_journal", "6 deliver next"]
    assert [d.row.sequence_nr for d in judgement.decisions] == [31, 35, 60]
    assert judgement.progress == progress(6)
    assert judgement.held is None


def test_the_first_events_are_healed_from_the_journal_too() -> None:
    judgement = judge_with_journal(None, rows(2), policy(), lambda _: Evidence((row(1),), 0, NOW))
    assert told(judgement) == ["1 deliver healed_from_journal", "2 deliver next"]


@pytest.mark.parametrize(
    "events",
    [
        (),
        (row(4),),
        (row(4), row(5), row(5, 55)),
        (row(4), row(5, event_missing=True)),
        (row(4), row(5, offset_broken=True)),
        (row(4), row(4, writer="w-2")),
        (row(3), row(4)),
        (row(5), row(6)),
    ],
    ids=["none", "too few", "too many", "no event", "broken offset", "one sequence_nr twice", "from before", "from behind"],
)
def test_a_hole_that_the_journal_does_not_fill_exactly_stays(events) -> None:
    judgement = judge_with_journal(progress(3), rows(6), policy(), lambda _: Evidence(events, 0, NOW))
    assert told(judgement) == ["6 hold hole"]
    assert judgement.progress == progress(3)


def test_after_one_healed_hole_the_next_one_is_asked_for() -> None:
    asked: list[Hole] = []

    def journal(hole: Hole) -> Evidence:
        asked.append(hole)
        return Evidence((row(hole.first),), 0, NOW)

    judgement = judge_with_journal(progress(1), rows(3, 5), policy(), journal)
    assert delivered(judgement) == [2, 3, 4, 5]
    assert asked == [Hole(2, 2, 10, 30), Hole(4, 4, 30, 50)]


# -- a hole that the application deleted


def test_a_deleted_hole_is_closed_after_the_gap_timeout() -> None:
    judgement = judge_with_journal(progress(3), rows(6, 7), policy(), deleted_to(59))
    assert told(judgement) == ["6 deliver next", "7 deliver next"]
    assert judgement.closed == [Hole(4, 5, 30, 60)]
    assert judgement.progress == progress(7, (4, 5))


@pytest.mark.parametrize(
    ("deleted", "seen_at"),
    [(58, OLD), (0, OLD), (59, NOW - HOUR + 1), (59, None)],
    ids=["not wholly deleted", "nothing deleted", "too young", "never seen before"],
)
def test_a_hole_not_wholly_deleted_or_too_young_stays(deleted: int, seen_at: int | None) -> None:
    assert told(judge_with_journal(progress(3), rows(6), policy(), deleted_to(deleted, seen_at))) == ["6 hold hole"]


def test_deleted_first_events_leave_the_first_number_delivered_above_one() -> None:
    judgement = judge_with_journal(None, rows(4), policy(), deleted_to(39))
    assert judgement.progress == progress(4, (1, 3))
    assert judgement.progress is not None and judgement.progress.first_number == 4


def test_neighbouring_closed_holes_become_one_interval() -> None:
    once = close(progress(3), Hole(4, 5, 30, 60))
    assert close(once, Hole(6, 6, 59, 70)).missing == ((4, 6),)


# -- any other hole: a person closes it


def test_a_hole_closed_by_a_person_lets_what_is_behind_it_flow() -> None:
    held = judge(progress(3), rows(6), policy()).held
    assert held is not None
    judgement = judge(close(progress(3), held.hole), rows(6), policy())
    assert told(judgement) == ["6 deliver next"]
    assert judgement.progress == progress(6, (4, 5))


def test_a_missing_number_that_comes_after_a_person_closed_its_hole_is_late_not_renumbered() -> None:
    held = judge(progress(3), rows(6), policy()).held
    assert held is not None
    judgement = judge(close(progress(3), held.hole), rows(5, 6), policy())
    assert told(judgement) == ["5 late below_first_or_closed", "6 deliver next"]
    assert judgement.progress == progress(6, (4, 4))


@pytest.mark.parametrize(
    "hole", [Hole(3, 3, 20, 40), Hole(0, 0, 30, 41), Hole(6, 7, 50, 80)], ids=["delivered", "zero", "not next"]
)
def test_numbers_that_are_not_next_can_not_be_given_up(hole: Hole) -> None:
    with pytest.raises(GuardRefused, match=f"numbers {hole.first} to {hole.last} can't be given up .progress is 4"):
        close(progress(4), hole)


@pytest.mark.parametrize(
    ("doubtful", "reason"),
    [
        ([row(6), row(6, 61, writer="w-2")], Reason.TWO_EVENTS),
        ([row(6, event_missing=True)], Reason.NULL_EVENT),
        ([row(6, offset_broken=True)], Reason.BROKEN_OFFSET),
        ([row(6, 0)], Reason.BROKEN_KEY),
    ],
)
def test_a_number_given_up_by_a_person_is_dropped_when_it_is_read_again(doubtful, reason) -> None:
    before = judge(progress(5), [*doubtful, row(7)], policy())
    assert before.held is not None and before.held.reason == reason
    after = judge(close(progress(5), before.held.hole), [*doubtful, row(7)], policy())
    assert told(after) == [*["6 drop given_up"] * len(doubtful), "7 deliver next"]
    assert after.progress == progress(7, (6, 6))


def test_a_null_event_that_was_given_up_and_then_written_is_late() -> None:
    assert told(judge(progress(7, (6, 6)), rows(6), policy())) == ["6 late below_first_or_closed"]


# -- a first number above one


def test_require_one_holds_a_first_number_above_one() -> None:
    judgement = judge(None, rows(3, 4), policy(FirstSeen.REQUIRE_ONE), earlier=Earlier(None))
    assert told(judgement) == ["3 hold first_seen", "4 hold first_seen"]
    assert judgement.held is not None and judgement.held.hole == Hole(1, 2, 0, 30)
    assert judgement.progress is None


def test_assume_first_delivers_it_when_the_run_starts_in_a_past_bucket() -> None:
    judgement = judge(None, rows(3, 4), policy(FirstSeen.ASSUME_FIRST))
    assert delivered(judgement) == [3, 4]
    assert judgement.progress == progress(4, (1, 2))


def test_assume_first_holds_it_when_the_run_starts_in_the_bucket_of_now() -> None:
    assert told(judge(None, rows(3), policy(FirstSeen.ASSUME_FIRST, starts_in_past_bucket=False))) == ["3 hold first_seen"]


def test_assume_first_says_nothing_of_later_holes() -> None:
    assert told(judge(None, rows(3, 5), policy(FirstSeen.ASSUME_FIRST))) == ["3 deliver next", "5 hold hole"]


@pytest.mark.parametrize(
    ("earlier", "expected"),
    [
        (None, ["4 hold first_seen"]),
        (Earlier(None), ["4 deliver next"]),
        (Earlier(3), ["4 deliver next"]),
        (Earlier(2), ["4 hold first_seen"]),
    ],
    ids=["not scanned yet", "nothing earlier", "the neighbour is there", "the neighbour is not there"],
)
def test_scan_delivers_it_when_nothing_is_missing_before_it(earlier: Earlier | None, expected: list[str]) -> None:
    assert told(judge(None, rows(4), policy(FirstSeen.SCAN), earlier=earlier)) == expected


# -- one number twice


def test_one_event_with_two_offsets_is_delivered_at_the_earlier_one() -> None:
    early, late = row(2, at=2), row(2, at=9)
    judgement = judge(progress(1), [late, early, row(3, at=10)], policy())
    assert told(judgement) == ["2 deliver next", "2 drop duplicate_same_event", "3 deliver next"]
    assert judgement.decisions[0].row is early


def test_a_copy_read_by_a_later_run_is_dropped() -> None:
    assert told(judge(progress(2), [row(2, at=9)], policy())) == ["2 drop already_delivered"]


@pytest.mark.parametrize("other", [row(2, 21), row(2, 20, writer="w-2")], ids=["another sequence_nr", "another writer"])
def test_two_events_that_claim_one_number_are_held(other) -> None:
    judgement = judge(progress(1), [row(2), other, row(3)], policy())
    assert [d.reason for d in judgement.decisions] == [Reason.TWO_EVENTS] * 3
    assert judgement.held is not None and (judgement.held.hole.first, judgement.held.hole.last) == (2, 2)


# -- clock skew


def test_numbers_against_time_are_delivered_in_number_order_and_recorded() -> None:
    judgement = judge(None, [row(1, at=5), row(2, at=3), row(3, at=6)], policy())
    assert told(judgement) == ["1 deliver next", "2 deliver clock_skew", "3 deliver next"]
    assert [d.order_ticks for d in judgement.decisions] == [row(1, at=5).ticks, row(1, at=5).ticks, row(3, at=6).ticks]


def test_a_number_earlier_than_the_one_delivered_by_the_run_before_is_recorded_too() -> None:
    judgement = judge(progress(4), [row(5, at=2)], policy())
    assert told(judgement) == ["5 deliver clock_skew"]
    assert judgement.decisions[0].order_ticks == row(4).ticks


# -- too many missing


def test_a_hole_wider_than_the_limit_is_held_as_such() -> None:
    judgement = judge(progress(1), rows(4), policy(max_missing_to_search=1))
    assert told(judgement) == ["4 hold too_many_missing"]
    assert told(judge(progress(1), rows(4), policy(max_missing_to_search=2))) == ["4 hold hole"]


def test_a_wide_hole_is_closed_all_the_same_when_it_is_deleted() -> None:
    judgement = judge_with_journal(progress(1), rows(4), policy(max_missing_to_search=1), deleted_to(39))
    assert judgement.progress == progress(4, (2, 3))


# -- null events, broken offsets and keys


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        (row(3, event_missing=True), Reason.NULL_EVENT),
        (row(3, offset_broken=True), Reason.BROKEN_OFFSET),
        (row(3, 0), Reason.BROKEN_KEY),
    ],
)
def test_a_damaged_row_holds_itself_and_what_is_behind_it(damaged, reason) -> None:
    judgement = judge(progress(1), [row(2), damaged, row(4)], policy())
    assert told(judgement) == ["2 deliver next", f"3 hold {reason}", f"4 hold {reason}"]
    assert judgement.held is not None and judgement.held.hole.first == judgement.held.hole.last == 3


@pytest.mark.parametrize("number", [0, -1])
def test_a_number_below_one_is_held_not_taken_for_delivered(number: int) -> None:
    assert told(judge(progress(4), [row(number, 30)], policy())) == [f"{number} hold broken_key"]


def test_the_time_of_a_broken_offset_does_not_date_the_hold() -> None:
    held = judge(progress(1), [replace(row(2, offset_broken=True), ticks=-5), row(3)], policy()).held
    assert held is not None and held.first_ticks == row(3).ticks


@pytest.mark.parametrize(
    "damaged",
    [[row(4), row(4, 41)], [row(4, event_missing=True)], [row(4, offset_broken=True)]],
    ids=["two events", "null event", "broken offset"],
)
def test_a_hole_before_a_damaged_row_is_what_the_hold_waits_for(damaged) -> None:
    judgement = judge(progress(1), damaged, policy())
    assert judgement.held is not None
    assert (judgement.held.reason, judgement.held.hole) == (Reason.HOLE, Hole(2, 3, 10, 40))


def test_giving_up_a_broken_key_gives_up_the_numbers_missing_before_it() -> None:
    held = judge(progress(1), [row(4, 0)], policy()).held
    assert held is not None and held.reason == Reason.BROKEN_KEY
    assert close(progress(1), held.hole) == Progress(4, 10, progress(1).ticks, progress(1).offset, ((2, 4),))


# -- small parts


@pytest.mark.parametrize(
    ("number", "expected"),
    [(1, ((2, 4), (9, 9))), (4, ((1, 3), (9, 9))), (2, ((1, 1), (3, 4), (9, 9))), (9, ((1, 4),)), (7, ((1, 4), (9, 9)))],
)
def test_removing_a_number_splits_shrinks_or_drops_an_interval(number: int, expected: tuple) -> None:
    assert remove(((1, 4), (9, 9)), number) == expected


@pytest.mark.parametrize(("missing", "first"), [((), 1), (((1, 4),), 5), (((3, 4),), 1), (((1, 2), (4, 4)), 3)])
def test_the_first_number_delivered_follows_from_what_is_missing(missing: tuple, first: int) -> None:
    assert progress(9, *missing).first_number == first
