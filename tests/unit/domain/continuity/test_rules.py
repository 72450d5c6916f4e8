"""Rows of the continuity table (docs/continuity.md), one after the other."""

from dataclasses import replace

import pytest

from tagmill.domain.continuity.model import Earlier, Evidence, FirstSeen, Gap, Progress, Reason
from tagmill.domain.continuity.rules import close, judge, remove
from tagmill.errors import GuardRefused
from tests.unit.domain.continuity.journals import (
    HOUR,
    NOW,
    delivered,
    judge_with_journal,
    policy,
    progress,
    row,
    rows,
    told,
)

OLD = NOW - 2 * HOUR


def deleted_to(sequence_nr: int, seen_at: int | None = OLD):
    return lambda _: Evidence((), sequence_nr, seen_at)


# -- the next number


def test_judge_next_number_is_delivered() -> None:
    """Deliver the next number if its sequence_nr is higher, too."""
    judgement = judge(progress(4), rows(5, 6), policy())
    assert told(judgement) == ["5 deliver next", "6 deliver next"]
    assert judgement.progress == progress(6)
    assert judgement.held is None


def test_without_progress_number_one_is_next() -> None:
    """Expect number 1 next if there is no progress."""
    assert told(judge(None, rows(1, 2), policy())) == ["1 deliver next", "2 deliver next"]


def test_judge_takes_rows_by_number() -> None:
    """Judge rows in the order of their numbers, whatever the order of reading is."""
    assert told(judge(None, rows(3, 1, 2), policy())) == [
        "1 deliver next",
        "2 deliver next",
        "3 deliver next",
    ]


def test_sequence_nrs_between_two_numbers_may_be_missing() -> None:
    """Events without the tag take sequence_nrs, so these may jump between two numbers."""
    assert delivered(judge(progress(1), [row(2, 1000), row(3, 5000)], policy())) == [2, 3]


# -- number and sequence_nr both at or below progress


def test_rows_at_or_below_progress_are_dropped() -> None:
    judgement = judge(progress(4), rows(3, 4, 5), policy())
    assert told(judgement) == ["3 drop already_delivered", "4 drop already_delivered", "5 deliver next"]


def test_judge_known_rows_keeps_progress() -> None:
    """Rows that are delivered already leave progress unchanged."""
    assert judge(progress(4), rows(1, 2, 3, 4), policy()).progress == progress(4)


def test_judge_without_rows_decides_nothing() -> None:
    """Judging neither rows nor progress gives no decision, progress, hold or gap."""
    judgement = judge(None, [], policy())
    assert (judgement.decisions, judgement.progress, judgement.held, judgement.gaps) == ([], None, None, [])


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
def test_judge_number_contradicting_sequence_nr_holds(number: int, sequence_nr: int) -> None:
    """Numbers and sequence_nrs on different sides of progress mean a renumbered view: the persistence_id is
    held.
    """
    judgement = judge(progress(4), [row(number, sequence_nr), row(50)], policy())
    assert [d.reason for d in judgement.decisions] == [Reason.RENUMBERED, Reason.RENUMBERED]
    assert judgement.held is not None and judgement.held.rows == 2
    assert judgement.progress == progress(4)


def test_judge_falling_sequence_nr_is_renumbered() -> None:
    """Sequence_nrs that fall while numbers rise mean a renumbered view, also within one run."""
    assert told(judge(None, [row(1, 10), row(2, 9), row(3, 30)], policy())) == [
        "1 deliver next",
        "2 hold renumbered",
        "3 hold renumbered",
    ]


def test_judge_closed_gap_higher_sequence_nr_is_renumbered() -> None:
    """Numbers of a closed gap with a sequence_nr above progress mean a renumbered view, too."""
    assert told(judge(progress(6, (2, 3)), [row(2, 61)], policy())) == ["2 hold renumbered"]


# -- late rows


