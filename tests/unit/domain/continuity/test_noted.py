"""Progress computed from delivered rows."""

import pytest

from tagmill.domain.continuity.model import Progress
from tagmill.domain.continuity.noted import with_delivered


def at(number: int, sequence_nr: int, missing: tuple[tuple[int, int], ...] = ()) -> Progress:
    return Progress(number, sequence_nr, 7, f"o{number}", missing)


@pytest.mark.parametrize(
    ("before", "numbers", "number", "missing"),
    [
        pytest.param(None, [1, 2, 3], 3, (), id="first"),
        pytest.param(None, [3, 4], 4, ((1, 2),), id="first-above-one"),
        pytest.param(at(3, 3), [4, 5], 5, (), id="goes-on"),
        pytest.param(at(3, 3), [6, 5], 6, ((4, 4),), id="behind-a-gap"),
        pytest.param(at(5, 5, ((2, 3),)), [2], 5, ((3, 3),), id="late"),
        pytest.param(at(5, 5), [4, 5], 5, (), id="noted-before"),
    ],
)
def test_with_delivered_rows_advances_progress(
    before: Progress | None, numbers: list[int], number: int, missing: tuple[tuple[int, int], ...]
) -> None:
    """Progress takes the highest number; skipped numbers are missing, and numbers noted before stay
    missing.
    """
    after = with_delivered(before, [(n, n, f"o{n}") for n in numbers])
    assert (after.number, after.sequence_nr, after.offset, after.missing) == (
        number,
        number,
        f"o{number}",
        missing,
    )
