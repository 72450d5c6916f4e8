"""Progress after numbers were noted as not delivered, and after a view was renumbered."""

from hypothesis import given
from hypothesis import strategies as st

from tagmill.domain.continuity.model import Progress
from tagmill.domain.continuity.rules import rebased, without

NUMBERS = st.sets(st.integers(1, 30))


def missing(intervals: tuple[tuple[int, int], ...]) -> set[int]:
    return {number for low, high in intervals for number in range(low, high + 1)}


def test_numbers_become_intervals_beside_those_that_were_missing() -> None:
    """Numbers noted as not delivered join the intervals that were missing before."""
    before = Progress(9, 12, 0, "", ((2, 3),))
    assert without(before, [4, 5, 9, 7]) == Progress(9, 12, 0, "", ((2, 5), (7, 7), (9, 9)))


@given(last=st.integers(1, 20), first=NUMBERS, then=NUMBERS)
def test_without_notes_only_passed_numbers(last: int, first: set[int], then: set[int]) -> None:
    """Numbers above progress are not noted as missing, and noting a number twice equals noting it once."""
    once = without(without(Progress(last, 99, 0, ""), first), then)
    assert missing(once.missing) == {number for number in first | then if number <= last}
    assert without(once, then) == once and once.number == last
    assert all(low <= high for low, high in once.missing)
    assert all(one[1] + 1 < other[0] for one, other in zip(once.missing, once.missing[1:], strict=False))
    assert all(once.delivered(number) != (number in first | then) for number in range(1, last + 1))


def rows(*numbers: tuple[int, int], writer: str = "w") -> list[tuple[int, int, str, str]]:
    """Return rows of a view as (number, sequence_nr, offset, writer), each with its own offset."""
    return [(number, sequence_nr, f"at {sequence_nr}", writer) for number, sequence_nr in numbers]


def events(*sequence_nrs: int) -> set[tuple[int, str]]:
    return {(sequence_nr, "w") for sequence_nr in sequence_nrs}


def test_rebased_progress_ends_at_last_delivered_event() -> None:
    """Progress over a renumbered view ends at the last delivered event; undelivered numbers below it are
    missing.
    """
    view = rows((1, 1), (2, 2), (3, 4), (4, 7), (5, 9), (6, 11))
    assert rebased(view, events(1, 2, 4, 7)) == Progress(4, 7, 0, "at 7")
    # The events with sequence_nrs 2 and 7 were withdrawn, so their numbers 2 and 4 are missing.
    assert rebased(view, events(1, 4, 9)) == Progress(5, 9, 0, "at 9", ((2, 2), (4, 4)))
    assert rebased(view, events(1, 4)) == Progress(3, 4, 0, "at 4", ((2, 2),))
    assert rebased(view, set()) is None and rebased([], events(1)) is None


def test_rebased_numbers_without_rows_counted_by_events() -> None:
    """Numbers without a row in the view are delivered if as many delivered events lie between their
    neighbours.
    """
    view = rows((3, 5), (4, 6), (7, 12))
    # Numbers 1 and 2 were cleaned up after delivery; 5 and 6 never came.
    assert rebased(view, events(2, 4, 5, 6, 12)) == Progress(7, 12, 0, "at 12", ((5, 6),))
    assert rebased(view, events(5, 6, 8, 9, 12)) == Progress(7, 12, 0, "at 12", ((1, 2),))


def test_rebased_named_row_is_the_last() -> None:
    """Progress ends at the row that a person names; undelivered numbers below it are missing."""
    view = rows((1, 1), (2, 2), (3, 4), (4, 7))
    assert rebased(view, events(1, 4, 7), (3, 4, "")) == Progress(3, 4, 0, "", ((2, 2),))
    assert rebased([], set(), (3, 4, "")) == Progress(3, 4, 0, "", ((1, 2),))


def test_rebased_number_of_two_events_needs_both() -> None:
    """Numbers that two events claim are delivered only if both events are."""
    view = rows((1, 1), (2, 2), (2, 3), (3, 4))
    assert rebased(view, events(1, 2, 4)) == Progress(3, 4, 0, "at 4", ((2, 2),))
    assert rebased(view, events(1, 2, 3, 4)) == Progress(3, 4, 0, "at 4")


def test_rebased_progress_is_of_delivered_writers() -> None:
    """Events of another writer are not delivered, although the delivered ones have the same sequence_nrs."""
    later = rows((4, 1), (5, 2), (6, 3), writer="of a later life")
    assert rebased(later, events(1, 2, 3)) is None
    assert rebased([*rows((1, 1), (2, 2), (3, 3)), *later], events(1, 2, 3)) == Progress(3, 3, 0, "at 3")
