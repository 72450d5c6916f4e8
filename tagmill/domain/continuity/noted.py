"""Compute progress from what a destination has, when the files that record it are gone. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from tagmill.domain.continuity.model import Progress
from tagmill.domain.continuity.rules import remove


def with_delivered(progress: Progress | None, rows: Sequence[tuple[int, int, str]]) -> Progress:
    """Return progress after rows (number, sequence_nr, offset), at least one, were delivered.

    Numbers that they skip become missing: a row that comes under such a number later is late.
    """
    number, missing = (progress.number, progress.missing) if progress else (0, ())
    ordered = sorted(rows)
    for next_number, _, _ in ordered:
        if next_number <= number:
            missing = remove(missing, next_number)
            continue
        if next_number > number + 1:
            missing = (*missing, (number + 1, next_number - 1))
        number = next_number
    if progress and progress.number == number:
        return replace(progress, missing=missing)
    _, sequence_nr, offset = ordered[-1]
    reached = max(sequence_nr, progress.sequence_nr if progress else 0)
    return Progress(number, reached, 0, offset, missing, progress.life_from if progress else 0)
