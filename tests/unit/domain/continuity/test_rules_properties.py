"""Properties of every journal: events come once, in order, none from behind a gap, whatever the runs cut or
repeat.
"""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tagmill.domain.continuity.model import Action, Evidence, FirstSeen, Gap, Progress, Row
from tagmill.domain.continuity.rules import close, judge
from tests.unit.domain.continuity.journals import (
    HOUR,
    NOW,
    Pipeline,
    delivered,
    judge_with_journal,
    policy,
    progress,
    row,
)

TIMES = st.integers(0, 40)
Runs = list[tuple[list[Row], list[Row]]]
quick = settings(max_examples=100)


@st.composite
def any_rows(draw: Any) -> list[Row]:
    """Draw rows that may lie in a view, sound or not."""
    return draw(
        st.lists(
            st.builds(
                row,
                st.integers(-1, 12),
                st.integers(-1, 130),
                at=TIMES,
                writer=st.sampled_from(["w-1", "w-2"]),
                event_missing=st.sampled_from([False] * 9 + [True]),
                offset_broken=st.sampled_from([False] * 9 + [True]),
            ),
            max_size=12,
        )
    )


@st.composite
def sound_rows(draw: Any, most: int = 12) -> list[Row]:
    """Draw rows with numbers 1..n, rising sequence_nrs and skewed times; some events come twice, at another
    offset.
    """
    count = draw(st.integers(1, most))
    steps = draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
    found = []
    for number in range(1, count + 1):
        for at in draw(
            st.lists(st.integers(max(0, number - 3), number + 3), min_size=1, max_size=2, unique=True)
        ):
            found.append(row(number, sum(steps[:number]), at=at))
    return found


@st.composite
def arrivals(draw: Any) -> Runs:
    """Draw runs: the rows that arrive in each, and the earlier rows that it reads again.

    In the end every row has arrived.
    """
    journal = draw(sound_rows())
    count = draw(st.integers(1, 4))
    when = draw(st.lists(st.integers(0, count - 1), min_size=len(journal), max_size=len(journal)))
    runs = []
    for run in range(count):
        new = [r for r, at in zip(journal, when, strict=True) if at == run]
        old = [r for r, at in zip(journal, when, strict=True) if at < run]
        runs.append((new, draw(st.lists(st.sampled_from(old), unique=True)) if old else []))
    return runs


progresses = (
    st.none()
    | st.builds(progress, st.integers(1, 6))
    | st.sampled_from([progress(5, (1, 2)), progress(6, (2, 3), (5, 5))])
)
policies = st.builds(
    policy,
    st.sampled_from(FirstSeen),
    starts_in_past_bucket=st.booleans(),
    max_missing_to_search=st.integers(0, 3),
)
evidence = st.builds(
    Evidence,
    st.none() | st.lists(st.integers(0, 130).map(lambda n: row(0, n)), max_size=3).map(tuple),
    st.sampled_from([0, 30, 1000]),
    st.sampled_from([None, NOW, NOW - 2 * HOUR]),
)


@given(progresses, any_rows(), policies, evidence)
@quick
def test_every_row_gets_exactly_one_decision(
    known: Progress | None, read: list[Row], chosen: Any, found: Evidence
) -> None:
    """Decide on each row read exactly once; events that the journal adds come on top."""
    judgement = judge_with_journal(known, read, chosen, lambda _: found)
    told = [d.row for d in judgement.decisions if d.reason != "healed_from_journal"]
    assert sorted(told, key=repr) == sorted(read, key=repr)


@given(progresses, any_rows(), policies, evidence)
@quick
def test_nothing_at_or_behind_what_holds_is_delivered(
    known: Progress | None, read: list[Row], chosen: Any, found: Evidence
) -> None:
    """Deliver only numbers below the gap that holds."""
    judgement = judge_with_journal(known, read, chosen, lambda _: found)
    held_rows = [d.row for d in judgement.decisions if d.action == Action.HOLD]
    assert bool(held_rows) == (judgement.held is not None)
    if judgement.held:
        assert judgement.held.rows == len(held_rows)
        assert all(number < judgement.held.gap.first for number in delivered(judgement))
        assert all(held.number > number for held in held_rows for number in delivered(judgement))


