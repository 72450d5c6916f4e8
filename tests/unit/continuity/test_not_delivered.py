"""Progress after numbers were noted as not delivered."""

from hypothesis import given
from hypothesis import strategies as st

from tagmill.continuity.model import Progress
from tagmill.continuity.rules import without

NUMBERS = st.sets(st.integers(1, 30))


def missing(intervals: tuple[tuple[int, int], ...]) -> set[int]:
    return {number for low, high in intervals for number in range(low, high + 1)}


def test_numbers_become_intervals_beside_those_that_were_missing() -> None:
    before = Progress(9, 12, 0, "", ((2, 3),))
    assert without(before, [4, 5, 9, 7]) == Progress(9, 12, 0, "", ((2, 5), (7, 7), (9, 9)))


@given(last=st.integers(1, 20), first=NUMBERS, then=NUMBERS)
def test_what_progress_has_not_passed_is_not_noted_and_noting_twice_is_noting_once(
    last: int, first: set[int], then: set[int]
) -> None:
    once = without(without(Progress(last, 99, 0, ""), first), then)
    assert missing(once.missing) == {number for number in first | then if number <= last}
    assert without(once, then) == once and once.number == last
    assert all(low <= high for low, high in once.missing)
    assert all(one[1] + 1 < other[0] for one, other in zip(once.missing, once.missing[1:], strict=False))
    assert all(once.delivered(number) != (number in first | then) for number in range(1, last + 1))
