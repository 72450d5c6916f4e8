"""How long work tells a person how far it is."""

from collections.abc import Callable

Tell = Callable[[str], None]


def pushing(run: int, tell: Tell) -> Callable[[int, int], None]:
    """Return a function that tells how many of a run's batches are in ClickHouse."""
    return lambda at, of: tell(f"run {run}: pushing {at} of {of}")