def test_judge_number_below_first_is_late() -> None:
    """Numbers below the first delivered one are delivered late and are not missing any longer."""
    judgement = judge(progress(6, (1, 3)), rows(2), policy())
    assert told(judgement) == ["2 late below_first_or_closed"]
    assert judgement.progress == progress(6, (1, 1), (3, 3))


def test_judge_number_in_closed_gap_late_once() -> None:
    """Numbers of a closed gap are delivered late, once."""
    first = judge(progress(6, (3, 4)), rows(3, 4), policy())
    assert told(first) == ["3 late below_first_or_closed", "4 late below_first_or_closed"]
    assert first.progress == progress(6)
    assert told(judge(first.progress, rows(3, 4), policy())) == [
        "3 drop already_delivered",
        "4 drop already_delivered",
    ]


def test_late_rows_come_together_with_next_ones() -> None:
    judgement = judge(progress(6, (3, 4)), rows(4, 7), policy())
    assert told(judgement) == ["4 late below_first_or_closed", "7 deliver next"]
    assert judgement.progress == progress(7, (3, 3))


# -- a gap


def test_judge_gap_holds_events_behind_it() -> None:
    """Events before a gap are delivered, those behind it are held."""
    judgement = judge(progress(2), rows(3, 6, 7), policy())
    assert told(judgement) == ["3 deliver next", "6 hold hole", "7 hold hole"]
    assert judgement.held is not None
    assert (judgement.held.reason, judgement.held.gap) == (Reason.GAP, Gap(4, 5, 30, 60))
    assert (judgement.held.rows, judgement.held.first_ticks) == (2, row(6).ticks)
    assert judgement.gaps == [Gap(4, 5, 30, 60)]
    assert judgement.progress == progress(3)


def test_a_gap_that_filled_by_itself_is_delivered() -> None:
    """Gaps whose rows arrive in a later run are delivered in order."""
    first = judge(progress(2), rows(4), policy())
    assert delivered(judge(first.progress, rows(3, 4), policy())) == [3, 4]


def test_only_the_first_gap_counts() -> None:
    """Report the first gap only; rows behind it are held for it."""
    judgement = judge(progress(2), rows(4, 8), policy())
    assert judgement.gaps == [Gap(3, 3, 20, 40)]
    assert told(judgement) == ["4 hold hole", "8 hold hole"]


# -- a gap that the journal can fill


def test_judge_gap_filled_from_journal_is_delivered() -> None:
    """Gaps are filled from the journal if it has exactly the missing events."""
    events = (row(0, 31, at=3), row(0, 35, at=4))
    judgement = judge_with_journal(progress(3), rows(6), policy(), lambda _: Evidence(events, 0, NOW))
    assert told(judgement) == [
        "4 deliver healed_from_journal",
        "5 deliver healed_from_journal",
        "6 deliver next",
    ]
    assert [d.row.sequence_nr for d in judgement.decisions] == [31, 35, 60]
    assert judgement.progress == progress(6)
    assert judgement.held is None


def test_judge_missing_first_events_come_from_journal() -> None:
    """Events missing before the first row are filled from the journal, too."""
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
    ids=[
        "none",
        "too few",
        "too many",
        "no event",
        "broken offset",
        "one sequence_nr twice",
        "from before",
        "from behind",
    ],
)
def test_judge_gap_not_filled_exactly_stays(events) -> None:
    """Gaps stay if the journal has more, fewer, damaged or other events than the missing ones."""
    judgement = judge_with_journal(progress(3), rows(6), policy(), lambda _: Evidence(events, 0, NOW))
    assert told(judgement) == ["6 hold hole"]
    assert judgement.progress == progress(3)


def test_judge_filled_gap_asks_for_next() -> None:
    """Filling a gap from the journal leads to the question about the next gap."""
    asked: list[Gap] = []

    def journal(gap: Gap) -> Evidence:
        asked.append(gap)
        return Evidence((row(gap.first),), 0, NOW)

    judgement = judge_with_journal(progress(1), rows(3, 5), policy(), journal)
    assert delivered(judgement) == [2, 3, 4, 5]
    assert asked == [Gap(2, 2, 10, 30), Gap(4, 4, 30, 50)]