@given(progresses, any_rows(), policies, evidence)
@quick
def test_deliveries_are_unique_and_rise(
    known: Progress | None, read: list[Row], chosen: Any, found: Evidence
) -> None:
    """Numbers are delivered once, upwards from progress, which covers these numbers and no others
    afterwards.
    """
    judgement = judge_with_journal(known, read, chosen, lambda _: found)
    numbers = delivered(judgement)
    assert len(set(numbers)) == len(numbers)
    before, after = known or Progress(0, 0, 0, ""), judgement.progress or Progress(0, 0, 0, "")
    assert {n for n in range(1, 20) if after.delivered(n)} == {
        n for n in range(1, 20) if before.delivered(n)
    } | set(numbers)
    upwards = [d.row for d in judgement.decisions if d.action == Action.DELIVER]
    assert all(
        low.number < high.number and low.sequence_nr < high.sequence_nr
        for low, high in zip(upwards, upwards[1:], strict=False)
    )
    assert all(r.number > before.number and r.sequence_nr > before.sequence_nr for r in upwards)


@given(progresses, any_rows(), policies, evidence)
@quick
def test_missing_intervals_stay_sorted_disjoint_and_below_progress(
    known: Progress | None, read: list[Row], chosen: Any, found: Evidence
) -> None:
    judgement = judge_with_journal(known, read, chosen, lambda _: found)
    if judgement.progress:
        flat = [
            0,
            *(edge for low, high in judgement.progress.missing for edge in (low, high + 1)),
            judgement.progress.number + 1,
        ]
        assert all(low <= high for low, high in zip(flat, flat[1:], strict=False))
        assert all(low <= high for low, high in judgement.progress.missing)


@given(progresses, any_rows(), policies, evidence)
@quick
def test_judging_the_same_rows_again_delivers_nothing(
    known: Progress | None, read: list[Row], chosen: Any, found: Evidence
) -> None:
    first = judge_with_journal(known, read, chosen, lambda _: found)
    second = judge_with_journal(first.progress, read, chosen, lambda _: found)
    assert delivered(second) == []
    assert second.progress == first.progress


@given(progresses, any_rows(), policies, evidence)
@quick
def test_reading_order_changes_nothing(
    known: Progress | None, read: list[Row], chosen: Any, found: Evidence
) -> None:
    """Reading the rows backwards gives the same progress, gaps and deliveries."""
    one = judge_with_journal(known, read, chosen, lambda _: found)
    other = judge_with_journal(known, list(reversed(read)), chosen, lambda _: found)
    assert (one.progress, one.gaps, delivered(one)) == (other.progress, other.gaps, delivered(other))


@given(progresses, any_rows(), policies)
@quick
def test_order_ticks_rise_with_the_numbers(known: Progress | None, read: list[Row], chosen: Any) -> None:
    places = [d.order_ticks for d in judge(known, read, chosen).decisions if d.action == Action.DELIVER]
    assert places == sorted(places)


@given(arrivals())
@quick
def test_runs_deliver_what_one_run_over_everything_delivers(runs: Runs) -> None:
    """Runs without gaps deliver together what one run over all rows delivers."""
    pipeline = Pipeline(policy())
    for new, again in runs:
        pipeline.run(new, again)
    whole = judge(None, [r for new, _ in runs for r in new], policy())
    assert pipeline.in_order == delivered(whole) == list(range(1, max(pipeline.in_order) + 1))
    assert pipeline.late == []
    assert pipeline.known is not None and whole.progress is not None
    assert (pipeline.known.number, pipeline.known.sequence_nr) == (
        whole.progress.number,
        whole.progress.sequence_nr,
    )


