"""Merge progress from two records of the same deliveries, such as an older ledger's and what the destination
has.
"""

from tagmill.domain.continuity.model import Interval, Progress


def merge(ledger: Progress | None, destination: Progress) -> Progress:
    """Return progress in which a number is delivered if it is delivered in either of the two."""
    if ledger is None:
        return destination
    further = ledger if ledger.number >= destination.number else destination
    missing = _intersection(_missing_to(ledger, further.number), _missing_to(destination, further.number))
    return Progress(
        further.number, further.sequence_nr, further.ticks, further.offset, missing, ledger.life_from
    )


def _missing_to(progress: Progress, number: int) -> tuple[Interval, ...]:
    behind = ((progress.number + 1, number),) if progress.number < number else ()
    return (*progress.missing, *behind)


def _intersection(first: tuple[Interval, ...], second: tuple[Interval, ...]) -> tuple[Interval, ...]:
    both = ((max(a, c), min(b, d)) for a, b in first for c, d in second)
    return tuple(sorted((low, high) for low, high in both if low <= high))