# -- a gap that the application deleted


def test_judge_deleted_gap_is_closed_after_timeout() -> None:
    """Gaps whose events the application deleted are closed after the gap timeout."""
    judgement = judge_with_journal(progress(3), rows(6, 7), policy(), deleted_to(59))
    assert told(judgement) == ["6 deliver next", "7 deliver next"]
    assert judgement.closed == [Gap(4, 5, 30, 60)]
    assert judgement.progress == progress(7, (4, 5))


@pytest.mark.parametrize(
    ("deleted", "seen_at"),
    [(58, OLD), (0, OLD), (59, NOW - HOUR + 1), (59, None)],
    ids=["not wholly deleted", "nothing deleted", "too young", "never seen before"],
)
def test_judge_gap_partly_deleted_or_young_stays(deleted: int, seen_at: int | None) -> None:
    """Gaps stay while their events are not all deleted, or while they are younger than the gap timeout."""
    assert told(judge_with_journal(progress(3), rows(6), policy(), deleted_to(deleted, seen_at))) == [
        "6 hold hole"
    ]


def test_judge_deleted_first_events_raise_first_number() -> None:
    """Deleted first events make the first delivered number higher than 1."""
    judgement = judge_with_journal(None, rows(4), policy(), deleted_to(39))
    assert judgement.progress == progress(4, (1, 3))
    assert judgement.progress is not None and judgement.progress.first_number == 4


def test_neighbouring_closed_gaps_become_one_interval() -> None:
    """Closing neighbouring gaps leaves one missing interval."""
    once = close(progress(3), Gap(4, 5, 30, 60))
    assert close(once, Gap(6, 6, 59, 70)).missing == ((4, 6),)


# -- any other gap, which a person closes


def test_judge_gap_closed_by_person_is_passed() -> None:
    """Events behind a gap are delivered once a person has closed it."""
    held = judge(progress(3), rows(6), policy()).held
    assert held is not None
    judgement = judge(close(progress(3), held.gap), rows(6), policy())
    assert told(judgement) == ["6 deliver next"]
    assert judgement.progress == progress(6, (4, 5))


def test_judge_number_after_close_is_late() -> None:
    """Numbers that arrive after a person closed their gap are late, not renumbered."""
    held = judge(progress(3), rows(6), policy()).held
    assert held is not None
    judgement = judge(close(progress(3), held.gap), rows(5, 6), policy())
    assert told(judgement) == ["5 late below_first_or_closed", "6 deliver next"]
    assert judgement.progress == progress(6, (4, 4))


@pytest.mark.parametrize(
    "gap",
    [Gap(3, 3, 20, 40), Gap(0, 0, 30, 41), Gap(6, 7, 50, 80)],
    ids=["delivered", "zero", "not next"],
)
def test_close_numbers_not_next_is_refused(gap: Gap) -> None:
    """Refuse to give up numbers that do not follow directly on progress."""
    with pytest.raises(
        GuardRefused, match=f"numbers {gap.first} to {gap.last} can't be given up .progress is 4"
    ):
        close(progress(4), gap)


@pytest.mark.parametrize(
    ("doubtful", "reason"),
    [
        ([row(6), row(6, 61, writer="w-2")], Reason.TWO_EVENTS),
        ([row(6, event_missing=True)], Reason.NULL_EVENT),
        ([row(6, offset_broken=True)], Reason.BROKEN_OFFSET),
        ([row(6, 0)], Reason.BROKEN_KEY),
    ],
)
def test_judge_given_up_number_is_dropped(doubtful, reason) -> None:
    """Damaged rows of a number that a person gave up are dropped when they are read again."""
    before = judge(progress(5), [*doubtful, row(7)], policy())
    assert before.held is not None and before.held.reason == reason
    after = judge(close(progress(5), before.held.gap), [*doubtful, row(7)], policy())
    assert told(after) == [*["6 drop given_up"] * len(doubtful), "7 deliver next"]
    assert after.progress == progress(7, (6, 6))