@given(arrivals(), st.data())
@quick
def test_gaps_filled_deliver_each_event_once(runs: Runs, data: Any) -> None:
    """Filling gaps from the journal delivers every event once and in order, however late its row is."""
    journal = {r.sequence_nr: r for new, _ in runs for r in new}
    lost = data.draw(st.sets(st.sampled_from(sorted({r.number for r in journal.values()}))))

    def ask(gap: Gap) -> Evidence:
        between = [
            r for nr, r in sorted(journal.items()) if gap.after_sequence_nr < nr < gap.before_sequence_nr
        ]
        return Evidence(tuple(between), 0, NOW)

    pipeline = Pipeline(policy(), ask)
    for new, again in runs:
        pipeline.run([r for r in new if r.number not in lost], [r for r in again if r.number not in lost])
        assert not pipeline.held
    there = {r.number for r in journal.values()} - lost
    assert pipeline.in_order == list(range(1, max(there, default=0) + 1))
    assert pipeline.late == []
    assert set(pipeline.sent) <= {(r.number, r.sequence_nr) for r in journal.values()}


@given(arrivals(), st.sampled_from([FirstSeen.REQUIRE_ONE, FirstSeen.ASSUME_FIRST]))
@quick
def test_gaps_closed_deliver_each_event_once(runs: Runs, first_seen: FirstSeen) -> None:
    """Closing gaps as deleted loses no event: rows that arrive afterwards are delivered once, flagged as
    late.
    """
    pipeline = Pipeline(policy(first_seen), lambda _: Evidence(None, 10_000, NOW - 2 * HOUR))
    passed: set[int] = set()
    for new, again in runs:
        before = pipeline.known.number if pipeline.known else 0
        pipeline.run(new, again)
        passed |= {r.number for r in new if r.number <= before}
        assert not pipeline.held
    everything = {(r.number, r.sequence_nr) for new, _ in runs for r in new}
    assert sorted(pipeline.sent) == sorted(everything)
    assert pipeline.in_order == sorted(pipeline.in_order)
    assert set(pipeline.late) <= passed
    assert pipeline.known is not None and pipeline.known.missing == ()


@given(arrivals(), st.data())
@quick
def test_gaps_closed_by_person_lose_nothing(runs: Runs, data: Any) -> None:
    """Closing gaps by hand at any time neither loses nor doubles an event."""
    pipeline = Pipeline(policy())
    for new, again in runs:
        judgement = pipeline.run(new, again)
        while judgement.held and data.draw(st.booleans()):
            pipeline.known = close(pipeline.known, judgement.held.gap)
            judgement = pipeline.run([])
    pipeline.run([], pipeline.view)
    arrived = {(r.number, r.sequence_nr) for new, _ in runs for r in new}
    assert sorted(pipeline.sent) == sorted(arrived)


@given(st.integers(1, 4), st.integers(1, 3), st.data())
@quick
def test_late_numbers_come_once_in_any_order(last: int, width: int, data: Any) -> None:
    """Numbers of a closed gap are delivered late once each, in any order of arrival."""
    known = progress(last)
    held = judge(known, [row(last + width + 1)], policy()).held
    assert held is not None
    known = judge(close(known, held.gap), [row(last + width + 1)], policy()).progress
    late = data.draw(st.permutations(range(last + 1, last + width + 1)))
    for number in late:
        judgement = judge(known, [row(number)], policy())
        assert [(d.action, d.row.number) for d in judgement.decisions] == [(Action.LATE, number)]
        known = judgement.progress
        assert [d.action for d in judge(known, [row(number)], policy()).decisions] == [Action.DROP]
    assert known == progress(last + width + 1)


@pytest.mark.parametrize(
    "read", [[row(1, 1, event_missing=True), row(1, 1)], [row(1, 1), row(1, 1, event_missing=True)]]
)
def test_copies_of_one_offset_sound_one_wins(read: list[Row]) -> None:
    """Copies of one offset may lie in two buckets, one without its event.

    The sound one wins in any order of reading.
    """
    assert delivered(judge(None, read, policy())) == [1]