def test_judge_given_up_event_written_is_late() -> None:
    """Null events that were given up and are written afterwards are delivered late."""
    assert told(judge(progress(7, (6, 6)), rows(6), policy())) == ["6 late below_first_or_closed"]


# -- a first number above one


def test_require_one_holds_a_first_number_above_one() -> None:
    """Policy require_one holds a first number above 1, even if nothing lies before it."""
    judgement = judge(None, rows(3, 4), policy(FirstSeen.REQUIRE_ONE), earlier=Earlier(None))
    assert told(judgement) == ["3 hold first_seen", "4 hold first_seen"]
    assert judgement.held is not None and judgement.held.gap == Gap(1, 2, 0, 30)
    assert judgement.progress is None


def test_assume_first_in_past_bucket_delivers() -> None:
    """Policy assume_first delivers a first number above 1 if the run starts in a past bucket."""
    judgement = judge(None, rows(3, 4), policy(FirstSeen.ASSUME_FIRST))
    assert delivered(judgement) == [3, 4]
    assert judgement.progress == progress(4, (1, 2))


def test_assume_first_in_current_bucket_holds() -> None:
    """Policy assume_first holds a first number above 1 if the run starts in the current bucket."""
    assert told(judge(None, rows(3), policy(FirstSeen.ASSUME_FIRST, starts_in_past_bucket=False))) == [
        "3 hold first_seen"
    ]


def test_assume_first_says_nothing_of_later_gaps() -> None:
    """Policy assume_first covers the first number only; later gaps are held."""
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
def test_scan_first_number_delivered_if_complete(earlier: Earlier | None, expected: list[str]) -> None:
    """Policy scan delivers a first number above 1 if the scan of earlier buckets found its neighbour, or no
    row at all.
    """
    assert told(judge(None, rows(4), policy(FirstSeen.SCAN), earlier=earlier)) == expected


# -- one number twice


def test_judge_two_offsets_of_event_takes_earlier() -> None:
    """Copies of an event at two offsets are delivered once, at the earlier offset."""
    early, late = row(2, at=2), row(2, at=9)
    judgement = judge(progress(1), [late, early, row(3, at=10)], policy())
    assert told(judgement) == ["2 deliver next", "2 drop duplicate_same_event", "3 deliver next"]
    assert judgement.decisions[0].row is early


def test_judge_copy_in_later_run_is_dropped() -> None:
    """Copies of a delivered event that a later run reads are dropped."""
    assert told(judge(progress(2), [row(2, at=9)], policy())) == ["2 drop already_delivered"]


@pytest.mark.parametrize(
    "other", [row(2, 21), row(2, 20, writer="w-2")], ids=["another sequence_nr", "another writer"]
)
def test_two_events_that_claim_one_number_are_held(other) -> None:
    judgement = judge(progress(1), [row(2), other, row(3)], policy())
    assert [d.reason for d in judgement.decisions] == [Reason.TWO_EVENTS] * 3
    assert judgement.held is not None and (judgement.held.gap.first, judgement.held.gap.last) == (2, 2)


# -- clock skew


def test_judge_clock_skew_keeps_number_order() -> None:
    """Numbers with falling times are delivered in order of number, as clock_skew, and ordered by the time of
    the row before.
    """
    judgement = judge(None, [row(1, at=5), row(2, at=3), row(3, at=6)], policy())
    assert told(judgement) == ["1 deliver next", "2 deliver clock_skew", "3 deliver next"]
    assert [d.order_ticks for d in judgement.decisions] == [
        row(1, at=5).ticks,
        row(1, at=5).ticks,
        row(3, at=6).ticks,
    ]


def test_judge_clock_skew_across_runs_is_recorded() -> None:
    """Clock skew against the last event of the run before is recorded, too."""
    judgement = judge(progress(4), [row(5, at=2)], policy())
    assert told(judgement) == ["5 deliver clock_skew"]
    assert judgement.decisions[0].order_ticks == row(4).ticks


# -- too many missing


def test_judge_wide_gap_is_too_many_missing() -> None:
    """Gaps wider than max_missing_to_search are held for a reason of their own."""
    judgement = judge(progress(1), rows(4), policy(max_missing_to_search=1))
    assert told(judgement) == ["4 hold too_many_missing"]
    assert told(judge(progress(1), rows(4), policy(max_missing_to_search=2))) == ["4 hold hole"]


def test_judge_wide_deleted_gap_is_closed() -> None:
    """Gaps above the limit are closed, too, if their events are deleted."""
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
def test_judge_damaged_row_holds_itself_and_followers(damaged, reason) -> None:
    """Damaged rows are held together with all rows behind them."""
    judgement = judge(progress(1), [row(2), damaged, row(4)], policy())
    assert told(judgement) == ["2 deliver next", f"3 hold {reason}", f"4 hold {reason}"]
    assert judgement.held is not None and judgement.held.gap.first == judgement.held.gap.last == 3


@pytest.mark.parametrize("number", [0, -1])
def test_judge_number_below_one_is_held(number: int) -> None:
    """Numbers below 1 are held as broken keys, not taken for delivered ones."""
    assert told(judge(progress(4), [row(number, 30)], policy())) == [f"{number} hold broken_key"]


def test_judge_broken_offset_dates_no_hold() -> None:
    """Holds are dated by their first row with a sound offset."""
    held = judge(progress(1), [replace(row(2, offset_broken=True), ticks=-5), row(3)], policy()).held
    assert held is not None and held.first_ticks == row(3).ticks


@pytest.mark.parametrize(
    "damaged",
    [[row(4), row(4, 41)], [row(4, event_missing=True)], [row(4, offset_broken=True)]],
    ids=["two events", "null event", "broken offset"],
)
def test_judge_gap_before_damage_comes_first(damaged) -> None:
    """Holds wait for the gap before a damaged row first."""
    judgement = judge(progress(1), damaged, policy())
    assert judgement.held is not None
    assert (judgement.held.reason, judgement.held.gap) == (Reason.GAP, Gap(2, 3, 10, 40))


def test_close_broken_key_gives_up_missing_before() -> None:
    """Giving up a broken key also gives up the numbers that are missing before it."""
    held = judge(progress(1), [row(4, 0)], policy()).held
    assert held is not None and held.reason == Reason.BROKEN_KEY
    assert close(progress(1), held.gap) == Progress(4, 10, progress(1).ticks, progress(1).offset, ((2, 4),))


# -- small parts


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1, ((2, 4), (9, 9))),
        (4, ((1, 3), (9, 9))),
        (2, ((1, 1), (3, 4), (9, 9))),
        (9, ((1, 4),)),
        (7, ((1, 4), (9, 9))),
    ],
)
def test_remove_number_changes_its_interval_only(number: int, expected: tuple) -> None:
    """Removing a number splits, shrinks or drops the interval that holds it."""
    assert remove(((1, 4), (9, 9)), number) == expected


@pytest.mark.parametrize(
    ("missing", "first"), [((), 1), (((1, 4),), 5), (((3, 4),), 1), (((1, 2), (4, 4)), 3)]
)
def test_first_number_follows_from_missing(missing: tuple, first: int) -> None:
    """Derive the first delivered number from the missing ones."""
    assert progress(9, *missing).first_number == first


def test_judge_gap_too_large_is_held() -> None:
    """A gap whose events in the journal are too large to be kept is held for that, unless it is too wide as well."""
    gap = Gap(1, 3, 0, 40)
    too_large = {gap: Evidence(None, 0, NOW, too_large=True)}
    for limit, reason in ((3, "gap_too_large"), (2, "too_many_missing")):
        chosen = policy(max_missing_to_search=limit)
        assert told(judge(None, [row(4)], chosen, too_large)) == [f"4 hold {reason}"]
